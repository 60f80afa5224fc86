"""Where each worker sits: worker w is lane w % L of device w // L."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DEVICE_AXIS = "device"
LANE_AXIS = "lane"
AXES = (DEVICE_AXIS, LANE_AXIS)  # outer first; the axis_name of every reducer in the step


@dataclasses.dataclass(frozen=True)
class Layout:
    """W workers as D devices with L lanes each, and the moves between host and devices that follow from it.

    Shared leaves live as [D, ...], one copy a device whatever the number of lanes; local leaves as [D, L, ...].
    Their *canonical* form does not know the layout: shared [...], local [W, ...], in worker order.

    Attributes:
      num_workers: W.
      devices: the D devices, in order.

    >>> layout = Layout.of(4, num_devices=2)
    >>> layout.num_devices, layout.lanes
    (2, 2)
    """

    num_workers: int
    devices: tuple[jax.Device, ...]

    @classmethod
    def of(cls, num_workers: int, *, num_devices: int | None = None, devices: Sequence[Any] | None = None) -> "Layout":
        """Lays workers out over ``num_devices`` devices; by default over the most that divide them.

        Raises:
          ValueError: if there are too few devices, or they do not divide the workers.
        """
        available = tuple(jax.devices() if devices is None else devices)
        if num_devices is None:
            num_devices = max(d for d in range(1, min(num_workers, len(available)) + 1) if num_workers % d == 0)
        if not 1 <= num_devices <= len(available):
            raise ValueError(f"num_devices={num_devices}: this machine has {len(available)} {available[0].platform}")
        if num_workers % num_devices:
            divisors = [d for d in range(1, min(num_workers, len(available)) + 1) if num_workers % d == 0]
            raise ValueError(
                f"num_devices={num_devices}: does not divide num_workers={num_workers}; possible here: "
                + ", ".join(map(str, divisors))
            )
        return cls(num_workers, available[:num_devices])

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    def lanes(self) -> int:
        return self.num_workers // self.num_devices

    @property
    def mesh(self) -> Mesh:
        return Mesh(np.asarray(self.devices), (DEVICE_AXIS,))

    @property
    def sharding(self) -> NamedSharding:
        """One slice of the leading axis per device; what both lifts take and give."""
        return NamedSharding(self.mesh, PartitionSpec(DEVICE_AXIS))

    def put_shared(self, tree: Any) -> Any:
        """Places a canonical shared tree, [...] -> [D, ...]."""

        def put(x):
            x = np.asarray(x)
            return jax.device_put(np.broadcast_to(x, (self.num_devices, *x.shape)), self.sharding)

        return jax.tree.map(put, tree)

    def put_local(self, tree: Any) -> Any:
        """Places a canonical local tree, [W, ...] -> [D, L, ...]."""
        return jax.tree.map(lambda x: jax.device_put(self.split(np.asarray(x)), self.sharding), tree)

    def split(self, x: np.ndarray) -> np.ndarray:
        """Views [W, ...] on the host as [D, L, ...]."""
        return x.reshape(self.num_devices, self.lanes, *x.shape[1:])

    def get_shared(self, tree: Any) -> Any:
        """Reads the first device's copy, [D, ...] -> [...], as NumPy arrays of their own memory."""
        return jax.tree.map(lambda x: np.array(x.addressable_shards[0].data)[0], tree)

    def get_local(self, tree: Any) -> Any:
        """Reads [D, L, ...] -> [W, ...], as NumPy arrays of their own memory."""
        return jax.tree.map(lambda x: np.array(x).reshape(self.num_workers, *x.shape[2:]), tree)

    def get_numbers(self, tree: dict[str, Any]) -> dict[str, float]:
        """Reads metrics, [D] each and the same on every device; what is not a number is left out."""
        tree = {key: value for key, value in tree.items() if isinstance(value, jax.Array)}
        return {key: float(value) for key, value in self.get_shared(tree).items()}
