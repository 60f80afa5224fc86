"""Compares the devices' copies of the shared state, bit for bit: where they differ, each trains another model."""

import hashlib
from typing import Any

import jax
import numpy as np

from parallel import Layout, processes
from training.train_state import TrainState, shared_part

_DIGEST_BYTES = 16


class PartedError(Exception):
    """The devices' copies of the shared state, which were equal at the first step, have become different."""

    exit_code = 3


def first_difference(state: TrainState, layout: Layout) -> str | None:
    """Returns the first leaf of the shared state that differs between devices, and where; None if all are equal.

    It waits for the state. Within a process the devices' bytes are compared, and over processes their hashes. Nothing
    is compiled but, with several processes, the exchange of the hashes.

    Args:
      state: on the devices; shared leaves are [D, ...].
      layout: where the workers are.

    Returns:
      Such as ``params['w'] on device 3 of process 0``, the same text in all processes.
    """
    leaves = jax.tree_util.tree_leaves_with_path(shared_part(state))
    found = [_of_devices(leaf, layout) for _, leaf in leaves]
    num_own = len(layout.own_devices)
    parted = processes.gather(np.array([device for _, device in found], np.int64))  # [P, leaves]
    digests = processes.gather(np.frombuffer(b"".join(digest for digest, _ in found), np.uint8))
    digests = digests.reshape(len(parted), len(leaves), _DIGEST_BYTES)
    for i, (path, _) in enumerate(leaves):
        name = jax.tree_util.keystr(path).removeprefix(".")
        for process in range(len(parted)):
            if (digests[process, i] != digests[0, i]).any():
                return f"{name} on device {process * num_own} of process {process}"
            if parted[process, i] >= 0:
                return f"{name} on device {process * num_own + parted[process, i]} of process {process}"
    return None


def _of_devices(leaf: Any, layout: Layout) -> tuple[bytes, int]:
    """Returns the hash of the first own device's copy, and the first own device whose copy differs from it, or -1."""
    parts = {part.device: part.data for part in leaf.addressable_shards}
    first, *others = (_bytes(parts[device]) for device in layout.own_devices)
    device = next((i for i, other in enumerate(others, start=1) if not np.array_equal(first, other)), -1)
    to_send = first.tobytes() if processes.several() else b""
    digest = hashlib.blake2b(to_send, digest_size=_DIGEST_BYTES)
    return digest.digest(), device


def _bytes(part: jax.Array) -> np.ndarray:
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8)
