"""Asynchronous SGD with a server, which applies each gradient when it arrives."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

import asynchronous
import parallel
import reducers
from parallel import Layout
from reducers.registry import name_of
from runs.errors import ConfigError, in_block
from training import step_plan
from training.modes.in_order_of_arrival import InOrderOfArrival, naming_arrivals
from training.steps.async_train_step import make_async_train_step
from training.train_setup import TrainSetup


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WithServer(InOrderOfArrival):
    """Each worker reads the server's parameters, computes, and pushes its gradient."""

    options: asynchronous.Mode

    @property
    def source(self) -> asynchronous.Durations | asynchronous.Source:
        """The seconds of each worker's tasks, or a recorded order."""
        return self.durations if self.options.order is None else self.options.order

    def check_order(self) -> None:
        """Refuses a recorded order that is not that of such a run, or ends before it."""
        if self.options.order is not None:
            with in_block("server"):
                for _ in self.event_order(0, self.num_steps):
                    pass

    def check_schedule_free(self, *, needs: str) -> None:
        """Refuses a rule with rates: they would scale the update of the parameters, and not that of the average."""
        rates, rule = self.options.rule.rates, name_of(self.config.server.rule)
        if rates == "any":
            raise ConfigError(f"config.server.rule={rule!r}: {needs} a rule that does not change the rate of an update")
        count = self.gradients_per_update
        if rates == "zero or one" and count > 1:  # the rate of an update is the mean of its gradients' rates
            where = f"config.server.gradients_per_update={count}"
            raise ConfigError(f"{where}: {needs} 1 where config.server.rule={rule!r}")

    def traffic(self, params: Any) -> reducers.Traffic:
        """Returns the traffic of pushing a gradient and reading parameters."""
        count = self.gradients_per_update
        return asynchronous.traffic(params, num_workers=self.num_workers, gradients_per_update=count)

    def init(self, params: Any) -> dict[str, Any]:
        """Returns the server's further state, and what each worker has read."""
        count = self.gradients_per_update
        server = asynchronous.init_server(params, rule=self.options.rule, gradients_per_update=count)
        return {"server": server, "snapshot": params, "replica": None}

    @property
    def inputs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Leaves of ``asynchronous.Slots``."""
        return {name: jax.ShapeDtypeStruct((), dtype) for name, dtype in step_plan.ASYNC_INPUTS.items()}

    def waves(self, first_step: int, *, stops: Sequence[int] = ()) -> Iterator[step_plan.PlannedWave]:
        """Yields the waves of the event order."""
        is_recorded = self.options.order is not None
        with contextlib.nullcontext() if is_recorded else naming_arrivals(self.config):
            yield from step_plan.asynchronous_waves(
                first_step,
                self.event_order(first_step, self.num_steps),
                gradients_per_update=self.gradients_per_update,
                num_workers=self.num_workers,
                stops=stops,
            )

    def events(self) -> Iterator[asynchronous.Events]:
        """Yields the gradients of the run in the order of arrival, in pieces."""
        return (events for events, _ in self.event_order(0, self.num_steps))

    def make_step(
        self, setup: TrainSetup, layout: Layout, *, map_workers: Callable[..., parallel.Step]
    ) -> parallel.Step:
        """Returns the step of ``training.steps.async_train_step``."""
        return make_async_train_step(setup, layout, options=self.options, map_workers=map_workers)
