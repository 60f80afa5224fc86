"""Asynchronous SGD: workers compute at their own pace, and the order of arrival is known beforehand."""

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Iterator, Mapping
from typing import ClassVar

from ml_collections import ConfigDict

import asynchronous
import reducers
from runs.errors import ConfigError, in_block
from training.train_setup import Mode

_CHECKED_EVENTS = 200_000  # of a run, before it begins

Needs = Mapping[tuple[str, ...], str | None]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class InOrderOfArrival(Mode):
    """Workers compute at their own pace; of each gradient it is known who has read what, before any is computed.

    Attributes:
      options: of the config's block ``server``.
    """

    options: asynchronous.AsyncMode

    # Keys that such a run has no use for, and the only value that it allows for each.
    needs: ClassVar[Needs] = {
        ("reducer", "name"): "mean",
        ("communication", "name"): "full",
        ("loss_scaling", "name"): "none",
        ("reducer_on",): "gradients",
    }
    all_compute = False
    waits_in = "server"

    @property
    def gradients_per_update(self) -> int:
        """As ``config.server`` says."""
        return self.options.gradients_per_update

    @property
    def source(self) -> asynchronous.Durations | asynchronous.Source:
        """The seconds of each worker's tasks, which decide who arrives next."""
        return self.durations

    @functools.cached_property
    def durations(self) -> asynchronous.Durations:
        """The seconds of each worker's tasks."""
        return asynchronous.from_model(self.arrival_seconds)

    def check(self) -> None:
        """Refuses other reducers, and what a run cannot do whose order of events is settled beforehand."""
        named = f"name={self.config.server.name!r}"
        with in_block("server"):
            for path, needed in self.needs.items():
                found = functools.reduce(operator.getitem, path, self.config)
                if found != needed:
                    raise ValueError(f"{named}: needs config.{'.'.join(path)}={needed!r}, not {found!r}")
        if self.config.on_nonfinite == "skip":  # who reads what, and how stale it is, was settled before
            raise ConfigError(f"config.on_nonfinite='skip': config.server.{named} needs 'stop' or 'ignore'")

    def needs_times(self, reducer: reducers.Reducer) -> bool:
        """Returns whether no order is recorded."""
        return self.source is self.durations

    def fewest_arrivals(self, reducer: reducers.Reducer, *, step: int) -> int:
        """Returns W: every task has to end."""
        return self.num_workers

    def check_durations(self) -> None:
        """Refuses tasks that take no time or never end."""
        if self.source is self.durations:
            with naming_arrivals(self.config):
                for _ in self.event_order(0, min(self.num_steps, _CHECKED_EVENTS)):
                    pass

    def event_order(self, first_step: int, num_steps: int) -> Iterator[tuple[asynchronous.Events, asynchronous.Reads]]:
        """Yields the gradients of the steps from ``first_step`` to ``num_steps`` in the order of arrival, in pieces."""
        count = self.gradients_per_update
        return asynchronous.order(
            self.source,
            num_workers=self.num_workers,
            num_events=num_steps * count,
            first_event=first_step * count,
            staleness_bound=self.options.staleness_bound,
            gradients_per_update=count,
            own_batches=self.config.split.name != "shuffled",
        )


@contextlib.contextmanager
def naming_arrivals(config: ConfigDict) -> Iterator[None]:
    """Turns a ValueError for the seconds of a task into a ConfigError that names the arrival model."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"config.arrivals.name={config.arrivals.name!r}: gives {error}") from None
