"""Evaluation of a state on a whole split, spread over the devices; of a run that goes on, or of a checkpoint."""

import contextlib
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

import runs
from data.augment import as_inputs
from data.examples import Examples, gather
from parallel import DEVICE_AXIS, Layout, Window, on_devices, processes
from runs.errors import ConfigError, in_block, refusing
from training.setup import Program
from training.train_state import open_checkpoints, restore
from training.train_step import Local, Shared


def make_evaluation(
    program: Program, layout: Layout, examples: Examples
) -> Callable[[Any, Any, Any], dict[str, float]]:
    """Returns ``evaluate(shared, local, resident) -> the task's metrics`` over a whole split, exactly.

    It uses the moving average of the parameters where there is one, and the workers' mean of the model state.
    """

    def one_device(shared: Shared, local: Local, resident, batch):
        params = shared.params if shared.ema is None else shared.ema
        model_state = jax.tree.map(lambda x: lax.pmean(x.mean(0), DEVICE_AXIS), local.model_state)
        inputs = as_inputs(batch["examples"], resident["constants"])
        return lax.psum(program.task.evaluate(params, model_state, inputs, batch["weight"]), DEVICE_AXIS)

    compiled = on_devices(one_device, layout=layout, lift=program.config.lift)
    num_examples, num_devices = examples.num_examples, layout.num_devices
    no_draw = np.full(len(layout.own_devices), -1)
    per_device = min(math.ceil(program.config.eval_batch_size / num_devices), math.ceil(num_examples / num_devices))

    def batch_at(start: int):
        index = np.arange(start, start + per_device * num_devices).reshape(num_devices, per_device)[layout.own]
        weight = (index < num_examples).astype(np.float32)
        return {"examples": gather(examples, np.minimum(index, num_examples - 1), no_draw), "weight": weight}

    def evaluate(shared, local, resident) -> dict[str, float]:
        window = Window()
        done = []
        for start in range(0, num_examples, per_device * num_devices):
            done += window.push(start, compiled(shared, local, resident, batch_at(start)))
        sums = [layout.get_shared(sums) for _, sums in done + window.drain()]
        total = {key: sum(float(s[key]) for s in sums) for key in sums[0]}
        return {name: float(value) for name, value in program.task.metrics(total).items()}

    return evaluate


def evaluate_checkpoint(program: Program, layout: Layout, path: pathlib.Path, *, which: str) -> str:
    """Evaluates a checkpoint on what ``config.data.evaluate_on`` names; writes nothing."""
    if which not in ("latest", "best") and not (which.isdecimal() and len(which) < 20):
        raise ConfigError(f"checkpoint={which!r}: must be latest, best or a step")
    with processes.together(ConfigError), refusing():
        runs.check_same(str(path), program.config.to_dict())
    with refusing(), open_checkpoints(program, path, access="read") as checkpoints:
        restored = restore(program, layout, checkpoints, which=int(which) if which.isdecimal() else which)
    if restored is None:
        raise ConfigError(f"workdir={str(path)!r}: holds no checkpoint to evaluate")
    step, shared, local, _ = restored
    with processes.together(ConfigError), in_block("data"):
        dataset = program.source.load(program.config.seed)
    resident = layout.put_shared({"constants": dataset.constants})
    with contextlib.closing(dataset):
        quality = make_evaluation(program, layout, dataset.test)(shared, local, resident)
    split, words = program.config.data.evaluate_on, runs.in_words(quality, names=(program.task.best[0], "loss"))
    return f"step {step}: {split} {words}"
