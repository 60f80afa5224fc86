"""How stale a run's gradients were: histograms per worker, and what they come to."""

from typing import NamedTuple

import numpy as np


class Summary(NamedTuple):
    """Of a set of stalenesses, in updates."""

    min: int
    mean: float
    median: float
    max: int
    std: float
    num_gradients: int


def histogram(worker: np.ndarray, staleness: np.ndarray, *, num_workers: int) -> np.ndarray:
    """Counts gradients by worker and staleness.

    Args:
      worker: [E], who made each gradient.
      staleness: [E], of each gradient, at least 0.
      num_workers: n.

    Returns:
      [n, largest staleness + 1] int64.

    >>> histogram(np.array([0, 0, 1]), np.array([0, 1, 1]), num_workers=2)
    array([[1, 1],
           [0, 1]])
    """
    num_columns = int(staleness.max(initial=0)) + 1
    cell = worker.astype(np.int64) * num_columns + staleness
    return np.bincount(cell, minlength=num_workers * num_columns).reshape(num_workers, num_columns)


def merge(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Adds two histograms of the same workers, of any widths: those of two pieces of a run, say."""
    total = np.zeros((len(one), max(one.shape[1], other.shape[1])), np.int64)
    total[:, : one.shape[1]] += one
    total[:, : other.shape[1]] += other
    return total


def table(counts: np.ndarray) -> str:
    """Writes a histogram as CSV, a line for each count that is not zero.

    Args:
      counts: [n, S], as ``histogram`` returns it.

    >>> print(table(np.array([[1, 0, 3], [0, 2, 0]])), end="")
    worker,staleness,gradients
    0,0,1
    0,2,3
    1,1,2
    """
    lines = [f"{worker},{staleness},{counts[worker, staleness]}" for worker, staleness in np.argwhere(counts)]
    return "\n".join(["worker,staleness,gradients", *lines]) + "\n"


def summary(counts: np.ndarray) -> Summary:
    """Describes a histogram: of one worker, [S], or of several together, [n, S].

    The median of an even count is the mean of the middle two; the standard deviation divides by the count.

    >>> summary(np.array([1, 0, 2, 1]))
    Summary(min=0, mean=1.75, median=2.0, max=3, std=1.0897247358851685, num_gradients=4)

    Raises:
      ValueError: if there is nothing in it.
    """
    counts = np.atleast_2d(counts).sum(0)
    count, value = int(counts.sum()), np.arange(len(counts))
    if not count:
        raise ValueError("staleness: there are no gradients to describe")
    present = np.flatnonzero(counts)
    mean = float(value @ counts / count)
    below = np.cumsum(counts)
    middle = [int(np.searchsorted(below, half, side="right")) for half in ((count - 1) // 2, count // 2)]
    std = float(np.sqrt((value - mean) ** 2 @ counts / count))
    return Summary(int(present[0]), mean, sum(middle) / 2, int(present[-1]), std, count)
