"""The steps of asynchronous SGD: a wave of gradients, each at what its worker has read, in the order of arrival.

They share ``compute_gradients`` with the synchronous step. With a server, ``asynchronous.apply_in_order`` stands
between it and ``apply_gradients``; one call is several updates of the server, or none if gradients wait for others.
Without a server, ``asynchronous.exchange_updates`` sends each update to all replicas. ``make_step`` chooses the step of
a run.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import optax
from jax import numpy as jnp
from jax.flatten_util import ravel_pytree

import asynchronous
import optim
import parallel
from parallel import AXES, Layout
from parallel.mapping import Update
from reducers import all_finite, num_workers
from reducers.collectives import gather_workers
from training.modes import Decentralised, Mode, Synchronous, WithServer
from training.setup import TrainSetup
from training.steps import nonfinite
from training.steps.train_step import Metrics, WorkerGradient, apply_gradients, make_compute, make_update
from training.train_state import STATE_AXES, TrainState, shared_part

# Metrics of each update, in order.
UPDATE_METRICS = ("learning_rate", "reduced_norm", "update_norm", "rate")


class Served(NamedTuple):
    """State that the server carries from update to update within a wave.

    Attributes:
      state: the shared fields of the ``TrainState``, without the server's own.
      metrics: ``UPDATE_METRICS``, [W] each: of the wave's updates in order, then zeros.
      num_updates: [] int32, of this wave.
      made: [2, L], squared norms of the reduced gradients and of the updates, summed over updates at a rate above 0.
    """

    state: TrainState
    metrics: dict[str, jax.Array]
    num_updates: jax.Array
    made: jax.Array

    @property
    def params(self) -> Any:
        """The server's parameters, which ``apply_in_order`` hands to readers."""
        return self.state.params


def make_server_update(setup: TrainSetup) -> Update:
    """Returns ``(state, WorkerGradient, inputs) -> (state, metrics)`` of one worker in the mode ``WithServer``.

    The inputs are the leaves of ``asynchronous.Slots``, without the batch index. A worker that has no gradient in the
    wave is idle: its result is ignored, and its state stays. The metrics are "gradients", [W] each in the order of
    arrival, "updates", [W] each in order, and the "nonfinite" report.
    """
    options = setup.mode.options
    assert isinstance(options, asynchronous.Server)

    def apply_one(served: Served, gradients: Any, rate: asynchronous.Rate) -> Served:
        state, metrics = apply_gradients(setup, served.state, gradients, rate=rate)
        metrics["rate"] = jnp.ones(()) if rate is None else rate
        columns = {name: column.at[served.num_updates].set(metrics[name]) for name, column in served.metrics.items()}
        made = served.made + jnp.where(metrics["rate"] > 0, metrics["squares"], 0)
        return Served(state, columns, served.num_updates + 1, made)

    def update(state: TrainState, gradient: WorkerGradient, inputs: Any) -> tuple[TrainState, Metrics]:
        served, server, snapshot, rates = asynchronous.apply_in_order(
            _begin(state),
            state.server,
            state.snapshot,
            gradient.updates,
            inputs,
            update=apply_one,
            settings=options,
            axis_name=AXES,
        )
        is_busy = inputs["position"] >= 0
        after = served.state._replace(
            server=server,
            worker=optax.tree.where(is_busy, gradient.worker, state.worker),
            reducer_state=state.reducer_state,
            snapshot=snapshot,
        )
        of_gradients, layers = _in_order((gradient.sums, gradient.layers), inputs["position"])
        counts = rates > 0  # a rate of 0 drops a gradient
        of_gradients["workers"] = counts.astype(jnp.float32)
        layers = jnp.where(counts[:, None], layers, 0)
        seen = {
            "losses": jnp.where(counts, of_gradients["loss"], 0),
            "given": layers.sum(1),
            "layers": layers.sum(0),
            "made": served.made,
        }
        metrics = {"gradients": of_gradients, "updates": served.metrics}
        return _checked(seen, state, after, metrics, then=setup.config.on_nonfinite)

    return update


def _begin(state: TrainState) -> Served:
    """Returns the server's state before the first update of a wave."""
    columns = {name: jnp.zeros(num_workers(AXES)) for name in UPDATE_METRICS}
    made = jnp.zeros((2, len(jax.tree.leaves(state.params))))
    shared = shared_part(state)._replace(server=None)
    return Served(shared, columns, jnp.zeros((), jnp.int32), made)


