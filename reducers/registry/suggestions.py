"""Suggestions for misspelt words."""

import difflib
from collections.abc import Iterable
from typing import Any


def suggest(word: Any, words: Iterable[str]) -> str:
    """Returns "did you mean 'x'?" for the word nearest to a misspelt one, or all words if none is near.

    >>> suggest("maen", ["mean", "sum"]), suggest("adam", ["mean", "sum"])
    ("did you mean 'mean'?", 'allowed: mean, sum')
    """
    words = sorted(words)
    near = difflib.get_close_matches(word, words, n=1) if isinstance(word, str) else []
    return f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(words) or 'none'}"
