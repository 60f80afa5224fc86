r"""How large a batch should be, given the noise of the workers' gradients.

A rule is asked when an update is emitted: how many steps of all workers should the next batch have? It knows the mean
gradients :math:`g_w` of n workers over the k steps of this batch and their mean :math:`\bar g`, by three numbers:

.. math::
    |\bar g|^2, \qquad D = \frac{1}{n - 1} \sum_w |g_w - \bar g|^2, \qquad
    P = \frac{1}{n - 1} \sum_w \langle g_w - \bar g, \bar g \rangle^2

D is the variance of a worker's gradient; that of :math:`\bar g` is D / n. All batches are in steps:
a step is n B examples.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
from jax import numpy as jnp

from reducers.options import Count, Positive
from reducers.registry import Registry

NUM_PROPOSALS = 5


class Noise(NamedTuple):
    """Moments of the workers' gradients, [] float32 each and the same on all workers.

    Attributes:
      squared_gradient: the squared norm of the mean gradient.
      variance: D, the squared distance of a worker's gradient from the mean.
      along: P, the variance of a worker's gradient along the mean, times the squared norm of the mean.
      num_workers: n, of workers that are counted.
    """

    squared_gradient: jax.Array
    variance: jax.Array
    along: jax.Array
    num_workers: jax.Array


class BatchRule(NamedTuple):
    """A rule.

    Attributes:
      init: ``() -> state``.
      update: ``(state, noise, batch_steps, num_updates) -> (state, steps)``, the state after an update and the batch
        that the rule asks for, [] float32 in steps. A batch never shrinks: a smaller number keeps it. ``noise`` is None
        where the rule needs none.
      needs_noise: whether it looks at the noise, for which there must be two workers.
      first_steps: the first batch, in steps.
    """

    init: Callable[[], Any]
    update: Callable[[Any, Noise | None, jax.Array, jax.Array], tuple[Any, jax.Array]]
    needs_noise: bool = True
    first_steps: int = 1


def stays(rule: BatchRule) -> bool:
    """Returns whether a rule never changes the first batch.

    >>> stays(fixed(every_steps=2)), stays(norm_test())
    (True, False)
    """
    return rule.update is _the_same


def _the_same(state: Any, noise: Noise | None, steps: jax.Array, count: jax.Array) -> tuple[Any, jax.Array]:
    return state, steps


def fixed(*, every_steps: Count) -> BatchRule:
    """Accumulates the same number of steps for each update: plain gradient accumulation.

    Args:
      every_steps: k.
    """
    return BatchRule(lambda: (), _the_same, needs_noise=False, first_steps=every_steps)


def geometric(*, factor: Annotated[float, "(1, inf)"], every_updates: Count) -> BatchRule:
    """Multiplies the batch by a factor after every so many updates.

    Args:
      factor: the growth of the batch at each change.
      every_updates: the number of updates between two changes.
    """

    def update(state, noise, steps, count):
        return state, jnp.where(count % every_updates == 0, factor * steps, steps)

    return BatchRule(lambda: (), update, needs_noise=False)


def norm_test(*, theta: Positive = 0.9, unbiased: bool = False) -> BatchRule:
    r"""Asks for the batch at which the noise of the mean gradient is at most theta times its length.

    .. math:: b^* = k \frac{D / n}{\theta^2 |\bar g|^2}

    Args:
      theta: the share of noise.
      unbiased: whether the noise in :math:`|\bar g|^2`, D / n, is taken out of it. Where nothing is left, the batch
        stays.

    Reference: Byrd, Chin, Nocedal, Wu, "Sample size selection in optimization methods for machine learning", 2012 (MEM:
    formula). DERIVED: the estimate by workers.
    """

    def update(state, noise, steps, count):
        squared = noise.squared_gradient - (noise.variance / noise.num_workers if unbiased else 0)
        wanted = steps * noise.variance / (noise.num_workers * theta**2 * squared)
        return state, jnp.where(squared > 0, wanted, steps)

    return BatchRule(lambda: (), update)


class Proposals(NamedTuple):
    """State of ``inner_product_test``: the batches that it has asked for since the last change."""

    smallest: jax.Array
    num_proposals: jax.Array


def inner_product_test(*, theta: Positive = 0.9, nu: Positive = 5.84) -> BatchRule:
    r"""Asks for the batch at which gradients point forward, and do not stray far to the sides.

    .. math::
        b^* = k \max \left( \frac{P / n}{\theta^2 |\bar g|^4}, \frac{(D - P / |\bar g|^2) / n}{\nu^2 |\bar g|^2} \right)

    The batch becomes the smallest of five proposals, if that is larger.

    Args:
      theta: the share of noise along the mean gradient.
      nu: the share across it.

    Reference: the inner product test and the orthogonality test of Bollapragada, Byrd, Nocedal, arXiv 1710.11258, as
    AdaBatchGrad has them, Ostroukhov et al., arXiv 2402.05264 (READ: a third party's port). Differs from the port in:
    the noise of examples is estimated by the workers.
    """

    def start():
        return Proposals(jnp.float32(jnp.inf), jnp.zeros((), jnp.int32))

    def update(state, noise, steps, count):
        squared = noise.squared_gradient
        n = noise.num_workers
        forward = noise.along / (n * theta**2 * squared**2)
        sideways = (noise.variance - noise.along / squared) / (n * nu**2 * squared)
        smallest = jnp.minimum(state.smallest, steps * jnp.maximum(forward, sideways)).astype(jnp.float32)
        full = state.num_proposals + 1 == NUM_PROPOSALS
        held = Proposals(smallest, state.num_proposals + 1)
        kept = jax.tree.map(lambda empty, held: jnp.where(full, empty, held), start(), held)
        return kept, jnp.where(full, smallest, steps)

    return BatchRule(start, update)


def two_scale(
    *,
    growth: Annotated[float, "(1, inf)"] = 2.0,
    mu: Positive | None = None,
    smoothness: Positive | None = None,
    noise_share: Positive = 1.0,
) -> BatchRule:
    r"""Multiplies the batch where the distance from the minimum has fallen to the noise, at a constant learning rate.

    If the strong convexity :math:`\mu` and the smoothness L of the loss are given, the batch grows each time after

    .. math:: K = \left\lceil \frac{\log(2 \, growth)}{-\log(1 - \mu / L)} \right\rceil

    updates, as fits the learning rate 1 / L. Otherwise it grows when the noise in the mean gradient exceeds a share of
    it, :math:`D / n > share \cdot |\bar g|^2`.

    Args:
      growth: the factor of the batch.
      mu: the constant of strong convexity, given together with ``smoothness``.
      smoothness: L, the Lipschitz constant of the gradient.
      noise_share: the share, used if ``mu`` and ``smoothness`` are not given.

    Raises:
      ValueError: unless both or neither are given, and for mu of L or more.

    Reference: Gao, Koppel, Ribeiro, arXiv 2007.01219 (abstract). DERIVED: K, from the bound of one step; growth: MEM.
    Differs from the paper in: the first batch also has K updates, however far from the minimum it begins.
    """
    if (mu is None) != (smoothness is None):
        raise ValueError(f"mu={mu}, smoothness={smoothness}: give both or neither")
    if mu is None or smoothness is None:

        def by_noise(state, noise, steps, count):
            is_noisy = noise.variance / noise.num_workers > noise_share * noise.squared_gradient
            return state, jnp.where(is_noisy, growth * steps, steps)

        return BatchRule(lambda: (), by_noise)
    if mu >= smoothness:
        raise ValueError(f"mu={mu}: must be below smoothness={smoothness}")
    stage = math.ceil(math.log(2 * growth) / -math.log1p(-mu / smoothness))

    def by_count(state, noise, steps, count):
        return state, jnp.where(count % stage == 0, growth * steps, steps)

    return BatchRule(lambda: (), by_count, needs_noise=False)


RULES = Registry(
    {
        "fixed": fixed,
        "geometric": geometric,
        "inner_product_test": inner_product_test,
        "norm_test": norm_test,
        "two_scale": two_scale,
    },
    makes=BatchRule,
)
