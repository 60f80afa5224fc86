"""The server of asynchronous SGD, which applies a wave's gradients one by one in the order of their arrival."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from asynchronous.rules import Rate
from asynchronous.settings import Server
from reducers.collectives import AxisName, devices_and_lanes, gather_workers, num_workers
from reducers.leaves import num_bytes
from reducers.traffic import Traffic


class Pending(NamedTuple):
    """The sum of gradients that wait for others of the same update."""

    gradient: Any  # like params: sum of rate x gradient
    rate: jax.Array  # [] float32, sum of the rates
    num_gradients: jax.Array  # [] int32


class ServerState(NamedTuple):
    """The server's state besides parameters and optimizer state; shared by all workers."""

    rule: Any  # the staleness rule's state
    pending: Pending | None  # None if each gradient is an update


def init_server(params: Any, *, settings: Server) -> ServerState:
    """Returns the state of a server that has received no gradient.

    Args:
      params: the initial parameters.
      settings: as in ``apply_in_order``.
    """
    pending = None
    if settings.gradients_per_update > 1:
        zeros = jax.tree.map(jnp.zeros_like, params)
        pending = Pending(zeros, jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))
    return ServerState(settings.rule.init(params), pending)


def apply_in_order(
    shared: Any,
    state: ServerState,
    snapshot: Any,
    gradient: Any,
    slots: Mapping[str, jax.Array],
    *,
    update: Callable[[Any, Any, Rate], Any],
    settings: Server,
    axis_name: AxisName,
) -> tuple[Any, ServerState, Any, jax.Array]:
    r"""Applies the gradients of a wave one by one, in the order of their arrival, under the worker axes.

    For each gradient g of the wave, in order, with the present parameters w and the parameters w' at which g was
    computed:

    .. math:: g, r \leftarrow \text{rule}(g, w, w', \tau), \quad w \leftarrow w + r \cdot \text{optimizer}(g)

    Then each worker that reads at that moment takes w as its snapshot. With c gradients per update, the optimizer
    receives :math:`\sum r_i g_i / \sum r_i`, and the rate is the mean of the :math:`r_i`. The result does not depend on
    how the order is cut into waves.

    A wave of K gradients makes K all-reduces of a gradient between devices, and K more if the rule needs the parameters
    that the worker read. With L lanes, a device holds L gradients, 2 L snapshots while the loop runs, and the shared
    state twice.

    Args:
      shared: the state that ``update`` changes; ``shared.params`` are the parameters.
      state: the rest of the server's state.
      snapshot: the parameters that this worker has read.
      gradient: this worker's gradient; ignored if it has no position.
      slots: this worker's "position", "staleness" and "reads_after" of ``waves.Slots``.
      update: ``(shared, gradient, rate) -> shared``, one update of the server; see ``at_rate``.
      settings: the staleness rule, and c, the gradients per update of soft synchronisation.
      axis_name: the worker axis, or a tuple of axes, outer first.

    Returns:
      (shared, state, snapshot, rates), where ``rates`` [W] are those of the wave's gradients in order, padded with
      zeros.

    Reference: Chen et al., arXiv 1604.00981, algorithm 2; soft synchronisation: Zhang, Gupta, Lian, Liu,
    arXiv 1511.05950. Differs from the papers in: one server, so that no read is torn.
    """
    rows = _Rows(axis_name)
    n = num_workers(axis_name)
    own = jnp.stack([slots[name] for name in ("position", "staleness", "reads_after")])
    position, staleness, reads_after = gather_workers(own, axis_name).T  # (W,) each
    in_order = jnp.argsort(jnp.where(position < 0, n, position))  # workers; those without a position last
    readers = jnp.argsort(reads_after)  # workers; those that do not read come first
    num_read = jnp.searchsorted(reads_after[readers], jnp.arange(n + 1), side="right")
    gradients = rows.stack(gradient)

    def apply_one(number, carry):
        shared, state, snapshots, rates = carry
        worker = in_order[number]
        # With one worker, the gradient is the same in every round of the loop. XLA would compute half of the update
        # before the loop, and round there, where plain SGD does not.
        gradient, number = lax.optimization_barrier((rows.get(gradients, worker), number))
        gradient, rate, rule_state = settings.rule.apply(
            gradient,
            state.rule,
            params=shared.params,
            read=lambda: rows.get(snapshots, worker),
            staleness=staleness[worker],
            num_workers=n,
        )
        if rate is not None and settings.rule.rates == "one":
            raise ValueError("rule: returned a rate; a Rule that does has rates='any', or 'zero or one'")
        if state.pending is None:
            shared = update(shared, gradient, rate)
            pending = None
        else:
            count = settings.gradients_per_update
            shared, pending = _collect(update, shared, state.pending, gradient, rate, count=count)
        snapshots = lax.fori_loop(
            num_read[number],
            num_read[number + 1],
            lambda i, snapshots: rows.put(snapshots, readers[i], shared.params),
            snapshots,
        )
        rates = rates.at[number].set(1 if rate is None else rate)
        return shared, ServerState(rule_state, pending), snapshots, rates

    carry = shared, state, rows.stack(snapshot), jnp.zeros(n)
    shared, state, snapshots, rates = lax.fori_loop(0, jnp.sum(position >= 0), apply_one, carry)
    return shared, state, rows.own(snapshots), rates


