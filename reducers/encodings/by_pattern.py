"""Encodings chosen by the paths of leaves."""

import re
from typing import TypeAlias

from reducers.encodings.divided import divided
from reducers.encodings.encoding import Encoding

# A parameter with this annotation is pairs of a regular expression and an encoding; configs write names or blocks.
Rules: TypeAlias = tuple[tuple[str, Encoding], ...]


def by_pattern(*, rules: Rules) -> Encoding:
    r"""Encodes each leaf by the first rule whose pattern is found in its path, such as "Dense_0/kernel".

    .. math:: C(g) = (C_{r(1)}(g^{(1)}), \dots, C_{r(L)}(g^{(L)})), \qquad
        r(l) = \min \{ r : \text{pattern } r \text{ is found in the path of } l \}

    Args:
      rules: pairs of a regular expression and an encoding: in a config a name, or a block such as
        {"name": "low_rank", "rank": 4}. "full" sends leaves as they are.

    Returns:
      An ``Encoding``.

    Raises:
      ValueError: for a pattern that is not a regular expression, or without rules; where leaves are known, if a leaf
        matches no pattern.

    >>> from reducers.encodings.divided import as_it_is
    >>> by_pattern(rules=(("kernel", as_it_is()),)).init({"Dense_0/bias": None})
    Traceback (most recent call last):
    ValueError: rules: 'Dense_0/bias' matches none of 'kernel'
    """
    if not rules:
        raise ValueError("rules=(): must be one pair of a regular expression and an encoding at least")
    patterns = []
    for pattern, encoding in rules:
        if not isinstance(encoding, Encoding):
            raise ValueError(f"rules[{pattern!r}]: must be an Encoding, not {type(encoding).__name__}")
        try:
            patterns.append(re.compile(pattern))
        except re.error as error:
            raise ValueError(f"rules[{pattern!r}]: must be a regular expression: {error}") from None

    def choose(name, leaf):
        del leaf
        found = next((i for i, pattern in enumerate(patterns) if pattern.search(name)), None)
        if found is None:
            raise ValueError(f"rules: {name!r} matches none of {', '.join(repr(pattern) for pattern, _ in rules)}")
        return found

    return divided([encoding for _, encoding in rules], choose)
