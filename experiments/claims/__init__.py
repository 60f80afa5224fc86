"""One module per claim: a sentence, table or figure of a paper, the runs that test it, the rule that decides.

A module in this package defines ``EXPERIMENT`` and is an experiment by its own name; no other file lists it.

Claims declare what they share: `experiments.study.tuning.Tuned` (points, the grid of each, the pick on the validation
split, the seeds that are reported), `experiments.study.comparison.Comparison` (methods that race to a target accuracy)
or `experiments.study.experiment.repeated` (measurements over seeds). A claim adds its sentence, the overrides of its
runs, its rule, and the findings and figure that are special to it.
"""

import importlib
import pkgutil

from experiments.study.experiment import Experiment

CLAIMS: tuple[str, ...] = tuple(sorted(found.name for found in pkgutil.iter_modules(__path__)))


def load(name: str) -> Experiment:
    """Returns an experiment by its name.

    Raises:
      ValueError: one line, if there is none.
    """
    if name not in CLAIMS:
        raise ValueError(f"name={name!r}: must be one of {', '.join(CLAIMS)}")
    return importlib.import_module(f"experiments.claims.{name}").EXPERIMENT


def in_order() -> dict[str, Experiment]:
    """Returns all experiments, in the order of their numbers."""
    return dict(sorted(((name, load(name)) for name in CLAIMS), key=lambda item: item[1].number))
