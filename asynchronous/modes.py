"""Modes of training by name: synchronous, or asynchronous with a server."""

from typing import Annotated, NamedTuple

from asynchronous.rules import RULES, Rule
from reducers.registry import Block, Registry


class Mode(NamedTuple):
    """The options of asynchronous SGD.

    Attributes:
      rule: the staleness rule.
      gradients_per_update: c, of soft synchronisation.
      staleness_bound: s, of stale synchronous parallel; with None no worker waits.
    """

    rule: Rule
    gradients_per_update: int
    staleness_bound: int | None


def synchronous() -> None:
    """All workers compute gradients at the same parameters, which together make one update."""


def asynchronous(
    *,
    rule: Block = "none",
    gradients_per_update: Annotated[int, "[1, inf)"] = 1,
    staleness_bound: Annotated[int, "[0, inf)"] | None = None,
) -> Mode:
    """Each worker reads, computes and pushes at its own pace; the server applies each gradient when it arrives.

    Args:
      rule: the staleness rule: the name of one of ``RULES``, or a block such as {"name": "threshold",
        "max_staleness": 100}.
      gradients_per_update: how many gradients make an update.
      staleness_bound: how many tasks a worker may be ahead of the slowest before it waits; with None no worker waits.

    Raises:
      ValueError: one line, for a rule or an option that makes no sense.

    >>> asynchronous(rule={"name": "threshold", "max_staleness": -1})
    Traceback (most recent call last):
    ValueError: rule.max_staleness=-1: must be int in [0, inf)
    """
    return Mode(RULES.build(rule, where="rule"), gradients_per_update, staleness_bound)


MODES = Registry({"asynchronous": asynchronous, "synchronous": synchronous})

make = MODES.make  # make(**config.server)
