"""Backup workers whose number is chosen anew at every step, for the most gain per second."""

from typing import Any, NamedTuple

import jax
import optax
from jax import lax
from jax import numpy as jnp

from reducers.arrivals.clock import check_seconds
from reducers.arrivals.order import first_arrivals
from reducers.arrived.over_arrived import arrival_report, nobody_yet
from reducers.collectives import AxisName, axes_of, num_workers
from reducers.dtypes import as_real, mixing_dtypes, wide
from reducers.mesh import ShardedOver, axes_that_cut, cuts_of, needs_whole_leaves, sum_of_parts
from reducers.options import Count, Fraction, check_options, check_static
from reducers.reducer import Reducer
from reducers.report import Report
from reducers.state import zeros_like
from reducers.sums.mean import mean


class Estimates(NamedTuple):
    """Running averages, equal on all workers.

    Attributes:
      arrival_seconds: [max_workers], of the time to the k-th arrival, k from 1; the rest is unused.
      signal: [], of the squared norm of the true gradient.
      variance: [], of the squared distance of a worker's gradient from it.
      change: [], of the squared change of the true gradient from one update to the next.
      motion: [], of the squared norm of the reduced gradient before that change.
    """

    arrival_seconds: jax.Array
    signal: jax.Array
    variance: jax.Array
    change: jax.Array
    motion: jax.Array


class DynamicState(NamedTuple):
    """State of ``dynamic_backup_workers``.

    Attributes:
      num_updates: [], so far.
      estimates: running averages.
      previous: the last reduced gradient, like params.
      previous_required: how many workers' gradients it averages.
      report: who was counted; "step_seconds" and "contributors".
    """

    num_updates: jax.Array
    estimates: Estimates
    previous: Any
    previous_required: jax.Array
    report: Report


def dynamic_backup_workers(
    axis_name: AxisName,
    *,
    min_required: Count = 2,
    warmup_steps: Count = 10,
    decay: Fraction = 0.95,
    max_workers: Count = 1024,
    sharded_over: ShardedOver = None,
) -> Reducer:
    r"""Averages the first k gradients, k chosen at each step for the most gain per second.

    .. math:: k = \arg\max_k \frac{G(k)}{T(k)}, \quad
       G(k) = \left(1 - \frac{\rho}{2}\right) |\nabla F|^2 - \frac{\rho}{2} \frac{V}{k}, \quad \rho = \eta L

    A step with rate :math:`\eta` lowers an L-smooth loss by at least :math:`\eta G`; T(k) is the mean time to the k-th
    arrival. Each is estimated from the steps before by running averages: T(k) from the arrival times;
    V from the k gradients that were averaged, by their mean square and that of their mean; :math:`|\nabla F|^2` as the
    square of their mean less V / k; and :math:`\rho^2` as the squared change from one reduced gradient to the next,
    less the noise V / k of both, over the square of the first, along which plain SGD has moved. So the reducer needs
    neither the learning rate nor the loss. In the first steps, and if no k gains anything by these estimates, it waits
    for all workers.

    Args:
      axis_name: the worker axis or axes.
      min_required: smallest k, since a single gradient shows no variance; with fewer workers all are required.
      warmup_steps: first steps, which wait for all workers.
      decay: rate of the running averages, which are plain means in the beginning.
      max_workers: places in the state for T(k).
      sharded_over: see ``from_gram``.

    Returns:
      A reducer. Its update needs ``arrival_seconds`` [n], the same on all workers. Its state holds one gradient, and
      ``metrics``: "step_seconds" and "contributors", the k chosen. It also says whether this worker is one of them, and
      so differs between workers: map it over the worker axis.

    Raises:
      ValueError: for a value out of its range; and when traced, for more workers than ``max_workers``.

    >>> reducer = dynamic_backup_workers("worker")
    >>> reduce = lambda g: reducer.update(g, reducer.init(g), arrival_seconds=jnp.array([1.0, 9.0]))[0]
    >>> jax.jit(jax.vmap(reduce, axis_name="worker"))(jnp.array([1.0, 3.0]))  # the first step waits for all
    Array([2., 2.], dtype=float32)

    Reference: Xu, Neglia, Sebastianelli, "Dynamic backup workers for parallel machine learning", arXiv 2004.14696: the
    rule. Its estimators could not be read; those above are ours. Differs from the paper further in: T(k) is the mean
    over all times, also those of gradients that were dropped; k is not forced up when the loss rises, which a reducer
    does not see; :math:`\rho` supposes that plain SGD stands behind the reducer.
    """
    given = {"min_required": min_required, "warmup_steps": warmup_steps, "max_workers": max_workers}
    check_options(dynamic_backup_workers, decay=decay, **given)
    check_static(min_required=min_required, max_workers=max_workers)
    axes = axes_of(axis_name)
    must_be_whole = needs_whole_leaves(sharded_over)
    average = mean(axes)

    def init_fn(params):
        zero = jnp.zeros((), jnp.float32)
        return DynamicState(
            num_updates=jnp.zeros((), jnp.int32),
            estimates=Estimates(jnp.zeros(max_workers, jnp.float32), zero, zero, zero, zero),
            previous=zeros_like(params, axes),
            previous_required=jnp.ones((), jnp.float32),
            report=nobody_yet(axes, inside=Report()),
        )

    def update_fn(updates, state, params=None, *, arrival_seconds, **extra_args):
        del params, extra_args
        seconds = check_seconds(arrival_seconds, axis_name=axes)
        n = num_workers(axes)
        if n > max_workers:
            raise ValueError(f"num_workers={n}: exceeds max_workers={max_workers}")
        chosen = most_gain_per_second(state.estimates, num_workers=n, min_required=min(min_required, n))
        required = jnp.where(state.num_updates < warmup_steps, n, chosen)
        report = arrival_report(first_arrivals(seconds, required), axes, inside=Report())
        reduced, _ = average.update(updates, optax.EmptyState(), contributes=report.counted)
        cuts = cuts_of(updates, sharded_over, axis_name=axes)

        def square(tree):
            leaves = [as_real(wide(leaf)) for leaf in jax.tree.leaves(tree)]
            numbers = [jnp.sum(leaf * leaf).astype(jnp.float32) for leaf in leaves]
            return sum_of_parts(numbers, cuts, axes_that_cut(sharded_over))

        own = square(jax.tree.map(lambda g: jnp.where(report.counted, g, 0), updates))
        counted = required.astype(jnp.float32)
        mean_square = lax.psum(own, axes) / counted
        seen = _observe(state, seconds, reduced, square, mean_square=mean_square, required=counted)
        weight = jnp.maximum(1 / (state.num_updates + 1), 1 - decay)
        estimates = jax.tree.map(lambda old, new: _blend(old, new, weight=weight), state.estimates, seen)
        previous = optax.tree.cast_like(reduced, state.previous)
        return reduced, DynamicState(state.num_updates + 1, estimates, previous, counted, report)

    def awaits(step, num_workers):
        known = not isinstance(warmup_steps, jax.Array)
        return min_required if known and step >= warmup_steps else num_workers

    # Not homogeneous: the estimates are in the gradients' own units.
    return Reducer(
        init_fn,
        update_fn,
        axis_name=axes,
        needs_arrivals=True,
        awaits=awaits,
        numbers="inexact",
        needs_whole_leaves=must_be_whole,
    )


