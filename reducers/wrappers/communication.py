"""How updates are sent between workers: wrappers of the innermost reducer, by name."""

from typing import Annotated, Any, Literal, NamedTuple

import jax
import optax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName, as_own, axes_of
from reducers.dtypes import cast, wide, wide_dtype
from reducers.dynamic_scale import DynamicScale, Scale, ScaleValue, all_finite
from reducers.encodings import ENCODINGS, Encoding, Rules, Then, by_pattern, encoded
from reducers.gram.telemetry import unscaled
from reducers.mesh import ShardedOver, all_agree, axes_that_cut, needs_whole_leaves
from reducers.options import Count, check_options
from reducers.reducer import Reducer, as_inner, as_reducer
from reducers.registry import Registry
from reducers.report import Report, leaves_out_twice, report, who_counts


class HalfPrecisionState(NamedTuple):
    """State of ``in_half_precision``.

    Attributes:
      scale: the same on all workers.
      inner: the reducer's own.
      report: that of the reducer, of gradients without the scale, with "communication_scale", which the next step uses.
    """

    scale: Scale
    inner: Any
    report: Report


def in_full_precision(reducer: optax.GradientTransformation) -> Reducer:
    """Sends updates as they are: returns the reducer itself."""
    return as_reducer(reducer, key="reducer")


def in_half_precision(
    reducer: optax.GradientTransformation,
    *,
    axis_name: AxisName,
    dtype: Literal["float16", "bfloat16"] = "float16",
    initial_scale: ScaleValue = 2.0**18,
    growth_interval: Count = 2000,
    growth_factor: Annotated[float, "(1, inf)"] = 2.0,
    backoff_factor: Annotated[float, "(0, 1)"] = 0.5,
    sharded_over: ShardedOver = None,
) -> Reducer:
    r"""Sends scaled updates in half precision; a reduction that overflows is dropped on all workers.

    .. math:: R_{1/2}(g_1, \dots, g_n) = R(\mathrm{half}(s g_1), \dots, \mathrm{half}(s g_n)) / s

    If a reduced value is not finite, or if s has made gradients of a counted worker infinite (which some rules leave
    out silently), the result is zero, the reducer's own state stays as it was (except for who was counted, and the
    time), and the scale s shrinks by the rule of ``DynamicScale``. All workers see the same values and so decide alike.
    A worker for which a reducer inside does not wait does not count. An optimizer after this then sees a zero: put it
    under a guard that reads ``report(state).overflowed``, as this project's train step does. A gradient that overflows
    even without s, such as that of a broken worker, is left to the rule.

    If the reducer exchanges the dtype that it is given, it sends half the bytes; and one scalar, s, which is negative
    where it is too large for a worker's gradients.

    Args:
      reducer: along ``axis_name``; it must be homogeneous, R(s g) = s R(g), and say so (``Reducer.homogeneous``).
      axis_name: the worker axis or axes.
      dtype: dtype of the updates that are sent; "float16" needs the scale since it ends at 65504.
      initial_scale: s at the start; that of Adasum's authors, who reduce optimizer deltas. Gradients are larger: above
        0.25 they overflow at the start, and the first steps then serve to find s.
      growth_interval: finite steps in a row before s grows.
      growth_factor: factor by which it grows.
      backoff_factor: factor of s after an overflow.
      sharded_over: the other manual axes of the mesh over which leaves are cut, see ``from_gram``: devices with parts
        of one worker's update find one scale. None leaves it open; updates that may be cut over such an axis are then
        refused.

    Returns:
      A reducer with the state of ``HalfPrecisionState``; dtypes are kept.

    Raises:
      ValueError: for a value outside its range, or a reducer that is not homogeneous; and by ``init``, if the reducer
        leaves out late workers and has a rule inside that leaves out others, such as ``krum``: a late worker looks like
        one whose gradient s has made infinite. Put half precision around the inner one then.

    >>> from reducers.sums.mean import mean
    >>> reducer = in_half_precision(mean("worker"), axis_name="worker", initial_scale=1024.0)
    >>> combine = lambda g: reducer.update(g, reducer.init(g))
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([1.0, 2.0]))[0]
    Array([1.5, 1.5], dtype=float32)
    >>> updates, state = jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([1.0, 200.0]))  # 204800 is no float16
    >>> updates, state.scale.value
    (Array([0., 0.], dtype=float32), Array([512., 512.], dtype=float32))

    Reference: Maleki et al., arXiv 2006.02924, and the BERT code of its authors: a second dynamic scaler, for deltas.
    """
    check_options(in_half_precision, dtype=dtype)
    rule = DynamicScale(initial_scale, growth_interval, growth_factor, backoff_factor)
    reducer = as_inner(reducer, key=f"dtype={dtype!r}: reducer")
    if not reducer.homogeneous:
        raise ValueError(f"dtype={dtype!r}: needs a homogeneous reducer, R(s g) = s R(g) for every scale s")
    axes = axes_of(axis_name)
    must_be_whole = needs_whole_leaves(sharded_over)
    cutting = axes_that_cut(sharded_over)

    def state_of(scale, is_finite, inner, inside):
        own = inside._replace(overflowed=~is_finite).with_metrics({"communication_scale": scale.value})
        return HalfPrecisionState(scale, inner, own)

    def init_fn(params):
        inner = reducer.init(jax.tree.map(lambda p: cast(p, jnp.dtype(dtype)), params))
        if reducer.needs_arrivals and leaves_out_twice(inner):
            raise ValueError(
                f"dtype={dtype!r}: reducer needs arrival_seconds and has a rule inside that leaves workers out itself; "
                "have half precision inside: combine=in_half_precision(...)"
            )
        return state_of(rule.init(), jnp.array(True), inner, report(inner))

    def update_fn(updates, state, params=None, **extra_args):
        scale = state.scale.value
        halved = jax.tree.map(lambda g: (scale.astype(wide_dtype(g)) * wide(g)).astype(dtype), updates)
        reduced, inner = reducer.update(halved, state.inner, params, **extra_args)
        inside = report(inner)
        is_too_large = all_finite(optax.tree.cast(updates, dtype)) & ~all_finite(halved)
        arrived = inside if reducer.needs_arrivals else None  # rules may leave out gradients that s made infinite
        if (counted := who_counts(contributes=extra_args.get("contributes"), inside=arrived)) is not None:
            is_too_large &= counted
        agreeing = *axes, *cutting
        signed = lax.pmin(as_own(jnp.where(is_too_large, -scale, scale), agreeing), agreeing)
        scale = jnp.abs(signed)  # the same, and JAX knows that it is the same on all workers, though states are local
        is_finite = all_agree(all_finite(reduced), cutting) & (signed > 0)

        def restore(half, g):
            return jnp.where(is_finite, half.astype(wide_dtype(g)) / scale.astype(wide_dtype(g)), 0).astype(g.dtype)

        inside = inside._replace(metrics=unscaled(inside.metrics, scale)).dropped_unless(is_finite, state.report)
        inner = optax.tree.where(is_finite, inner, state.inner)
        state = state_of(rule.update(state.scale._replace(value=scale), is_finite), is_finite, inner, inside)
        return jax.tree.map(restore, reduced, updates), state

    return reducer.like(
        init_fn,
        update_fn,
        axis_name=axes,
        takes_mask=reducer.takes_mask,
        homogeneous=False,  # an update that overflows is zero
        may_overflow=True,
        numbers="floating",
        needs_whole_leaves=must_be_whole,
    )


