"""Reducers to measure, with their options, such as ``adasum:algorithm=gather,granularity=model``."""

import functools
import typing
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import optax

import reducers
from benchmarks.kit.leaves import Leaves
from benchmarks.kit.result import Target
from reducers import registry
from reducers.traffic import Traffic

BASELINE = "mean"


class Candidate(NamedTuple):
    """A reducer with its options.

    Attributes:
      label: the reducer as written on the command line.
      make: ``axis_name=... -> reducer``; raises ValueError for invalid options.
      target: the bound for its time over the mean's, or None.
    """

    label: str
    make: Callable[..., optax.GradientTransformationExtraArgs]
    target: Target | None = None

    def traffic(self, leaves: Leaves, *, num_workers: int) -> Traffic:
        """Returns what each of these workers sends in a call, counted in the traced program."""
        arrived = np.arange(1, num_workers + 1, dtype=np.float32)
        reducer = optax.with_extra_args_support(self.make(axis_name="worker"))
        return reducers.traffic(reducer, leaves, axis_sizes={"worker": num_workers}, arrival_seconds=arrived)


def parse(label: str) -> Candidate:
    """Parses ``name`` or ``name:key=value,...``.

    Raises:
      ValueError: one line, if the name or a key is unknown, or a value is not allowed.

    >>> parse("trimmed_mean:num_trimmed=2").make(axis_name="worker").init(None)
    EmptyState()
    """
    try:
        block = registry.parse_block(label)
        reducers.REDUCERS.check(block)
    except ValueError as error:
        raise ValueError(f"reducers={label!r}: {error}") from None
    make = functools.partial(reducers.make, block.pop("name"), **block)
    make(axis_name="worker")
    return Candidate(label, make)


def defaults() -> list[Candidate]:
    """Returns every reducer of the registry; a reducer with an ``algorithm`` option comes once for each algorithm.

    A reducer that needs an option is included. It raises when it is made, and is then listed with the reason.

    >>> [candidate.label for candidate in defaults() if candidate.label.startswith("adasum")]
    ['adasum:algorithm=gram', 'adasum:algorithm=halving', 'adasum:algorithm=gather']
    """
    labels = []
    for name in reducers.REDUCERS:
        algorithm = reducers.REDUCERS.parameters(name).get("algorithm")
        values: Sequence[str] = typing.get_args(algorithm.annotation) if algorithm else ()
        labels += [f"{name}:algorithm={value}" for value in values] or [name]
    return [Candidate(label, lambda axis_name, label=label: parse(label).make(axis_name=axis_name)) for label in labels]
