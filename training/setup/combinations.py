"""Combinations of parts that are valid alone, and refused together: each check raises ConfigError, one line."""

import operator
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
import optax
from jax import numpy as jnp

import optim
import reducers
from reducers import arrivals
from reducers.reducer import TAKE_WEIGHTS
from reducers.registry import components, name_of
from runs.errors import ConfigError, in_block
from training import own_parts
from training.modes import InOrderOfArrival, WithServer
from training.setup.sections import make_reducer
from training.setup.train_setup import TrainSetup
from training.steps import late_workers
from training.steps.partition import works_in_parts
from training.task import batch_inputs


def check_server(setup: TrainSetup) -> None:
    """Refuses values that the mode does not support."""
    config, mode = setup.config, setup.mode
    named = f"name={config.server.name!r}"
    with in_block("server"):
        for key, needed in mode.needs.items():
            found = operator.attrgetter(key)(config)
            if found != needed:
                raise ValueError(f"{named}: needs config.{key}={needed!r}, not {found!r}")
    if not mode.is_synchronous and config.on_nonfinite == "skip":  # workers have read the parameters before
        raise ConfigError(f"config.on_nonfinite='skip': config.server.{named} needs 'stop' or 'ignore'")


def check_order(setup: TrainSetup) -> None:
    """Refuses a recorded order of arrival that does not fit the run, or ends before it."""
    if isinstance(setup.mode, WithServer) and setup.mode.options.order is not None:
        with in_block("server"):
            for _ in setup.mode.events():
                pass


def check_place(setup: TrainSetup) -> None:
    """Refuses a reducer or an outer optimizer that cannot be used at this point in the chain.

    A reducer of gradients belongs before the optimizer; a reducer of the workers' progress belongs after their own
    optimizers. Neither an outer optimizer nor a moving average fits a reducer whose workers share no parameters.
    """
    config, reducer = setup.config, setup.reducer
    named = f"config.reducer.name={config.reducer.name!r}"
    if reducer.reduces not in ("either", config.reducer_on):
        raise ConfigError(f"config.reducer_on={config.reducer_on!r}: {named} needs {reducer.reduces!r}")
    outer = f"config.outer.name={config.outer.name!r}"
    if config.outer.name != "none" and config.reducer_on != "updates":
        raise ConfigError(f"{outer}: needs config.reducer_on='updates', not {config.reducer_on!r}")
    if reducer.local_workers == "always":
        if config.outer.name != "none":
            raise ConfigError(f"{outer}: must be 'none', since {named} emits nothing to it")
        if config.ema_decay is not None:
            raise ConfigError(f"config.ema_decay={config.ema_decay}: must be None, since {named} shares no parameters")


def check_weights(setup: TrainSetup) -> None:
    """Refuses weights in asynchronous runs, of shares where workers have none, and if the reducer takes none."""
    config = setup.config
    if config.weigh == "workers":
        return
    weigh = f"config.weigh={config.weigh!r}"
    if not setup.mode.is_synchronous:
        raise ConfigError(f"{weigh}: needs config.server.name='synchronous', not {config.server.name!r}")
    if not setup.reducer.takes_weights:
        encoded = f"with config.communication.name={config.communication.name!r}"
        who = f"config.reducer.name={config.reducer.name!r} {encoded}"
        raise ConfigError(f"{weigh}: {who} takes no weights; {TAKE_WEIGHTS} do, sent in full")
    if config.weigh == "share" and config.split.name == "shuffled":
        raise ConfigError(f"{weigh}: needs workers with shares, by config.split.name, not 'shuffled'")


def check_labels(setup: TrainSetup) -> None:
    """Refuses ``config.flip_labels`` of workers that do not exist, or that have no examples of their own."""
    config = setup.config
    flipped = f"config.flip_labels={tuple(config.flip_labels)}"
    if config.flip_labels and config.split.name == "shuffled":
        raise ConfigError(f"{flipped}: needs workers with shares, by config.split.name, not 'shuffled'")
    if beyond := [worker for worker in config.flip_labels if not 0 <= worker < config.num_workers]:
        raise ConfigError(f"{flipped}: {beyond[0]} is none of the {config.num_workers} workers")


def check_order_of_examples(setup: TrainSetup) -> None:
    """Refuses, with data that give their batches in order, what reads examples by index."""
    if setup.source.reads == "by_index":
        return
    for block, allowed in (("server", "synchronous"), ("split", "shuffled")):
        if (name := setup.config[block].name) != allowed:
            why = f"since config.data.name={setup.config.data.name!r} gives its batches in order"
            raise ConfigError(f"config.{block}.name={name!r}: must be {allowed!r}, {why}")


