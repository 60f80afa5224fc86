"""Many steps of an arrival model at once, and the mean time to the k-th arrival: by formula, or measured."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from reducers.arrivals.composed import ARRIVALS

# Steps per call of a compiled program: enough to keep two cores busy, small enough for their caches.
_CHUNK_STEPS = 10_000


def sample(model: Callable, key: jax.Array, *, num_workers: int, num_steps: int, first_step: int = 0) -> np.ndarray:
    """Calls an arrival model for consecutive steps.

    Args:
      model: ``(key, step, num_workers) -> seconds``.
      key: of JAX.
      num_workers: W.
      num_steps: S, at least 1.
      first_step: the first of them.

    Returns:
      [S, W] float32, on the host; row s is what ``model(key, first_step + s, W)`` gives.

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
    return np.concatenate([np.asarray(chunk(key, np.int32(start))) for start in starts])[:num_steps]


def batch_seconds(model: Callable, key: jax.Array, step: Any, *, num_workers: int, num_waves: int) -> jax.Array:
    """Times of each worker's first batches since a step began, for ``k_batch_arrivals``.

    The model is asked for its steps C t, ..., C t + C - 1, so that a trace, a script or slow phases go on from batch
    to batch.

    Args:
      model: ``(key, step, num_workers) -> seconds``.
      key: of JAX.
      step: t.
      num_workers: W.
      num_waves: C, batches of each worker.

    Returns:
      [C, W] seconds.
    """
    return jax.vmap(lambda wave: model(key, step * num_waves + wave, num_workers))(jnp.arange(num_waves))


def batch_means(values: np.ndarray, *, num_batches: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Means over steps and their standard errors, by the means of batches of consecutive steps.

    Steps of some models depend on each other; batches that are much longer than this dependence hardly do.

    Args:
      values: [S, ...].
      num_batches: at least 2; lowered to S / 2 where there are fewer steps. The last S mod num_batches steps are left
        out.

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
    waits = 1 / np.arange(num_workers, 0, -1)  # until the next of 100, 99, ... that are still at work
    return shift_seconds + scale_seconds * np.cumsum(waits)


_CLOSED_FORMS: Mapping[str, Callable] = {"constant": _constant, "shifted_exponential": _shifted_exponential}


def expected_arrivals(name: str, *, num_workers: int, **options: Any) -> np.ndarray | None:
    r"""Mean time to the k-th arrival by formula, where there is one.

    .. math:: E[T_{(k)}] = s + \beta (H_W - H_{W - k})

    for the shifted exponential, H being the harmonic numbers.

    Args:
      name: a key of ``ARRIVALS``.
      num_workers: W.
      **options: of the model; others are at their defaults.

    Returns:
      [W] float64, for k = 1 to W; None for a model without a formula.

    >>> expected_arrivals("shifted_exponential", num_workers=2, shift_seconds=0.0, scale_seconds=2.0)
    array([1., 3.])
    >>> expected_arrivals("lognormal", num_workers=2)
    """
    if name not in _CLOSED_FORMS:
        return None
    return _CLOSED_FORMS[name](num_workers, **ARRIVALS.check({"name": name, **options}))
