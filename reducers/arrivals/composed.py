"""Arrival models by name, and those made of others: rare outliers, slow workers, slow phases, scripted events.

What a model is made of is a block as in a config: a name, or {"name": ..., option: value}.
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias

import jax
import numpy as np
from jax import numpy as jnp

from reducers.arrivals.distributions import constant, lognormal, none, pareto, shifted_exponential
from reducers.arrivals.traces import trace
from reducers.registry import Block, Registry

Arrivals: TypeAlias = Callable[[jax.Array, Any, int], jax.Array]
Probability = Annotated[float, "(0, 1]"]
Factor = Annotated[float, "(0, inf)"]

# Independent streams of randomness of one key.
_BASE, _OUTLIER, _CHOICE = 0, 1, 2


def mixture(*, base: Block = "lognormal", outlier: Block = "pareto", probability: Probability = 0.01):
    r"""Rare outliers: now and then something else, a full disk or a neighbour, comes on top of the usual time.

    .. math:: T = T_{base} + C \, T_{outlier}, \quad P(C = 1) = p

    Args:
      base: model of the usual time.
      outlier: model of what comes on top.
      probability: p, for each worker and step by itself.

    Returns:
      An arrival model.

    >>> mixture(base="constant", outlier="constant", probability=1.0)(jax.random.key(0), 0, 2)
    Array([2., 2.], dtype=float32)
    """
    base_model, outlier_model = ARRIVALS.build(base, where="base"), ARRIVALS.build(outlier, where="outlier")

    def model(key, step, num_workers):
        choice_key = jax.random.fold_in(jax.random.fold_in(key, _CHOICE), step)
        hit = jax.random.uniform(choice_key, (num_workers,)) < probability
        extra = outlier_model(jax.random.fold_in(key, _OUTLIER), step, num_workers)
        return base_model(jax.random.fold_in(key, _BASE), step, num_workers) + jnp.where(hit, extra, 0)

    return model


def slow_workers(*, base: Block = "lognormal", num_slow: Annotated[int, "[0, inf)"] = 1, factor: Factor = 10.0):
    """The first workers are slow for ever: old machines among new ones.

    Args:
      base: model of the time of a worker that is not slow.
      num_slow: workers 0, 1, ... that are.
      factor: times as long.

    Returns:
      An arrival model; when traced it raises ValueError for fewer workers than ``num_slow``.

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
    factor: Factor = 5.0,
):
    r"""Slow phases that come and go: each worker switches between fast and slow as a Markov chain over steps.

    .. math:: P(fast \to slow) = p, \quad P(slow \to fast) = q, \quad p + q \le 1

    As a pure function of the step: with probability p + q a worker's phase is drawn anew from the stationary law, in
    which a share p / (p + q) is slow, and else kept. That is the same chain, and the phase at a step is that of the
    last such draw, which is found by looking back, about log(W) / (p + q) steps; step 0 always draws.

    Args:
      base: model of the time in the fast phase.
      slow_probability: p, per step.
      recovery_probability: q, per step; slow phases last 1 / q steps on average.
      factor: times as long in the slow phase.

    Returns:
      An arrival model.

    Raises:
      ValueError: if p + q exceeds 1: the phase would have to alternate.

    >>> markov(base="constant", slow_probability=1e-9, factor=4.0)(jax.random.key(0), 5, 2)
    Array([1., 1.], dtype=float32)
    """
    redraw = slow_probability + recovery_probability
    if redraw > 1:
        values = f"slow_probability={slow_probability}, recovery_probability={recovery_probability}"
        raise ValueError(f"{values}: must not exceed 1 in sum")
    base_model = ARRIVALS.build(base, where="base")

    def slow_phase(key, step, num_workers):
        def look(state):
            at, known, slow = state
            draw = jax.random.uniform(jax.random.fold_in(key, at), (num_workers,))
            draw = jnp.where(at > 0, draw, draw * redraw)  # below p: slow from here on; below p + q: fast
            return at - 1, known | (draw < redraw), slow | (~known & (draw < slow_probability))

        nobody = jnp.zeros(num_workers, bool)
        start = (jnp.asarray(step, jnp.int32), nobody, nobody)
        return jax.lax.while_loop(lambda state: ~state[1].all(), look, start)[2]

    def model(key, step, num_workers):
        slow = slow_phase(jax.random.fold_in(key, _CHOICE), step, num_workers)
        usual = base_model(jax.random.fold_in(key, _BASE), step, num_workers)
        return usual * jnp.where(slow, jnp.float32(factor), 1)

    return model


