"""What an annotation allows, for values that come from files and flags."""

import inspect
import math
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from ml_collections import ConfigDict

from reducers import blocks


def matches(annotation: Any, value: Any) -> bool:
    """Tells whether a value has the type that the annotation names, and lies in its range.

    A range is a string in interval notation inside ``Annotated``; numbers must be finite, and integers have 32 bits.

    >>> matches(Annotated[float, "[0, 1)"], 1.0), matches(int | None, None), matches(tuple[int, ...], (1, 2.5))
    (False, True, False)
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        intervals = [interval for interval in arguments[1:] if isinstance(interval, str)]
        return matches(arguments[0], value) and all(_in_interval(interval, value) for interval in intervals)
    if origin in (typing.Union, types.UnionType):
        return any(matches(option, value) for option in arguments)
    if origin is Literal:
        return any(value == option and type(value) is type(option) for option in arguments)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return all(matches(arguments[0], item) for item in value)
        return len(arguments) == len(value) and all(map(matches, arguments, value))
    if annotation is None or annotation is type(None):
        return value is None
    if annotation is float:
        return type(value) in (int, float) and blocks.fits(value)
    if annotation is int:
        return type(value) is int and blocks.fits(value)
    if annotation in (bool, str):
        return type(value) is annotation
    if origin in (dict, Mapping) or annotation in (dict, Mapping) or (inspect.isclass(origin) and origin is Mapping):
        return isinstance(value, Mapping | ConfigDict)
    return not isinstance(value, float) or math.isfinite(value)


def _in_interval(interval: str, value: Any) -> bool:
    if value is None or isinstance(value, str | tuple | list):
        return True  # of the wrong type, or optional: for the other checks to tell
    return blocks.inside(interval, value)


def describe(annotation: Any) -> str:
    """Says in words what ``matches`` allows.

    >>> describe(Annotated[int, "[1, inf)"] | None)
    'int in [1, inf) or None'
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return " in ".join([describe(arguments[0]), *(a for a in arguments[1:] if isinstance(a, str))])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(describe, arguments))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin is tuple:
        inner = [a for a in arguments if a is not Ellipsis]
        return f"a tuple of {', '.join(map(describe, inner))}"
    if annotation in (None, type(None)):
        return "None"
    return {float: "a finite float32"}.get(annotation, getattr(annotation, "__name__", str(annotation)))


def is_optional(annotation: Any) -> bool:
    """Tells whether None is allowed."""
    options = typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, types.UnionType) else ()
    return type(None) in options or annotation in (None, type(None))


def plain_type(annotation: Any) -> type:
    """Returns the Python type that a flag's text is parsed to: the first one that the annotation names."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return plain_type(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return plain_type(next(a for a in arguments if a is not type(None)))
    if origin is Literal:
        return type(arguments[0])
    if origin is not None:
        return origin if inspect.isclass(origin) else object
    return annotation if annotation in (int, float, bool, str, tuple) else object
