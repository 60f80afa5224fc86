"""Evaluation of a state on a whole split, spread over the devices."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from data.augment import as_inputs
from data.examples import Examples, gather
from optim.frozen import join
from parallel import Layout, StepsInFlight, map_devices
from training.own_params import make_consensus_distance, make_evaluated_params
from training.setup import TrainSetup
from training.train_state import TrainState


def make_evaluation(
    setup: TrainSetup, layout: Layout, examples: Examples
) -> Callable[[TrainState, Any], dict[str, float]]:
    """Returns ``evaluate(state, resident) -> metrics of the task`` over a whole split, exactly.

    It evaluates the moving average of the parameters if the run keeps one, else the mean of the workers' own
    parameters, with the mean of their model states. If the workers have parameters of their own, "consensus_distance"
    is the mean of their squared distances from their mean.
    """

    axes = layout.device_axes

    def one_device(params, model_states, resident, batch):
        model_state = jax.tree.map(lambda x: lax.pmean(x.mean(0), axes), model_states)
        inputs = as_inputs(batch["examples"], resident["constants"])
        return lax.psum(setup.task.evaluate(params, model_state, inputs, batch["weight"]), axes)

    compiled = map_devices(one_device, layout=layout, mapping=setup.config.mapping)
    of_node = {"mapping": setup.config.mapping, "partition": setup.partition}
    evaluated_params = make_evaluated_params(layout, **of_node, shapes=setup.params)
    consensus_distance = make_consensus_distance(layout, **of_node)
    num_examples = examples.num_examples
    num_devices = layout.num_devices
    no_batch_index = np.full(len(layout.own_devices), -1)
    batch_size = math.ceil(min(setup.config.eval_batch_size, num_examples) / num_devices)  # of one device
    per_call = batch_size * num_devices

    def batch_at(start: int):
        index = np.arange(start, start + per_call).reshape(num_devices, batch_size)[layout.own]
        weight = (index < num_examples).astype(np.float32)
        found = gather(examples, np.minimum(index, num_examples - 1), no_batch_index)
        return {"examples": found, "weight": weight}

    def evaluate(state: TrainState, resident: Any) -> dict[str, float]:
        params = join(evaluated_params(state), state.frozen)
        in_flight, done = StepsInFlight(), []
        for start in range(0, num_examples, per_call):
            sums = compiled(params, state.worker.model_state, resident, batch_at(start))
            done += in_flight.push(start, sums)
        each = [layout.get_shared(sums) for _, sums in done + in_flight.drain()]
        total = {name: sum(float(sums[name]) for sums in each) for name in each[0]}
        quality = {name: float(value) for name, value in setup.task.metrics(total).items()}
        if (distance := consensus_distance(state)) is not None:
            quality["consensus_distance"] = distance
        return quality

    return evaluate
