"""One module a claim: a table or figure of a paper, the runs that test it, the rule that decides.

A module here that holds ``EXPERIMENT`` is an experiment by its own name; nothing else lists it.
"""

import importlib
import pkgutil

from experiments.experiment import Experiment

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
