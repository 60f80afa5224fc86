"""Adasum: the pair and its tree, the ways in which devices work it out, and the reducer made of them."""

from reducers.adasum.choice import adasum_algorithms
from reducers.adasum.pairs import Tree, fold, pair
from reducers.adasum.reducer import adasum

__all__ = ["Tree", "adasum", "adasum_algorithms", "fold", "pair"]
