"""Staleness layer by layer: parameters are read bottom-up on the way forward, gradients sent top-down on the way back.

So the bottom layer's gradient is of parameters read at the very beginning of a task and is the last to be sent, while
the top layer's is sent soon after the layer was read. Only the timing is modelled here; training reads and applies all
layers at once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asynchronous.events import Events
from asynchronous.staleness import Summary, histogram, summary


class LayerTimes(NamedTuple):
    """When in a task each layer is read and its gradient sent, as fractions of the task, bottom layer first."""

    read: np.ndarray  # [layers] in [0, 1]
    sent: np.ndarray  # [layers] in [0, 1], later than read


def layer_times(costs: Sequence[float], *, forward_fraction: float = 1 / 3) -> LayerTimes:
    """Models a task as one pass forward and one back, each layer taking its share of both.

    A layer is read when the pass forward comes to it, and its gradient sent when the pass back has left it. Sending
    takes no time.

    Args:
      costs: of each layer, bottom first, in any unit.
      forward_fraction: of the task's time; the pass back costs twice the pass forward, as a rule.

    >>> layer_times([1, 1], forward_fraction=0.5)
    LayerTimes(read=array([0.  , 0.25]), sent=array([1.  , 0.75]))
    """
    share = np.asarray(costs, float) / np.sum(costs)
    if not (share > 0).all() or not 0 < forward_fraction < 1:
        raise ValueError(f"costs={costs}, forward_fraction={forward_fraction}: must be above 0, and in (0, 1)")
    below = np.concatenate([[0.0], np.cumsum(share)[:-1]])
    return LayerTimes(forward_fraction * below, 1 - (1 - forward_fraction) * below)


def layer_staleness(events: Events, times: LayerTimes, *, num_workers: int) -> list[np.ndarray]:
    """Returns each layer's stalenesses: updates of that layer between its reading and the arrival of its gradient.

    Each worker's first task is left out, and so is what is sent once some worker is at a task beyond the events.

    Args:
      events: of a run from its beginning, one gradient per update.
      times: when in a task each layer is read and sent.
      num_workers: n.

    Raises:
      ValueError: if nothing is left.

    Reference: Chen et al., arXiv 1604.00981, the study of 40 workers and 18 layers. Differs from the paper in: reading
    and sending take no time, so that the mean goes down to 0 with the layer's share of a task, whatever the network.
    """
    if len(set(events.worker.tolist())) != num_workers:
        raise ValueError(f"events: must hold a gradient of each of the {num_workers} workers")
    end = min(events.seconds[events.worker == worker][-1] for worker in range(num_workers))
    found = []
    for read, sent in zip(times.read, times.sent, strict=True):
        # This form is exact at 0 and 1, so that who sends and reads at one moment is told apart as in the order itself.
        reads, sends = (at * events.seconds + (1 - at) * events.read_seconds for at in (read, sent))
        kind = np.repeat([0, 1], len(sends))  # a worker sends, then reads
        merged = np.lexsort((kind, np.tile(events.worker, 2), np.concatenate([sends, reads])))
        sent_before = np.empty(len(merged), np.int64)
        sent_before[merged] = np.cumsum(kind[merged] == 0)
        staleness = sent_before[: len(sends)] - 1 - sent_before[len(sends) :]  # a send has counted itself
        found.append(staleness[(events.task > 0) & (sends <= end)])
    if not all(map(len, found)):
        raise ValueError("events: too few of them to say anything of steady running")
    return found


def layer_table(staleness: Sequence[np.ndarray]) -> str:
    """Returns a row per layer, top layer first, as the paper's study has them.

    >>> print(layer_table([np.array([3, 5]), np.array([1, 2])]))
    | Layer | min | mean | median | max | std | count |
    | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
    | 1 | 1 | 1.50 | 1.5 | 2 | 0.50 | 2 |
    | 0 | 3 | 4.00 | 4.0 | 5 | 1.00 | 2 |

    Reference: Chen, Pan, Monga, Bengio, Jozefowicz, arXiv 1604.00981, the table of staleness by layer.
    """
    rows = ["| Layer | min | mean | median | max | std | count |", "|" + " ---: |" * 7]
    for layer in reversed(range(len(staleness))):
        s: Summary = summary(histogram(np.zeros(len(staleness[layer]), int), staleness[layer], num_workers=1))
        rows.append(f"| {layer} | {s.min} | {s.mean:.2f} | {s.median} | {s.max} | {s.std:.2f} | {s.num_gradients} |")
    return "\n".join(rows)
