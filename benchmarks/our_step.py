"""Our turn at a config's train step: a process that ``rounds.Child`` talks to, or a turn within this process.

    python -m benchmarks.our_step --config=configs/mnist_adasum.py --config.num_workers=8 --num_devices=1 --steps=10

The step, the draws, the feeds and the steps in flight are those of ``train.py``; examples are made up, as many as the
set has, so that none need be at hand. What is not here: records, evaluation, checkpoints.
"""

import functools
import itertools
import math
import sys
import time
from collections.abc import Sequence
from typing import Literal, get_args

import jax
import numpy as np
from absl import flags

import data
import program as programs
from benchmarks import rounds
from configs import flags as config_flags
from configs.schema import ConfigError, refusing
from state import place
from workers import AXES, Halves, Layout, Step, Window, claim_cpu_devices, over_workers

Part = Literal["step", "local"]
MANY_STEPS = 10**6  # more than anybody waits for
# Of bytes from 0 to 255, all as likely.
BYTE_MEAN, BYTE_STD = 127.5, 73.9


def make_flags() -> flags.FlagValues:
    """Returns the flags of this command, its own; those of a config come on top."""
    values = flags.FlagValues()
    what = "What of the step: all of it, or what each worker does by itself."
    devices = "Devices to use; by default the most that divide num_workers (CPU: up to 8)."
    flags.DEFINE_string("config", "configs/mnist_adasum.py", "Config file, with an optional :variant.", values)
    flags.DEFINE_integer("num_devices", None, devices, lower_bound=1, flag_values=values)
    flags.DEFINE_integer("steps", 10, "Of a turn.", lower_bound=1, flag_values=values)
    flags.DEFINE_enum("part", "step", list(get_args(Part)), what, flag_values=values)
    return values


def program_of(spec: str, *overrides: str) -> programs.Program:
    """Builds what ``--config=spec --config.key=value ...`` stands for; the data need not be at hand.

    Raises:
      ConfigError: one line, if something is not allowed.

    >>> program_of("configs/mnist_adasum.py", "num_workers=4").examples_per_step
    128
    """
    config = config_flags.load(spec, [f"--config.{override}" for override in overrides])
    return programs.build(config, open_data=data.make_or_assume)


def made_up(info: data.Info, *, num_examples: int) -> data.Arrays:
    """Returns random images with random labels, as they are stored.

    Raises:
      ValueError: if the data are something else.
    """
    if set(info.example) != {"image", "label"} or info.example["image"].dtype != np.uint8:
        raise ValueError(f"data of {', '.join(info.example)}: must be images of bytes, with labels")
    rng, image = np.random.default_rng(0), info.example["image"].shape
    images = np.frombuffer(rng.bytes(num_examples * int(np.prod(image))), np.uint8).reshape(num_examples, *image)
    labels = rng.integers(info.sizes["num_classes"], size=num_examples, dtype=np.int32)
    return data.Arrays({"image": images, "label": labels})


def constants(info: data.Info) -> dict[str, np.ndarray]:
    """Returns what ``made_up`` images are normalised with."""
    known = {"mean": BYTE_MEAN, "std": BYTE_STD}
    return {name: np.full(part.shape, known[name], part.dtype) for name, part in info.constants.items()}


def lifted(program: programs.Program, layout: Layout, *, part: Part) -> Step:
    """Returns the step of all workers; of part "local" the reduce half only keeps each worker's own state, and looks
    at the norms of what the worker gives, so that none of it can be left out."""

    def keep(shared, local, work, plan):
        local = local._replace(model_state=work.model_state, opt_state=work.opt_state)
        return shared, local, jax.lax.psum({"loss": work.sums["loss"], "layers": work.layers}, AXES)

    halves = program.halves if part == "step" else Halves(program.halves.local, keep)
    return over_workers(halves, layout=layout, lift=program.config.lift, lanes=program.config.lanes)


class Training:
    """Training on made-up examples, placed as ``train.py`` does it, which goes on from turn to turn.

    Args:
      program: what to train.
      layout: on what.
      steps: of a turn.
      part: of the step.
      num_examples: that are made up; by default as many as the set has.
    """

    def __init__(
        self,
        program: programs.Program,
        layout: Layout,
        *,
        steps: int,
        part: Part = "step",
        num_examples: int | None = None,
    ):
        self.step, self._layout, self._steps = lifted(program, layout, part=part), layout, steps
        config, info = program.config, program.source.info
        examples = made_up(info, num_examples=num_examples or info.num_train)
        feeds = data.Feeds(
            examples,
            data.Draws(num_examples=examples.num_examples, batch_size=config.batch_size_per_worker, seed=config.seed),
            layout=(len(layout.own_devices), layout.lanes),
            workers=layout.own_workers,
            placement=program.source.placement,
        )
        self._resident = layout.put_shared({"train": feeds.resident, "constants": constants(info)})
        self._fed = feeds.follow(program.timetable.turns(0, MANY_STEPS, stops=()))
        self._shared, self._local = place(program, layout)

    def __call__(self) -> float:
        """Takes the next steps; returns their seconds, to the end of the last.

        Raises:
          FloatingPointError: if the loss or an update was not finite.
        """
        window, finished = Window(), []
        start = time.perf_counter()
        for turn, feed in itertools.islice(self._fed, self._steps):
            plan = {name: self._layout.split(column) for name, column in turn.plan.items()}
            feed = {**feed, "plan": plan}
            self._shared, self._local, metrics = self.step(self._shared, self._local, feed, self._resident)
            finished += window.push(turn, metrics)
        finished += window.drain()
        jax.block_until_ready((self._shared, self._local))
        seconds = time.perf_counter() - start
        _, metrics = finished[-1]
        loss = self._layout.get_numbers({"loss": metrics["loss"]})["loss"] if "loss" in metrics else 0.0
        if self._layout.get_shared(self._shared.step) < 0 or not math.isfinite(loss):  # negative: stopped for good
            raise FloatingPointError("the loss or an update is not finite: from there on nothing is trained")
        return seconds


def main(argv: Sequence[str]) -> int:
    """Serves turns until standard input ends; returns the exit code: 0, or 2 for bad input. Compiles in the first."""
    given = make_flags()
    try:
        config, _ = config_flags.parse(argv, known=given)
        claim_cpu_devices(config.num_workers, num_devices=given.num_devices)
        program = programs.build(config, open_data=data.make_or_assume)
        with refusing():
            layout = Layout.of(config.num_workers, num_devices=given.num_devices)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    begun = functools.cache(lambda: Training(program, layout, steps=given.steps, part=given.part))
    rounds.serve(lambda: begun()())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
