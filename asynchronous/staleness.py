"""Statistics of staleness: histograms by worker, and the staleness of each layer.

Layers differ because a task reads the parameters bottom-up during the forward pass and sends gradients top-down during
the backward pass. The bottom layer's gradient is of parameters that were read at the beginning of the task, and it is
sent last; the top layer's gradient is sent soon after the layer was read. Only this timing is modelled; training reads
and applies all layers at once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asynchronous.events import Events


class Summary(NamedTuple):
    """Statistics of the staleness of some gradients, in updates."""

    min: int
    mean: float
    median: float
    max: int
    std: float
    num_gradients: int


def histogram(worker: np.ndarray, staleness: np.ndarray, *, num_workers: int) -> np.ndarray:
    """Counts gradients by worker and staleness.

    Args:
      worker: [E], the worker of each gradient.
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


def table(counts: np.ndarray) -> str:
    """Formats a histogram as CSV, with a line for each count that is not zero.

    Args:
      counts: [n, S], a histogram.

    >>> print(table(np.array([[1, 0, 3], [0, 2, 0]])), end="")
    worker,staleness,gradients
    0,0,1
    0,2,3
    1,1,2
    """
    lines = [f"{worker},{staleness},{counts[worker, staleness]}" for worker, staleness in np.argwhere(counts)]
    return "\n".join(["worker,staleness,gradients", *lines]) + "\n"


def summary(counts: np.ndarray) -> Summary:
    """Summarizes a histogram of one worker, [S], or of several workers together, [n, S].

    The median of an even count is the mean of the middle two; the standard deviation divides by the count.

    >>> summary(np.array([1, 0, 2, 1]))
    Summary(min=0, mean=1.75, median=2.0, max=3, std=1.0897247358851685, num_gradients=4)

    Raises:
      ValueError: if the histogram is empty.
    """
    counts = np.atleast_2d(counts).sum(0)
    value = np.arange(len(counts))
    each = np.repeat(value, counts)
    if not each.size:
        raise ValueError("staleness: there are no gradients to describe")
    mean = float(each.mean())
    std = float(np.sqrt((value - mean) ** 2 @ counts / each.size))
    return Summary(int(each[0]), mean, float(np.median(each)), int(each[-1]), std, each.size)


# ---- layer by layer ------------------------------------------------------------------------------------------------


class LayerTimes(NamedTuple):
    """When a task reads each layer and sends its gradient, as fractions of the task's time, bottom layer first."""

    read: np.ndarray  # [layers] in [0, 1]
    sent: np.ndarray  # [layers] in [0, 1], later than read


def layer_times(costs: Sequence[float], *, forward_fraction: float = 1 / 3) -> LayerTimes:
    """Models a task as one forward and one backward pass, in which each layer takes its share of the time.

    A layer is read when the forward pass reaches it, and its gradient is sent when the backward pass has left it.
    Sending takes no time.

    Args:
      costs: the cost of each layer, bottom first, in any unit.
      forward_fraction: the forward pass's fraction of the task's time; a backward pass usually costs twice as much.

    >>> layer_times([1, 1], forward_fraction=0.5)
    LayerTimes(read=array([0.  , 0.25]), sent=array([1.  , 0.75]))
    """
    share = np.asarray(costs, float) / np.sum(costs)
    if not (share > 0).all() or not 0 < forward_fraction < 1:
        raise ValueError(f"costs={costs}, forward_fraction={forward_fraction}: must be above 0, and in (0, 1)")
    below = np.concatenate([[0.0], np.cumsum(share)[:-1]])
    return LayerTimes(forward_fraction * below, 1 - (1 - forward_fraction) * below)


def layer_staleness(events: Events, times: LayerTimes, *, num_workers: int) -> list[np.ndarray]:
    """Returns the staleness of each layer: updates of the layer between its read and the arrival of its gradient.

    Two kinds of gradients are left out: those of each worker's first task, and those sent after the first worker has
    finished its last task in the events.

    Args:
      events: the events of a run from its beginning, with one gradient per update.
      times: when a task reads and sends each layer.
      num_workers: n.

    Raises:
      ValueError: if no gradients are left.

    Reference: Chen et al., arXiv 1604.00981, the study of 40 workers and 18 layers. Differs from the paper in: reading
    and sending take no time, so the mean falls to 0 with the layer's share of a task, whatever the network.
    """
    if len(set(events.worker.tolist())) != num_workers:
        raise ValueError(f"events: must hold a gradient of each of the {num_workers} workers")
    end = min(events.seconds[events.worker == worker][-1] for worker in range(num_workers))
    found = []
    for read, sent in zip(times.read, times.sent, strict=True):
        # This interpolation is exact at 0 and 1, so that simultaneous sends and reads keep the order of the events.
        reads, sends = (at * events.seconds + (1 - at) * events.read_seconds for at in (read, sent))
        kind = np.repeat([0, 1], len(sends))  # a worker sends, then reads
        merged = np.lexsort((kind, np.tile(events.worker, 2), np.concatenate([sends, reads])))
        sent_before = np.empty(len(merged), np.int64)
        sent_before[merged] = np.cumsum(kind[merged] == 0)
        staleness = sent_before[: len(sends)] - 1 - sent_before[len(sends) :]  # the count of a send includes itself
        found.append(staleness[(events.task > 0) & (sends <= end)])
    if not all(map(len, found)):
        raise ValueError("events: too few of them to say anything of steady running")
    return found


def layer_table(staleness: Sequence[np.ndarray]) -> str:
    """Returns a Markdown table with a row per layer, top layer first, as in the paper's study.

    >>> print(layer_table([np.array([3, 5]), np.array([1, 2])]))
    | Layer | min | mean | median | max | std | count |
    | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
    | 1 | 1 | 1.50 | 1.5 | 2 | 0.50 | 2 |
    | 0 | 3 | 4.00 | 4.0 | 5 | 1.00 | 2 |

    Reference: Chen, Pan, Monga, Bengio, Jozefowicz, arXiv 1604.00981, the table of staleness by layer.
    """
    rows = ["| Layer | min | mean | median | max | std | count |", "|" + " ---: |" * 7]
    for layer in reversed(range(len(staleness))):
        s = summary(histogram(np.zeros(len(staleness[layer]), int), staleness[layer], num_workers=1))
        rows.append(f"| {layer} | {s.min} | {s.mean:.2f} | {s.median} | {s.max} | {s.std:.2f} | {s.num_gradients} |")
    return "\n".join(rows)
