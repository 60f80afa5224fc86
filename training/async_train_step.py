"""One worker's part in a wave of asynchronous SGD: a gradient at what it has read, then all of the wave in order."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from jax import numpy as jnp

import asynchronous
import optim
from parallel import AXES, Halves
from reducers import all_finite, num_workers
from training import nonfinite
from training.train_step import Local, Shared

# Of each update, in order.
UPDATE_METRICS = ("learning_rate", "reduced_norm", "update_norm", "rate")


class Served(NamedTuple):
    """What the server takes from update to update within a wave: the state, and what the updates measured."""

    shared: Shared
    told: dict[str, jax.Array]  # UPDATE_METRICS, [W] each; of the wave's updates in order, then zeros
    num_updates: jax.Array  # [] int32, of this wave
    made: jax.Array  # [2, L], squared norms of what all updates were of and came to, but for those at rate 0

    @property
    def params(self) -> Any:
        return self.shared.params


def make_wave_step(
    *,
    local_half: Callable,
    update: Callable,
    mode: asynchronous.Mode,
    on_nonfinite: nonfinite.OnNonfinite = "stop",
) -> tuple[Halves, Callable[[Any], tuple[Any, Any]]]:
    """Returns one worker's part in a wave; one call is several updates of the server.

    A worker that has no gradient in the wave is idle: what its local half gives is thrown away, and its state stays.

    Args:
      local_half: of ``step.make_local_half``.
      update: of ``step.make_update``.
      mode: rule, gradients per update.
      on_nonfinite: "stop" leaves all state as it was before the wave, from there on, where a loss, a gradient or an
        update is not finite. A gradient whose update has rate 0 does not count.

    Returns:
      The halves, whose feeds have a plan of the leaves of ``asynchronous.Slots`` but for the draw, and whose metrics
      are [W] each, of "gradients" in the order of arrival and of "updates" in order, with the "evidence"; and
      ``params -> (server, snapshot)``, the further state.
    """

    def apply_one(served: Served, gradient, rate: asynchronous.Rate) -> Served:
        shared, told = update(served.shared, gradient, rate)
        told["rate"] = jnp.ones(()) if rate is None else rate
        told_all = {name: column.at[served.num_updates].set(told[name]) for name, column in served.told.items()}
        made = served.made + jnp.where(told["rate"] > 0, told["squares"], 0)
        return Served(shared, told_all, served.num_updates + 1, made)

    def reduce_half(shared: Shared, local: Local, work: optim.accumulation.Work, plan):
        told = {name: jnp.zeros(num_workers(AXES)) for name in UPDATE_METRICS}
        made = jnp.zeros((2, len(jax.tree.leaves(shared.params))))
        served = Served(shared._replace(server=None), told, jnp.zeros((), jnp.int32), made)
        served, state, snapshot = asynchronous.apply_in_order(
            served,
            shared.server,
            local.snapshot,
            work.updates,
            **plan,
            update=apply_one,
            rule=mode.rule,
            axis_name=AXES,
            gradients_per_update=mode.gradients_per_update,
        )
        busy = plan["position"] >= 0
        worked = local._replace(model_state=work.model_state, opt_state=work.opt_state)
        after = served.shared._replace(server=state), optax.tree.where(busy, worked, local)._replace(snapshot=snapshot)
        names = sorted(work.sums)
        sums = jnp.stack([jnp.asarray(work.sums[name], jnp.float32) for name in names])
        sums = jnp.concatenate([sums, work.layers])
        sums = asynchronous.values_in_order(sums, plan["position"], AXES)  # (W, names and layers)
        of_gradients = {name: sums[:, i] for i, name in enumerate(names)}
        metrics = {"gradients": of_gradients, "updates": served.told}
        if on_nonfinite == "ignore":
            return *after, metrics
        pending = shared.server.pending
        update = (0 if pending is None else pending.num_gradients) + jnp.arange(len(sums))
        rate = served.told["rate"][update // mode.gradients_per_update]  # 0 too of updates that are not complete
        counts = (rate > 0) | (update // mode.gradients_per_update >= served.num_updates)
        losses = jnp.where(counts, of_gradients["loss"], 0)
        layers = jnp.where(counts[:, None], sums[:, len(names) :], 0)
        seen = {"losses": losses, "given": layers.sum(1), "layers": layers.sum(0), "made": served.made}
        is_bad = ~all_finite(seen)
        shared, local = nonfinite.undo(is_bad, (shared, local), after, on_nonfinite=on_nonfinite)
        return shared, local, {**metrics, "evidence": nonfinite.Evidence(is_bad, **seen)}

    def init(params):
        state = asynchronous.init_server(params, rule=mode.rule, gradients_per_update=mode.gradients_per_update)
        return state, params

    return Halves(local_half, reduce_half, idle=lambda plan: plan["position"] < 0), init
