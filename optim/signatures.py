"""The signature of an optax function, as the schema of a config block."""

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

import jax.numpy as jnp

from reducers import registry

Masked = Literal["all", "weights"]
"""Which leaves a decay or a trust ratio applies to: all of them, or those with two or more dimensions."""

FloatDtype = Literal["bfloat16", "float16", "float32"]


def takes_mask(name: str) -> bool:
    """Returns whether optax expects a mask under this name; our own may have a pattern of leaf names there."""
    return name == "mask" or name.endswith("_mask")


def config_parameter(parameter: inspect.Parameter, *, interval: str | None = None) -> inspect.Parameter | None:
    """Returns the parameter as a key of a config, keyword-only and plainly annotated; None if a config cannot hold it.

    An annotation of our own that has a range stays. Numbers, schedules and arrays of optax's unions become float, or
    int where the default is one; dtypes become names; masks become "all" (optax's default) or "weights". A tuple of
    floats stays one. Callables, pytrees and transformations have no such form.

    Args:
        parameter: a parameter of an optax function.
        interval: the range of its values, or of each value of a tuple. It is dropped if the default lies outside: `b2`
            is below 1 for Adam, and 1 for SM3.
    """
    name = parameter.name
    default = parameter.default
    hint = parameter.annotation
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return None
    is_literal = typing.get_origin(hint) is Literal
    members = set(typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,))
    is_optional = types.NoneType in members or default is None
    members.discard(types.NoneType)
    annotation: Any
    if takes_mask(name) and hint is not str:  # a string is a pattern of leaf names
        if default is not None and default is not True:  # a mask that must be given is a tree of flags
            return None
        annotation = Masked
        is_optional = False
        default = "all"
    elif typing.get_origin(hint) is Annotated:
        annotation, interval = hint, None
    elif name.endswith("_dtype") or name.startswith("dtype_"):
        annotation = FloatDtype
        default = default if default in (None, parameter.empty) else jnp.dtype(default).name
    elif isinstance(default, tuple) and default and all(isinstance(item, float) for item in default):
        item = float if interval is None else Annotated[float, interval]
        annotation, interval = tuple[(item,) * len(default)], None  # type: ignore[misc]
    elif is_literal or members in ({bool}, {int}, {str}):
        annotation = hint if is_literal else members.pop()
    elif isinstance(default, (bool, int, float, str)):
        annotation = type(default)
    elif float in members:
        annotation = float
    else:
        return None
    is_number = isinstance(default, (int, float))
    if interval is not None and not (is_number and not registry.inside(interval, default)):
        annotation = Annotated[annotation, interval]
    annotation = annotation | None if is_optional else annotation
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def config_parameters(
    function: Callable, *, intervals: Mapping[str, str], leave_out: Iterable[str] = ()
) -> dict[str, inspect.Parameter] | None:
    """Returns the parameters of `function` that a config can hold; None where a required one has no such form.

    Args:
        function: a function of optax.
        intervals: parameter name -> range of its values.
        leave_out: parameters that the caller takes care of.
    """
    kept = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in leave_out:
            continue
        plain = config_parameter(parameter, interval=intervals.get(name))
        if plain is not None:
            kept[name] = plain
        elif parameter.default is parameter.empty:
            return None
    return kept
