"""Where each worker sits: worker w is lane w % L of device w // L, and each device belongs to one process."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parallel import processes

DEVICE_AXIS = "device"
LANE_AXIS = "lane"
AXES = (DEVICE_AXIS, LANE_AXIS)  # outer first; the axis_name of every reducer in the step


@dataclasses.dataclass(frozen=True)
class Layout:
    """W workers as D devices with L lanes each, and the moves between host and devices that follow from it.

    Shared leaves live as [D, ...], one copy a device whatever the number of lanes; local leaves as [D, L, ...].
    Their *canonical* form does not know the layout: shared [...], local [W, ...], in worker order.

    Of several processes each holds the arrays of its own devices: wherever [D, ...] is said of an array that one of
    them has, it is [D / P, ...], the part of its own D / P devices, which follow one another.

    Attributes:
      num_workers: W.
      devices: the D devices of all processes, in order.

    >>> layout = Layout.of(4, num_devices=2)
    >>> layout.num_devices, layout.lanes
    (2, 2)
    """

    num_workers: int
    devices: tuple[jax.Device, ...]

    @classmethod
    def of(cls, num_workers: int, *, num_devices: int | None = None, devices: Sequence[Any] | None = None) -> "Layout":
        """Lays workers out over ``num_devices`` devices, as many of each process; by default the most that divide them.

        Raises:
          ValueError: if there are too few devices, or they do not divide the workers, or processes do not divide them.
        """
        available = tuple(jax.devices() if devices is None else devices)
        num_processes, most = processes.count(), min(num_workers, len(available))
        possible = [d for d in range(num_processes, most + 1, num_processes) if num_workers % d == 0]
        if not possible:
            raise ValueError(
                f"num_workers={num_workers}: must be a multiple of the number of processes, {num_processes}"
            )
        num_devices = possible[-1] if num_devices is None else num_devices
        if not 1 <= num_devices <= len(available):
            where = "this machine has" if num_processes == 1 else f"{num_processes} processes have"
            raise ValueError(f"num_devices={num_devices}: {where} {len(available)} {available[0].platform}")
        if num_devices not in possible:
            what = "divide" if num_workers % num_devices else f"come from {num_processes} processes alike for"
            raise ValueError(
                f"num_devices={num_devices}: does not {what} num_workers={num_workers}; possible here: "
                + ", ".join(map(str, possible))
            )
        if num_processes == 1:
            return cls(num_workers, available[:num_devices])
        of_process: dict[int, list[Any]] = {}
        for device in sorted(available, key=lambda device: (device.process_index, device.id)):
            of_process.setdefault(device.process_index, []).append(device)
        each = num_devices // num_processes
        return cls(num_workers, tuple(device for found in of_process.values() for device in found[:each]))

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    def lanes(self) -> int:
        return self.num_workers // self.num_devices

    @functools.cached_property
    def own(self) -> slice:
        """Of the D devices, those of this process."""
        each = self.num_devices // processes.count()
        return slice(processes.index() * each, (processes.index() + 1) * each)

    @property
    def own_devices(self) -> tuple[jax.Device, ...]:
        """The devices of this process, in order."""
        return self.devices[self.own]

    @property
    def own_workers(self) -> slice:
        """Of the W workers, those of this process."""
        return slice(self.own.start * self.lanes, self.own.stop * self.lanes)

    @property
    def mesh(self) -> Mesh:
        """Of all devices."""
        return Mesh(np.asarray(self.devices), (DEVICE_AXIS,))

    @property
    def own_mesh(self) -> Mesh:
        """Of this process's devices."""
        return Mesh(np.asarray(self.own_devices), (DEVICE_AXIS,))

    @property
    def sharding(self) -> NamedSharding:
        """One slice of the leading axis per device of this process; what both lifts take and give."""
        return NamedSharding(self.own_mesh, PartitionSpec(DEVICE_AXIS))

    @property
    def saved(self) -> NamedSharding | None:
        """Where the canonical local leaves lie that no one process has whole, [W, ...]; None of a single process."""
        return NamedSharding(self.mesh, PartitionSpec(DEVICE_AXIS)) if processes.several() else None

    def put_shared(self, tree: Any) -> Any:
        """Places a canonical shared tree, [...] -> [D, ...]."""

        def put(x):
            x = np.asarray(x)
            return jax.device_put(np.broadcast_to(x, (len(self.own_devices), *x.shape)), self.sharding)

        return jax.tree.map(put, tree)

    def put_local(self, tree: Any) -> Any:
        """Places a canonical local tree, [W, ...] -> [D, L, ...]."""

        def put(x):
            if self.saved is None or not isinstance(x, jax.Array):
                return jax.device_put(self.split(np.asarray(x)), self.sharding)
            parts = {part.device: part.data.reshape(1, self.lanes, *x.shape[1:]) for part in x.addressable_shards}
            return self._array(parts, (len(parts), self.lanes, *x.shape[1:]), self.sharding)

        return jax.tree.map(put, tree)

    def split(self, x: np.ndarray) -> np.ndarray:
        """Views [W, ...] on the host as [D, L, ...]: of several processes, this one's part."""
        return x[self.own_workers].reshape(len(self.own_devices), self.lanes, *x.shape[1:])

    def split_turns(self, x: np.ndarray) -> np.ndarray:
        """Views [W] on the host as [D, L], or [k, W] of k turns as [D, k, L]."""
        return np.moveaxis(self.split(x.T), 2, 1) if x.ndim == 2 else self.split(x)

    def get_shared(self, tree: Any) -> Any:
        """Reads the first device's copy, [D, ...] -> [...], as NumPy arrays of their own memory."""
        return jax.tree.map(lambda x: np.array(x.addressable_shards[0].data)[0], tree)

    def get_local(self, tree: Any) -> Any:
        """Reads [D, L, ...] -> [W, ...], as NumPy arrays of their own memory.

        Of several processes no one has all workers: the leaves stay on the devices, as one array of all processes.
        """

        def get(x):
            shape = (self.num_workers, *x.shape[2:])
            if self.saved is None:
                return np.array(x).reshape(shape)
            parts = {part.device: part.data.reshape(self.lanes, *x.shape[2:]) for part in x.addressable_shards}
            return self._array(parts, shape, self.saved)

        return jax.tree.map(get, tree)

    def _array(self, parts: dict[jax.Device, jax.Array], shape: tuple[int, ...], sharding: NamedSharding) -> jax.Array:
        in_order = [parts[device] for device in self.own_devices]
        return jax.make_array_from_single_device_arrays(shape, sharding, in_order)

    def gather(self, own: np.ndarray) -> np.ndarray:
        """Returns what each process knows of its own workers, [W] of which it fills its part, as [W] of all."""
        return processes.gather(own[self.own_workers]).reshape(self.num_workers)

    def get_numbers(self, tree: dict[str, Any]) -> dict[str, float]:
        """Reads metrics, [D] each and the same on every device; what is not a number is left out."""
        tree = {key: value for key, value in tree.items() if isinstance(value, jax.Array)}
        return {key: float(value) for key, value in self.get_shared(tree).items()}
