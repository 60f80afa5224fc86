"""Finding things by the name that a config gives them."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def find(registry: Mapping[str, T], name: str) -> T:
    """Returns what a name stands for.

    Raises:
      ValueError: if nothing has that name; says what has.

    >>> find({"mlp": 1, "lenet5": 2}, "lenet")
    Traceback (most recent call last):
    ValueError: name='lenet': did you mean 'lenet5'? allowed: lenet5, mlp
    """
    if name not in registry:
        close = difflib.get_close_matches(name, registry, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"name={name!r}: {hint}allowed: {', '.join(sorted(registry))}")
    return registry[name]