def check_arrivals(setup: TrainSetup) -> None:
    """Refuses missing arrival times, and a trace in which fewer workers arrive than the run waits for."""
    config = setup.config
    reducer = setup.reducer
    mode = setup.mode
    block = "reducer"
    needs_times = reducer.needs_arrivals
    if isinstance(mode, InOrderOfArrival):
        block = "server"
        needs_times = mode.source is mode.durations
    waiting = f"config.{block}.name={config[block].name!r}"
    if config.arrivals.name == "none" and needs_times:
        others = ", ".join(sorted(set(arrivals.ARRIVALS) - {"none"}))
        raise ConfigError(f"config.arrivals.name='none': {waiting} needs arrival times; allowed: {others}")
    if config.arrivals.name == "trace":
        where = f"config.arrivals.path={config.arrivals.path!r}"
        seconds = arrivals.read_trace(config.arrivals.path)[:, : config.num_workers]
        arrives = np.isfinite(seconds)
        if late_workers.finish(config) and reducer.needs_arrivals and not arrives.all():
            step, worker = np.argwhere(~arrives)[0]
            never = f"worker {worker} never ends what it begins at step {step}"
            raise ConfigError(f"{where}: {never}; allowed: config.late_workers='interrupt'")
        for step, count in enumerate(arrives.sum(axis=1)):
            needed = config.num_workers  # every task of an asynchronous run has to end
            if mode.is_synchronous:
                needed = reducer.fewest_arrivals(step=step, num_workers=config.num_workers)
            if count < needed:
                raise ConfigError(f"{where}: at step {step} {count} workers arrive; {waiting} waits for {needed}")


def check_lanes(setup: TrainSetup) -> None:
    """Refuses ``config.lanes_at_once`` if it exceeds the workers, or if lanes are dispatched one by one."""
    config = setup.config
    at_once = config.lanes_at_once
    if at_once is not None and at_once > config.num_workers:
        raise ConfigError(f"config.lanes_at_once={at_once}: must be at most config.num_workers={config.num_workers}")
    if at_once is not None and config.lanes == "dispatched":
        raise ConfigError(f"config.lanes_at_once={at_once}: must be None where config.lanes='dispatched'")


def check_node(setup: TrainSetup) -> None:
    """Refuses several devices a worker where a worker computes alone, or where they do not divide its batch."""
    config = setup.config
    if (count := config.devices_per_worker) == 1:
        if config.partition != "none":
            raise ConfigError(f"config.partition={config.partition!r}: needs config.devices_per_worker of 2 at least")
        return
    several = f"config.devices_per_worker={count}"
    if not setup.mode.is_synchronous:
        raise ConfigError(f"{several}: needs config.server.name='synchronous', not {config.server.name!r}")
    if config.mapping != "shard_map":
        raise ConfigError(f"{several}: needs config.mapping='shard_map', not {config.mapping!r}: a pmap has one axis")
    if config.lanes == "dispatched":
        raise ConfigError(f"{several}: needs config.lanes='auto' or 'vmap', not 'dispatched'")
    parts = config.accumulation.count * count
    if config.batch_size_per_worker % parts:
        of_parts = f"{several}: times config.accumulation.count={config.accumulation.count} must divide"
        raise ConfigError(f"{of_parts} config.batch_size_per_worker={config.batch_size_per_worker}")


def check_partition(setup: TrainSetup) -> None:
    """Refuses parts of layers where a transformation or the reducer needs whole ones."""
    config = setup.config
    if config.partition == "none":
        return
    try:
        _ = setup.state_axes
    except ValueError as error:
        raise ConfigError(
            f"config.partition={config.partition!r}: the state {error}, so that it needs whole layers"
        ) from None
    after = "outer" if config.reducer_on == "updates" else "optimizer"
    emitted = reducers.report(setup.worker_shapes.reducer_state).emitted
    needs = {} if emitted is None else {"emitted": jnp.ones(emitted.shape, bool)}
    for block, transformation, given in (
        ("optimizer", setup.worker_optimizer, {}),
        (after, setup.optimizer, needs),
    ):
        if not works_in_parts(transformation, setup.params, **given):
            named = f"config.{block}.name={config[block].name!r}"
            raise ConfigError(f"config.partition={config.partition!r}: {named} needs whole layers")


