"""Modes of a run: its workers meet at a reducer, at an asynchronous server, or without a server.

Workers of an asynchronous run compute at their own pace, and the order of arrival is computed beforehand.
"""

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
from jax import numpy as jnp
from ml_collections import ConfigDict

import asynchronous
import reducers
from reducers.state import zeros_like
from runs.errors import ConfigError, in_block
from training import step_plan
from training.train_state import LATENCY_STREAM

_CHECKED_EVENTS = 200_000  # the most events of a run that are checked before it begins

Needs = Mapping[str, str | None]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Mode(abc.ABC):
    """A way for workers to meet: gives its part of the first state, the run's plans, and the inputs of its step.

    Attributes:
      config: the run's config.
      arrival_seconds: step -> [W], when each worker's gradient arrives.
      num_steps: length of the run in steps.
      options: options of an asynchronous run, from the config's block ``server``; None if the run is synchronous.
      needs: keys of the config that this mode does not support, each with the only value that it allows.
    """

    config: ConfigDict
    arrival_seconds: Callable[[Any], jax.Array]
    num_steps: int
    options: asynchronous.Settings | None = None

    needs: ClassVar[Needs] = {}

    @property
    def is_synchronous(self) -> bool:
        """Whether all workers compute a gradient in each step, and meet at the reducer."""
        return self.options is None

    @property
    def gradients_per_update(self) -> int | None:
        """How many gradients make an update; None if the reducer decides it."""
        return None if self.options is None else self.options.gradients_per_update

    def check_durations(self) -> None:  # noqa: B027
        """Raises ConfigError for tasks that take no time or never end, and for messages that never arrive.

        This is a pass over the first events, less than a second, and so no part of ``make_setup``; the plans raise the
        same for a later one.
        """

    def init(self, params: Any) -> dict[str, Any]:
        """Returns the mode's fields of the first ``TrainState``: "server", "snapshot" and "replica"."""
        return {"server": None, "snapshot": None, "replica": None}

    @property
    def inputs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of one worker's inputs of a step, beside its batch."""
        return {}

    @abc.abstractmethod
    def waves(self, first_step: int, *, stops: Sequence[int]) -> Iterator[step_plan.PlannedWave]:
        """Yields the steps, or groups of gradients, that are computed together after ``first_step``.

        Args:
          first_step: the steps that are done already.
          stops: periods in steps; no wave crosses a multiple of one of them.
        """


class Synchronous(Mode):
    """All workers meet in each step, at the reducer."""

    def waves(self, first_step: int, *, stops: Sequence[int]) -> Iterator[step_plan.PlannedWave]:
        """Yields one wave for each step."""
        return step_plan.synchronous_waves(first_step, self.num_steps, num_workers=self.config.num_workers)


class InOrderOfArrival(Mode):
    """Workers compute at their own pace. The order of reads and gradients is known before any gradient is computed."""

    options: asynchronous.Settings

    needs: ClassVar[Needs] = {
        "reducer.name": "mean",
        "communication.name": "full",
        "loss_scaling.name": "none",
        "reducer_on": "gradients",
    }

    @property
    def source(self) -> asynchronous.Durations | asynchronous.Source:
        """The seconds of each worker's tasks; they decide which worker arrives next."""
        return self.durations

    @functools.cached_property
    def durations(self) -> asynchronous.Durations:
        """The seconds of each worker's tasks."""
        return asynchronous.from_model(self.arrival_seconds)

    @abc.abstractmethod
    def traffic(self, params: Any) -> reducers.Traffic:
        """Returns the traffic of one worker in a step."""

    def events(self) -> Iterator[asynchronous.Events]:
        """Yields the gradients of the run in the order of arrival, in pieces."""
        return (events for events, _ in self.event_order(0, self.num_steps))

    def check_durations(self) -> None:
        """Refuses tasks that take no time or never end."""
        if self.source is self.durations:
            num_checked = 0
            with naming_arrivals(self.config):
                for events, _ in self.event_order(0, min(self.num_steps, _CHECKED_EVENTS)):
                    num_checked += len(events.seconds)
                    if num_checked >= _CHECKED_EVENTS:
                        break

    def event_order(self, first_step: int, num_steps: int) -> Iterator[tuple[asynchronous.Events, asynchronous.Reads]]:
        """Yields the gradients of the steps from ``first_step`` to ``num_steps`` in the order of arrival, in pieces."""
        count = self.options.gradients_per_update
        return asynchronous.order(
            self.source,
            num_workers=self.config.num_workers,
            num_events=num_steps * count,
            first_event=first_step * count,
            staleness_bound=self.options.staleness_bound,
            gradients_per_update=count,
            own_batches=self.config.split.name != "shuffled",
        )


