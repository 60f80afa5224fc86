"""One folder per claim: a sentence, table or figure of a paper, the runs that test it, the rule that decides.

A folder in this package with a ``claim.py`` is a claim by its own name; no other file lists it. It holds

    claim.md       heading, sentence, source, topic, rule, notes
    claim.py       the rest, as ``CLAIM``
    rows.jsonl     published rows, with report.md and figure.png, which follow from them, and log.jsonl

Claims declare what they share: `experiments.study.tuning.Tuned` (points, the grid of each, the pick on the validation
split, the seeds that are reported), `experiments.study.race.Race` (methods that race to a target accuracy) or
`experiments.study.run.repeated` (measurements over seeds). A claim adds the overrides of its runs, and a function
``verdict``, which decides by the rule of the prose from a frame of the reported runs: `experiments.study.inference`
has the tests, `experiments.study.verdict` the four words, `experiments.study.figures` the stock figures.
"""

import importlib
from pathlib import Path

from experiments.study.claim import Claim
from runs import environment

CLAIMS: tuple[str, ...] = tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/claim.py")))


def load(name: str) -> Claim:
    """Returns a claim by its name.

    Raises:
      ValueError: one line, if there is none.
    """
    if name not in CLAIMS:
        raise ValueError(f"name={name!r}: must be one of {', '.join(CLAIMS)}")
    return importlib.import_module(f"experiments.claims.{name}.claim").CLAIM


def code_of(name: str) -> str:
    """Returns twelve hexadecimal digits of a hash of a claim's own Python, for the record of each run."""
    folder = Path(__file__).parent / name
    return environment.hash_of(sorted(folder.glob("**/*.py")), root=folder)


def in_order() -> dict[str, Claim]:
    """Returns all claims, in the order of their numbers."""
    return dict(sorted(((name, load(name)) for name in CLAIMS), key=lambda item: item[1].prose.number))
