"""One step of asynchronous SGD without a server: a wave of gradients, each of which its worker sends to all replicas.

It shares ``compute_gradients`` with the other steps; ``asynchronous.exchange_updates`` stands for reduction and update.
"""

from collections.abc import Callable
from typing import Any

import jax
import optax
from jax import numpy as jnp
from jax.flatten_util import ravel_pytree

import asynchronous
import optim
import parallel
from parallel import AXES, Layout
from reducers import all_finite
from reducers.collectives import gather_workers
from training.steps import nonfinite
from training.steps.train_step import Metrics, WorkerGradient, make_compute
from training.train_setup import TrainSetup
from training.train_state import STATE_AXES, TrainState


def make_decentralised_train_step(
    setup: TrainSetup, layout: Layout, *, map_workers: Callable[..., parallel.Step] = parallel.map_workers
) -> parallel.Step:
    """Returns the step of all workers: ``step(state, batch, resident, inputs) -> (state, metrics)``.

    The inputs are a worker's position in ``asynchronous.Slots`` and the leaves of ``asynchronous.Mail``. A worker that
    has no gradient in the wave is idle: it only receives. The metrics are those of ``make_async_train_step``.

    Args:
      setup: what to train, with a decentralised mode.
      layout: where the workers are.
      map_workers: ``parallel.map_workers`` or ``parallel.dispatch_lanes``, with their options bound.
    """
    on_nonfinite = setup.config.on_nonfinite

    def update(state: TrainState, gradient: WorkerGradient, inputs: Any) -> tuple[TrainState, Metrics]:
        position, mail = inputs["position"], {name: inputs[name] for name in asynchronous.Mail._fields}
        is_busy, event = position >= 0, state.step + position
        opt_state = optim.schedules.at_step(state.opt_state, event)
        updates, _ = setup.optimizer.update(gradient.updates, opt_state, state.snapshot)
        replica, snapshot, kept = asynchronous.exchange_updates(
            state.replica, state.snapshot, state.server, updates, is_busy=is_busy, **mail, axis_name=AXES
        )
        own = {
            "learning_rate": setup.learning_rate(event),
            "reduced_norm": optax.tree.norm(gradient.updates),
            "update_norm": optax.tree.norm(updates),
            "rate": jnp.ones(()),
        }
        squares = jnp.stack([gradient.layers, nonfinite.squares(updates)])
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
        metrics: Metrics = {"gradients": of_gradients, "updates": of_updates}
        if on_nonfinite == "ignore":
            return after, metrics
        made = squares.sum(0)  # (2, L)
        seen = {"losses": of_gradients["loss"], "given": squares[:, 0].sum(1), "layers": made[0], "made": made}
        is_bad = ~all_finite(seen)
        report = nonfinite.NonfiniteReport(is_bad, **seen)
        return nonfinite.undo(is_bad, state, after, then=on_nonfinite), {**metrics, "nonfinite": report}

    return map_workers(
        make_compute(setup), update, layout=layout, state_axes=STATE_AXES, is_idle=lambda inputs: inputs["position"] < 0
    )


def _in_order(numbers: Any, position: jax.Array) -> Any:
    """Returns the workers' numbers in the order of the wave, [W, ...] a leaf, and then zeros."""
    flat, unflatten = ravel_pytree(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), numbers))
    return jax.vmap(unflatten)(asynchronous.values_in_order(flat, position, AXES))
