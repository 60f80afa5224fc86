"""Factors of the learning rate: the project's own schedules, and rules for the number of workers.

Schedules are factors without a unit, of the step that counts updates from 0.

Each is built from its config keys and, where it needs them, from `total_steps`, the updates of the whole run, and
`steps_per_epoch`, which need not be whole. Lengths and boundaries are worked out in float64 before any tracing and
compared with the step as integers, so nothing drifts in long runs.
"""

import math
from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import optax

from reducers.options import Natural, NonNegative, Positive

MAX_STEPS = 2**31 - 1
"""JAX counts steps in 32 bits."""

MAX_DROPS = 10**6
"""A staircase is a table of its drops."""

Share = Annotated[float, "[0, 1]"]
WarmupSteps = Natural | None
WarmupEpochs = NonNegative | None


def first_step_at(epochs: float, *, steps_per_epoch: float) -> int:
    """Returns the first step at or after so many epochs: ceil(epochs * steps_per_epoch), forgiving rounding.

    A length above MAX_STEPS becomes MAX_STEPS + 1.

    >>> first_step_at(1.1, steps_per_epoch=10), first_step_at(2, steps_per_epoch=46.875)
    (11, 94)
    """
    return min(_whole(min(epochs * steps_per_epoch, 2.0**32)), MAX_STEPS + 1)  # an infinity is no int


def duration(key: str, *, steps: int | None, epochs: float | None, steps_per_epoch: float) -> int | None:
    """Returns the length `key` in steps, given in steps or in epochs; None if it is given as neither.

    Epochs are cut to MAX_STEPS.

    Raises:
        ValueError: if it is given as both.
    """
    if steps is not None and epochs is not None:
        raise ValueError(f"{key}={steps}, {in_epochs(key)}={epochs}: give one")
    return steps if epochs is None else min(first_step_at(epochs, steps_per_epoch=steps_per_epoch), MAX_STEPS)


def in_epochs(key: str) -> str:
    """Returns the key that gives the same length in epochs.

    >>> in_epochs("warmup_steps"), in_epochs("transition_begin")
    ('warmup_epochs', 'transition_begin_epochs')
    """
    return f"{key.removesuffix('_steps')}_epochs"


def constant(*, value: NonNegative = 1.0) -> optax.Schedule:
    """Returns factor(t) = value.

    Args:
      value: the factor of the peak learning rate in every step.
    """
    return lambda step: jnp.full_like(step, value, dtype=jnp.float32)


def exponential_to(*, total_steps: int, beta: Positive = 1.0) -> optax.Schedule:
    r"""Falls exponentially to beta / T, which suits any noise of the gradient without tuning.

    .. math:: factor(t) = (\beta / T)^{t / T}

    Args:
      total_steps: T, updates in the whole run.
      beta: T times the factor at the end, at most T.

    >>> [round(float(exponential_to(total_steps=100)(step)), 4) for step in (0, 50, 100)]
    [1.0, 0.1, 0.01]

    Reference: Vaswani, Dubois-Taine, Babanezhad, "Towards Noise-adaptive, Problem-adaptive (Accelerated) Stochastic
    Gradient Descent", arXiv 2110.11442 (READ: the authors' code, beta = 1).
    """
    if beta > total_steps:
        raise ValueError(f"beta={beta}: must be at most the {total_steps} steps of the run")
    return optax.exponential_decay(1.0, transition_steps=total_steps, decay_rate=beta / total_steps)


def one_cycle(*, total_steps: int, warmup_fraction: Share = 0.3) -> optax.Schedule:
    """Rises linearly from 0 to 1 and falls to 0, as PyTorch's OneCycleLR(anneal_strategy="linear", div_factor=inf).

    factor(t) = t / (w T - 1) up to t = w T - 1, then (T - 1 - t) / (T - w T)

    So the first update (t = 0) and the last (t = T - 1) have factor 0: they move momentum, not parameters. Momentum
    itself is not cycled. The peak may lie between two steps.

    Args:
      total_steps: T, updates in the whole run.
      warmup_fraction: w, the share of the run in which the factor rises.

    Reference: schedule of the Adasum authors' MNIST example, w = 0.17886 over 2 epochs.
    """
    peak = warmup_fraction * total_steps - 1
    fall = total_steps * (1 - warmup_fraction)

    def schedule(step):
        step = jnp.asarray(step)
        up = step / peak if peak > 0 else 1.0
        down = (total_steps - 1 - step) / fall if fall > 0 else 1.0
        return jnp.clip(jnp.minimum(up, down), 0, 1)

    return schedule


