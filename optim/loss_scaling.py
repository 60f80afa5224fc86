"""Loss scaling, so that gradients in half precision neither vanish nor overflow: by name, worker by worker."""

import functools
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import optax
from jax import numpy as jnp

from reducers.dynamic_scale import DynamicScale, Scale, all_finite
from reducers.registry import Registry

Loss = Callable[..., tuple[jax.Array, tuple[dict[str, jax.Array], Any]]]


class LossScaling(NamedTuple):
    """How a worker gets at its gradient, and what its own optimizer does about an overflow.

    Attributes:
      gradient: ``(loss, opt_state, params, model_state) -> (gradients, model_state, sums)``, for a ``loss`` of
        ``(params, model_state) -> (loss, (sums, model_state))``.
      guard: the worker's part of the chain -> the same, which skips gradients that are not finite.
      measure: ``(opt_state before, after) -> sums``: one worker's, to be summed over workers.
    """

    gradient: Callable[..., tuple[Any, Any, dict[str, jax.Array]]]
    guard: Callable[[optax.GradientTransformationExtraArgs], optax.GradientTransformationExtraArgs]
    measure: Callable[[Any, Any], dict[str, jax.Array]]


class LossScaleState(NamedTuple):
    """State of a guarded optimizer."""

    scale: Scale
    num_applied: jax.Array  # [] int32, updates that were not skipped
    inner: Any


def none() -> LossScaling:
    """Leaves the loss as it is: for float32 and bfloat16, which reach as far."""

    def gradient(loss: Loss, opt_state, params, model_state):
        del opt_state
        gradients, (sums, model_state) = jax.grad(loss, has_aux=True)(params, model_state)
        return gradients, model_state, sums

    return LossScaling(gradient, guard=lambda optimizer: optimizer, measure=lambda before, after: {})


def dynamic(
    *,
    initial_scale: Annotated[float, "(0, inf)"] = 2.0**15,
    growth_interval: Annotated[int, "[1, inf)"] = 2000,
    growth_factor: Annotated[float, "(1, inf)"] = 2.0,
    backoff_factor: Annotated[float, "(0, 1)"] = 0.5,
) -> LossScaling:
    r"""Differentiates s times the loss and divides by s; each worker finds its own s by the rule of ``DynamicScale``.

    .. math:: g = \frac{1}{s} \nabla (s \ell)

    A gradient that is not finite becomes a zero update, leaves the worker's own optimizer and model state as they were,
    and shrinks s. It is not told to the reducer as a worker that is missing: the authors contribute a zero as well. To
    Adasum a zero is neutral, to ``sum`` too; ``mean`` stays the sum over all n, so that a step is never larger for a
    loss of workers; and ``contributes`` keeps one meaning, who arrived in time. Where no worker's gradient was finite,
    the step is skipped on all.

    Args:
      initial_scale: s at the start; Adasum's authors begin at 2^20, which costs a few steps more until it fits.
      growth_interval: finite gradients in a row before s grows.
      growth_factor: by how much.
      backoff_factor: what an overflow multiplies s by.

    Returns:
      A ``LossScaling`` whose guard's state, with s in it, is local to each worker.

    Reference: Maleki et al., arXiv 2006.02924, and the BERT code of its authors (Apex O2, one scaler per process).
    """
    rule = DynamicScale(initial_scale, growth_interval, growth_factor, backoff_factor)

    def gradient(loss: Loss, opt_state: LossScaleState, params, model_state):
        scale = opt_state.scale.value

        def scaled(params):
            value, aux = loss(params, model_state)
            return scale * value, aux

        gradients, (sums, changed) = jax.grad(scaled, has_aux=True)(params)
        gradients = jax.tree.map(lambda g: g / scale.astype(g.dtype), gradients)
        # What overflowed on the way may be in BatchNorm's statistics too, and would never leave them.
        return gradients, optax.tree.where(all_finite(gradients), changed, model_state), sums

    return LossScaling(gradient, functools.partial(_guard, rule=rule), _measure)


def _guard(optimizer: optax.GradientTransformationExtraArgs, *, rule: DynamicScale):
    # optax.apply_if_finite gives up after so many errors in a row and then accepts the NaN; a scale shrinks instead.
    def init_fn(params):
        return LossScaleState(rule.init(), jnp.zeros((), jnp.int32), optimizer.init(params))

    def update_fn(updates, state, params=None, **extra_args):
        is_finite = all_finite(updates)
        updates, inner = optimizer.update(updates, state.inner, params, **extra_args)
        updates = optax.tree.where(is_finite, updates, optax.tree.zeros_like(updates))
        inner = optax.tree.where(is_finite, inner, state.inner)
        return updates, LossScaleState(rule.update(state.scale, is_finite), state.num_applied + is_finite, inner)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _measure(before: LossScaleState, after: LossScaleState) -> dict[str, jax.Array]:
    contributed = after.num_applied > before.num_applied
    return {"loss_scale": after.scale.value, "contributed": contributed.astype(jnp.float32)}


LOSS_SCALINGS = Registry({"dynamic": dynamic, "none": none})

make = LOSS_SCALINGS.make  # make(**config.loss_scaling)
