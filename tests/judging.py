"""One way to ask a claim what it says of rows, and what it said of many sets of them, as it is kept in tests/golden."""

import gzip
import json
import math

from tests import ROOT

FOLDER = ROOT / "tests" / "golden" / "verdicts"
DIGITS = 10  # of kept numbers


def judge(claim, rows):
    """Returns the word of the verdict on rows, and each test: p, both ends of the interval, and the runs a side."""
    found = claim.judge(claim.frame(rows))
    return found.word, [numbers(test) for test in found.tests]


def numbers(test):
    """The numbers of a test that are kept."""
    return [*(float(f"{value:.{DIGITS}g}") for value in (test.p, test.low, test.high)), *test.n]


def agree(one, other):
    """Returns whether the numbers of two tests are equal but for rounding; intervals may end in a rounding error."""
    return len(one) == len(other) and all(
        math.isclose(a, b, rel_tol=1e-7, abs_tol=1e-10) or (math.isnan(a) and math.isnan(b))
        for a, b in zip(one, other, strict=True)
    )


def kept(name):
    """Returns the sets of a claim that are kept, each with the changes that make it, the word and the tests."""
    return json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))


def keep(name, sets):
    """Writes the sets of a claim, one a line."""
    text = ",\n".join(json.dumps(one, separators=(",", ":")) for one in sets)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(f"[\n{text}\n]\n".encode(), 9, mtime=0))
