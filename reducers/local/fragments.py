"""The leaves of a model in fragments, which local workers combine in turns."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from reducers.leaves import kept


@dataclasses.dataclass(frozen=True)
class Fragments:
    """Groups of leaves of about the same size: leaves join the smallest fragment, the largest leaf first.

    A part of a tree has None for the leaves of other fragments, so that each leaf keeps its path.

    Attributes:
      count: P, the number of fragments.

    >>> halves = Fragments(2)
    >>> for part in halves.split({"a": np.zeros(3), "b": np.ones(2), "c": np.ones(1)}):
    ...   print(part)
    {'a': array([0., 0., 0.]), 'b': None, 'c': None}
    {'a': None, 'b': array([1., 1.]), 'c': array([1.])}
    """

    count: int

    def shares(self, tree: Any) -> list[float]:
        """Returns the share of each fragment in the numbers of a tree; that of one fragment is 1."""
        if self.count == 1:
            return [1.0]
        sizes = [sum(map(np.size, jax.tree.leaves(part))) for part in self.split(tree)]
        return [size / max(sum(sizes), 1) for size in sizes]

    def split(self, tree: Any) -> list[Any]:
        """Returns the parts of a tree like the parameters, of arrays or of their shapes; None has None as each part.

        ``reducers.leaves.joined`` joins them.

        Raises:
          ValueError: if there are fewer leaves than fragments.
        """
        if tree is None:
            return [None] * self.count
        of_leaves = self._of_leaves(tree)
        return [kept(tree, [fragment == part for fragment in of_leaves]) for part in range(self.count)]

    def unstack(self, state: Any, *, of_arrays: bool = True) -> list[Any]:
        """Returns the values of each fragment, which ``stack`` has joined."""
        if state is None or self.count == 1:
            return [state] * self.count
        return [state[p] for p in range(self.count)] if of_arrays else list(state)

    def stack(self, each: Sequence[Any], *, of_arrays: bool = True) -> Any:
        """Joins values of all fragments: arrays in one, [P, ...], others in a tuple; one fragment's stays alone."""
        if self.count == 1 or each[0] is None:
            return each[0]
        return jnp.stack(each) if of_arrays else tuple(each)

    def _of_leaves(self, tree: Any) -> list[int]:
        """Returns the fragment of each leaf."""
        sizes = [np.size(leaf) for leaf in jax.tree.leaves(tree)]
        if len(sizes) < self.count > 1:
            raise ValueError(f"fragments={self.count}: the model has {len(sizes)} leaves")
        found = [0] * len(sizes)
        filled = np.zeros(self.count, np.int64)
        for leaf in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
            found[leaf] = int(np.argmin(filled))
            filled[found[leaf]] += max(sizes[leaf], 1)  # so that each fragment gets a leaf, also where leaves are empty
        return found
