"""Accelerated steps and a line search for rates that fall exponentially: the schedule ``exponential_to``.

Reference: Vaswani, Dubois-Taine, Babanezhad, "Towards Noise-adaptive, Problem-adaptive (Accelerated) Stochastic
Gradient Descent", arXiv 2110.11442 (READ: the authors' code).
"""

from typing import Annotated, NamedTuple

import jax
import optax
from jax import lax
from jax import numpy as jnp

from optim.precision import in_full_precision
from optim.schedules import rate_at
from reducers.dtypes import mixing_dtypes, wide
from reducers.options import Count, Positive, check_options


class AcceleratedState(NamedTuple):
    """State of ``accelerated_exponential``: the last extrapolation, y - x."""

    schedule: optax.ScaleByScheduleState
    ahead: optax.Updates


class ArmijoState(NamedTuple):
    """State of ``armijo_conservative``.

    Attributes:
      size: [] step size of the next update.
      tries: [] int32, how many sizes the last search tried.
    """

    size: jax.Array
    tries: jax.Array


@in_full_precision
def accelerated_exponential(
    learning_rate: optax.ScalarOrSchedule, *, mu: Positive = 0.01, smoothness: Positive = 1.0, rho: Positive = 1.0
) -> optax.GradientTransformationExtraArgs:
    r"""Returns Nesterov's momentum with the extrapolation that fits falling rates of a strongly convex loss.

    .. math:: x_{t+1} = y_t - \gamma_t \nabla f(y_t), \quad y_{t+1} = x_{t+1} + b_{t+1} (x_{t+1} - x_t), \quad
        b_{t+1} = \frac{(1 - a_t) a_t \alpha}{a_{t+1} + \alpha a_t^2}

    with :math:`\gamma_t = r_t / (\rho L)` of the rates r, :math:`\alpha = r_{t+1} / r_t` and
    :math:`a_t = \sqrt{\mu \gamma_t}`.

    Args:
      learning_rate: rate or schedule r; with rate 1 and the schedule ``exponential_to`` the steps are the paper's.
      mu: strong convexity of the loss, such as its L2 penalty.
      smoothness: L, the Lipschitz constant of the gradient.
      rho: the constant of strong growth, 1 for a gradient without noise.

    Returns:
      The transformation; parameters are y, where gradients are computed.

    Raises:
      ValueError: one line, if ``mu`` exceeds ``rho * smoothness``.

    >>> optimizer = accelerated_exponential(1.0, mu=0.25)  # a = 0.5 and b = 1 / 3
    >>> y = jnp.asarray(3.0)
    >>> print(optax.apply_updates(y, optimizer.update(y, optimizer.init(y), y)[0]))  # f = y^2 / 2: x = 0, y = -3 / 3
    -1.0

    Reference: arXiv 2110.11442 (READ: the authors' code).
    """
    if mu > rho * smoothness:
        raise ValueError(f"mu={mu}: must be at most rho * smoothness={rho * smoothness}")

    def init_fn(params):
        return AcceleratedState(optax.ScaleByScheduleState(jnp.zeros((), jnp.int32)), optax.tree.zeros_like(params))

    def update_fn(updates, state, params=None):
        del params
        after = optax.safe_increment(state.schedule.count)
        now, then = (rate_at(learning_rate, step) / (rho * smoothness) for step in (state.schedule.count, after))
        a = jnp.sqrt(mu * now)
        a_then = jnp.sqrt(mu * then)
        falls = (a > 0) & (a_then > 0)
        alpha = then / jnp.where(falls, now, 1)
        b = jnp.where(falls, (1 - a) * a * alpha, 0) / jnp.where(falls, a_then + alpha * a**2, 1)
        ahead = jax.tree.map(lambda old, g: (b * (old - now * g)).astype(g.dtype), state.ahead, updates)
        steps = jax.tree.map(lambda new, g: (new - now * g).astype(g.dtype), ahead, updates)
        return steps, AcceleratedState(optax.ScaleByScheduleState(after), ahead)

    return optax.with_extra_args_support(optax.GradientTransformation(init_fn, update_fn))


def armijo_conservative(
    axis_name: str | None = None,
    *,
    c: Annotated[float, "(0, 1)"] = 0.5,
    backtrack: Annotated[float, "(0, 1)"] = 0.7,
    max_tries: Count = 100,
    initial: Positive = 2.0,
) -> optax.GradientTransformationExtraArgs:
    r"""Returns gradient descent whose step size is the last search's, and searches for the next one.

    .. math:: x_{t+1} = x_t - \gamma_t g, \quad \gamma_{t+1} = \max\{\gamma_t q^k : f(x_t - \gamma_t q^k g) \le
        f(x_t) - c \gamma_t q^k \lVert g \rVert^2\}

    The step does not depend on its own batch's search, and the size never grows. Chain it with
    ``optax.scale_by_schedule`` of the schedule ``exponential_to`` for steps that fall, too.

    Args:
      axis_name: the axis of workers, over which the loss is averaged within the search, so that all stop together; None
        where there is one worker, or ``value_fn`` averages.
      c: the share of the expected decrease that is asked for.
      backtrack: q, below 1.
      max_tries: the most sizes that a search tries; if none passes, the size is cut once.
      initial: the first step size.

    Returns:
      The transformation. Its ``update`` takes the gradient that all workers share, ``value_fn``, and optionally
      ``value``, that of ``value_fn`` at the parameters.

    Raises:
      ValueError: one line, for a number out of its range.

    >>> search = armijo_conservative()
    >>> x = jnp.asarray(1.0)
    >>> step, state = search.update(2 * x, search.init(x), x, value_fn=lambda x: x**2)
    >>> print(step, state.size.round(4), state.tries)  # the step is of the first size; the search ends at 2 * 0.7^4
    -4.0 0.4802 5

    Reference: arXiv 2110.11442 (READ: the authors' code).
    """
    check_options(armijo_conservative, c=c, backtrack=backtrack, max_tries=max_tries, initial=initial)

    def init_fn(params):
        del params
        return ArmijoState(jnp.asarray(initial, jnp.float32), jnp.zeros((), jnp.int32))

    def update_fn(updates, state, params, *, value_fn, value=None, **extra_args):
        del extra_args

        def averaged(value):
            return value if axis_name is None else lax.pmean(value, axis_name)

        def loss(params):
            return averaged(value_fn(params))

        start = loss(params) if value is None else averaged(value)
        slope = optax.tree.norm(jax.tree.map(wide, updates), squared=True)

        def moved(size):
            return jax.tree.map(lambda x, g: (x - size * g).astype(x.dtype), params, updates)

        def holds(size):
            return loss(moved(size)) <= start - c * size * slope

        # The condition is computed in the body: all workers have one value of it, and leave the loop together.
        def search(carry):
            size, tries, _ = carry
            size = jnp.where(tries == 0, size, backtrack * size)
            return size, tries + 1, holds(size)

        def goes_on(carry):
            _, tries, found = carry
            return ~found & (tries < max_tries)

        begin = (state.size, jnp.zeros((), jnp.int32), jnp.zeros((), bool))
        size, tries, found = lax.while_loop(goes_on, search, begin)
        size = jnp.where(found, size, backtrack * state.size)
        return jax.tree.map(lambda g: (-state.size * g).astype(g.dtype), updates), ArmijoState(size, tries)

    return optax.GradientTransformationExtraArgs(init_fn, mixing_dtypes(update_fn))
