"""Modes of training by name: synchronous, or asynchronous with a server."""

from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

from asynchronous import rules
from asynchronous.rules import Rule
from reducers import blocks


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
    rule: Mapping | str = "none",
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
    return Mode(blocks.build(rule, lookup=rules.lookup, key="rule"), gradients_per_update, staleness_bound)


MODES: dict[str, Callable[..., Mode | None]] = {"asynchronous": asynchronous, "synchronous": synchronous}

GIVEN: frozenset[str] = frozenset()  # what the program supplies: nothing; every parameter is a config key


def lookup(name: str) -> Callable[..., Mode | None]:
    """Returns the mode's constructor; its signature is the schema of a config's ``server`` block.

    Raises:
      ValueError: if no mode has that name; says which there are.
    """
    return blocks.find(MODES, name)


def make(name: str, **options) -> Mode | None:
    """Builds the mode called ``name``: ``make(**config.server)``; None is synchronous.

    >>> make("asynchronous", staleness_bound=2).gradients_per_update
    1
    """
    return lookup(name)(**options)
