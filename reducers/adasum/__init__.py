"""Adasum: the pair and its tree, the algorithms by which devices compute it, and the reducer made of them."""

from reducers.adasum.pairs import Tree, fold, pair
from reducers.adasum.reducer import adasum, adasum_algorithms

__all__ = ["Tree", "adasum", "adasum_algorithms", "fold", "pair"]
