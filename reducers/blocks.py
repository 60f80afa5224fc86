"""A name with options, from a config or a command line: found in a registry, checked by the signature, and called."""

import ast
import difflib
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

MAX_FLOAT32 = (2 - 2**-23) * 2.0**127


def find(registry: Mapping[str, Callable], name: str) -> Callable:
    """Returns what a registry holds under a name.

    Raises:
      ValueError: if it holds nothing there; says what there is.

    >>> find({"mean": len}, "maen")
    Traceback (most recent call last):
    ValueError: name='maen': did you mean 'mean'? allowed: mean
    """
    if name not in registry:
        close = difflib.get_close_matches(name, registry, n=1) if isinstance(name, str) else []
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"name={name!r}: {hint}allowed: {', '.join(sorted(registry))}")
    return registry[name]


def build(block: Mapping[str, Any] | str, *, lookup: Callable[[str], Callable], key: str = "", **given: Any) -> Any:
    """Calls the function that a block names, with the block's other keys as its keyword arguments.

    Args:
      block: a name, or {"name": ..., option: value, ...}.
      lookup: name -> function; raises ValueError for a name that it does not know.
      key: where the block stands, put before what a message says: "combine" makes it "combine.num_trimmed=...".
      **given: what the program supplies; not options.

    Returns:
      What the function returns.

    Raises:
      ValueError: one line, for a name, an option or a value that makes no sense.

    >>> def scaled(*, factor: Annotated[float, "(0, inf)"] = 1.0):
    ...   return 10 * factor
    >>> build({"name": "scaled", "factor": 3}, lookup={"scaled": scaled}.get)
    30
    >>> build({"name": "scaled", "factor": -3}, lookup={"scaled": scaled}.get, key="base")
    Traceback (most recent call last):
    ValueError: base.factor=-3: must be float in (0, inf)
    """
    options = {"name": block} if isinstance(block, str) else {k: block[k] for k in block}
    try:
        if "name" not in options:
            raise ValueError("name: missing")
        function = lookup(options.pop("name"))
        check(function, options, given=given)
        return function(**given, **options)
    except ValueError as error:
        raise ValueError(f"{key}.{error}" if key else str(error)) from None


def check(function: Callable, options: Mapping[str, Any], *, given: Mapping[str, Any]) -> None:
    """Checks that a function has these options, lacks none, and that numbers are of their type and in their range."""
    parameters = {k: p for k, p in inspect.signature(function, eval_str=True).parameters.items() if k not in given}
    for key in options:
        if key not in parameters:
            raise ValueError(f"{key}: unknown option; allowed: {', '.join(parameters) or 'none'}")
    for key, parameter in parameters.items():
        if key not in options and parameter.default is parameter.empty:
            raise ValueError(f"{key}: missing")
        if key in options:
            check_number(key, options[key], annotation=parameter.annotation)


def check_number(key: str, value: Any, *, annotation: Any) -> None:
    """Checks a number by ``Annotated[float, "[0, 1)"]``; what is annotated otherwise is left to the function."""
    for option in (annotation, *typing.get_args(annotation)):  # itself, or what may also be None
        if value is None or typing.get_origin(option) is not Annotated:
            continue
        kind, *intervals = typing.get_args(option)
        allowed = (int,) if kind is int else (int, float)
        good = type(value) in allowed and fits(value) and all(inside(i, value) for i in intervals)
        if not good:
            raise ValueError(f"{key}={value!r}: must be {' in '.join([kind.__name__, *intervals])}")
        return


def fits(value: float) -> bool:
    """Tells whether a program of JAX can hold a number: an integer of 32 bits, signed or not, or a finite float32.

    >>> fits(2**32 - 1), fits(2**32), fits(1e38), fits(1e39), fits(float("nan"))
    (True, False, True, False, False)
    """
    return -(2**31) <= value < 2**32 if isinstance(value, int) else abs(value) <= MAX_FLOAT32


def inside(interval: str, value: float) -> bool:
    """Tells whether a number lies in an interval.

    >>> inside("[0, 1)", 0), inside("[0, 1)", 1), inside("(0, inf)", 0)
    (True, False, False)
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    return (low <= value if interval[0] == "[" else low < value) and (
        value <= high if interval[-1] == "]" else value < high
    )


def parse_options(arguments: Sequence[str]) -> dict[str, Any]:
    """Reads ``--key=value`` as options; a value is a Python literal, or else a string.

    >>> parse_options(["--sigma=0.5", "--base={'name': 'constant'}", "--path=a.csv"])
    {'sigma': 0.5, 'base': {'name': 'constant'}, 'path': 'a.csv'}
    """
    options = {}
    for argument in arguments:
        key, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not equals or not key.isidentifier():
            raise ValueError(f"{argument!r}: must be --key=value")
        options[key] = literal(text)
    return options


def literal(text: str) -> Any:
    """Reads a value: a Python literal, or else a string.

    >>> literal("0.5"), literal("layer")
    (0.5, 'layer')
    """
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return text
