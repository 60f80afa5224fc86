"""The loop of train.py on artificial data, without records and checkpoints, to time a step."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import jax
import numpy as np

import data
from configs import flags
from parallel import AXES, Halves, Layout, Step, Window, over_workers
from training.setup import Program, build
from training.step_plan import dispatches
from training.train_state import place

Part = Literal["step", "local"]

ROOT = Path(__file__).resolve().parent.parent
NUM_EXAMPLES = 4096
_ENDLESS = 1_000_000  # steps


def load(name: str, overrides: Sequence[str]) -> Program:
    """Builds a config of this repository, whether or not its data are available.

    >>> load("digits", ["num_workers=2"]).config.num_workers
    2
    """
    path = ROOT / "configs" / f"{name}.py"
    config = flags.load(str(path), [f"--config.{text}" for text in (*overrides, f"train_steps={_ENDLESS}")])
    return build(config, open_data=data.make_or_assume)


def made_up(info: data.Info) -> data.Dataset:
    """Returns random images with random labels, with the shapes of a data set.

    Raises:
      ValueError: if the data set does not hold images.
    """
    if set(info.example) != {"image", "label"} or info.example["image"].dtype != np.uint8:
        raise ValueError(f"data of {', '.join(info.example)}: must be images of bytes, with labels")
    rng = np.random.default_rng(0)
    image = info.example["image"]
    examples = data.Arrays(
        {
            "image": rng.integers(256, size=(NUM_EXAMPLES, *image.shape), dtype=np.uint8),
            "label": rng.integers(info.sizes["num_classes"], size=NUM_EXAMPLES, dtype=np.int32),
        }
    )
    constants = {name: np.full(part.shape, 100, part.dtype) for name, part in info.constants.items()}
    return data.Dataset("made up", examples, examples, constants)


def lifted(program: Program, layout: Layout, *, part: Part = "step", steps_per_dispatch: int = 1) -> Step:
    """Returns the step of all workers, or its part "local", which computes gradients and reduces only their norms.

    The norms make XLA compute all of the gradients."""

    def keep(shared, local, work, plan):
        local = local._replace(model_state=work.model_state, opt_state=work.opt_state)
        return shared, local, jax.lax.psum({"loss": work.sums["loss"], "layers": work.layers}, AXES)

    halves = program.halves if part == "step" else Halves(program.halves.local, keep)
    config = program.config
    return over_workers(
        halves, layout=layout, lift=config.lift, lanes=config.lanes, steps_per_dispatch=steps_per_dispatch
    )


class Loop:
    """A contender: updates from the feed to the metrics on the host; the first turn compiles.

    Args:
      program: a program of image classification.
      layout: the layout of its workers.
      num_updates: the least number of updates in a turn.
      part: "step" for the whole step, "local" for each worker's own part of it.
      steps_per_dispatch: the number of steps in one call of the devices.
    """

    def __init__(
        self,
        program: Program,
        layout: Layout,
        *,
        num_updates: int,
        part: Part = "step",
        steps_per_dispatch: int = 1,
    ):
        dataset = made_up(program.source.info)
        draws = data.Draws(num_examples=NUM_EXAMPLES, batch_size=program.config.batch_size_per_worker, seed=0)
        own = (len(layout.own_devices), layout.lanes)
        feeds = data.Feeds(dataset.train, draws, layout=own, workers=layout.own_workers)
        self._layout, self._num_updates, self._part, self._size = layout, num_updates, part, steps_per_dispatch
        self._step = lifted(program, layout, part=part, steps_per_dispatch=steps_per_dispatch)
        self._state = place(program, layout)
        self._resident = layout.put_shared({"train": feeds.resident, "constants": dataset.constants})
        turns = program.timetable.turns(0, _ENDLESS, stops=())
        self._fed = feeds.follow(dispatches(turns, size=steps_per_dispatch, stops=()))
        self._collect = program.timetable.collector(seconds=0.0, measure=program.task.metrics)

    def __call__(self) -> float:
        """Returns the mean seconds of an update in this turn.

        Raises:
          FloatingPointError: if the loss or an update was not finite, after which nothing is trained.
        """
        window = Window(steps_each=self._size)
        began, done = time.perf_counter(), 0
        while done < self._num_updates:
            dispatch, feed = next(self._fed)
            plan = {name: self._layout.split_turns(column) for name, column in dispatch.plan.items()}
            *state, metrics = self._step(*self._state, {**feed, "plan": plan}, self._resident)
            self._state = tuple(state)
            self._read(window.push(dispatch, metrics))
            done += sum(len(turn.steps) for turn in dispatch.turns)
        self._read(window.drain())
        jax.block_until_ready(self._state)
        seconds = (time.perf_counter() - began) / done
        if self._layout.get_shared(self._state[0].step) < 0:
            raise FloatingPointError("the loss or an update is not finite, after which nothing is trained")
        return seconds

    def _read(self, finished: Sequence) -> None:
        if self._part == "step":
            for dispatch, metrics in finished:
                metrics.pop("evidence", None)
                for turn, measured in dispatch.each(self._layout.get_shared(metrics)):
                    self._collect(turn, measured)


def devices(num_devices: int = 1) -> list[str]:
    """Returns the kinds of this machine's first devices.

    >>> devices(2) == 2 * [jax.devices()[0].device_kind]
    True
    """
    return [device.device_kind for device in jax.devices()[:num_devices]]
