"""Staleness rules: pure functions of one gradient, which the server calls before it applies the gradient.

A rule returns the gradient to apply and a rate, a factor of the optimizer's step. A rate of 0 drops the gradient: the
parameters and the optimizer's state do not change, but it counts as an update. The rate multiplies the step and not the
gradient, because optimizers such as Adam and LAMB would divide it out again; for SGD the two are the same. ``make``
builds a rule by its name, and checks its options.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import optax
from jax import numpy as jnp

from reducers.options import Fraction, Natural, NonNegative, Positive
from reducers.registry import Registry

Rate = jax.Array | None
"""[] float32 in [0, 1], a factor of the step; None means 1, without a multiplication."""

Rates = Literal["one", "zero or one", "any"]


class Rule(NamedTuple):
    """A staleness rule, as a pair of pure functions.

    Attributes:
      init: ``params -> state``.
      apply: ``(gradient, state, *, params, read, staleness, num_workers) -> (gradient, rate, state)``. A rule names the
        keywords that it needs and ignores the others. ``params`` are the server's parameters. ``read`` is a function
        that returns the parameters at which the gradient was computed; the worker holds them, so a call costs a
        transfer. ``staleness`` is [] int32, in updates.
      rates: the rates that ``apply`` returns: "one" if it always returns None, "zero or one" if it keeps gradients or
        drops them, or "any". Rates depend on ``staleness`` and ``num_workers`` alone.
    """

    init: Callable[[Any], Any]
    apply: Callable[..., tuple[Any, Rate, Any]]
    rates: Rates = "one"


def _rate_by(rate: Callable[[jax.Array, int], jax.Array], *, rates: Rates = "any") -> Rule:
    """Returns a rule that keeps gradients as they are; ``rate`` gets the staleness and the number of workers."""

    def apply(gradient, state, *, staleness, num_workers=0, **others):
        del others
        return gradient, rate(staleness.astype(jnp.float32), num_workers), state

    return Rule(optax.init_empty_state, apply, rates)


def none() -> Rule:
    """Applies every gradient as it is.

    Reference: Chen et al., arXiv 1604.00981, algorithm 2.
    """

    def apply(gradient, state, **others):
        del others
        return gradient, None, state

    return Rule(optax.init_empty_state, apply)


def inverse() -> Rule:
    r"""Divides the step by the staleness.

    .. math:: \gamma_\tau = \gamma / \max(1, \tau)

    >>> rule = inverse()
    >>> _, rate, _ = rule.apply({}, rule.init({}), staleness=jnp.array(4))
    >>> float(rate)
    0.25

    Reference: Zhang, Gupta, Lian, Liu, "Staleness-aware Async-SGD for Distributed Deep Learning", arXiv 1511.05950.
    """
    return _rate_by(lambda staleness, _: 1 / jnp.maximum(staleness, 1))


def inverse_sqrt() -> Rule:
    r"""Divides the step by the square root of the staleness.

    .. math:: \gamma_\tau = \gamma / \sqrt{\max(1, \tau)}

    Reference: none; it lies between ``none`` and ``inverse``.
    """
    return _rate_by(lambda staleness, _: 1 / jnp.sqrt(jnp.maximum(staleness, 1)))


def threshold(*, max_staleness: Natural) -> Rule:
    r"""Drops gradients that are too stale.

    .. math:: \gamma_\tau = \gamma \, [\tau \le \text{max\_staleness}]

    Reference: allowed by Koloskova, Stich, Jaggi, arXiv 2206.08307, eq. 11, for a threshold of the concurrency or more.
    """
    return _rate_by(lambda staleness, _: (staleness <= max_staleness).astype(jnp.float32), rates="zero or one")


def delay_adaptive(*, bound: NonNegative = 1.0) -> Rule:
    r"""Keeps the step up to a staleness of the concurrency n, and bounds it by the inverse of the staleness above.

    .. math:: \gamma_\tau = \gamma \text{ if } \tau \le n, \text{ else } \gamma \min(1, \text{bound} / \tau)

    The mean staleness of n busy workers is n - 1, whatever their speeds, so the bound affects only stragglers.

    Args:
      bound: :math:`1 / (4 L \gamma)` for L-smooth functions. 1 needs no L; n is the choice of Mishchenko et al., which
        is continuous at n; 0 drops the gradients of stragglers.

    Reference: Koloskova, Stich, Jaggi, "Sharper Convergence Guarantees for Asynchronous SGD", arXiv 2206.08307, eq. 11;
    Mishchenko, Bach, Even, Woodworth, "Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays", arXiv 2206.07638.
    Differs from the paper in: the concurrency is n at all times, even if a bound on staleness makes workers wait.
    """

    def rate(staleness, num_workers):
        bounded = jnp.minimum(1.0, bound / jnp.maximum(staleness, 1))
        return jnp.where(staleness <= num_workers, 1.0, bounded)

    return _rate_by(rate)


def delay_compensation(*, strength: NonNegative = 0.04) -> Rule:
    r"""Corrects the gradient for the present parameters, with a diagonal approximation of the Hessian.

    .. math:: g + \lambda \, g \odot g \odot (w - w_{\text{read}})

    Args:
      strength: :math:`\lambda`; 0 is plain asynchronous SGD.

    >>> rule = delay_compensation(strength=0.5)
    >>> gradient, _, _ = rule.apply(2.0, (), params=4.0, read=lambda: 3.0)
    >>> gradient
    4.0

    Reference: Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML 2017,
    arXiv 1609.08326, DC-ASGD-c.
    """

    def apply(gradient, state, *, params, read, **others):
        del others
        return jax.tree.map(lambda g, w, r: g + strength * g * g * (w - r), gradient, params, read()), None, state

    return Rule(optax.init_empty_state, apply)


def adaptive_delay_compensation(
    *,
    strength: NonNegative = 2.0,
    decay: Fraction = 0.95,
    epsilon: Positive = 1e-7,
) -> Rule:
    r"""Delay compensation whose strength adapts to the size of the gradients, coordinate by coordinate.

    .. math:: v \leftarrow m v + (1 - m) g \odot g, \quad
      g + \frac{\lambda_0}{\sqrt{v + \epsilon}} \, g \odot g \odot (w - w_{\text{read}})

    Args:
      strength: :math:`\lambda_0`; 0 is plain asynchronous SGD.
      decay: m, the decay rate of the mean square v, which begins at 0.
      epsilon: :math:`\epsilon`, inside the square root.

    Reference: Zheng et al., arXiv 1609.08326, DC-ASGD-a. Differs from a published implementation in: one mean square
    for the gradients of all workers instead of one for each worker.
    """

    def apply(gradient, state, *, params, read, **others):
        del others
        state = jax.tree.map(lambda v, g: decay * v + (1 - decay) * g * g, state, gradient)

        def compensated(g, v, w, r):
            return g + strength / jnp.sqrt(v + epsilon) * g * g * (w - r)

        return jax.tree.map(compensated, gradient, state, params, read()), None, state

    return Rule(lambda params: jax.tree.map(jnp.zeros_like, params), apply)


RULES = Registry(
    {
        "adaptive_delay_compensation": adaptive_delay_compensation,
        "delay_adaptive": delay_adaptive,
        "delay_compensation": delay_compensation,
        "inverse": inverse,
        "inverse_sqrt": inverse_sqrt,
        "none": none,
        "threshold": threshold,
    }
)

make = RULES.make  # make(**config.server.rule)