def warmup_cosine(
    *,
    total_steps: int,
    steps_per_epoch: float,
    warmup_steps: WarmupSteps = None,
    warmup_epochs: WarmupEpochs = None,
    end_factor: Share = 0.0,
) -> optax.Schedule:
    """Warms up by t / w, then follows half a cosine from 1 at t = w to `end_factor` at t = T, after the last update.

    Args:
      total_steps: T, updates in the whole run.
      steps_per_epoch: updates in an epoch.
      warmup_steps: w, the length of the warm-up; 0 for none.
      warmup_epochs: the same in epochs.
      end_factor: the factor at the end of the run.
    """
    warmup = _warmup(warmup_steps, warmup_epochs, total_steps=total_steps, steps_per_epoch=steps_per_epoch)

    def decay(left):  # sin^2 is (1 + cos) / 2 of what has passed, without its cancellation
        return end_factor + (1 - end_factor) * jnp.sin(jnp.pi / 2 * left) ** 2

    return _warmup_then(decay, warmup=warmup, total_steps=total_steps)


def warmup_linear(
    *,
    total_steps: int,
    steps_per_epoch: float,
    warmup_steps: WarmupSteps = None,
    warmup_epochs: WarmupEpochs = None,
    end_factor: Share = 0.0,
) -> optax.Schedule:
    """Warms up by t / w, then follows a line from 1 at t = w to `end_factor` at t = T, after the last update.

    Args:
      total_steps: T, updates in the whole run.
      steps_per_epoch: updates in an epoch.
      warmup_steps: w, the length of the warm-up; 0 for none.
      warmup_epochs: the same in epochs.
      end_factor: the factor at the end of the run.
    """
    warmup = _warmup(warmup_steps, warmup_epochs, total_steps=total_steps, steps_per_epoch=steps_per_epoch)
    return _warmup_then(lambda left: end_factor + (1 - end_factor) * left, warmup=warmup, total_steps=total_steps)


def polynomial_warmup(*, total_steps: int, warmup_fraction: Share = 0.0, degree: Positive = 1.0) -> optax.Schedule:
    """Returns BERT's factor: p / w while the progress p = (t + 1) / T is below w, then (1 - p)^degree.

    The decay counts from the start of the run, so the factor jumps from 1 down to (1 - w)^degree after the warm-up; and
    the progress counts the update being made, so the last update has factor 0. Both are as in the reference.

    Args:
      total_steps: T, updates in the whole run.
      warmup_fraction: w, the share of the run in which the factor rises.
      degree: the exponent of the decay; 1 is a line.

    Reference: PolyWarmUpScheduler of NVIDIA's BERT, which the Adasum authors started from (w = 0.2843, degree = 0.5).
    """
    first_decayed = _whole(warmup_fraction * total_steps) - 1  # p >= w, compared in whole steps

    def schedule(step):
        step = jnp.asarray(step)
        up = (step + 1) / max(warmup_fraction * total_steps, 1e-9)
        left = jnp.maximum(total_steps - 1 - step, 0) / total_steps
        return jnp.where(step < first_decayed, up, left**degree)

    return schedule


def staircase(
    *,
    total_steps: int,
    steps_per_epoch: float,
    decay_factor: Positive = 0.94,
    every_steps: Annotated[int, "(0, inf)"] | None = None,
    every_epochs: Positive | None = None,
) -> optax.Schedule:
    """Returns decay_factor^k after k times `every_epochs` or `every_steps`; the default is 2 epochs.

    The k-th drop is at the first step at or after k * every_epochs, so a length with a fraction of a step does not
    drift.

    Args:
      total_steps: T, updates in the whole run.
      steps_per_epoch: updates in an epoch.
      decay_factor: what each drop multiplies the factor by.
      every_steps: steps between drops.
      every_epochs: the same in epochs.

    Reference: Chen et al. (2016), Inception: 0.94 every 2 epochs.
    """
    if every_steps is not None and every_epochs is not None:
        raise ValueError(f"every_steps={every_steps}, every_epochs={every_epochs}: give one")
    every = float(every_steps) if every_steps else steps_per_epoch * (every_epochs or 2.0)
    if total_steps > MAX_DROPS * every:
        given = f"every_epochs={every_epochs}" if every_steps is None else f"every_steps={every_steps}"
        raise ValueError(f"{given}: drops more than {MAX_DROPS} times in the {total_steps} steps of the run")
    drops = np.arange(1, int(total_steps / every) + 2)
    boundaries = np.array([_whole(drop * every) for drop in drops.tolist()])
    return _drops(boundaries, factors=np.float64(decay_factor) ** np.arange(len(drops) + 1))


