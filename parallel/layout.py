"""Where each worker sits: worker w is lane w % L of node w // L.

A node is one device, or K neighbouring devices that compute each gradient of their workers together. It lies in one
process, or in several whole ones.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parallel import processes
from parallel.parts import PART_AXIS, Cut, in_rows, part_shape

DEVICE_AXIS = "device"
LANE_AXIS = "lane"
AXES = (DEVICE_AXIS, LANE_AXIS)  # outer first; the axis_name of every reducer in the step


@dataclasses.dataclass(frozen=True)
class Layout:
    """W workers as D / K nodes with L lanes each, and the transfers between host and devices that follow from it.

    Shared leaves are [D, ...] on the devices, one copy per device whatever the number of lanes; per-worker leaves are
    [D, L, ...], the same on the K devices of a node. On the host, shared leaves are [...] and per-worker leaves
    [W, ...], in worker order: the *canonical* form, which does not depend on the layout.

    In multi-process runs leading axes are per process: [D / P, ...], for this process's consecutive devices.

    Attributes:
      num_workers: W.
      devices: the D devices of all processes, in order.
      devices_per_worker: K. With 1, the mesh has one axis; else two, over the nodes and inside of each.

    >>> layout = Layout.of(4, num_devices=2)
    >>> layout.num_devices, layout.lanes
    (2, 2)
    >>> Layout.of(4, num_devices=8, devices_per_worker=4).lanes
    2
    """

    num_workers: int
    devices: tuple[jax.Device, ...]
    devices_per_worker: int = 1

    @classmethod
    def of(
        cls,
        num_workers: int,
        *,
        num_devices: int | None = None,
        devices: Sequence[Any] | None = None,
        devices_per_worker: int = 1,
    ) -> "Layout":
        """Lays workers out over ``num_devices`` devices, the same number of each process.

        Args:
          num_workers: W.
          num_devices: D; None for the most whose nodes divide W.
          devices: the devices to choose from; None for all.
          devices_per_worker: K; a process has whole nodes, or an even share of one.

        Raises:
          ValueError: if there are too few devices, or the number of nodes does not divide W, or neither divides the
            other, the number of nodes and P.
        """
        available = tuple(jax.devices() if devices is None else devices)
        num_processes = processes.count()
        most = min(num_workers, len(available) // devices_per_worker)
        nodes = [n for n in range(1, most + 1) if num_workers % n == 0]
        nodes = [
            n
            for n in nodes
            if n % num_processes == 0 or not (num_processes % n or devices_per_worker * n % num_processes)
        ]
        possible = [devices_per_worker * n for n in nodes]
        where = "" if num_processes == 1 else f" of {num_processes} processes"
        found = f"{len(available)} {available[0].platform} devices{where}"
        if devices_per_worker > len(available):
            raise ValueError(
                f"devices_per_worker={devices_per_worker}: must be at most {len(available)}; there are {found}"
            )
        if not possible and devices_per_worker > 1:
            share = f"each of {num_processes} processes must have whole nodes, or an even share of one"
            raise ValueError(f"devices_per_worker={devices_per_worker}: {share}, and num_workers={num_workers}")
        if not possible:
            raise ValueError(
                f"num_workers={num_workers}: must be a multiple of the number of processes, {num_processes}"
            )
        num_devices = possible[-1] if num_devices is None else num_devices
        if num_devices not in possible:
            of_one = "" if devices_per_worker == 1 else f" and devices_per_worker={devices_per_worker}"
            allowed = f"must be one of {', '.join(map(str, possible))} for num_workers={num_workers}{of_one}"
            raise ValueError(f"num_devices={num_devices}: {allowed} on {found}")
        if num_processes == 1:
            return cls(num_workers, available[:num_devices], devices_per_worker)
        of_process: dict[int, list[Any]] = {}
        for device in sorted(available, key=lambda device: (device.process_index, device.id)):
            of_process.setdefault(device.process_index, []).append(device)
        each = num_devices // num_processes
        chosen = tuple(device for found in of_process.values() for device in found[:each])
        return cls(num_workers, chosen, devices_per_worker)

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    def lanes(self) -> int:
        return self.num_workers * self.devices_per_worker // self.num_devices

    @functools.cached_property
    def own(self) -> slice:
        """This process's devices, as a slice of all D."""
        each = self.num_devices // processes.count()
        return slice(processes.index() * each, (processes.index() + 1) * each)

    @property
    def own_devices(self) -> tuple[jax.Device, ...]:
        """This process's devices, in order."""
        return self.devices[self.own]

    @property
    def own_workers(self) -> slice:
        """The workers of this process's nodes, as a slice of all W; processes that share a node have the same."""
        first, end = self.own.start // self.devices_per_worker, -(-self.own.stop // self.devices_per_worker)
        return slice(first * self.lanes, end * self.lanes)

    @property
    def own_places(self) -> tuple[int, int]:
        """The numbers of this process's nodes and of the lanes of each: its workers as they are fed."""
        return (self.own_workers.stop - self.own_workers.start) // self.lanes, self.lanes

    @property
    def own_parts(self) -> slice:
        """The devices of this process among those of its nodes."""
        first = self.own.start % self.devices_per_worker
        return slice(first, first + len(self.own_devices))

    @property
    def device_axes(self) -> tuple[str, ...]:
        """The axes of the mesh, over which each device has a slice of its own."""
        return (DEVICE_AXIS,) if self.devices_per_worker == 1 else (DEVICE_AXIS, PART_AXIS)

    @property
    def spec(self) -> PartitionSpec:
        """Cuts a leading axis over all devices."""
        return PartitionSpec(DEVICE_AXIS if self.devices_per_worker == 1 else self.device_axes)

    @property
    def mesh(self) -> Mesh:
        """A mesh of all devices."""
        return self._mesh_of(self.devices)

    @property
    def own_mesh(self) -> Mesh:
        """A mesh of this process's devices."""
        return self._mesh_of(self.own_devices)

    def _mesh_of(self, devices: Sequence[jax.Device]) -> Mesh:
        shape = (-1,) if self.devices_per_worker == 1 else (-1, min(self.devices_per_worker, len(devices)))
        return Mesh(np.asarray(devices).reshape(shape), self.device_axes)

    @property
    def sharding(self) -> NamedSharding:
        """Puts one slice of the leading axis on each device of this process; both device mappings use it."""
        return NamedSharding(self.own_mesh, self.spec)

    @property
    def saved_sharding(self) -> NamedSharding | None:
        """The sharding of canonical per-worker leaves that no single process holds whole; None with one process."""
        return NamedSharding(self.mesh, PartitionSpec(DEVICE_AXIS)) if processes.several() else None

    def put(self, tree: Any, axes: Any) -> Any:
        """Places a canonical tree on the devices.

        Args:
          tree: NumPy arrays; per-worker leaves may be global arrays.
          axes: its prefix: None for shared subtrees, 0 for those of each worker's own, ``Cut`` for a leaf in parts.
        """
        return split_by_axes(tree, axes, shared=self.put_shared, per_worker=self.put_per_worker, cut=self._put_parts)

    def get(self, tree: Any, axes: Any) -> Any:
        """Reads a tree from the devices in its canonical form."""
        return split_by_axes(tree, axes, shared=self.get_shared, per_worker=self.get_per_worker, cut=self._get_parts)

    def put_shared(self, tree: Any) -> Any:
        """Places shared leaves: [...] -> [D, ...]."""

        def put(x):
            x = np.asarray(x)
            return jax.device_put(np.broadcast_to(x, (len(self.own_devices), *x.shape)), self.sharding)

        return jax.tree.map(put, tree)

    def put_per_worker(self, tree: Any) -> Any:
        """Places per-worker leaves: [W, ...] -> [D, L, ...]."""

        def put(x):
            if self.saved_sharding is None or not isinstance(x, jax.Array):
                return jax.device_put(self.split(np.asarray(x)), self.sharding)
            parts = {part.device: part.data.reshape(1, self.lanes, *x.shape[1:]) for part in x.addressable_shards}
            return self._array(parts, (len(parts), self.lanes, *x.shape[1:]), self.sharding)

        return jax.tree.map(put, tree)

    def split(self, x: np.ndarray) -> np.ndarray:
        """Returns this process's part of [W, ...] on the host as [D, L, ...]."""
        return self.for_devices(x[self.own_workers].reshape(*self.own_places, *x.shape[1:]))

    def for_devices(self, tree: Any) -> Any:
        """Returns what each device of this process's nodes is given: [D / K, ...] -> [D, ...], on the host."""
        if self.devices_per_worker == 1:
            return tree
        return jax.tree.map(lambda x: np.repeat(x, self.devices_per_worker, axis=0)[self.own_parts], tree)

    def split_steps(self, x: np.ndarray) -> np.ndarray:
        """Views this process's part of [k, W] of k steps, on the host, as [D, k, L]."""
        return np.moveaxis(self.split(np.moveaxis(x, 1, 0)), 2, 1)

    def get_shared(self, tree: Any) -> Any:
        """Copies the first device's shared leaves to NumPy arrays: [D, ...] -> [...]."""
        return jax.tree.map(lambda x: np.array(x.addressable_shards[0].data)[0], tree)

    def get_per_worker(self, tree: Any) -> Any:
        """Copies per-worker leaves to NumPy arrays: [D, L, ...] -> [W, ...].

        In multi-process runs no process has all workers: the leaves stay on the devices, as global arrays.
        """

        def get(x):
            shape = (self.num_workers, *x.shape[2:])
            if self.saved_sharding is None:
                return np.array(x)[:: self.devices_per_worker].reshape(shape)
            parts = {part.device: part.data.reshape(self.lanes, *x.shape[2:]) for part in x.addressable_shards}
            return self._array(parts, shape, self.saved_sharding)

        return jax.tree.map(get, tree)

    def _put_parts(self, x: Any, cut: Cut) -> Any:
        """Places a leaf in parts: [W, ...] or [...] -> [D, (L,) ...], where each device of a node has another part."""
        count, (nodes, lanes) = self.devices_per_worker, self.own_places
        if cut.axis is None:
            wholes = np.broadcast_to(np.asarray(x), (nodes, *cut.shape))
        elif self.saved_sharding is None or not isinstance(x, jax.Array):
            wholes = np.asarray(x)[self.own_workers].reshape(nodes, lanes, *cut.shape)
        else:  # the devices of a node have the same workers
            firsts = in_order(x, self.own_devices)[:: min(count, len(self.own_devices))]
            wholes = np.stack([np.asarray(part.data) for part in firsts])
        leading = wholes.shape[: wholes.ndim - len(cut.shape) + cut.leading]
        rows = np.moveaxis(in_rows(wholes.reshape(*leading, -1), count), -2, 1)  # [nodes, K, ..., each]
        part = part_shape(cut.shape[cut.leading :], count)
        return jax.device_put(rows.reshape(nodes * count, *leading[1:], *part)[self.own_parts], self.sharding)

    def _get_parts(self, x: Any, cut: Cut) -> Any:
        """Joins the parts of a leaf: [D, (L,) ...] -> [W, ...] or [...]."""
        count = self.devices_per_worker
        own = np.concatenate([np.asarray(part.data) for part in in_order(x, self.own_devices)])
        if len(own) < count:  # others have the rest of this node
            every = processes.gather(own)
            own = every.reshape(-1, count, *own.shape[1:])[self.own.start // count]
        before = own.ndim - len(part_shape(cut.shape[cut.leading :], count))
        rows = own.reshape(-1, count, *own.shape[1:before], own.shape[-1])
        size = math.prod(cut.shape[cut.leading :])
        joined = np.moveaxis(rows, 1, -2).reshape(*rows.shape[:1], *own.shape[1:before], -1)[..., :size]
        if cut.axis is None:
            return joined[0].reshape(cut.shape)
        wholes = joined.reshape(-1, self.lanes, *cut.shape)  # [nodes, L, ...]
        if self.saved_sharding is None:
            return wholes.reshape(self.num_workers, *cut.shape)
        first = self.own.start % count
        parts = {
            device: jax.device_put(wholes[(first + i) // count], device) for i, device in enumerate(self.own_devices)
        }
        return self._array(parts, (self.num_workers, *cut.shape), self.saved_sharding)

    def _array(self, parts: dict[jax.Device, jax.Array], shape: tuple[int, ...], sharding: NamedSharding) -> jax.Array:
        return jax.make_array_from_single_device_arrays(shape, sharding, [parts[device] for device in self.own_devices])

    def gather(self, own: np.ndarray) -> np.ndarray:
        """Returns the values of all workers, [W]; each process has filled its own part of ``own``, [W]."""
        return processes.gather(own[self.own_workers]).reshape(self.num_workers)


def in_order(x: jax.Array, devices: Sequence[jax.Device]) -> list[Any]:
    """Returns what devices of this process have of an array, in their order."""
    of_device = {part.device: part for part in x.addressable_shards}
    return [of_device[device] for device in devices]


def split_by_axes(
    tree: Any,
    axes: Any,
    *,
    shared: Callable[[Any], Any],
    per_worker: Callable[[Any], Any],
    cut: Callable[[Any, Cut], Any] | None = None,
) -> Any:
    """Applies ``shared`` to the subtrees whose axis is None, ``per_worker`` where it is 0, ``cut`` to leaves in parts.

    >>> split_by_axes({"a": 1, "b": 2}, {"a": None, "b": 0}, shared=str, per_worker=float)
    {'a': '1', 'b': 2.0}
    """

    def change(axis, subtree):
        if isinstance(axis, Cut):
            assert cut is not None
            return cut(subtree, axis)
        return shared(subtree) if axis is None else per_worker(subtree)

    return jax.tree.map(change, axes, tree, is_leaf=lambda axis: axis is None)
