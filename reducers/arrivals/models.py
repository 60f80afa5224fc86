"""Arrival models: distributions, a trace, and models that other models are part of.

Each function here returns a model, ``(key, step, num_workers) -> seconds`` [num_workers]. A model that is part of
another is given as a block of a config: a name, or {"name": ..., option: value}.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias

import jax
import numpy as np
from jax import numpy as jnp

from reducers.arrivals.traces import trace
from reducers.options import Natural, NonNegative, Positive
from reducers.registry import Block, Registry, below, matches

Arrivals: TypeAlias = Callable[[jax.Array, Any, int], jax.Array]
Probability = Annotated[float, "(0, 1]"]

# Independent streams of randomness from one key.
_BASE, _OUTLIER, _CHOICE = 0, 1, 2


# ---- distributions: independent between workers and steps, and the same for all -------------------------------------


def none():
    """All gradients arrive at once, and no time passes. This is the model of a config that does not simulate time.

    Returns:
      An arrival model.

    >>> none()(jax.random.key(0), 0, 2)
    Array([0., 0.], dtype=float32)
    """
    return lambda key, step, num_workers: jnp.zeros(num_workers)


def constant(*, seconds: Positive = 1.0):
    r"""Every worker takes the same time in every step.

    .. math:: T = s

    Args:
      seconds: s, the time of a worker in a step.

    Returns:
      An arrival model.

    >>> constant(seconds=2.0)(jax.random.key(0), 0, 3)
    Array([2., 2., 2.], dtype=float32)
    """

    def model(key, step, num_workers):
        del key, step
        return jnp.full(num_workers, seconds, jnp.float32)

    return model


def shifted_exponential(*, shift_seconds: NonNegative = 1.0, scale_seconds: Positive = 0.5):
    r"""A minimum time plus an exponential delay.

    .. math:: T = s + E, \quad P(E > t) = e^{-t / \beta}

    Args:
      shift_seconds: s; 0 gives an exponential distribution.
      scale_seconds: beta, the mean of the delay.

    Returns:
      An arrival model.

    >>> bool((shifted_exponential(shift_seconds=3.0)(jax.random.key(0), 0, 9) >= 3).all())
    True

    Reference: the model of Dutta et al., "Slow and stale gradients can win the race", arXiv 1803.01113.
    """

    def model(key, step, num_workers):
        delay = scale_seconds * jax.random.exponential(jax.random.fold_in(key, step), (num_workers,))
        return jnp.maximum(shift_seconds + delay, jnp.finfo(jnp.float32).tiny)  # one delay in millions is 0

    return model


def lognormal(*, median_seconds: Positive = 1.0, sigma: NonNegative = 0.1):
    r"""Random factors that multiply: times close to the median and, for a large sigma, a long tail.

    .. math:: T = m e^{\sigma Z}, \quad Z \sim \mathcal{N}(0, 1)

    Args:
      median_seconds: m, the median time of a worker in a step.
      sigma: the standard deviation of log T; for small values, about the standard deviation of T over its mean.

    Returns:
      An arrival model.

    >>> lognormal(median_seconds=1.5, sigma=0.0)(jax.random.key(0), 0, 2)
    Array([1.5, 1.5], dtype=float32)
    """

    def model(key, step, num_workers):
        z = jax.random.normal(jax.random.fold_in(key, step), (num_workers,))
        return median_seconds * jnp.exp(sigma * z)

    return model


def pareto(*, least_seconds: Positive = 1.0, alpha: Annotated[float, "(1, inf)"] = 3.0):
    r"""A tail that falls as a power: a worker occasionally takes a hundred times as long.

    .. math:: P(T > t) = (m / t)^\alpha, \quad t \ge m

    Args:
      least_seconds: m, the least time of a worker in a step.
      alpha: the exponent of the tail. It is above 1, so that the mean is finite; above 2 the variance is finite, too.

    Returns:
      An arrival model. Its float32 samples resolve the tail down to a probability of 1e-7.

    >>> bool((pareto(least_seconds=2.0)(jax.random.key(0), 0, 9) >= 2).all())
    True
    """

    def model(key, step, num_workers):
        return least_seconds * jax.random.pareto(jax.random.fold_in(key, step), alpha, (num_workers,))

    return model


# ---- models that other models are part of ---------------------------------------------------------------------------


def mixture(*, base: Block = "lognormal", outlier: Block = "pareto", probability: Probability = 0.01):
    r"""Adds rare outliers to the usual time, as a full disk or a noisy neighbour would.

    .. math:: T = T_{base} + C \, T_{outlier}, \quad P(C = 1) = p

    Args:
      base: the model of the usual time.
      outlier: the model of the time that is added.
      probability: p, independent for each worker and step.

    Returns:
      An arrival model.

    >>> mixture(base="constant", outlier="constant", probability=1.0)(jax.random.key(0), 0, 2)
    Array([2., 2.], dtype=float32)
    """
    base_model = ARRIVALS.build(base, where="base")
    outlier_model = ARRIVALS.build(outlier, where="outlier")

    def model(key, step, num_workers):
        choice_key = jax.random.fold_in(jax.random.fold_in(key, _CHOICE), step)
        hit = jax.random.uniform(choice_key, (num_workers,)) < probability
        extra = outlier_model(jax.random.fold_in(key, _OUTLIER), step, num_workers)
        return base_model(jax.random.fold_in(key, _BASE), step, num_workers) + jnp.where(hit, extra, 0)

    return model


def slow_workers(*, base: Block = "lognormal", num_slow: Natural = 1, factor: Positive = 10.0):
    """Makes the first workers slow in every step, like old machines among new ones.

    Args:
      base: the model of the times of the other workers.
      num_slow: the number of slow workers: 0, 1, ..., num_slow - 1.
      factor: how many times as long a slow worker takes.

    Returns:
      An arrival model; it raises ValueError, when traced, if there are fewer than ``num_slow`` workers.

    >>> slow_workers(base="constant", num_slow=1, factor=4.0)(jax.random.key(0), 0, 3)
    Array([4., 1., 1.], dtype=float32)
    """
    base_model = ARRIVALS.build(base, where="base")

    def model(key, step, num_workers):
        if num_slow > num_workers:
            raise ValueError(f"num_slow={num_slow}: exceeds num_workers={num_workers}")
        slow = jnp.arange(num_workers) < num_slow
        return base_model(key, step, num_workers) * jnp.where(slow, jnp.float32(factor), 1)

    return model


def markov(
    *,
    base: Block = "lognormal",
    slow_probability: Probability = 0.01,
    recovery_probability: Probability = 0.1,
    factor: Positive = 5.0,
):
    r"""Switches each worker between a fast and a slow phase, as a Markov chain over steps.

    .. math:: P(fast \to slow) = p, \quad P(slow \to fast) = q, \quad p + q \le 1

    An equivalent definition makes the phase a pure function of the step. With probability p + q a worker's phase is
    sampled anew from the stationary distribution, in which a fraction p / (p + q) is slow; else it is kept. So the
    phase at a step is that of the last such sample, which is found by looking back about log(W) / (p + q) steps. Step 0
    always samples.

    Args:
      base: the model of the time in the fast phase.
      slow_probability: p, per step.
      recovery_probability: q, per step; a slow phase lasts 1 / q steps on average.
      factor: how many times as long a worker takes in the slow phase.

    Returns:
      An arrival model.

    Raises:
      ValueError: if p + q exceeds 1, since the phase would then have to alternate.

    >>> markov(base="constant", slow_probability=1e-9, factor=4.0)(jax.random.key(0), 5, 2)
    Array([1., 1.], dtype=float32)
    """
    resample = slow_probability + recovery_probability
    if resample > 1:
        values = f"slow_probability={slow_probability}, recovery_probability={recovery_probability}"
        raise ValueError(f"{values}: must not exceed 1 in sum")
    base_model = ARRIVALS.build(base, where="base")

    def slow_phase(key, step, num_workers):
        def look_back(state):
            at, known, slow = state
            u = jax.random.uniform(jax.random.fold_in(key, at), (num_workers,))
            u = jnp.where(at > 0, u, u * resample)  # below p: slow from this step on; below p + q: fast
            return at - 1, known | (u < resample), slow | (~known & (u < slow_probability))

        nobody = jnp.zeros(num_workers, bool)
        start = (jnp.asarray(step, jnp.int32), nobody, nobody)
        return jax.lax.while_loop(lambda state: ~state[1].all(), look_back, start)[2]

    def model(key, step, num_workers):
        slow = slow_phase(jax.random.fold_in(key, _CHOICE), step, num_workers)
        usual = base_model(jax.random.fold_in(key, _BASE), step, num_workers)
        return usual * jnp.where(slow, jnp.float32(factor), 1)

    return model


def scripted(*, base: Block = "constant", events: Sequence[tuple[int, int, float]] = ()):
    """Sets the times of given workers at given steps; all other times are those of the base model.

    Args:
      base: the model of all other times.
      events: (worker, step, seconds) each; in a config ``events=((0, 3, 60.0), (5, 3, 90.0))``, and the same text
        after ``--config.arrivals.events=``.

    Returns:
      An arrival model; it raises ValueError, when traced, if an event's worker does not exist.

    Raises:
      ValueError: for an invalid event, or two events of one worker and step.

    >>> scripted(events=[(1, 2, 60.0)])(jax.random.key(0), 2, 3)
    Array([ 1., 60.,  1.], dtype=float32)
    """
    base_model = ARRIVALS.build(base, where="base")
    if not isinstance(events, Sequence):
        raise ValueError(f"events={events!r}: must be a tuple of (worker, step, seconds)")
    for i, event in enumerate(events):
        if not matches(tuple[Natural, Natural, Positive], event):
            raise ValueError(f"events[{i}]={event!r}: must be (worker, step, seconds), from 0, 0 and above 0")
    script = {(worker, step): seconds for worker, step, seconds in events}
    if len(script) < len(events):
        raise ValueError(f"events={events!r}: two of one worker and step")
    workers, steps = np.array([*script], np.int32).reshape(-1, 2).T
    seconds = np.array([*script.values()], np.float32)

    def model(key, step, num_workers):
        last = workers.max(initial=0)
        if last >= num_workers:
            raise ValueError(f"events: worker {last} is not one of num_workers={num_workers}, counted from 0")
        usual = base_model(key, step, num_workers)
        at = jnp.where(steps == step, workers, num_workers)  # an index out of range is dropped
        return usual.at[at].set(seconds, mode="drop")

    return model


def paper_cluster():
    r"""Times close to a median and rare large outliers, fitted by hand to recollections of the paper's figures.

    .. math:: T = 1.58 e^{0.06 Z} + C \, e^{1.5 Z'}, \quad P(C = 1) = 0.018

    in seconds. With 100 workers and 100,000 steps, and in brackets the recollections, which nobody has checked:

    * 94 of the 100 mean times to the k-th gradient lie within 1.4 to 1.8 s (most of them).
    * The 98th gradient arrives within 2 s in 86 % of the steps (about 80 %).
    * The last gradient arrives within 2 s in 27 % of the steps (about 30 %); its mean time is 6.1 s, its median 3.1 s.
    * The slowest step takes 1,400 s (about 310 s, in an unknown number of steps).

    Independent workers cannot give both shares, since 30 % for the last gradient implies 88 % for the 98th. So real
    stragglers occurred in groups more often than in this model, which misses both shares.

    Returns:
      An arrival model.

    >>> paper_cluster()(jax.random.key(0), 0, 100).shape
    (100,)

    Reference: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting Distributed Synchronous SGD", arXiv 1604.00981, the
    figures on stragglers. Differs from the paper in: the paper shows measurements and gives no distribution.
    """
    return mixture(
        base={"name": "lognormal", "median_seconds": 1.58, "sigma": 0.06},
        outlier={"name": "lognormal", "median_seconds": 1.0, "sigma": 1.5},
        probability=0.018,
    )


class ArrivalRegistry(Registry):
    """A registry of arrival models; errors of a model that is part of another one begin with the key of its block."""

    def build(self, block: Block, *, where: str = "", **given: Any) -> Arrivals:
        """Checks a block and calls its constructor; the model that it returns may refuse options when it is traced."""
        model = super().build(block, where=where, **given)

        def part(key, step, num_workers):
            with below(where):
                return model(key, step, num_workers)

        return part if where else model


ARRIVALS = ArrivalRegistry(
    {
        "constant": constant,
        "lognormal": lognormal,
        "markov": markov,
        "mixture": mixture,
        "none": none,
        "paper_cluster": paper_cluster,
        "pareto": pareto,
        "scripted": scripted,
        "shifted_exponential": shifted_exponential,
        "slow_workers": slow_workers,
        "trace": trace,
    }
)


def make(name: str, **options: Any) -> Arrivals:
    """Builds the arrival model called ``name``: ``make(**config.arrivals)``.

    Args:
      name: a key of ``ARRIVALS``.
      **options: the model's options, which its signature checks.

    Returns:
      ``(key, step, num_workers) -> seconds``, compiled unless it is called inside another program.

    Raises:
      ValueError: one line, for an invalid name, option or value.

    >>> make("constant", seconds=2.0)(jax.random.key(0), 0, 3)
    Array([2., 2., 2.], dtype=float32)
    >>> make("pareto", alpha=0.5)
    Traceback (most recent call last):
    ValueError: alpha=0.5: must be float in (1, inf)
    """
    model = ARRIVALS.make(name, **options)
    return jax.jit(model, static_argnums=2)  # exp and log alone differ in bits from those of a fused program