class WithServer(InOrderOfArrival):
    """Each worker reads the server's parameters, computes, and pushes its gradient."""

    options: asynchronous.Server

    @property
    def source(self) -> asynchronous.Durations | asynchronous.Source:
        """The seconds of each worker's tasks, or a recorded order."""
        return self.durations if self.options.order is None else self.options.order

    def traffic(self, params: Any) -> reducers.Traffic:
        """Returns the traffic of pushing a gradient and reading parameters."""
        count = self.options.gradients_per_update
        return asynchronous.traffic(params, num_workers=self.config.num_workers, gradients_per_update=count)

    def init(self, params: Any) -> dict[str, Any]:
        """Returns the server's own state, and the parameters that each worker has read."""
        server = asynchronous.init_server(params, settings=self.options)
        return {"server": server, "snapshot": params, "replica": None}

    @property
    def inputs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Leaves of ``asynchronous.Slots``."""
        return dict.fromkeys(step_plan.ASYNC_INPUTS, jax.ShapeDtypeStruct((), jnp.int32))

    def waves(self, first_step: int, *, stops: Sequence[int]) -> Iterator[step_plan.PlannedWave]:
        """Yields the waves of the event order."""
        is_recorded = self.options.order is not None
        with contextlib.nullcontext() if is_recorded else naming_arrivals(self.config):
            yield from step_plan.asynchronous_waves(
                first_step,
                self.event_order(first_step, self.num_steps),
                gradients_per_update=self.options.gradients_per_update,
                num_workers=self.config.num_workers,
                stops=stops,
            )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Decentralised(InOrderOfArrival):
    """Each worker applies its update to its replica at once, and the others' when it receives them."""

    options: asynchronous.Broadcast

    # With momentum of each worker's own, the replicas would differ for good.
    needs: ClassVar[Needs] = {
        **InOrderOfArrival.needs,
        "optimizer.name": "sgd",
        "optimizer.momentum": None,
        "ema_decay": None,
    }

    def __post_init__(self) -> None:
        jax.eval_shape(self._message_seconds, 0, 0)  # refuses a number of workers that the latencies do not allow

    def check_durations(self) -> None:
        """Also refuses messages that never arrive: the size of the buffer of updates takes a pass over all events."""
        super().check_durations()
        with in_block("server"):
            _ = self.num_slots

    def _message_seconds(self, sender: Any, task: Any) -> jax.Array:
        """Returns the seconds from a sender to each receiver, [W]; they depend on the seed of the config alone."""
        key = jax.random.fold_in(jax.random.key(self.config.seed), LATENCY_STREAM)
        return self.options.latency(jax.random.fold_in(key, sender), task, self.config.num_workers)

    @functools.cached_property
    def latencies(self) -> asynchronous.Latencies:
        """The seconds of each message."""
        return asynchronous.latencies_from_model(self._message_seconds)

    def exchange(self) -> Iterator[tuple[asynchronous.Events, asynchronous.Reads, asynchronous.Received]]:
        """Yields the events of the run, with the updates that workers receive between them."""
        return asynchronous.exchange(
            self.durations, self.latencies, num_workers=self.config.num_workers, num_events=self.num_steps
        )

    @functools.cached_property
    def num_slots(self) -> int:
        """The number of updates that the run keeps, found in a pass over all of its events."""
        with jax.ensure_compile_time_eval():  # also where the state is traced
            return asynchronous.num_slots(self.exchange(), num_workers=self.config.num_workers)

    def traffic(self, params: Any) -> reducers.Traffic:
        """Returns the traffic of sending an update to all others."""
        return asynchronous.broadcast_traffic(params, num_workers=self.config.num_workers)

    def init(self, params: Any) -> dict[str, Any]:
        """Returns the buffer of updates, the parameters that each worker has read, and its replica."""
        server = zeros_like(params, (), copies=self.num_slots)
        return {"server": server, "snapshot": params, "replica": params}

    @property
    def inputs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """A position in ``asynchronous.Slots``, and the leaves of ``asynchronous.Mail``."""
        scalar = jax.ShapeDtypeStruct((), jnp.int32)
        inbox = jax.ShapeDtypeStruct((self.num_slots,), jnp.int32)
        return {"position": scalar, "slot": scalar, "inbox": inbox, "num_before": scalar}

    def waves(self, first_step: int, *, stops: Sequence[int]) -> Iterator[step_plan.PlannedWave]:
        """Yields the waves of the run, in which each gradient is a step."""
        with naming_arrivals(self.config):
            yield from step_plan.decentralised_waves(
                first_step, self.exchange(), num_slots=self.num_slots, num_workers=self.config.num_workers, stops=stops
            )

    def events(self) -> Iterator[asynchronous.Events]:
        """Yields the gradients of the run in the order of arrival, in pieces."""
        return (events for events, *_ in self.exchange())


@contextlib.contextmanager
def naming_arrivals(config: ConfigDict) -> Iterator[None]:
    """Turns a ValueError for the seconds of a task into a ConfigError that names the arrival model."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"config.arrivals.name={config.arrivals.name!r}: gives {error}") from None
