"""Samples of many steps of an arrival model, and the mean time to the k-th arrival, by formula or from samples."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from reducers.arrivals.models import ARRIVALS

# Steps per call of a compiled program: enough to occupy two cores, and few enough for their caches.
_CHUNK_STEPS = 10_000


def sample(model: Callable, key: jax.Array, *, num_workers: int, num_steps: int, first_step: int = 0) -> np.ndarray:
    """Calls an arrival model for consecutive steps.

    Args:
      model: ``(key, step, num_workers) -> seconds``.
      key: a JAX key.
      num_workers: W.
      num_steps: S, at least 1.
      first_step: the number of the first step.

    Returns:
      [S, W] float32, on the host; row s equals ``model(key, first_step + s, W)``.

    Raises:
      ValueError: in one line, if a worker does not arrive in some step, as in traces of live runs.

    >>> from reducers import arrivals
    >>> sample(arrivals.make("constant"), jax.random.key(0), num_workers=3, num_steps=2)
    array([[1., 1., 1.],
           [1., 1., 1.]], dtype=float32)
    """
    chunk_steps = min(num_steps, _CHUNK_STEPS)

    @jax.jit
    def chunk(key, start):
        return jax.vmap(lambda step: model(key, step, num_workers))(start + jnp.arange(chunk_steps))

    starts = range(first_step, first_step + num_steps, chunk_steps)
    seconds = np.concatenate([np.asarray(chunk(key, np.int32(start))) for start in starts])[:num_steps]
    if len(absent := np.argwhere(np.isinf(seconds))):
        step, worker = absent[0]
        raise ValueError(f"worker {worker} does not arrive at step {first_step + step}, and must for this")
    return seconds


def batch_seconds(model: Callable, key: jax.Array, step: Any, *, num_workers: int, num_waves: int) -> jax.Array:
    """Returns the seconds of each worker's first batches of a step, for ``k_batch_arrivals``.

    The c-th batch of step t takes the times of the model's step C t + c, so that traces, scripts and slow phases
    continue from batch to batch.

    Args:
      model: ``(key, step, num_workers) -> seconds``.
      key: a JAX key.
      step: t.
      num_workers: W.
      num_waves: C, the number of batches of each worker.

    Returns:
      [C, W] seconds.
    """
    return jax.vmap(lambda wave: model(key, step * num_waves + wave, num_workers))(jnp.arange(num_waves))


def batch_means(values: np.ndarray, *, num_batches: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Returns means over steps and their standard errors, which come from the means of batches of consecutive steps.

    Consecutive steps of some models are correlated; the means of batches that are long enough hardly are.

    Args:
      values: [S, ...].
      num_batches: at least 2, reduced to S / 2 if there are too few steps. The last S mod num_batches steps are
        ignored.

    Returns:
      Means [...] and standard errors [...], float64; errors are NaN for fewer than 4 steps.

    >>> mean, error = batch_means(np.array([1.0, 3.0, 1.0, 3.0, 1.0, 3.0]))
    >>> float(mean), float(error)
    (2.0, 0.0)
    """
    num_steps = len(values)
    if num_steps < 4:
        mean = values.mean(axis=0, dtype=np.float64)
        return mean, np.full_like(mean, np.nan)
    num_batches = min(num_batches, num_steps // 2)
    length = num_steps // num_batches
    cut = values[: num_batches * length].reshape(num_batches, length, *values.shape[1:])
    means = cut.mean(axis=1, dtype=np.float64)
    return means.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(num_batches)


def _constant(num_workers: int, *, seconds: float) -> np.ndarray:
    return np.full(num_workers, seconds)


def _shifted_exponential(num_workers: int, *, shift_seconds: float, scale_seconds: float) -> np.ndarray:
    waits = 1 / np.arange(num_workers, 0, -1)  # mean time until the next of n, n - 1, ... busy workers arrives
    return shift_seconds + scale_seconds * np.cumsum(waits)


_CLOSED_FORMS: Mapping[str, Callable] = {"constant": _constant, "shifted_exponential": _shifted_exponential}


def expected_arrivals(name: str, *, num_workers: int, **options: Any) -> np.ndarray | None:
    r"""Returns the mean time to the k-th arrival by formula, for models that have one.

    .. math:: E[T_{(k)}] = s + \beta (H_W - H_{W - k})

    for the shifted exponential, where H are the harmonic numbers.

    Args:
      name: a key of ``ARRIVALS``.
      num_workers: W.
      **options: options of the model; the others have their defaults.

    Returns:
      [W] float64, for k = 1 to W; None if the model has no formula.

    >>> expected_arrivals("shifted_exponential", num_workers=2, shift_seconds=0.0, scale_seconds=2.0)
    array([1., 3.])
    >>> expected_arrivals("lognormal", num_workers=2)
    """
    if name not in _CLOSED_FORMS:
        return None
    return _CLOSED_FORMS[name](num_workers, **ARRIVALS.check({"name": name, **options}))