def steps(
    *,
    total_steps: int,
    steps_per_epoch: float,
    decay_factor: Positive = 0.1,
    at_steps: tuple[int, ...] = (),
    at_epochs: tuple[float, ...] = (),
    warmup_steps: WarmupSteps = None,
    warmup_epochs: WarmupEpochs = None,
    init_factor: NonNegative = 0.0,
) -> optax.Schedule:
    """Multiplies the factor by `decay_factor` at each of the epochs or steps, after a warm-up from `init_factor`.

    Args:
      total_steps: T, updates in the whole run.
      steps_per_epoch: updates in an epoch.
      decay_factor: what each drop multiplies the factor by.
      at_steps: the steps of the drops, in increasing order.
      at_epochs: the same in epochs.
      warmup_steps: w, the length of the warm-up; 0 for none.
      warmup_epochs: the same in epochs.
      init_factor: the factor at the beginning of the warm-up.

    Reference: Goyal et al. (2017) for ResNet-50: at_epochs = (30, 60, 80), 5 warm-up epochs from 1 / num_workers.
    """
    if bool(at_steps) == bool(at_epochs):
        raise ValueError(f"at_steps={at_steps}, at_epochs={at_epochs}: give one")
    boundaries = list(at_steps) or [first_step_at(epochs, steps_per_epoch=steps_per_epoch) for epochs in at_epochs]
    if min(boundaries) <= 0 or sorted(set(boundaries)) != boundaries:
        given = f"at_steps={at_steps}" if at_steps else f"at_epochs={at_epochs}"
        raise ValueError(f"{given}: must be above 0 and increase by at least a step")
    warmup = 0
    if warmup_steps is not None or warmup_epochs is not None:
        warmup = _warmup(warmup_steps, warmup_epochs, total_steps=total_steps, steps_per_epoch=steps_per_epoch)
    dropped = _drops(np.array(boundaries), factors=np.float64(decay_factor) ** np.arange(len(boundaries) + 1))

    def schedule(step):
        step = jnp.asarray(step)
        up = init_factor + (1 - init_factor) * jnp.minimum(step / max(warmup, 1), 1)
        return jnp.asarray(dropped(step)) * (up if warmup else 1.0)

    return schedule


def _whole(number: float) -> int:
    return math.ceil(number - 1e-9 * max(1.0, abs(number)))


def _warmup(num_steps: int | None, epochs: float | None, *, total_steps: int, steps_per_epoch: float) -> int:
    """Returns the length of the warm-up; raises ValueError unless it is given once and fits into the run."""
    warmup = duration("warmup_steps", steps=num_steps, epochs=epochs, steps_per_epoch=steps_per_epoch)
    if warmup is None:
        raise ValueError("warmup_steps=None, warmup_epochs=None: give one (0 for no warm-up)")
    if warmup > total_steps:
        given = f"warmup_steps={num_steps}" if epochs is None else f"warmup_epochs={epochs}"
        raise ValueError(f"{given}: longer than the run of {total_steps} steps")
    return warmup


def _warmup_then(decay: Callable[[jax.Array], jax.Array], *, warmup: int, total_steps: int) -> optax.Schedule:
    """Returns t / warmup, then decay(left), with left from 1 at t = warmup to 0 at t = total_steps."""

    def schedule(step):
        step = jnp.asarray(step)
        left = (total_steps - jnp.clip(step, warmup, total_steps)) / max(total_steps - warmup, 1)
        return jnp.where(step < warmup, step / max(warmup, 1), decay(left))

    return schedule


def _drops(boundaries: np.ndarray, *, factors: np.ndarray) -> optax.Schedule:
    """Returns factors[k] where k boundaries are at or before the step: a table, exact to the last digit of float32."""
    first = np.minimum(boundaries, MAX_STEPS).astype(np.int32)
    table = factors.astype(np.float32)
    return lambda step: jnp.asarray(table)[jnp.searchsorted(jnp.asarray(first), step, side="right")]


def of_workers(name: str, *, num_workers: int) -> float:
    """Returns the factor by which the rule `name` multiplies the peak learning rate.

    `linear` is the rule of synchronous SGD with averaged gradients, rate(N) = rate(1) * N; summing the gradients
    under `none` is the same for plain SGD. `sqrt` keeps the variance of a step constant instead.

    Args:
        name: "none", "linear" or "sqrt".
        num_workers: how many workers' gradients make one update.

    Returns:
        The factor, 1.0 for one worker under every rule.

    >>> [of_workers(rule, num_workers=4) for rule in ("none", "linear", "sqrt")]
    [1.0, 4.0, 2.0]

    Reference: Chen et al., Revisiting Distributed Synchronous SGD (2016), learning rates of the Inception experiments.
    """
    return {"none": 1.0, "linear": float(num_workers), "sqrt": math.sqrt(num_workers)}[name]
