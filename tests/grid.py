"""Grids of parameters: every combination for `make test-all`, or a few of them, which touch every value."""

import itertools
from collections.abc import Iterable, Set

import pytest


def grid(*axes: Iterable, quick: Set[tuple]) -> list:
    """Rows for parametrize: all combinations, those that are not in ``quick`` marked slow."""
    rows = list(itertools.product(*axes))
    assert quick and quick <= set(rows), f"no rows of the grid: {quick - set(rows)}"
    return [pytest.param(*row, marks=() if row in quick else pytest.mark.slow) for row in rows]


def each(*axes: Iterable, quick: Set[tuple]) -> list:
    """Rows for parametrize: as many slow ones as the longest axis has values, with every value, and the quick ones."""
    values = [list(axis) for axis in axes]
    rows = [tuple(axis[i % len(axis)] for axis in values) for i in range(max(map(len, values)))]
    assert quick and all(set(row) <= set().union(*values) for row in quick), f"no rows of the grid: {quick}"
    slow = [row for row in dict.fromkeys(rows) if row not in quick]
    return [*(pytest.param(*row) for row in sorted(quick, key=str)), *slow]
