"""Adasum: the pair and its tree, the algorithms by which devices compute it, and the reducer made of them."""

from reducers.adasum.pair import pair
from reducers.adasum.reducer import adasum
from reducers.adasum.tree import Tree, fold

__all__ = ["Tree", "adasum", "fold", "pair"]
