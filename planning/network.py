r"""The time that messages take: :math:`seconds = latency \cdot rounds + bytes / bandwidth`."""

import math
from collections.abc import Mapping
from typing import NamedTuple

# Rounds of one collective of n workers, for the algorithms whose bytes ``reducers.traffic`` counts: halving and
# doubling, in which each round reaches the other half of the workers (DERIVED; a ring takes 2 (n - 1) rounds).
_ROUNDS = {"psum": 2, "pmax": 2, "pmin": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


class Network(NamedTuple):
    """A network on which each machine sends to any other at one bandwidth, and receives at the same time.

    Attributes:
      bytes_per_second: the bytes that a machine sends in a second.
      latency_seconds: the latency of each round.

    >>> Network(bytes_per_second=1e9, latency_seconds=1e-5).seconds(2e6, rounds=6)
    0.00206
    """

    bytes_per_second: float
    latency_seconds: float = 0.0

    def seconds(self, sent_bytes: float, *, rounds: float = 1) -> float:
        """Returns the seconds that a machine takes to send these bytes in these rounds."""
        return self.latency_seconds * rounds + sent_bytes / self.bytes_per_second


def rounds_of(collectives: Mapping[str, int], *, num_workers: int) -> int:
    """Returns the rounds of collectives that follow each other, counted as by ``reducers.traffic``.

    >>> rounds_of({"psum": 2, "ppermute": 1}, num_workers=8)
    13
    >>> rounds_of({"psum": 1, "all_gather": 1, "ppermute": 3}, num_workers=9)
    15
    """
    doublings = math.ceil(math.log2(num_workers))
    return sum(count * (_ROUNDS[kind] * doublings if kind in _ROUNDS else 1) for kind, count in collectives.items())


def exposed(seconds: float, *, step_seconds: float, every_steps: int = 1, delay_steps: int = 0) -> float:
    r"""Returns the seconds per step that a worker waits for exchanges: :math:`\max(0, t - d s) / H`.

    Args:
      seconds: t, the duration of an exchange.
      step_seconds: s, the time that a worker computes in one step.
      every_steps: H, steps from one exchange to the next.
      delay_steps: d, steps from the start of an exchange to the use of its result.

    >>> exposed(6.0, step_seconds=2.0, every_steps=4), exposed(6.0, step_seconds=2.0, every_steps=4, delay_steps=3)
    (1.5, 0.0)
    >>> exposed(10.0, step_seconds=3.0, delay_steps=2)
    4.0
    """
    return max(0.0, seconds - delay_steps * step_seconds) / every_steps