def at_rate(rate: Rate, updates: Any, opt_state: Any, *, before: Any) -> tuple[Any, Any]:
    """Returns an optimizer's updates multiplied by ``rate``, and its state; at rate 0 nothing changes.

    Args:
      rate: factor of the updates; None is 1.
      updates: the optimizer's updates.
      opt_state: the optimizer's state after them.
      before: the optimizer's state before them.

    >>> updates, _ = at_rate(jnp.array(0.5), -3.0, (), before=())
    >>> float(updates)
    -1.5
    """
    if rate is None:
        return updates, opt_state
    # A dropped gradient may be anything, NaN too.
    updates = jax.tree.map(lambda u: jnp.where(rate > 0, rate * u, 0).astype(jnp.result_type(u)), updates)
    return updates, jax.tree.map(lambda new, old: jnp.where(rate > 0, new, old), opt_state, before)


def traffic(params: Any, *, num_workers: int, gradients_per_update: int) -> Traffic:
    """Returns the traffic of an update between workers and server: each gradient is pushed, then parameters are read.

    >>> traffic({"w": jnp.zeros(100)}, num_workers=10, gradients_per_update=5)
    Traffic(bytes_per_worker=200.0, collectives={'push': 5, 'read': 5})
    """
    moved = {"push": gradients_per_update, "read": gradients_per_update}
    return Traffic(num_bytes(params) * gradients_per_update / num_workers, moved)


def values_in_order(values: jax.Array, position: jax.Array, axis_name: AxisName) -> jax.Array:
    """Returns the workers' values in the order of the wave, [W, ...], on all workers, with zeros after the last one.

    >>> jax.vmap(lambda x, p: values_in_order(x, p, "worker"), axis_name="worker")(
    ...     jnp.array([5.0, 6.0, 7.0]), jnp.array([1, -1, 0]))[0]
    Array([7., 5., 0.], dtype=float32)
    """
    gathered = gather_workers(values, axis_name)
    position = gather_workers(position, axis_name)
    place = jnp.where(position < 0, len(position), position)  # an index out of range is dropped
    return jnp.zeros_like(gathered).at[place].set(gathered, mode="drop")


def _collect(update: Callable, shared: Any, pending: Pending, gradient: Any, rate: Rate, *, count: int):
    """Adds a gradient to the pending ones, and updates if it completes them."""
    weight, added = jnp.ones(()), gradient
    if rate is not None:  # a dropped gradient may hold anything, including NaN
        weight = rate
        added = jax.tree.map(lambda g: jnp.where(rate > 0, rate * g, 0).astype(g.dtype), gradient)
    pending = Pending(
        gradient=jax.tree.map(jnp.add, pending.gradient, added),
        rate=pending.rate + weight,
        num_gradients=pending.num_gradients + 1,
    )

    def complete(shared, pending):
        # If all gradients were dropped, the sum of the rates is 0, and so is that of the gradients.
        total = count if rate is None else jnp.where(pending.rate > 0, pending.rate, 1)
        mean = jax.tree.map(lambda g: (g / total).astype(g.dtype), pending.gradient)
        shared = update(shared, mean, None if rate is None else pending.rate / count)
        return shared, jax.tree.map(jnp.zeros_like, pending)

    return lax.cond(pending.num_gradients == count, complete, lambda *same: same, shared, pending)


class _Rows:
    """Trees with a row for each worker, where each device holds the rows of its own lanes.

    Gathering over lanes is free, because it gives the batched array itself; so these rows are not batched over lanes.
    """

    def __init__(self, axis_name: AxisName):
        self._devices, self._lanes = devices_and_lanes(axis_name)
        self._num_lanes = num_workers(self._lanes)

    def stack(self, tree: Any) -> Any:
        """Returns this device's rows, from each worker's tree."""
        return jax.tree.map(lambda x: gather_workers(x, self._lanes), tree)

    def own(self, stacked: Any) -> Any:
        """Returns this worker's row."""
        lane = lax.axis_index(self._lanes)
        return jax.tree.map(lambda x: x[lane], stacked)

    def get(self, stacked: Any, worker: jax.Array) -> Any:
        """Returns the row of any worker, on all devices."""
        row = jax.tree.map(lambda x: x[worker % self._num_lanes], stacked)
        holds = self._holds(worker)
        return lax.psum(jax.tree.map(lambda x: jnp.where(holds, x, 0), row), self._devices)

    def put(self, stacked: Any, worker: jax.Array, tree: Any) -> Any:
        """Writes the row of any worker, on the device that holds it."""
        lane = worker % self._num_lanes
        holds = self._holds(worker)
        return jax.tree.map(lambda rows, x: rows.at[lane].set(jnp.where(holds, x, rows[lane])), stacked, tree)

    def _holds(self, worker: jax.Array) -> jax.Array:
        return worker // self._num_lanes == lax.axis_index(self._devices)
