"""The settings of a config's block ``server``: synchronous, or asynchronous with a server or without one."""

from typing import NamedTuple, TypeAlias

from asynchronous.events import Source, read_order
from asynchronous.rules import RULES, Rule
from reducers.arrivals.models import ARRIVALS, Arrivals, constant
from reducers.options import Count, Natural, NonNegative
from reducers.registry import Block, Registry


class Server(NamedTuple):
    """The settings of asynchronous SGD with a server.

    Attributes:
      rule: the staleness rule.
      gradients_per_update: c, of soft synchronisation.
      staleness_bound: s, of stale synchronous parallel; with None no worker waits.
      order: a recorded order of arrival; None if arrival times determine it.
    """

    rule: Rule
    gradients_per_update: int
    staleness_bound: int | None
    order: Source | None = None


class Broadcast(NamedTuple):
    """The settings of asynchronous SGD without a server, where each worker sends its update to all others.

    Attributes:
      latency: an arrival model; with a sender's key it gives the seconds of an update to each receiver.
      gradients_per_update: each gradient is an update.
      staleness_bound: no worker waits.
    """

    latency: Arrivals
    gradients_per_update: int = 1
    staleness_bound: int | None = None


Settings: TypeAlias = Server | Broadcast


def synchronous() -> None:
    """All workers compute gradients at the same parameters, which together make one update."""


def asynchronous(
    *,
    rule: Block = "none",
    gradients_per_update: Count = 1,
    staleness_bound: Natural | None = None,
    order: str | None = None,
) -> Server:
    """Each worker reads, computes and pushes at its own pace; the server applies each gradient when it arrives.

    Args:
      rule: the staleness rule: the name of one of ``RULES``, or a block such as {"name": "threshold",
        "max_staleness": 100}.
      gradients_per_update: number of gradients that make an update.
      staleness_bound: how many tasks a worker may be ahead of the slowest before it waits; with None no worker waits.
      order: path of a live run's events.npz; its order of arrival replaces arrival times.

    Raises:
      ValueError: one line, for an invalid rule or option.

    >>> asynchronous(rule={"name": "threshold", "max_staleness": -1})
    Traceback (most recent call last):
    ValueError: rule.max_staleness=-1: must be int in [0, inf)
    """
    recorded = None if order is None else read_order(order)
    return Server(RULES.build(rule, where="rule"), gradients_per_update, staleness_bound, recorded)


def decentralised(*, latency_seconds: Block | NonNegative = 0.0) -> Broadcast:
    """Each worker has a replica, applies its update to it at once, and sends the update to all others.

    Args:
      latency_seconds: how long a message takes: a number, or an arrival model, such as {"name": "lognormal",
        "median_seconds": 0.5}. The model's times of step c are those of the update of a sender's c-th gradient to each
        receiver, drawn independently for each sender.

    Raises:
      ValueError: one line, for an invalid latency.

    >>> decentralised(latency_seconds="lognormalised")
    Traceback (most recent call last):
    ValueError: latency_seconds.name='lognormalised': unknown name; did you mean 'lognormal'?

    Reference: Tosi and Theobald, "Convergence Analysis of Decentralized ASGD", arXiv 2309.03754.
    """
    if isinstance(latency_seconds, int | float):
        return Broadcast(constant(seconds=float(latency_seconds)))
    return Broadcast(ARRIVALS.build(latency_seconds, where="latency_seconds"))


SETTINGS = Registry({"asynchronous": asynchronous, "decentralised": decentralised, "synchronous": synchronous})

make = SETTINGS.make  # make(**config.server)