def check_accumulation(setup: TrainSetup) -> None:
    """Refuses parts that do not divide the batch, and local steps if the workers have no optimizers of their own."""
    config = setup.config
    options = config.accumulation
    count = options.count
    with in_block("accumulation"):
        if config.batch_size_per_worker % count:
            raise ValueError(f"count={count}: must divide config.batch_size_per_worker={config.batch_size_per_worker}")
        if config.weigh == "count" and count > 1 and options.get("combine", "mean") != "mean":
            raise ValueError(f"combine={options['combine']!r}: needs config.weigh='workers', not {config.weigh!r}")
        if options.name == "local_steps" and config.reducer_on != "updates":
            raise ValueError(f"name='local_steps': needs config.reducer_on='updates', not {config.reducer_on!r}")


def check_own_parts(setup: TrainSetup) -> None:
    """Tries the user's own components on shapes."""
    config = setup.config
    batch_size = config.batch_size_per_worker
    batch = batch_inputs(setup.source.info, batch_size)
    step = jax.ShapeDtypeStruct((), jnp.int32)
    num_workers = config.num_workers
    needs = {"arrival_seconds": jnp.zeros(num_workers)} if setup.reducer.needs_arrivals else {}
    of_workers = (num_workers,)
    transformations = [setup.worker_optimizer, setup.optimizer]
    checks: Mapping[tuple[str, ...], Callable[[], None]] = {
        ("task", "model"): lambda: own_parts.check_task(setup.task, batch, batch_size=batch_size),
        ("schedule",): lambda: own_parts.check_shape(
            "gives as the factor of a step", setup.learning_rate, step, shape=()
        ),
        ("arrivals",): lambda: own_parts.check_shape(
            "gives as the seconds of a step", setup.arrival_seconds, step, shape=of_workers
        ),
        ("optimizer", "outer"): lambda: own_parts.check_optimizers(transformations, setup.params),
        ("reducer", "communication"): lambda: own_parts.check_reducer(
            make_reducer(config), setup.params, num_workers=num_workers, **needs
        ),
    }
    for blocks, check in checks.items():
        for block in blocks:
            if names := components.names_in(config[block]):
                with own_parts.refusing(config, of=block), in_block(block), own_parts.naming(names):
                    check()
                break


def check_metrics(setup: TrainSetup) -> None:
    """Refuses two reducers, one inside the other, with metrics of the same name."""
    with in_block("reducer"):
        try:
            reducers.report(jax.eval_shape(setup.reducer.init, setup.params))
        except reducers.ReportError as error:
            raise ValueError(f"name={setup.config.reducer.name!r}: {error}") from None


def check_average(setup: TrainSetup) -> None:
    """Refuses, with a schedule-free optimizer, a second average and staleness rules that scale updates."""
    config, mode = setup.config, setup.mode

    def is_schedule_free(part: optax.GradientTransformationExtraArgs) -> bool:
        return optim.averages.schedule_free_state(jax.eval_shape(part.init, setup.params)) is not None

    of_workers = is_schedule_free(setup.worker_optimizer)
    block = "optimizer"
    if config.reducer_on == "updates" and not of_workers:
        block = "outer"
    needs = f"config.{block}.name={config[block].name!r} needs"
    if of_workers:
        raise ConfigError(f"config.reducer_on='updates': {needs} 'gradients', since workers' averages would differ")
    if not is_schedule_free(setup.optimizer):
        return
    if config.ema_decay is not None:
        raise ConfigError(f"config.ema_decay={config.ema_decay}: {needs} None, since it averages the parameters itself")
    if not isinstance(mode, WithServer):
        return
    rates = mode.options.rule.rates
    rule = name_of(config.server.rule)
    count = mode.options.gradients_per_update
    if rates == "any":  # it would scale the update of the parameters, and not that of the average
        raise ConfigError(f"config.server.rule={rule!r}: {needs} a rule that does not change the rate of an update")
    if rates == "zero or one" and count > 1:  # the rate of an update is the mean of its gradients' rates
        where = f"config.server.gradients_per_update={count}"
        raise ConfigError(f"{where}: {needs} 1 where config.server.rule={rule!r}")


# In the order in which they are made: the first that refuses gives the line.
CHECKS: Sequence[Callable[[TrainSetup], None]] = (
    check_server,
    check_place,
    check_weights,
    check_labels,
    check_order_of_examples,
    check_arrivals,
    check_lanes,
    check_order,
    check_accumulation,
    check_node,
    check_partition,
    check_own_parts,
    check_metrics,
    check_average,
    operator.attrgetter("traffic"),  # whose trace refuses a number of workers
)
