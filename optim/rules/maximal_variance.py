"""MaxVA: adaptive optimizers whose decay of the squared gradient is chosen for each coordinate in each step.

They choose the decay, out of a range, at which the bias-corrected variance of the gradient is the largest, so that a
coordinate whose gradient has just grown forgets fast.

Reference: Zhu et al., "MaxVA: Fast Adaptation of Step Sizes by Maximizing Observed Variance of Gradients", arXiv
2006.11918 (READ: the authors' code).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from jax import numpy as jnp

from optim.precision import bias_correction, in_full_precision, squarable
from optim.schedules import rate_at


class Moments(NamedTuple):
    """Moving averages of the gradient, of its square and of 1, whose decays differ by coordinate and step."""

    mean: optax.Updates
    square: optax.Updates
    weight: optax.Updates


class MadamState(NamedTuple):
    """State of ``scale_by_madam``."""

    num_updates: jax.Array
    momentum: optax.Updates
    moments: Moments


class LamadamState(NamedTuple):
    """State of ``lamadam``: ``rates`` is the moving average of the rate."""

    schedule: optax.ScaleByScheduleState
    rates: jax.Array
    momentum: optax.Updates
    moments: Moments


def gain(gradient: jax.Array, mean: jax.Array, square: jax.Array, weight: jax.Array, *, low: float, high: float):
    r"""Returns 1 less the decay in [low, high] that makes the bias-corrected variance the largest, for each coordinate.

    .. math:: \beta = \text{clip}\left(\frac{d + v}{w (d - v) + d + v + 10^{-16}}, low, high\right), \quad
        v = \tilde v / w - (\tilde m / w)^2, \quad d = (g - \tilde m / w)^2

    The result is 1 - beta, because a decay near 1 is 1 in float32.

    Args:
      gradient: g.
      mean, square, weight: the moving averages before this gradient; where the weight is 0 the decay is ``high``.
      low, high: the range of the decay.

    >>> found = gain(jnp.array([1.0, 9.0]), jnp.ones(2), jnp.full(2, 2.0), jnp.ones(2), low=0.5, high=0.99)
    >>> [round(float(part), 3) for part in found]
    [0.01, 0.492]
    """
    # v w^2 and d w^2, and then 1 - beta with both of its parts times w^2: one division is left, and it comes last, so
    # that operations that XLA fuses with the result need not repeat the rest.
    variance = square * weight - mean**2
    distance = (gradient * weight - mean) ** 2
    above = weight * (distance - variance) + 1e-16 * weight**2
    is_first = weight == 0
    best = jnp.where(is_first, 0.0, above) / jnp.where(is_first, 1.0, above + distance + variance)
    return jnp.clip(best, 1 - high, 1 - low)


@in_full_precision
def madam(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: float = 0.9,
    low: float = 0.5,
    high: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    mask: Any | Callable | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Returns MAdam: Adam with the decay of maximal variance.

    .. math:: x \leftarrow x - \eta \left(\frac{\hat m}{\sqrt{\tilde v / w} + \epsilon} + \lambda x\right), \quad
        \tilde v \leftarrow \beta \tilde v + (1 - \beta) g^2, \quad w \leftarrow \beta w + (1 - \beta)

    with :math:`1 - \beta` from ``gain`` and :math:`\hat m` Adam's momentum with its correction.

    Args:
      learning_rate: rate or schedule.
      b1: decay of the momentum.
      low, high: range of the decay of the squares; equal, they make it Adam with that ``b2``.
      eps: added to the root.
      weight_decay: decoupled, as of AdamW.
      mask: which leaves decay.

    Returns:
      The transformation; its state is four times the parameters. In a chain ``scale_by_madam`` is its first part.

    >>> optimizer = madam(0.1)
    >>> print(optimizer.update(jnp.array([2.0, -5.0]), optimizer.init(jnp.zeros(2)), jnp.zeros(2))[0].round(3))
    [-0.1  0.1]

    Reference: arXiv 2006.11918 (READ: the authors' code, that for networks). For their trust ratio and clipping chain
    other transformations.
    """
    return optax.chain(
        scale_by_madam(b1=b1, low=low, high=high, eps=eps),
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(learning_rate),
    )


