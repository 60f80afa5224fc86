"""Grids of parameters: every combination for `make test-all`, a few of them, which touch every value, quick."""

import itertools
from collections.abc import Iterable, Set

import pytest


def grid(*axes: Iterable, quick: Set[tuple]) -> list:
    """Rows for parametrize: all combinations, those that are not in ``quick`` marked slow."""
    rows = list(itertools.product(*axes))
    assert quick and quick <= set(rows), f"no rows of the grid: {quick - set(rows)}"
    return [pytest.param(*row, marks=() if row in quick else pytest.mark.slow) for row in rows]
