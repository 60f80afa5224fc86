"""Samples of many steps of an arrival model, and the mean time to the k-th arrival, by formula or from samples."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np
from jax import numpy as jnp

from reducers.arrivals.models import ARRIVALS
from reducers.arrivals.traces import read_trace

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
        raise ValueError(f"worker {worker} does not arrive at step {first_step + step}; all must, to be sampled")
    return seconds


def num_recorded(name: str, *, of: Literal["steps", "workers"] = "steps", **options: Any) -> int | None:
    """Returns the number of steps, or of workers, of the trace that a model replays, itself or in a model inside it.

    Args:
      name: a key of ``ARRIVALS``.
      of: what is counted.
      **options: options of the model.

    Returns:
      The number of steps after which the trace begins again, or of workers that have times; the least, if there are
      several traces; None if there is none.

    >>> num_recorded("slow_workers", base="lognormal") is None
    True
    """
    if name == "trace":
        steps, workers = read_trace(options["path"]).shape
        return steps if of == "steps" else workers
    counts = []
    for value in options.values():
        block = value if isinstance(value, Mapping) else {"name": value}
        inside = block.get("name")
        if isinstance(inside, str) and inside in ARRIVALS:
            counts.append(num_recorded(**block, of=of))
    return min((count for count in counts if count is not None), default=None)


def batches(values: np.ndarray, *, period: int | None = None) -> np.ndarray:
    """Returns the means of batches of consecutive steps; batches that are long enough hardly depend on each other.

    Args:
      values: [S, ...].
      period: the number of steps after which the values begin again, as a trace does. Repetitions tell nothing new:
        values of the same step of the trace are averaged first.

    Returns:
      [B, ...] float64. B is S / 10, at most 100; for fewer than 100 steps B is 10, or S / 2 if that is less. The last S
      mod B steps are ignored.

    >>> batches(np.array([1.0, 3.0, 1.0, 5.0, 1.0, 3.0, 1.0, 5.0]), period=4)
    array([2., 3.])
    """
    if period is not None and (repetitions := len(values) // period) > 1:
        repeated = values[: repetitions * period].reshape(repetitions, period, *values.shape[1:])
        values = repeated.mean(axis=0, dtype=np.float64)
    num_steps = len(values)
    num_batches = max(1, min(100, max(num_steps // 10, min(num_steps // 2, 10))))
    length = num_steps // num_batches
    cut = values[: num_batches * length].reshape(num_batches, length, *values.shape[1:])
    return cut.mean(axis=1, dtype=np.float64)


def batch_means(values: np.ndarray, *, period: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns means over steps and their standard errors, which come from the means of batches of consecutive steps.

    Args:
      values: [S, ...].
      period: see ``batches``.

    Returns:
      Means [...] and standard errors [...], float64; errors are NaN for fewer than 4 steps.

    >>> mean, error = batch_means(np.array([1.0, 3.0, 1.0, 3.0, 1.0, 3.0]))
    >>> float(mean), float(error)
    (2.0, 0.0)
    """
    means = batches(values, period=period)
    mean = means.mean(axis=0)
    if len(means) < 2:
        return mean, np.full_like(mean, np.nan)
    return mean, means.std(axis=0, ddof=1) / np.sqrt(len(means))


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
    if name not in ("constant", "shifted_exponential"):
        return None
    options = ARRIVALS.check({"name": name, **options})
    if name == "constant":
        return np.full(num_workers, options["seconds"])
    waits = 1 / np.arange(num_workers, 0, -1)  # mean time until the next of n, n - 1, ... busy workers arrives
    return options["shift_seconds"] + options["scale_seconds"] * np.cumsum(waits)
