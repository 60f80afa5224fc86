"""The loop of train.py on artificial data, without records and checkpoints, to time a step."""

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from configs import flags
from data.assumed import make_or_assume
from data.example_order import ExampleOrder
from data.examples import Arrays, Columns, Dataset, Info
from data.feeds import Feeds
from data.texts import packing
from data.texts.tokenizers import Encoded
from launch.children import ROOT
from parallel import Layout, StepsInFlight
from training.metric_logger import StepNumbers
from training.setup import TrainSetup, make_setup
from training.step_plan import StepPlan
from training.steps.async_train_step import make_step
from training.steps.worker_mapping import worker_mapping

NUM_EXAMPLES, MAX_BYTES = 4096, 2**28  # size of a made-up set, unless a step needs more
_ENDLESS = 1_000_000  # steps


def load(name: str, overrides: Sequence[str]) -> TrainSetup:
    """Returns the setup of a config of this repository, such as "digits:smoke", whether or not its data are present.

    >>> load("digits", ["num_workers=2"]).config.num_workers
    2
    """
    name, colon, variant = name.partition(":")
    endless = [f"{key}_steps={_ENDLESS}" for key in ("train", "eval_every", "checkpoint_every")]
    values = [f"--config.{text}" for text in (*overrides, *endless)]
    config = flags.load(f"{ROOT}/configs/{name}.py{colon}{variant}", values)
    return make_setup(config, open_data=make_or_assume)


def made_up(info: Info, *, num_examples: int = NUM_EXAMPLES) -> Dataset:
    """Returns random examples in the shapes of a data set: images with labels, or sequences of tokens.

    Raises:
      ValueError: if the data set has neither.
    """
    rng = np.random.default_rng(0)
    if "tokens" in info.example:
        examples = Arrays(_sequences(info, num_examples, rng))
    elif set(info.example) == {"image", "label"} and info.example["image"].dtype == np.uint8:
        image = info.example["image"]
        examples = Arrays(
            {
                "image": rng.integers(256, size=(num_examples, *image.shape), dtype=np.uint8),
                "label": rng.integers(info.sizes["num_classes"], size=num_examples, dtype=np.int32),
            }
        )
    else:
        raise ValueError(f"data of {', '.join(info.example)}: must be images of bytes, with labels, or tokens")
    constants = {name: np.full(part.shape, 100, part.dtype) for name, part in info.constants.items()}
    return Dataset("made up", examples, examples, constants)


def _sequences(info: Info, count: int, rng: np.random.Generator) -> Columns:
    """Returns sequences of random tokens, packed like texts in which each word is one token."""
    (length,) = info.example["tokens"].shape
    is_packed = "words" in info.example
    shape = (2 * count * length,) if is_packed else (count, length)
    tokens = rng.integers(info.sizes["num_special"], info.sizes["vocab_size"], size=shape, dtype=np.int32)
    if not is_packed:
        return {"tokens": tokens}
    words = Encoded(tokens, np.ones(len(tokens), bool), np.array([0, len(tokens)]))
    packed = packing.segment_pairs(words, sequence_length=length, seed=0, short_probability=0.0)
    return {name: column[:count] for name, column in packed.items()}


class Loop:
    """A contender that trains, timed from the feed to the numbers on the host. The first turn compiles.

    Args:
      setup: a setup whose data can be made up.
      layout: the layout of the workers on the devices.
      num_updates: the smallest number of updates in a turn.
      steps_per_call: the largest number of steps in one device call.
    """

    def __init__(self, setup: TrainSetup, layout: Layout, *, num_updates: int, steps_per_call: int = 1):
        info = setup.source.info
        num_examples = min(NUM_EXAMPLES, max(setup.examples_per_step, MAX_BYTES // info.example_bytes))
        dataset = made_up(info, num_examples=num_examples)
        order = ExampleOrder(num_examples=num_examples, batch_size=setup.config.batch_size_per_worker, seed=0)
        feeds = Feeds(dataset.train, order, layout=layout.own_places, workers=layout.own_workers)
        self._layout, self._num_updates, self._size = layout, num_updates, steps_per_call
        map_workers = worker_mapping(setup, layout, steps_per_call=steps_per_call)
        self._step = make_step(setup, layout, map_workers=map_workers)
        self._state = setup.init_state(layout)
        self._resident = layout.put_shared({"train": feeds.resident, "constants": dataset.constants})
        self._fed: Iterator[tuple[StepPlan, Any]] = feeds.follow(setup.plans(0, steps_per_call=steps_per_call))
        self._numbers = StepNumbers(setup)

    def _inputs(self, plan: StepPlan) -> dict[str, np.ndarray]:
        return {name: self._layout.split_steps(column) for name, column in plan.inputs.items()}

    def compile(self) -> float:
        """Compiles the step without running it; returns the seconds from tracing to compiled programs.

        With JAX's compilation cache, later turns find the programs, even in other processes.
        """
        plan, batch = next(self._fed)
        self._fed = itertools.chain([(plan, batch)], self._fed)
        began = time.perf_counter()
        for lowered, _ in self._step.lower(self._state, batch, self._resident, self._inputs(plan)).values():
            lowered.compile()
        return time.perf_counter() - began

    def __call__(self) -> float:
        """Returns the mean seconds of an update in this turn.

        Raises:
          FloatingPointError: if the loss or an update is not finite, since training stops there.
        """
        in_flight = StepsInFlight(steps_per_call=self._size)
        began, done = time.perf_counter(), 0
        while done < self._num_updates:
            plan, batch = next(self._fed)
            inputs = self._inputs(plan)
            self._state, metrics = self._step(self._state, batch, self._resident, inputs)
            self._read(in_flight.push(plan, metrics))
            done += sum(len(wave.steps) for wave in plan.waves)
        self._read(in_flight.drain())
        jax.block_until_ready(self._state)
        seconds = (time.perf_counter() - began) / done
        if self._layout.get_shared(self._state.stopped):
            raise FloatingPointError("the loss or an update is not finite: nothing is trained from there on")
        return seconds

    def _read(self, finished: Sequence) -> None:
        for plan, metrics in finished:
            metrics.pop("nonfinite", None)
            for wave, measured in plan.split(self._layout.get_shared(metrics)):
                self._numbers.add(wave, measured)
