"""Gradients that are stale on purpose: applied a number of updates after they were computed."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName, agreed, axes_of
from reducers.options import Natural, Seed, check_options, check_static
from reducers.reducer import Combine, Reducer
from reducers.report import Report, all_overflowed, report, who_counts
from reducers.state import zeros_like
from reducers.sums.mean import combiner_of

Law = Literal["fixed", "uniform", "geometric"]
Delay = Annotated[int, "[0, 16777216]"]  # which a float32 counts one by one

# The largest delay, in multiples of the mean one, where none is given.
_LARGEST: dict[str, int] = {"fixed": 1, "uniform": 2, "geometric": 4}


class StaleState(NamedTuple):
    """State of ``stale``.

    Attributes:
      combine: state of the reducer that combines the workers' gradients.
      num_updates: [], so far.
      ring: like params with a leading axis [max_delay_steps + 1]; the reduced gradient of update t at t modulo that.
      overflowed: [max_delay_steps + 1] bool, whether the gradients in the ring are zeros, since they overflowed.
      report: that of the combining reducer, with ``overflowed`` of the gradient that was applied, and "staleness": how
        many updates late this gradient is.
    """

    combine: Any
    num_updates: jax.Array
    ring: Any
    overflowed: jax.Array
    report: Report


def stale(
    axis_name: AxisName,
    *,
    delay_steps: Delay,
    law: Law = "fixed",
    max_delay_steps: Delay | None = None,
    ramp_up_steps: Natural = 0,
    seed: Seed = 0,
    combine: Combine = None,
) -> Reducer:
    r"""Combines the workers' gradients, and returns the result of an earlier update.

    .. math:: u_t = R(g_1, \dots, g_n)_{t - d_t}, \quad u_t = 0 \text{ for } d_t > t

    with the delay :math:`d_t` always d; or drawn, anew at each update, from 0, ..., 2 d with the same probability; or
    from the geometric law of mean d, :math:`P(d_t = k) \propto (d / (1 + d))^k`. At first it is scaled by
    min(t / ramp-up, 1) and rounded down. Until the gradient that is to be emitted has been computed, the update is
    zero. With drawn delays, and while the ramp goes up, a gradient may be applied twice or never; each update applies
    one.

    Args:
      axis_name: the worker axis or axes.
      delay_steps: d, in updates; the mean of drawn delays.
      law: distribution of the delay.
      max_delay_steps: largest delay; longer ones are cut to it. By default d, 2 d, or for the geometric law 4 d, which
        lowers the mean by 6 % for d = 1, and by 2 % for a large d.
      ramp_up_steps: updates over which the delay grows from 0.
      seed: seed of the delays, which are a function of it and of the count of updates.
      combine: how the workers' gradients are combined: a reducer, which gets all keyword arguments of the update; None
        is ``mean``. Configs give its name, or a block such as {"name": "backup_workers", "num_required": 6}.

    Returns:
      A reducer. Its state holds max_delay_steps + 1 gradients, on every worker, and its report has "staleness". Its
      update takes ``overflowed``, optional: a bool of each worker, whether zeros stand in for its gradient. The report
      says ``overflowed`` in the update that applies gradients that overflowed, on all counted workers or in the
      reduction.

    Raises:
      ValueError: for an unknown law or a negative number.

    >>> reducer = stale("worker", delay_steps=1)
    >>> state = reducer.init(0.0)
    >>> for gradient in (1.0, 2.0, 3.0):
    ...   reduce = jax.vmap(lambda g, state: reducer.update(g, state), axis_name="worker", in_axes=(0, None))
    ...   updates, states = reduce(jnp.full(2, gradient), state)
    ...   state = jax.tree.map(lambda x: x[0], states)
    ...   print(updates)
    [0. 0.]
    [1. 1.]
    [2. 2.]

    Reference: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting Distributed Synchronous SGD", arXiv 1604.00981, the
    study of staleness on MNIST. Differs from the paper in: what the paper does before the first gradient is emitted,
    and with which law, is not known to us.
    """
    given = {"delay_steps": delay_steps, "max_delay_steps": max_delay_steps, "ramp_up_steps": ramp_up_steps}
    check_options(stale, law=law, seed=seed, **given)
    check_static(**given)
    axes = axes_of(axis_name)
    combiner = combiner_of(combine, axes)
    largest = int(_LARGEST[law] * delay_steps if max_delay_steps is None else max_delay_steps)
    if law == "fixed" and delay_steps > largest:
        raise ValueError(f"delay_steps={delay_steps}: exceeds max_delay_steps={largest}")

    def delay_at(count):
        key = jax.random.fold_in(jax.random.key(seed), count)
        ramp = jnp.minimum(count / ramp_up_steps, 1) if ramp_up_steps else 1
        delay = _DRAW[law](key, delay_steps) * ramp
        return jnp.clip(jnp.floor(delay + 1e-4), 0, largest).astype(jnp.int32)  # 6.9999995 is 7

    def init_fn(params):
        ring = zeros_like(params, axes, copies=largest + 1)
        combined = combiner.init(params)
        inside = report(combined)._replace(overflowed=jnp.array(False))
        own = inside.with_metrics({"staleness": jnp.zeros((), jnp.float32)})
        return StaleState(combined, jnp.zeros((), jnp.int32), ring, jnp.zeros(largest + 1, bool), own)

    def update_fn(updates, state, params=None, *, overflowed=None, **extra_args):
        updates, combined = combiner.update(updates, state.combine, params, overflowed=overflowed, **extra_args)
        inside = report(combined)
        is_lost = jnp.array(False) if inside.overflowed is None else inside.overflowed
        if overflowed is not None and not combiner.delays:
            said = {name: extra_args.get(name) for name in ("contributes", "weights")}
            is_lost |= all_overflowed(overflowed, counted=who_counts(**said, inside=inside), axes=axes)
        slot = state.num_updates % (largest + 1)
        delay = delay_at(state.num_updates)
        put = lax.dynamic_update_index_in_dim
        at = lax.dynamic_index_in_dim
        ring = jax.tree.map(lambda r, g: put(r, g.astype(r.dtype), slot, 0), state.ring, updates)
        late_slot = (state.num_updates - delay) % (largest + 1)  # before update 0: a slot that is still zero
        late = jax.tree.map(lambda r, g: agreed(at(r, late_slot, keepdims=False).astype(g.dtype), axes), ring, updates)
        lost = state.overflowed.at[slot].set(is_lost)
        own = inside._replace(overflowed=lost[late_slot]).with_metrics({"staleness": delay.astype(jnp.float32)})
        return late, StaleState(combined, state.num_updates + 1, ring, lost, own)

    return combiner.like(
        init_fn,
        update_fn,
        axis_name=axes,
        takes_mask=combiner.takes_mask,
        takes_weights=combiner.takes_weights,
        homogeneous=False,  # if c changes from update to update, an old gradient has the c of its own update
        delays=True,
        numbers="inexact",
    )


_DRAW: dict[str, Callable[[jax.Array, int], jax.Array]] = {
    "fixed": lambda key, mean_delay: jnp.float32(mean_delay),
    "uniform": lambda key, mean_delay: jax.random.randint(key, (), 0, 2 * mean_delay + 1).astype(jnp.float32),
    # The whole part of an exponential variable is geometric: P(d >= k) = (mean / (1 + mean))^k.
    "geometric": lambda key, mean_delay: jnp.floor(
        jax.random.exponential(key).astype(jnp.float32) / jnp.log1p(1 / jnp.float32(mean_delay))
    ),
}
