"""One row per reducer: what it computes, and which laws it promises. The laws are in test_reducers.py."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Case:
    """A row of the law table.

    Attributes:
      name: key of REDUCERS.
      oracle: float64 NumPy reference of one leaf, [W, ...] -> [...].
      kwargs: options of the reducer.
      extra: keyword-only needs of its update, one value per worker: name -> array [W, ...].
      consensus: R(g, ..., g) = g.
      homogeneous: R(c g) = c R(g).
      permutation_invariant: R(permuted g) = R(g).
      replicated_by_type: the replication test under nested vmap can see that all workers hold the same; what ends in
        ppermute cannot be seen and rests on the bitwise test.
    """

    name: str
    oracle: Callable[[np.ndarray], np.ndarray]
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    extra: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    consensus: bool = True
    homogeneous: bool = True
    permutation_invariant: bool = True
    replicated_by_type: bool = True


CASES = (
    Case("mean", lambda g: g.mean(0)),
    Case("sum", lambda g: g.sum(0), consensus=False),
)
