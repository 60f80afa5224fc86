"""How workers share a model, of a config: in steps of all together, or each at its own pace with a server."""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
from jax import numpy as jnp
from ml_collections import ConfigDict

import asynchronous
import reducers
from parallel import Halves
from reducers import arrivals
from runs.errors import ConfigError, in_block
from training.async_train_step import make_wave_step
from training.step_plan import InWaves, Timetable, Together
from training.train_step import Chain, make_train_step

# What an asynchronous server leaves no place for, and what a config must say instead.
SERVER_NEEDS = {
    ("reducer", "name"): "mean",
    ("communication", "name"): "full",
    ("loss_scaling", "name"): "none",
    ("reducer_on",): "gradients",
}


def make_timetable(
    config: ConfigDict, *, arrival_seconds: Callable[[Any], jax.Array]
) -> tuple[asynchronous.Mode | None, Timetable]:
    """Returns the asynchronous mode, None if there is none, and what each call of the step is to do."""
    num_workers = config.num_workers
    with in_block("server"):
        mode = asynchronous.modes.make(**config.server)
    if mode is None:
        return None, Together(num_workers=num_workers, num_counted=num_counted(config))
    with in_block("server"):
        for path, needed in SERVER_NEEDS.items():
            found = functools.reduce(operator.getitem, path, config)
            if found != needed:
                raise ValueError(
                    f"name={config.server.name!r}: needs config.{'.'.join(path)}={needed!r}, not {found!r}"
                )
    if config.on_nonfinite == "skip":  # who reads what, and how stale it is, is settled before
        where = f"config.server.name={config.server.name!r}"
        raise ConfigError(f"config.on_nonfinite='skip': {where} needs 'stop' or 'ignore'")
    durations = asynchronous.from_model(arrival_seconds)
    return mode, InWaves(durations, num_workers=num_workers, mode=mode)


def check_arrivals(config: ConfigDict, *, mode: asynchronous.Mode | None) -> None:
    """Raises ConfigError where something needs arrival times, and none are modelled."""
    block = "reducer" if mode is None else "server"
    if config.arrivals.name == "none" and (mode is not None or make_reducer(config, axis_name="worker").needs_arrivals):
        others = ", ".join(sorted(set(arrivals.ARRIVALS) - {"none"}))
        needs = f"config.{block}.name={config[block].name!r} needs arrival times"
        raise ConfigError(f"config.arrivals.name='none': {needs}; allowed: {others}")


class Way(NamedTuple):
    """How workers share a model."""

    halves: Halves
    init_server: Callable[[Any], tuple[Any, Any]]  # params -> what the server holds besides, what a worker has read
    traffic: Callable[[Any], reducers.Traffic]  # of params


def together(
    config: ConfigDict,
    *,
    chain: Chain,
    local_half: Callable,
    update: Callable,
    measure: Callable[[Mapping[str, Any]], dict[str, Any]],
    arrival_seconds: Callable[[Any], jax.Array],
) -> Way:
    """Returns the synchronous way: a reduction of all workers' gradients, then one update."""
    overflows = (config.loss_scaling.name, config.communication.name) != ("none", "full")
    on_overflow: Literal["ignore", "skip"] = "skip" if overflows else "ignore"
    halves = make_train_step(
        chain=chain,
        local_half=local_half,
        update=update,
        measure=measure,
        arrival_seconds=arrival_seconds,
        on_overflow=on_overflow,
        on_nonfinite=config.on_nonfinite,
    )

    def traffic(params):
        with in_block("reducer"):  # traced for this number of workers, so that what is too few of them is refused here
            counted = make_reducer(config, axis_name="worker")
            seconds = jnp.zeros(config.num_workers)
            return reducers.traffic(counted, params, axis_sizes={"worker": config.num_workers}, arrival_seconds=seconds)

    return Way(halves, lambda params: (None, None), traffic)


def in_waves(config: ConfigDict, *, mode: asynchronous.Mode, local_half: Callable, update: Callable) -> Way:
    """Returns the asynchronous way: a server, which updates with each gradient as it arrives."""
    halves, init_server = make_wave_step(
        local_half=local_half, update=update, mode=mode, on_nonfinite=config.on_nonfinite
    )
    per_update = {"num_workers": config.num_workers, "gradients_per_update": mode.gradients_per_update}
    return Way(halves, init_server, functools.partial(asynchronous.traffic, **per_update))


def num_counted(config: ConfigDict) -> int:
    """Returns how many workers' batches each update counts, where the reducer fixes it; else all."""
    fixed = make_reducer(config, axis_name="worker").num_counted
    return config.num_workers if fixed is None else fixed


def make_reducer(config: ConfigDict, *, axis_name: reducers.AxisName) -> reducers.Reducer:
    """Returns the reducer of a config, in the precision in which its updates are sent."""
    with in_block("reducer"):
        reducer = reducers.make(**config.reducer, axis_name=axis_name)
    with in_block("communication"):
        return reducers.communication.make(**config.communication, reducer=reducer, axis_name=axis_name)
