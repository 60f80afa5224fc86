"""Compares the devices' copies of the shared state, bit for bit: if they differ, each device trains another model."""

import hashlib
from typing import Any

import jax
import numpy as np

from parallel import Layout, processes
from parallel.layout import split_by_axes
from training.train_state import STATE_AXES, TrainState, shared_part

_DIGEST_BYTES = 16


class PartedError(Exception):
    """The devices' copies of the shared state, which were equal at the first step, have become different."""

    exit_code = 3


def first_difference(state: TrainState, layout: Layout, axes: TrainState = STATE_AXES) -> str | None:
    """Returns the first leaf of the shared state that differs between devices, and where; None if all are equal.

    It waits for the state, and compares hashes of the devices' bytes. Only the exchange of hashes between several
    processes is compiled.

    Args:
      state: the state on the devices; its shared leaves are [D, ...].
      layout: where the workers are.
      axes: ``TrainSetup.state_axes``; leaves in parts are compared with the same parts of other nodes.

    Returns:
      A text such as ``params['w'] on device 3 of process 0``, the same in all processes.
    """
    leaves = jax.tree_util.tree_leaves_with_path(shared_part(state))
    own = b"".join(_digest(leaf, device) for device in layout.own_devices for _, leaf in leaves)
    digests = processes.gather(np.frombuffer(own, np.uint8)).reshape(layout.num_devices, len(leaves), _DIGEST_BYTES)
    is_cut = split_by_axes(
        shared_part(state),
        shared_part(axes),
        shared=lambda tree: jax.tree.map(lambda _: False, tree),
        per_worker=lambda tree: tree,
        cut=lambda *_: True,
    )
    of_nodes = digests.reshape(-1, layout.devices_per_worker, *digests.shape[1:])
    expected = np.where(np.array(jax.tree.leaves(is_cut))[:, None], of_nodes[0], of_nodes[0, :1])  # [K, leaves, bytes]
    differs = (of_nodes != expected).any(-1).reshape(layout.num_devices, -1)  # [D, leaves]
    for (path, _), of_devices in zip(leaves, differs.T, strict=True):
        if of_devices.any():
            device = int(of_devices.argmax())
            name = jax.tree_util.keystr(path).removeprefix(".")
            return f"{name} on device {device} of process {device // len(layout.own_devices)}"
    return None


def _digest(leaf: Any, device: jax.Device) -> bytes:
    """Returns the hash of a device's copy."""
    (part,) = (part.data for part in leaf.addressable_shards if part.device == device)
    return hashlib.blake2b(np.asarray(part).tobytes(), digest_size=_DIGEST_BYTES).digest()
