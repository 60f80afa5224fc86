"""Replicas of decentralised asynchronous SGD: each applies the others' updates when it receives them."""

from collections.abc import Mapping
from typing import Any

import jax
import optax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName, gather_workers, num_workers, sum_workers
from reducers.leaves import num_bytes
from reducers.traffic import Traffic


def exchange_updates(
    replica: Any,
    snapshot: Any,
    updates: Any,
    update: Any,
    mail: Mapping[str, jax.Array],
    *,
    is_busy: jax.Array,
    axis_name: AxisName,
) -> tuple[Any, Any, Any]:
    r"""Sends a wave's updates to all workers, and applies to each replica those that its worker receives, in order.

    .. math:: x_i \leftarrow x_i + \sum_{\text{before}} u_k, \quad x_i \leftarrow x_i + u_i, \quad
      \text{snapshot}_i \leftarrow x_i, \quad x_i \leftarrow x_i + \sum_{\text{after}} u_k

    Updates are added one by one in the order in which they are received, so the result does not depend on how the order
    of events is cut into waves. A wave makes one all-gather of an update between devices.

    Args:
      replica: this worker's parameters.
      snapshot: the parameters at which it computes.
      updates: the latest M updates of all workers, [M, ...] a leaf; the same on all workers.
      update: this worker's own; ignored if it is not busy.
      mail: this worker's "slot", "inbox" and "num_before" of ``messages.Mail``.
      is_busy: [] bool, whether this worker has a gradient in the wave.
      axis_name: the worker axis, or a tuple of axes, outer first.

    Returns:
      (replica, snapshot, updates)

    Reference: Tosi and Theobald, "Convergence Analysis of Decentralized ASGD", arXiv 2309.03754.
    """
    slots = gather_workers(mail["slot"], axis_name)  # (W,); one out of range is dropped
    updates = jax.tree.map(lambda x, u: x.at[slots].set(gather_workers(u, axis_name), mode="drop"), updates, update)

    inbox = mail["inbox"]
    num_before = mail["num_before"]

    def receive(first, last, replica):
        def add(i, replica):
            return jax.tree.map(lambda x, u: x + u[inbox[i]], replica, updates)

        return lax.fori_loop(first, last, add, replica)

    replica = receive(0, num_before, replica)
    replica = optax.tree.where(is_busy, optax.apply_updates(replica, update), replica)
    snapshot = optax.tree.where(is_busy, replica, snapshot)
    return receive(num_before, jnp.sum(inbox >= 0), replica), snapshot, updates


def mean_replica(replica: Any, axis_name: AxisName) -> Any:
    """Returns the mean of the workers' replicas, on all workers; one all-reduce of the parameters between devices.

    >>> jax.vmap(lambda x: mean_replica(x, "worker"), axis_name="worker")(jnp.array([1.0, 2.0]))
    Array([1.5, 1.5], dtype=float32)
    """
    total = sum_workers(replica, axis_name)
    n = num_workers(axis_name)
    return jax.tree.map(lambda x: (x / n).astype(x.dtype), total)


def squared_distance(replica: Any, mean: Any) -> jax.Array:
    r"""Returns the squared distance of a replica from the mean of all, :math:`|x_i - \bar x|^2`.

    >>> float(squared_distance({"w": jnp.array([3.0, 4.0])}, {"w": jnp.zeros(2)}))
    25.0
    """
    return optax.tree.norm(optax.tree.sub(replica, mean), squared=True)


def broadcast_traffic(params: Any, *, num_workers: int) -> Traffic:
    """Returns the traffic of an update, averaged over the workers: the worker that makes it sends it to all others.

    >>> broadcast_traffic({"w": jnp.zeros(100)}, num_workers=10)
    Traffic(bytes_per_worker=360.0, collectives={'send': 9})
    """
    return Traffic(num_bytes(params) * (num_workers - 1) / num_workers, {"send": num_workers - 1})
