"""Parameters that a run leaves as they are: they stand beside those that it trains, in a field of its state."""

import re
from collections.abc import Sequence
from typing import Any

from reducers.leaves import joined, kept, leaf_names

_MAX_SHOWN = 3


def split(params: Any, pattern: str) -> tuple[Any, Any]:
    """Returns the parameters that are trained, and those that are frozen, each with None for the leaves of the other.

    Args:
      params: all parameters, or their shapes.
      pattern: a regular expression, searched in names such as "Dense_0/kernel"; "" freezes nothing, and the second
        result is None.

    Raises:
      ValueError: one line, if no leaf matches, or all do.

    >>> split({"Embed_0": {"embedding": 1.0}, "head": 2.0}, "^Embed")
    ({'Embed_0': {'embedding': None}, 'head': 2.0}, {'Embed_0': {'embedding': 1.0}, 'head': None})
    """
    if not pattern:
        return params, None
    is_frozen = matching(leaf_names(params), pattern)
    if all(is_frozen):
        raise ValueError(f"{pattern!r}: matches all parameters, which leaves none to train")
    return kept(params, [not frozen for frozen in is_frozen]), kept(params, is_frozen)


def join(trained: Any, frozen: Any) -> Any:
    """Returns all parameters.

    >>> join({"a": 1.0, "b": None}, {"a": None, "b": 2.0})
    {'a': 1.0, 'b': 2.0}
    """
    return trained if frozen is None else joined(trained, frozen)


def matching(names: Sequence[str], pattern: str) -> list[bool]:
    """Returns, for each parameter's name, whether the pattern is found in it.

    Raises:
      ValueError: one line, if it is found in none, or is not a regular expression.

    >>> matching(["Embed_0/embedding", "Dense_0/bias"], "Embed.*")
    [True, False]
    """
    try:
        found = [re.search(pattern, name) is not None for name in names]
    except re.error as error:
        raise ValueError(f"{pattern!r}: is not a regular expression: {error}") from None
    if not any(found):
        more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
        raise ValueError(f"{pattern!r}: matches no parameter; they are {', '.join(names[:_MAX_SHOWN])}{more}")
    return found
