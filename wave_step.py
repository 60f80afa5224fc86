"""One worker's part in a wave of asynchronous SGD: a gradient at what it has read, then all of the wave in order."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from jax import numpy as jnp

import asynchronous
import optim
from reducers import num_workers
from step import Local, Shared
from workers import AXES, Halves

# Of each update, in order.
UPDATE_METRICS = ("learning_rate", "reduced_norm", "update_norm", "rate")


class Served(NamedTuple):
    """What the server takes from update to update within a wave: the state, and what the updates measured."""

    shared: Shared
    told: dict[str, jax.Array]  # UPDATE_METRICS, [W] each; of the wave's updates in order, then zeros
    num_updates: jax.Array  # [] int32, of this wave

    @property
    def params(self) -> Any:
        return self.shared.params


def make_wave_step(
    *, local_half: Callable, update: Callable, mode: asynchronous.Mode
) -> tuple[Halves, Callable[[Any], tuple[Any, Any]]]:
    """Returns one worker's part in a wave; one call is several updates of the server.

    A worker that has no gradient in the wave is idle: what its local half gives is thrown away, and its state stays.

    Args:
      local_half: of ``step.make_local_half``.
      update: of ``step.make_update``.
      mode: rule, gradients per update.

    Returns:
      The halves, whose feeds have a plan of the leaves of ``asynchronous.Slots`` but for the draw, and whose metrics
      are [W] each, of "gradients" in the order of arrival and of "updates" in order; and
      ``params -> (server, snapshot)``, the further state.
    """

    def apply_one(served: Served, gradient, rate: asynchronous.Rate) -> Served:
        shared, told = update(served.shared, gradient, rate)
        told["rate"] = jnp.ones(()) if rate is None else rate
        told = {name: column.at[served.num_updates].set(told[name]) for name, column in served.told.items()}
        return Served(shared, told, served.num_updates + 1)

    server = asynchronous.apply_in_order(
        apply_one, rule=mode.rule, axis_name=AXES, gradients_per_update=mode.gradients_per_update
    )

    def reduce_half(shared: Shared, local: Local, work: optim.accumulation.Work, plan):
        told = {name: jnp.zeros(num_workers(AXES)) for name in UPDATE_METRICS}
        served = Served(shared._replace(server=None), told, jnp.zeros((), jnp.int32))
        served, state, snapshot = server.apply(served, shared.server, local.snapshot, work.updates, **plan)
        busy = plan["position"] >= 0
        worked = local._replace(model_state=work.model_state, opt_state=work.opt_state)
        local = optax.tree.where(busy, worked, local)._replace(snapshot=snapshot)
        names = sorted(work.sums)
        sums = jnp.stack([jnp.asarray(work.sums[name], jnp.float32) for name in names])
        sums = asynchronous.values_in_order(sums, plan["position"], AXES)  # (W, names)
        of_gradients = {name: sums[:, i] for i, name in enumerate(names)}
        return served.shared._replace(server=state), local, {"gradients": of_gradients, "updates": served.told}

    return Halves(local_half, reduce_half, idle=lambda plan: plan["position"] < 0), server.init
