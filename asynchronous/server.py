"""The reduce half of an asynchronous step: a wave's gradients, applied one by one in the order of their arrival."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from jax import lax
from jax import numpy as jnp

from asynchronous.rules import Rate, Rule
from reducers.collectives import AxisName, gather_workers, lanes_of
from reducers.traffic import Traffic


class Pending(NamedTuple):
    """Gradients that wait for others of the same update."""

    gradient: Any  # like params: sum of rate x gradient
    rate: jax.Array  # [] float32, sum of the rates
    num_gradients: jax.Array  # [] int32


class ServerState(NamedTuple):
    """What the server holds besides parameters and optimizer; shared."""

    rule: Any
    pending: Pending | None  # None where each gradient is an update


class Server(NamedTuple):
    """Pure functions of one worker.

    Attributes:
      init: ``params -> (state, snapshot)``: shared state, and local state, the parameters that the worker has read and
        computes its gradient of.
      apply: ``(shared, state, snapshot, gradient, *, position, staleness, reads_after) -> (shared, state, snapshot)``
        under the worker axes, with a worker's ``waves.Slots``.
    """

    init: Callable[[Any], tuple[ServerState, Any]]
    apply: Callable[..., tuple[Any, ServerState, Any]]


def apply_in_order(
    update: Callable[[Any, Any, Rate], Any], *, rule: Rule, axis_name: AxisName, gradients_per_update: int = 1
) -> Server:
    r"""Builds the server of asynchronous SGD.

    For each gradient g of a wave, in order, with the parameters w, and w' that g is of:

    .. math:: g, r \leftarrow \text{rule}(g, w, w', \tau), \quad w \leftarrow w + r \cdot \text{optimizer}(g)

    then whoever reads at that moment takes w as its snapshot. With c gradients per update, the optimizer sees
    :math:`\sum r_i g_i / \sum r_i` and the rate is the mean of the :math:`r_i`.

    One gradient at a time leaves its worker, so a wave of K gradients sends K gradients between devices (2 K, where a
    rule asks for what the worker read), each as one all-reduce. With L lanes a device holds L gradients, twice L
    snapshots while the loop runs, and the shared state twice. What lies in a slot without a position is never used.

    Args:
      update: ``(shared, gradient, rate) -> shared``: one update of the server, as ``update_at`` helps to make it;
        ``shared.params`` are the parameters.
      rule: what is done about staleness.
      axis_name: the worker axis, or a tuple of axes, outer first.
      gradients_per_update: c, of soft synchronisation.

    Returns:
      A ``Server``; its result does not depend on how the order is cut into waves.

    Raises:
      ValueError: for a count below 1.

    Reference: Chen et al., arXiv 1604.00981, algorithm 2; soft synchronisation: Zhang, Gupta, Lian, Liu,
    arXiv 1511.05950. Differs from the papers in: one server, so that no read is torn.
    """
    if gradients_per_update < 1:
        raise ValueError(f"gradients_per_update={gradients_per_update}: must be in [1, inf)")
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name
    collects = gradients_per_update > 1

    def init(params):
        pending = None
        if collects:
            zeros = jax.tree.map(jnp.zeros_like, params)
            pending = Pending(zeros, jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))
        return ServerState(rule.init(params), pending), params

    def apply(shared, state, snapshot, gradient, *, position, staleness, reads_after):
        rows = _Rows(axes)
        position, staleness, reads_after = gather_workers(jnp.stack([position, staleness, reads_after]), axes).T  # (W,)
        num_workers = len(position)
        in_order = jnp.argsort(jnp.where(position < 0, num_workers, position))  # workers; those without one come last
        readers = jnp.argsort(reads_after)  # workers; those that do not read come first
        num_read = jnp.searchsorted(reads_after[readers], jnp.arange(num_workers + 1), side="right")
        gradients = rows.stack(gradient)

        def one(number, carry):
            shared, state, snapshots = carry
            worker = in_order[number]
            # Of a single worker this is the same in every round of the loop. XLA would compute half of the update
            # before the loop, and round it there, where plain SGD does not.
            gradient, number = lax.optimization_barrier((rows.get(gradients, worker), number))
            gradient, rate, ruled = rule.apply(
                gradient,
                state.rule,
                params=shared.params,
                read=lambda: rows.get(snapshots, worker),
                staleness=staleness[worker],
                num_workers=num_workers,
            )
            if collects:
                shared, pending = _collect(update, shared, state.pending, gradient, rate, count=gradients_per_update)
            else:
                shared, pending = update(shared, gradient, rate), None
            snapshots = lax.fori_loop(
                num_read[number],
                num_read[number + 1],
                lambda i, snapshots: rows.put(snapshots, readers[i], shared.params),
                snapshots,
            )
            return shared, ServerState(ruled, pending), snapshots

        carry = shared, state, rows.stack(snapshot)
        shared, state, snapshots = lax.fori_loop(0, jnp.sum(position >= 0), one, carry)
        return shared, state, rows.own(snapshots)

    return Server(init, apply)


def update_at(optimizer: optax.GradientTransformation, gradient: Any, opt_state: Any, params: Any, *, rate: Rate):
    """Returns what ``optimizer.update`` does, with updates ``rate`` times as large; at rate 0 nothing changes.

    Returns:
      (updates, opt_state)

    >>> updates, _ = update_at(optax.sgd(1.0), 3.0, optax.sgd(1.0).init(1.0), 1.0, rate=jnp.array(0.5))
    >>> float(updates)
    -1.5
    """
    updates, new_state = optimizer.update(gradient, opt_state, params)
    if rate is None:
        return updates, new_state
    # A dropped gradient may be anything, NaN too.
    updates = jax.tree.map(lambda u: jnp.where(rate > 0, rate * u, 0).astype(jnp.result_type(u)), updates)
    return updates, jax.tree.map(lambda new, old: jnp.where(rate > 0, new, old), new_state, opt_state)


def traffic(params: Any, *, num_workers: int, gradients_per_update: int) -> Traffic:
    """Returns what an update moves between workers and server: a gradient up and parameters down for each gradient.

    >>> traffic({"w": jnp.zeros(100)}, num_workers=10, gradients_per_update=1)
    Traffic(bytes_per_worker=40.0, collectives={'push': 1, 'read': 1})
    """
    num_bytes = sum(x.size * jnp.dtype(x.dtype).itemsize for x in jax.tree.leaves(params))
    moved = {"push": gradients_per_update, "read": gradients_per_update}
    return Traffic(num_bytes * gradients_per_update / num_workers, moved)


def values_in_order(values: jax.Array, position: jax.Array, axis_name: AxisName) -> jax.Array:
    """Returns the workers' numbers in the order of the wave, [W, ...], the same on all workers; zeros after the last.

    >>> jax.vmap(lambda x, p: values_in_order(x, p, "worker"), axis_name="worker")(
    ...     jnp.array([5.0, 6.0, 7.0]), jnp.array([1, -1, 0]))[0]
    Array([7., 5., 0.], dtype=float32)
    """
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name
    gathered, position = gather_workers(values, axes), gather_workers(position, axes)
    place = jnp.where(position < 0, len(position), position)  # out of range: dropped
    return jnp.zeros_like(gathered).at[place].set(gathered, mode="drop")


def _collect(update: Callable, shared: Any, pending: Pending, gradient: Any, rate: Rate, *, count: int):
    """Adds a gradient to those that wait; updates with the last one."""
    weight, added = jnp.ones(()), gradient
    if rate is not None:  # a dropped gradient may be anything
        weight, added = rate, jax.tree.map(lambda g: jnp.where(rate > 0, rate * g, 0).astype(g.dtype), gradient)
    pending = Pending(jax.tree.map(jnp.add, pending.gradient, added), pending.rate + weight, pending.num_gradients + 1)

    def complete(shared, pending):
        total = count if rate is None else jnp.where(pending.rate > 0, pending.rate, 1)
        mean = jax.tree.map(lambda g: (g / total).astype(g.dtype), pending.gradient)
        shared = update(shared, mean, None if rate is None else pending.rate / count)
        return shared, jax.tree.map(jnp.zeros_like, pending)

    return lax.cond(pending.num_gradients == count, complete, lambda *same: same, shared, pending)


class _Rows:
    """Trees with a row for each worker, the rows of a device's lanes lying on that device.

    Along lanes, gathering is free: it is the array with its lanes. So all here is of a device, and not batched.
    """

    def __init__(self, axes: tuple[str, ...]):
        self._lanes = lanes_of(axes)
        self._devices = tuple(axis for axis in axes if axis not in self._lanes)
        self._num_lanes = lax.axis_size(self._lanes) if self._lanes else 1

    def stack(self, tree: Any) -> Any:
        """One worker's tree -> the rows of its device."""
        return jax.tree.map(lambda x: gather_workers(x, self._lanes) if self._lanes else x[None], tree)

    def own(self, stacked: Any) -> Any:
        """The rows of a device -> this worker's."""
        lane = lax.axis_index(self._lanes) if self._lanes else 0
        return jax.tree.map(lambda x: x[lane], stacked)

    def get(self, stacked: Any, worker: jax.Array) -> Any:
        """The row of any worker, on all devices."""
        row = jax.tree.map(lambda x: x[worker % self._num_lanes], stacked)
        if not self._devices:
            return row
        here = self._is_here(worker)
        return lax.psum(jax.tree.map(lambda x: jnp.where(here, x, 0), row), self._devices)

    def put(self, stacked: Any, worker: jax.Array, tree: Any) -> Any:
        """Writes the row of any worker, where it lies."""
        lane, here = worker % self._num_lanes, self._is_here(worker)
        return jax.tree.map(lambda rows, x: rows.at[lane].set(jnp.where(here, x, rows[lane])), stacked, tree)

    def _is_here(self, worker: jax.Array) -> Any:
        return worker // self._num_lanes == lax.axis_index(self._devices) if self._devices else True
