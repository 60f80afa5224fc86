"""The devices that take part in a collective: all along some axes, or groups of them, each by itself."""

import dataclasses

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers import targets
from reducers.collectives.axes import gather_workers, num_workers, tracked_axes


@dataclasses.dataclass(frozen=True)
class Devices:
    """All devices along some axes, or the groups into which they are divided.

    Attributes:
      axes: outer first; none for one device alone.
      groups: the indices of each group's devices, all groups of one size; None for one group of all.
      backend: their platform, and how many processes have them: what is traced once for the same devices is traced
        again where ``backend`` has other facts.

    >>> Devices(()).count, Devices(("device",), ((0, 2), (1, 3))).count
    (1, 2)
    """

    axes: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...] | None = None
    backend: tuple[str, int] = dataclasses.field(
        default_factory=lambda: (targets.platform(), targets.num_processes()), repr=False
    )

    @property
    def count(self) -> int:
        """How many devices a group has."""
        return len(self.groups[0]) if self.groups else num_workers(self.axes)

    @property
    def index(self) -> jax.Array | int:
        """The index of this device among all along the axes."""
        return lax.axis_index(self.axes) if self.axes else 0

    @property
    def place(self) -> jax.Array | int:
        """The index of this device in its group, and so of the slice that an exchange gives it."""
        if self.groups is None:
            return self.index
        return jnp.asarray(np.argsort(np.ravel(self.groups)) % self.count)[self.index]

    def gather(self, x: jax.Array) -> jax.Array:
        """Returns the x of all devices of the group, [count, ...]."""
        if self.groups is None:
            return gather_workers(x, self.axes)
        return lax.all_gather(x, self.axes, axis_index_groups=self.groups)

    def sum(self, x: jax.Array) -> jax.Array:
        """Returns the sum of the group's x."""
        if not self.axes:
            return x
        if self.groups and tracked_axes().intersection(self.axes):  # where JAX has no psum of groups
            return self.gather(x).sum(0)
        return lax.psum(x, self.axes, axis_index_groups=self.groups)
