"""Reducers to measure, with their options, such as ``adasum:algorithm=gather,granularity=model``."""

import functools
import inspect
import re
import typing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import optax

import reducers
from configs import annotations
from reducers import blocks

BASELINE = "mean"


class Candidate(NamedTuple):
    """A reducer with its options.

    Attributes:
      label: the reducer as written on the command line.
      make: ``axis_name=... -> reducer``; raises ValueError for options that make no sense.
    """

    label: str
    make: Callable[..., optax.GradientTransformationExtraArgs]


def parse(label: str) -> Candidate:
    """Parses ``name`` or ``name:key=value,...``.

    Raises:
      ValueError: one line, for an unknown name or key, or a value that is not allowed.

    >>> parse("trimmed_mean:num_trimmed=2").make(axis_name="worker").init(None)
    EmptyState()
    """
    name, _, text = label.partition(":")
    parameters = _options(name)
    options: dict[str, Any] = {}
    for part in re.split(r",(?=\w+=)", text) if text else []:
        key, equals, value = part.partition("=")
        if not equals or key not in parameters:
            raise ValueError(
                f"reducers={label!r}: {key!r} is no option of {name}; it has {', '.join(parameters) or 'none'}"
            )
        options[key] = blocks.literal(value)
        annotation = parameters[key].annotation
        if not annotations.matches(annotation, options[key]):
            raise ValueError(f"reducers={label!r}: {key} must be {annotations.describe(annotation)}")
    missing = [k for k, p in parameters.items() if p.default is inspect.Parameter.empty and k not in options]
    if missing:
        raise ValueError(f"reducers={label!r}: {missing[0]} is missing: {name}:{missing[0]}=...")
    make = functools.partial(reducers.make, name, **options)
    make(axis_name="worker")
    return Candidate(label, make)


def split(text: str) -> list[str]:
    """Splits candidates at commas; a part that does not begin with a name is an option of the candidate before it.

    >>> split("adasum:algorithm=gather,granularity=model,sum")
    ['adasum:algorithm=gather,granularity=model', 'sum']
    """
    return re.split(r",(?=\w+(?:[:,]|$))", text)


def defaults() -> list[Candidate]:
    """Returns every reducer of the registry; a reducer with an ``algorithm`` option comes once for each algorithm.

    A reducer that needs an option is included. It raises when it is made, and is then listed with the reason.

    >>> [candidate.label for candidate in defaults()][1:3]
    ['adasum:algorithm=auto', 'adasum:algorithm=gram']
    """
    labels = []
    for name in reducers.REDUCERS:
        algorithm = _options(name).get("algorithm")
        values: Sequence[str] = typing.get_args(algorithm.annotation) if algorithm else ()
        labels += [f"{name}:algorithm={value}" for value in values] or [name]
    return [Candidate(label, functools.partial(_made_when_used, label)) for label in labels]


def _made_when_used(label: str, *, axis_name: reducers.AxisName) -> optax.GradientTransformationExtraArgs:
    return parse(label).make(axis_name=axis_name)


def _options(name: str) -> dict[str, inspect.Parameter]:
    signature = inspect.signature(reducers.lookup(name), eval_str=True)
    return {key: parameter for key, parameter in signature.parameters.items() if key not in reducers.GIVEN}