def most_gain_per_second(estimates: Estimates, *, num_workers: int, min_required: int) -> jax.Array:
    """Returns the k, from ``min_required`` to ``num_workers``, with the largest G(k) / T(k); all if none gains.

    >>> times = jnp.array([1.0, 1.1, 1.2, 9.0])
    >>> estimates = Estimates(times, signal=1.0, variance=4.0, change=0.25, motion=1.0)  # rho = 1/2
    >>> int(most_gain_per_second(estimates, num_workers=4, min_required=1))  # gains -1/4, 1/4, 5/12, 1/2
    3
    """
    k = jnp.arange(1, num_workers + 1, dtype=jnp.float32)
    rho = jnp.sqrt(jnp.maximum(estimates.change, 0) / jnp.where(estimates.motion > 0, estimates.motion, 1))
    gain = (1 - rho / 2) * jnp.maximum(estimates.signal, 0) - rho / 2 * estimates.variance / k
    seconds = estimates.arrival_seconds[:num_workers]
    may_be = (k >= min_required) & (gain > 0)
    rate = jnp.where(may_be, gain / jnp.where(seconds > 0, seconds, 1), 0)
    any_gains = jnp.max(rate) > 0  # NaN is not above 0, and waits for all
    return jnp.where(any_gains, jnp.argmax(rate) + 1, num_workers)


def _observe(state: DynamicState, seconds, reduced, square_of, *, mean_square, required) -> Estimates:
    """Returns the observations of one step, for the estimates; NaN where it has none."""
    square = square_of(reduced)
    unbiased = (mean_square - square) * required / jnp.maximum(required - 1, 1)  # over k - 1, as of a sample
    variance = jnp.where(required > 1, jnp.maximum(unbiased, 0), jnp.nan)
    known = jnp.where(required > 1, variance, state.estimates.variance)
    change = square_of(jax.tree.map(mixing_dtypes(jnp.subtract), reduced, state.previous))
    change -= known / required + known / state.previous_required
    motion = square_of(state.previous)
    first = state.num_updates == 0  # no update came before
    return Estimates(
        arrival_seconds=jnp.full_like(state.estimates.arrival_seconds, jnp.nan)
        .at[: len(seconds)]
        .set(jnp.sort(seconds).astype(jnp.float32)),
        signal=square - known / required,
        variance=variance,
        change=jnp.where(first, jnp.nan, change),
        motion=jnp.where(first, jnp.nan, motion),
    )


def _blend(old, new, *, weight):
    return jnp.where(jnp.isfinite(new), old + weight * (new - old), old)
