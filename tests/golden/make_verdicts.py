"""Records what a claim says of many sets of rows: python -m tests.golden.make_verdicts CLAIM..., or all claims.

The sets are the published rows, thirty that are disturbed at random, and pairs of sets on both sides of each threshold
that is found: a quantity of some runs is multiplied by a factor, and the factor at which a test or a bound ceases to
hold, or the word becomes another one, is found by bisection. So that thresholds show that the published rows are too
far from, this is done from other rows, too: those at which most parts of the rule hold.
"""

import math
import random
import re
import sys

from experiments import claims
from experiments.execution import results
from tests import disturbed_rows, judging

DISTURBED, NOT_FINITE = {"hemingway": 6}, {"hemingway": 2}  # numbers of sets, where they are not 30 and up to 16
ASKED = {"hemingway": 16, "staleness_error": 300, "outer_merge": 300}
MOST_ASKED = 600  # times that a claim is asked in the search
FACTORS = (0.1, 0.7, 0.95, 1.0, 1.05, 1.4, 10.0)
WIDTH = 1e-4  # how near to each other the two factors are, relative
EACH = 2  # pairs for each threshold
ORDER = ("not tested", "not supported at this scale", "by construction", "supported at this scale")


def flags(claim, rows):
    """What the verdict on rows rests on: the word, the number of tests, and for each test and bound if it holds."""
    found = claim.judge(claim.frame(rows))
    bounds = tuple(word == "holds" for word in re.findall(r", (holds|fails)\b", found.because))
    return (found.word, len(found.tests), *(test.p < 0.05 for test in found.tests), *bounds)


def crossings(before, after):
    """The thresholds between two sets of rows, by name; a bound is one where the word changes with it."""
    words = "" if before[0] == after[0] else f"{before[0]} to {after[0]}"
    if before[1] != after[1]:
        yield words or "number of tests"
        return
    flipped = [i for i, pair in enumerate(zip(before, after, strict=False)) if i > 1 and pair[0] != pair[1]]
    yield from (f"{words} {i}" for i in flipped if words or i < 2 + before[1])
    if words and not flipped:
        yield words


def aimed(claim, rows, *, name):
    """Returns changes in pairs on both sides of thresholds."""
    draw, most, asked = random.Random(name), ASKED.get(name, MOST_ASKED), 0
    aims = list(disturbed_rows.aims(claim, rows))
    found, seen = [], {}

    def at(changes):
        nonlocal asked
        asked += 1
        try:
            return flags(claim, disturbed_rows.changed(claim, rows, changes))
        except Exception:  # rows that no code can read are no set
            return None

    start, best, stages = [], at([]), 0
    while asked < most and stages < 20:
        draw.shuffle(aims)
        aims.sort(key=lambda aim: aim[2] != "end")  # most rules look at the end
        climbed, until = None, asked + most / 8
        for where, path, part in aims:
            if asked >= until:
                break
            scale = lambda factor: [*start, ["scale", where, path, part, factor]]  # noqa: B023, E731
            all_flags = [best if factor == 1 else at(scale(factor)) for factor in FACTORS]
            for low, high, one, other in zip(FACTORS, FACTORS[1:], all_flags, all_flags[1:], strict=False):
                if one is None or other is None or one == other:
                    continue
                if all(seen.get(crossing, 0) >= EACH for crossing in crossings(one, other)):
                    continue
                while high / low > 1 + WIDTH:
                    middle = (low * high) ** 0.5
                    if (flag := at(scale(middle))) == one:
                        low = middle
                    elif flag is None:
                        break
                    else:
                        high, other = middle, flag
                low, high = float(f"{low:.6g}"), float(f"{high:.6g}")
                one, other = at(scale(low)), at(scale(high))
                if one is None or other is None or one == other:
                    continue
                for crossing in crossings(one, other):
                    seen[crossing] = seen.get(crossing, 0) + 1
                found += [scale(low), scale(high)]
            for factor, flag in zip(FACTORS, all_flags, strict=True):
                if flag and rank(flag) > rank(climbed[1] if climbed else best):
                    climbed = scale(factor), flag
        start, best = climbed or ([], at([]))
        stages += 1
    return found, seen


def rank(flag):
    return ORDER.index(flag[0]), sum(flag[2:])


def record(name):
    """Writes the sets of a claim."""
    claim, rows = claims.load(name), results.published(name)
    changes = [[], *(disturbed_rows.disturbances(claim, rows, seed=seed) for seed in range(DISTURBED.get(name, 30)))]
    changes += [[["set", at, [], 0, math.nan]] for at in disturbed_rows.points(claim, rows)[: NOT_FINITE.get(name, 16)]]
    pairs, seen = aimed(claim, rows, name=name)
    sets = []
    for change in [*changes, *pairs]:
        try:
            word, tests = judging.judge(claim, disturbed_rows.changed(claim, rows, change))
        except Exception as error:  # it is no set of whole rows
            print(f"{name}: {change}: {error!r}", file=sys.stderr)
            continue
        sets.append({"changes": change, "word": word, "tests": tests})
    judging.keep(name, sets)
    words = {one["word"] for one in sets}
    size = (judging.FOLDER / f"{name}.json.gz").stat().st_size
    print(f"{name}: {len(sets)} sets, {len(pairs)} aimed at {len(seen)}: {seen}; {words}; {size:,} bytes", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or claims.in_order():
        record(name)
