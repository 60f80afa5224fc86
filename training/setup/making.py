"""Makes a setup of a config, one section after another, and has it checked."""

from collections.abc import Callable, Mapping

import jax
from ml_collections import ConfigDict

import asynchronous
import data.sources
from data.sources import Source
from runs.errors import in_block
from training import own_parts
from training.modes import Decentralised, Mode, Synchronous, WithServer
from training.setup.combinations import CHECKS
from training.setup.sections import (
    make_arrivals,
    make_learning_rate,
    make_lengths,
    make_optimization,
    make_reducer_of_node,
)
from training.setup.train_setup import TrainSetup
from training.task import make_task, open_source, trained_shapes

# The settings that ``config.server`` gives -> the mode.
_MODES: Mapping[type, type[Mode]] = {
    type(None): Synchronous,
    asynchronous.Server: WithServer,
    asynchronous.Broadcast: Decentralised,
}


def make_setup(config: ConfigDict, *, open_data: Callable[..., Source] = data.sources.make) -> TrainSetup:
    """Builds the objects that a config names, and rejects invalid combinations; reads no data, compiles nothing.

    Args:
      config: complete and valid, as ``configs.flags.load`` returns it.
      open_data: builds the source from ``config.data``; ``data.assumed.make_or_assume`` if nothing will be read.

    Raises:
      ConfigError: one line with the key, the value and what is allowed.
    """
    with own_parts.refusing(config):
        source = open_source(config, open_data=open_data)
        task = make_task(config, source=source)
        params = trained_shapes(config, task)
        with own_parts.refusing(config, of="arrivals"), in_block("arrivals"):
            arrival_seconds = make_arrivals(config)
            jax.eval_shape(arrival_seconds, 0)  # refuses a number of workers that the model does not allow
        with own_parts.refusing(config, of="server"), in_block("server"):
            options = asynchronous.settings.make(**config.server)
        reducer = make_reducer_of_node(config)
        counted = options.gradients_per_update if options else reducer.num_counted or config.num_workers  # in an update
        steps_per_epoch = source.info.num_train / (counted * config.batch_size_per_worker)
        lengths = make_lengths(config, steps_per_epoch=steps_per_epoch)
        with own_parts.refusing(config, of="server"), in_block("server"):
            mode = _MODES[type(options)](
                config=config, arrival_seconds=arrival_seconds, num_steps=lengths.num_steps, options=options
            )
        learning_rate = make_learning_rate(
            config, num_counted=counted, total_steps=lengths.num_steps, steps_per_epoch=steps_per_epoch
        )
        optimization = make_optimization(config, reducer, learning_rate=learning_rate)
        setup = TrainSetup(
            config=config,
            source=source,
            task=task,
            params=params,
            reducer=reducer,
            arrival_seconds=arrival_seconds,
            mode=mode,
            **vars(lengths),
            **vars(optimization),
        )
        for check in CHECKS:
            check(setup)
        return setup
