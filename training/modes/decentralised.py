"""Asynchronous SGD without a server: each worker has a replica, and sends its update to all others."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import jax
from jax import numpy as jnp

import asynchronous
import parallel
import reducers
from parallel import Layout
from runs.errors import in_block
from runs.reporting.progress import saying_how_far
from training import step_plan
from training.modes.in_order_of_arrival import InOrderOfArrival, Needs, naming_arrivals
from training.steps.decentralised_train_step import make_decentralised_train_step
from training.train_setup import LATENCY_STREAM, TrainSetup


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Decentralised(InOrderOfArrival):
    """Each worker applies its update to its replica at once, and the others' when it receives them."""

    options: asynchronous.Decentralised

    # A worker's momentum would part its replica from the others for good.
    needs: ClassVar[Needs] = {
        **InOrderOfArrival.needs,
        ("optimizer", "name"): "sgd",
        ("optimizer", "momentum"): None,
        ("ema_decay",): None,
    }

    def check(self) -> None:
        """Refuses also a number of workers that the model of latencies does not allow."""
        super().check()
        with in_block("server"):
            jax.eval_shape(self._message_seconds, 0, 0)

    def check_durations(self) -> None:
        """Refuses also messages that never arrive, in a pass over all events, for the size of the buffer."""
        super().check_durations()
        with in_block("server"):
            _ = self.num_slots

    def _message_seconds(self, sender: Any, task: Any) -> jax.Array:
        """Returns the seconds from a sender to each receiver, [W]; they depend on the seed of the config alone."""
        key = jax.random.fold_in(jax.random.key(self.config.seed), LATENCY_STREAM)
        return self.options.latency(jax.random.fold_in(key, sender), task, self.num_workers)

    @functools.cached_property
    def latencies(self) -> asynchronous.Latencies:
        """The seconds of each message."""
        return asynchronous.latencies_from_model(self._message_seconds)

    def exchange(self) -> Iterator[tuple[asynchronous.Events, asynchronous.Reads, asynchronous.Received]]:
        """Yields the events of the run, and what is received with them."""
        return asynchronous.exchange(
            self.durations, self.latencies, num_workers=self.num_workers, num_events=self.num_steps
        )

    @functools.cached_property
    def num_slots(self) -> int:
        """The number of updates that the run keeps, found in a pass over all of its events."""
        pieces = saying_how_far(
            self.exchange(), size=lambda piece: len(piece[0].worker), total=self.num_steps, name="steps' messages"
        )
        with jax.ensure_compile_time_eval():  # also where the state is traced
            return asynchronous.num_slots(pieces, num_workers=self.num_workers)

    def traffic(self, params: Any) -> reducers.Traffic:
        """Returns the traffic of sending an update to all others."""
        return asynchronous.broadcast_traffic(params, num_workers=self.num_workers)

    def init(self, params: Any) -> dict[str, Any]:
        """Returns the room for updates, what each worker has read, and its replica."""
        server = asynchronous.init_updates(params, num_slots=self.num_slots)
        return {"server": server, "snapshot": params, "replica": params}

    @property
    def inputs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """A position in ``asynchronous.Slots``, and the leaves of ``asynchronous.Mail``."""
        scalar = jax.ShapeDtypeStruct((), jnp.int32)
        inbox = jax.ShapeDtypeStruct((self.num_slots,), jnp.int32)
        return {"position": scalar, "slot": scalar, "inbox": inbox, "num_before": scalar}

    def waves(self, first_step: int, *, stops: Sequence[int] = ()) -> Iterator[step_plan.PlannedWave]:
        """Yields the waves of the run, in which each gradient is a step."""
        with naming_arrivals(self.config):
            yield from step_plan.decentralised_waves(
                first_step, self.exchange(), num_slots=self.num_slots, num_workers=self.num_workers, stops=stops
            )

    def events(self) -> Iterator[asynchronous.Events]:
        """Yields the gradients of the run in the order of arrival, in pieces."""
        return (events for events, *_ in self.exchange())

    def make_step(
        self, setup: TrainSetup, layout: Layout, *, map_workers: Callable[..., parallel.Step]
    ) -> parallel.Step:
        """Returns the step of ``training.steps.decentralised_train_step``."""
        return make_decentralised_train_step(setup, layout, map_workers=map_workers)