@in_full_precision
def scale_by_madam(
    *, b1: float = 0.9, low: float = 0.5, high: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Returns MAdam without its rate and decay; see ``madam``."""
    _check(low, high)

    def init_fn(params):
        return MadamState(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params), _no_moments(params))

    def update_fn(updates, state, params=None):
        del params
        updates = squarable(updates)
        moments = _moved(updates, state.moments, low=low, high=high)
        count = optax.safe_increment(state.num_updates)
        momentum = optax.tree.update_moment(updates, state.momentum, b1, 1)
        correction = bias_correction(b1, count)
        steps = jax.tree.map(
            lambda m, v, w: m / correction / _root(v, w, eps),
            *(momentum, moments.square, moments.weight),
        )
        return steps, MadamState(count, momentum, moments)

    return optax.GradientTransformation(init_fn, update_fn)


@in_full_precision
def lamadam(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: float = 0.9,
    low: float = 0.5,
    high: float = 0.999,
    eps: float = 1e-15,
    weight_decay: float = 0.0,
    mask: Any | Callable | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Returns LaMAdam: LaProp, whose momentum is of divided gradients, with the decay of maximal variance.

    .. math:: u \leftarrow \beta_1 u + (1 - \beta_1) \frac{\eta g}{\sqrt{\tilde v / w} + \epsilon}, \quad
        c \leftarrow \beta_1 c + (1 - \beta_1) \eta, \quad x \leftarrow x - \eta (u / c + \lambda x)

    Args:
      learning_rate: rate or schedule; the momentum holds the rates of its gradients.
      b1: decay of the momentum.
      low, high: range of the decay of the squares; equal, they make it LaProp with that ``b2``.
      eps: added to the root.
      weight_decay: decoupled, as of AdamW.
      mask: which leaves decay.

    Returns:
      The transformation; its state is four times the parameters.

    >>> optimizer = lamadam(0.1)
    >>> print(optimizer.update(jnp.array([2.0, -5.0]), optimizer.init(jnp.zeros(2)), jnp.zeros(2))[0].round(3))
    [-0.1  0.1]

    Reference: arXiv 2006.11918 (READ: the authors' code); LaProp: Ziyin, Wang, Ueda, arXiv 2002.04839.
    Differs from the paper in: with a rate of exactly 0 the parameters rest, where the authors' momentum moves them; the
    upper end 0.999 is that of their runs, not their class's 0.98.
    """
    _check(low, high)

    def init_fn(params):
        schedule = optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))
        return LamadamState(schedule, jnp.zeros(()), optax.tree.zeros_like(params), _no_moments(params))

    def update_fn(updates, state, params=None):
        del params
        count = state.schedule.count
        rate = rate_at(learning_rate, count).astype(state.rates.dtype)
        updates = squarable(updates)
        moments = _moved(updates, state.moments, low=low, high=high)
        momentum = jax.tree.map(
            lambda u, g, v, w: (b1 * u + (1 - b1) * rate * (g / _root(v, w, eps))).astype(u.dtype),
            *(state.momentum, updates, moments.square, moments.weight),
        )
        rates = b1 * state.rates + (1 - b1) * rate
        safe = jnp.where(rates == 0, 1.0, rates)
        steps = jax.tree.map(lambda u: (u / safe).astype(u.dtype), momentum)
        return steps, LamadamState(optax.ScaleByScheduleState(optax.safe_increment(count)), rates, momentum, moments)

    return optax.chain(
        optax.GradientTransformation(init_fn, update_fn),
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(learning_rate),
    )


def _check(low: float, high: float) -> None:
    if low > high:
        raise ValueError(f"low={low}: must be at most high={high}")


def _no_moments(params: optax.Params) -> Moments:
    return Moments(*(optax.tree.zeros_like(params) for _ in Moments._fields))


def _moved(updates: optax.Updates, moments: Moments, *, low: float, high: float) -> Moments:
    """Returns the moments after a gradient."""

    def towards(old, new, part):
        return old + part * (new - old)

    gains = jax.tree.map(functools.partial(gain, low=low, high=high), updates, *moments)
    mean = jax.tree.map(towards, moments.mean, updates, gains)
    square = jax.tree.map(lambda v, g, part: towards(v, g**2, part), moments.square, updates, gains)
    weight = jax.tree.map(lambda w, part: towards(w, 1, part), moments.weight, gains)
    return Moments(mean, square, weight)


def _root(square: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    return jnp.sqrt(square / weight) + eps