# ---- without a server ---------------------------------------------------------------------------------------------


def make_decentralised_update(setup: TrainSetup) -> Update:
    """Returns ``(state, WorkerGradient, inputs) -> (state, metrics)`` of one worker in the mode ``Decentralised``.

    The inputs are a worker's position in ``asynchronous.Slots`` and the leaves of ``asynchronous.Mail``. A worker that
    has no gradient in the wave is idle: it only receives. The metrics are those of ``make_server_update``.
    """

    def update(state: TrainState, gradient: WorkerGradient, inputs: Any) -> tuple[TrainState, Metrics]:
        position = inputs["position"]
        is_busy = position >= 0
        event = state.step + position
        opt_state = optim.schedules.at_step(state.opt_state, event)
        updates, _ = setup.optimizer.update(gradient.updates, opt_state, state.snapshot)
        replica, snapshot, kept = asynchronous.exchange_updates(
            state.replica, state.snapshot, state.server, updates, inputs, is_busy=is_busy, axis_name=AXES
        )
        squares = jnp.stack([gradient.layers, optim.norms.squares(updates)])
        own = {
            "learning_rate": setup.learning_rate(event),
            "reduced_norm": optim.norms.norm(squares[0]),
            "update_norm": optim.norms.norm(squares[1]),
            "rate": jnp.ones(()),
        }
        of_gradients, of_updates, squares = _in_order((gradient.sums, own, squares), position)
        step = state.step + jnp.sum(gather_workers(position, AXES) >= 0)
        after = state._replace(
            step=step,
            params=asynchronous.mean_replica(replica, AXES),
            opt_state=optim.schedules.at_step(state.opt_state, step),
            server=kept,
            worker=optax.tree.where(is_busy, gradient.worker, state.worker),
            snapshot=snapshot,
            replica=replica,
        )
        made = squares.sum(0)  # (2, L)
        seen = {"losses": of_gradients["loss"], "given": squares[:, 0].sum(1), "layers": made[0], "made": made}
        metrics = {"gradients": of_gradients, "updates": of_updates}
        return _checked(seen, state, after, metrics, then=setup.config.on_nonfinite)

    return update


# ---- with and without a server ------------------------------------------------------------------------------------


def _in_order(numbers: Any, position: jax.Array) -> Any:
    """Returns the workers' numbers in the order of the wave, [W, ...] a leaf, and then zeros."""
    flat, unflatten = ravel_pytree(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), numbers))
    return jax.vmap(unflatten)(asynchronous.values_in_order(flat, position, AXES))


def _checked(
    seen: dict[str, jax.Array], before: TrainState, after: TrainState, metrics: Metrics, *, then: nonfinite.OnNonfinite
) -> tuple[TrainState, Metrics]:
    """Returns the state after a wave and its metrics; undoes and reports a wave with a number that is not finite."""
    if then == "ignore":
        return after, metrics
    is_bad = ~all_finite(seen)
    report = nonfinite.NonfiniteReport(is_bad, **seen)
    return nonfinite.undo(is_bad, before, after, then=then), {**metrics, "nonfinite": report}


# ---- any mode -----------------------------------------------------------------------------------------------------


_UPDATES: Mapping[type[Mode], Callable[[TrainSetup], Update]] = {
    Synchronous: make_update,
    WithServer: make_server_update,
    Decentralised: make_decentralised_update,
}


def make_step(
    setup: TrainSetup, layout: Layout, *, map_workers: Callable[..., parallel.Step] = parallel.map_workers
) -> parallel.Step:
    """Returns the step of all workers: ``step(state, batch, resident, inputs) -> (state, metrics)``.

    Args:
      setup: the run's setup.
      layout: where the workers are.
      map_workers: ``parallel.map_workers`` or ``parallel.dispatch_lanes``, with their options bound.
    """
    update = _UPDATES[type(setup.mode)](setup)
    options = {}
    if not setup.mode.is_synchronous:
        options["is_idle"] = lambda inputs: inputs["position"] < 0
    return map_workers(make_compute(setup), update, layout=layout, state_axes=STATE_AXES, **options)
