"""From the signature of an optax function to the schema of a config block, and back: checking what a config gives."""

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import jax.numpy as jnp

from reducers import blocks

Masked = Literal["all", "weights"]
"""Which leaves a decay or a trust ratio is for: all of them, or those with two or more dimensions."""

Ranges = Mapping[str, tuple[Callable[[Any], bool], str]]
"""Parameter name -> (is the value allowed?, what is allowed, in words)."""

AT_LEAST_0 = (lambda value: value >= 0, "must be at least 0")
ABOVE_0 = (lambda value: value > 0, "must be above 0")
UNIT_OPEN = (lambda value: 0 <= value < 1, "must be in [0, 1)")
UNIT = (lambda value: 0 <= value <= 1, "must be in [0, 1]")

_NOTHING = inspect.Parameter.empty


def _members(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union, or the hint itself as the only one."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def takes_mask(name: str) -> bool:
    """Whether optax expects a mask under this name."""
    return name == "mask" or name.endswith("_mask")


def takes_dtype(name: str) -> bool:
    """Whether optax expects a dtype under this name."""
    return name.endswith("_dtype") or name.startswith("dtype_")


def config_parameter(parameter: inspect.Parameter) -> inspect.Parameter | None:
    """Returns the parameter as a config may give it, keyword-only and plainly annotated; None if a config cannot.

    Numbers, schedules and arrays of optax's unions become float, or int where the default is one; dtypes become names;
    masks become "all" (optax's default) or "weights". Callables, pytrees and transformations have no such form.
    """
    name, default, hint = parameter.name, parameter.default, parameter.annotation
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return None
    members = set(_members(hint))
    optional = types.NoneType in members or default is None
    members.discard(types.NoneType)
    plain: Any
    if takes_mask(name):
        if default is not None and default is not True:  # a mask that must be given is a tree of flags
            return None
        plain, optional, default = Masked, False, "all"
    elif takes_dtype(name):
        plain, default = str, default if default is None or default is _NOTHING else jnp.dtype(default).name
    elif isinstance(default, (bool, int, float, str)) and typing.get_origin(hint) is not Literal:
        plain = type(default)
    elif typing.get_origin(hint) is Literal or members in ({bool}, {int}, {str}):
        plain = hint if typing.get_origin(hint) is Literal else members.pop()
    elif float in members:
        plain = float
    else:
        return None
    annotation = plain | None if optional else plain
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def config_signature(function: Callable, *, leave_out: Iterable[str] = ()) -> inspect.Signature | None:
    """Returns the signature of `function` as a config block's schema; None where a required parameter has no form."""
    kept = []
    for parameter in inspect.signature(function).parameters.values():
        plain = None if parameter.name in leave_out else config_parameter(parameter)
        if plain is not None:
            kept.append(plain)
        elif parameter.name not in leave_out and parameter.default is _NOTHING:
            return None
    return inspect.Signature(kept)


def check(arguments: Mapping[str, Any], *, signature: inspect.Signature, ranges: Ranges) -> dict[str, Any]:
    """Checks names, types and ranges of a block's arguments.

    A range does not hold for a function whose own default breaks it: `b2` is below 1 for Adam, and 1 for SM3.

    Returns:
        The arguments, whole numbers made floats where floats are meant.

    Raises:
        ValueError: one line with the key, the value and what is allowed.
    """
    parameters = signature.parameters
    for key, value in arguments.items():
        if key not in parameters:
            raise ValueError(f"{key}={value!r}: not a known key; {suggest(key, parameters)}")
    for key, parameter in parameters.items():
        if parameter.default is _NOTHING and key not in arguments:
            raise ValueError(f"{key}: missing; it has no default")
    checked = {}
    for key, value in arguments.items():
        checked[key] = value = _typed(key, value, annotation=parameters[key].annotation)
        allowed, words = ranges.get(key, (None, ""))
        default = parameters[key].default
        default_breaks_it = isinstance(default, (int, float)) and allowed is not None and not allowed(default)
        if allowed is not None and value is not None and not default_breaks_it and not allowed(value):
            raise ValueError(f"{key}={value!r}: {words}")
        if takes_dtype(key) and value is not None:
            _check_dtype(key, value)
    return checked


def _typed(key: str, value: Any, *, annotation: Any) -> Any:
    """Returns the value, of the type of the annotation; raises ValueError if it is of another."""
    if typing.get_origin(annotation) is Literal:
        if value not in typing.get_args(annotation):
            raise ValueError(f"{key}={value!r}: must be one of {', '.join(map(repr, typing.get_args(annotation)))}")
        return value
    members = _members(annotation)
    if value is None and types.NoneType in members:
        return None
    for member in members:
        origin = typing.get_origin(member)
        if member is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            if not blocks.fits(value):
                raise ValueError(f"{key}={value!r}: must be finite")
            return float(value)
        if origin is None and isinstance(value, member) and (member is bool or not isinstance(value, bool)):
            return value
        if origin is Mapping and hasattr(value, "keys"):
            return value
        if origin is tuple and isinstance(value, (tuple, list)):
            inner = typing.get_args(member)[0]
            return tuple(_typed(f"{key}[{i}]", item, annotation=inner) for i, item in enumerate(value))
    names = " or ".join("None" if m is types.NoneType else getattr(m, "__name__", str(m)) for m in members)
    raise ValueError(f"{key}={value!r}: must be {names}")


def _check_dtype(key: str, value: str) -> None:
    try:
        known = value.isidentifier() and jnp.issubdtype(jnp.dtype(value), jnp.floating)  # NumPy parses other words
    except TypeError:
        known = False
    if not known:
        raise ValueError(f"{key}={value!r}: must be a floating-point type such as 'bfloat16' or 'float32'")


def suggest(word: str, words: Iterable[str]) -> str:
    """Returns "did you mean 'x'?" for the nearest words, or the list of all where none is near."""
    known = sorted(words)
    near = difflib.get_close_matches(word, known, n=3)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"allowed: {', '.join(known) or 'none'}"