def scripted(*, base: Block = "constant", events: Sequence[tuple[int, int, float]] = ()):
    """What is to happen is written down: at this step this worker takes so long; else as in the base.

    Args:
      base: model of all other times.
      events: (worker, step, seconds) each; in a config ``events=((0, 3, 60.0), (5, 3, 90.0))``, and the same text
        behind ``--config.arrivals.events=``.

    Returns:
      An arrival model; when traced it raises ValueError if an event is of a worker that there is not.

    Raises:
      ValueError: for an event that makes no sense, or two of one worker and step.

    >>> scripted(events=[(1, 2, 60.0)])(jax.random.key(0), 2, 3)
    Array([ 1., 60.,  1.], dtype=float32)
    """
    base_model = ARRIVALS.build(base, where="base")
    for i, event in enumerate(events):
        if not _is_event(event):
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
        happens = jnp.where(steps == step, workers, num_workers)  # out of range is dropped
        return usual.at[happens].set(seconds, mode="drop")

    return model


def paper_cluster():
    r"""A tight body and rare large outliers, fitted by hand to unverified recollections of the paper's figures.

    .. math:: T = 1.58 e^{0.06 Z} + C \, e^{1.5 Z'}, \quad P(C = 1) = 0.018

    in seconds. Of 100 workers, in 100,000 steps: 94 of the 100 mean times to the k-th gradient lie within 1.4 to 1.8 s
    (recollected: most); the 98th is there within 2 s in 86 % of the steps (about 80 %), the last in 27 % (about 30 %),
    at 6.1 s on average against a median of 3.1 s; the slowest step takes 1,400 s (about 310 s, of an unknown number of
    steps). Independent workers cannot give both shares: 30 % for the last means 88 % for the 98th. So real stragglers
    came in groups more often than here, and the fit misses both.

    Returns:
      An arrival model.

    >>> paper_cluster()(jax.random.key(0), 0, 100).shape
    (100,)

    Reference: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting Distributed Synchronous SGD", arXiv 1604.00981, the
    figures on stragglers. Differs from the paper in: the paper shows measurements and no law; the numbers above are
    recollections that nobody has checked.
    """
    return mixture(
        base={"name": "lognormal", "median_seconds": 1.58, "sigma": 0.06},
        outlier={"name": "lognormal", "median_seconds": 1.0, "sigma": 1.5},
        probability=0.018,
    )


def _is_event(event) -> bool:
    if not isinstance(event, Sequence) or len(event) != 3:
        return False
    worker, step, seconds = event
    whole = type(worker) is int and type(step) is int and worker >= 0 and step >= 0
    return whole and type(seconds) in (int, float) and 0 < seconds < math.inf


ARRIVALS = Registry(
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
      **options: the model's own, checked by its signature.

    Returns:
      ``(key, step, num_workers) -> seconds``, compiled where it is not called inside another program.

    Raises:
      ValueError: one line, for a name, an option or a value that makes no sense.

    >>> make("constant", seconds=2.0)(jax.random.key(0), 0, 3)
    Array([2., 2., 2.], dtype=float32)
    >>> make("pareto", alpha=0.5)
    Traceback (most recent call last):
    ValueError: alpha=0.5: must be float in (1, inf)
    """
    model = ARRIVALS.make(name, **options)
    return jax.jit(model, static_argnums=2)  # op by op, exp and log would differ in bits from the fused program
