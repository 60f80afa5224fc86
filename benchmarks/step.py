"""The whole train step against PyTorch's: LeNet-5 with the recipe of Adasum's authors, and ResNet-20, on a CPU.

    python -m benchmarks.step
    python -m benchmarks.step --repeats=3 --json=out/step.json

Our step has W workers with their own batches and a reduction; PyTorch's has one batch of the same size. PyTorch is
measured with its defaults, and tuned: with its fastest options and with the options of our allocator. Our steps take
turns in one process (``groups``), on the number of virtual devices that was fastest on two cores (train.py has
``--num_devices`` for that). Each PyTorch contender is a process of its own (``twins.training``). Ratios are of images
per second, ours over theirs: above 1, ours is faster.
"""

import argparse
import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

from benchmarks.kit import command, taking_turns
from benchmarks.kit.process_groups import group
from benchmarks.kit.result import Measured, Target
from benchmarks.twins import training
from parallel.backend import malloc_environment

OURS = "ours"


class Comparison(NamedTuple):
    """A comparison of one of our recipes with PyTorch at the batch of all its workers together.

    Attributes:
      name: the recipe's name.
      config: the config's name and overrides.
      model: a model of ``twins.networks``.
      batch: the number of examples in a step.
      devices: the number of our virtual devices.
      steps: the number of steps in a turn.
      target: the bound for our images per second over those of PyTorch with its defaults, or None.
    """

    name: str
    config: Sequence[str]
    model: str
    batch: int
    devices: int
    steps: int
    target: Target | None = None

    @property
    def ours(self) -> str:
        """The line by which a group makes our contender."""
        name, *overrides = self.config
        return " ".join(("step", name, str(self.steps), *overrides))

    @property
    def peers(self) -> dict[str, list[str]]:
        """The arguments of each PyTorch contender, with its defaults and tuned."""
        name = f"PyTorch at batch {self.batch}"
        arguments = [f"--model={self.model}", f"--batch={self.batch}", f"--steps={self.steps}"]
        return {name: arguments, f"{name}, tuned": [*arguments, "--tuned"]}


def lenet5(num_workers: int, *, devices: int, steps: int, over_pytorch: float) -> Comparison:
    """Returns the comparison for the recipe of Adasum's authors, with 32 examples per worker."""
    name = f"LeNet-5, {num_workers} workers x 32, Adasum"
    config = ("mnist_adasum", f"num_workers={num_workers}")
    return Comparison(name, config, "lenet5", 32 * num_workers, devices, steps, Target(">=", over_pytorch))


# PyTorch's images are not cropped and flipped, so ours are not either.
RESNET20 = ("cifar10", "num_workers=8", "data.augment=none")
COMPARISONS = (
    lenet5(8, devices=2, steps=5, over_pytorch=1.0),
    lenet5(32, devices=8, steps=2, over_pytorch=1.2),
    Comparison("ResNet-20, 8 workers x 16, mean", RESNET20, "resnet20", batch=128, devices=8, steps=4),
)


def rows(comparison: Comparison, seconds: Mapping[str, Sequence[float]]) -> list[Measured]:
    """Returns the results of one comparison.

    >>> two_images = Comparison("two images", (), "lenet5", 2, 1, 1, Target(">=", 1.5))
    >>> found = rows(two_images, {OURS: [1.0], "PyTorch at batch 2": [2.0], "PyTorch at batch 2, tuned": [1.0]})
    >>> for row in found:
    ...   print(row.name, row.values, row.target)
    two images, over PyTorch at batch 2 [2.0] >= 1.5
    two images, over PyTorch at batch 2, tuned [1.0] None
    two images, ours [2.0] None
    two images, PyTorch at batch 2 [1.0] None
    two images, PyTorch at batch 2, tuned [2.0] None
    """
    found = []
    for peer, target in zip(comparison.peers, (comparison.target, None), strict=True):
        over = taking_turns.ratios(seconds, peer, OURS)
        found.append(Measured(f"{comparison.name}, over {peer}", over, target=target))
    for contender in (OURS, *comparison.peers):
        rates = [comparison.batch / s for s in seconds[contender]]
        found.append(Measured(f"{comparison.name}, {contender}", rates, unit="images/s"))
    return found


def benchmark(*, repeats: int, log: command.Log) -> Iterator[Measured]:
    """Starts the contenders of one comparison after another, times them in turns, and ends them."""
    for comparison in COMPARISONS:
        log(comparison.name)
        with contextlib.ExitStack() as stack:
            turn_of = stack.enter_context(group(num_devices=comparison.devices))
            contenders = {OURS: turn_of(comparison.ours)}
            for peer, arguments in comparison.peers.items():
                environment = {**os.environ, **(malloc_environment() if "--tuned" in arguments else {})}
                child = taking_turns.Child("-m", "benchmarks.twins.training", *arguments, environment=environment)
                contenders[peer] = stack.enter_context(child)
            seconds = taking_turns.in_turns(contenders, repeats=repeats, log=log)
        yield from rows(comparison, seconds)


def _need_pytorch(arguments: argparse.Namespace) -> dict[str, Any]:
    if importlib.util.find_spec("torch") is None:
        raise ValueError(training.MISSING)
    return {}


main = functools.partial(
    command.run, benchmark, name="step", doc=__doc__, repeats=6, read_flags=_need_pytorch, packages=["torch"]
)

if __name__ == "__main__":
    launch.command.run(main, sys.argv[1:])
