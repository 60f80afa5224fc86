"""Blocks as a command line writes them, such as ``adasum:algorithm=gather,granularity=model``."""

import re
from typing import Any

from reducers.registry.registry import literal


def parse_block(text: str) -> dict[str, Any]:
    """Parses ``name`` or ``name:key=value,...``.

    Raises:
      ValueError: one line, for an option that is not key=value.

    >>> parse_block("local_sgd:every_steps=8,combine=adasum")
    {'name': 'local_sgd', 'every_steps': 8, 'combine': 'adasum'}
    """
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for part in re.split(r",(?=\w+=)", rest) if rest else []:
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} must be key=value")
        options[key] = literal(value)
    return {"name": name, **options}


def split_blocks(text: str) -> list[str]:
    """Splits blocks at commas; a part that does not begin with a name is an option of the block before it.

    >>> split_blocks("adasum:algorithm=gather,granularity=model,sum")
    ['adasum:algorithm=gather,granularity=model', 'sum']
    """
    return re.split(r",(?=\w+(?:[:+,]|$))", text)
