"""Suggestions for misspelt words."""

import difflib
from collections.abc import Iterable
from typing import Any

_MOST_CHARACTERS = 200  # of a list of words


def suggest(word: Any, words: Iterable[str]) -> str:
    """Returns "did you mean 'x'?" for the word nearest to a misspelt one, or all words if none is near.

    A long list has the words that are most alike, and the number of the others.

    >>> suggest("maen", ["mean", "sum"]), suggest("adam", ["mean", "sum"])
    ("did you mean 'mean'?", 'allowed: mean, sum')
    """
    words = sorted(words)
    near = difflib.get_close_matches(word, words, n=1) if isinstance(word, str) else []
    if near:
        return f"did you mean {near[0]!r}?"
    listed = ", ".join(words)
    if len(listed) > _MOST_CHARACTERS:
        nearest = sorted(words, key=lambda one: -difflib.SequenceMatcher(None, str(word), one).ratio())
        count = next(i for i in range(len(words)) if len(", ".join(nearest[: i + 1])) > _MOST_CHARACTERS)
        listed = f"{', '.join(nearest[:count])}, and {len(words) - count} more"
    return f"allowed: {listed or 'none'}"