COMMUNICATIONS = Registry(
    {**ENCODINGS, "by_pattern": by_pattern, "full": in_full_precision, "half": in_half_precision},
    given={"reducer", "axis_name", "sharded_over"},
    makes=optax.GradientTransformation | Encoding,
    holds={Rules: None, Then: "full"},
    inside=ENCODINGS,
)


def make(
    name: str,
    *,
    reducer: optax.GradientTransformation,
    axis_name: AxisName,
    sharded_over: ShardedOver = None,
    **kwargs: Any,
) -> Reducer:
    """Wraps a reducer: ``make(reducer=..., axis_name=..., **config.communication)``.

    A name stands for a wrapper of a reducer, or for an ``Encoding``, which ``encoded`` then wraps around it.

    >>> from reducers.sums.mean import mean
    >>> make("full", reducer=mean("worker"), axis_name="worker").init({"w": 0.0})
    EmptyState()
    >>> make("quantised", bits=40, reducer=mean("worker"), axis_name="worker")
    Traceback (most recent call last):
    ValueError: bits=40: must be int in [2, 16]
    """
    made = COMMUNICATIONS.make(name, reducer=reducer, axis_name=axis_name, sharded_over=sharded_over, **kwargs)
    if not isinstance(made, Encoding):
        return as_reducer(made)
    try:
        return encoded(reducer, made, axis_name=axis_name, sharded_over=sharded_over)
    except ValueError as error:
        raise ValueError(f"name={name!r}: {error}") from None
