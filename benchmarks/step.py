"""The whole train step against PyTorch's: LeNet-5 with the recipe of Adasum's authors, and ResNet-20, on a CPU.

    python -m benchmarks.step
    python -m benchmarks.step --repeats=3 --json=out/step.json

Our step has W workers with their own batches and a reduction; PyTorch's has one batch of the same size, in one process
or in two with ``DistributedDataParallel``. PyTorch is measured with its defaults, and tuned: with its fastest options
and with the options of our allocator. Our steps take turns in one process (``groups``), on the number of virtual
devices that was fastest on two cores (train.py has ``--num_devices`` for that). Each PyTorch
contender is a process of its own (``torch_twins``). Ratios are of images per second, ours over theirs: above 1, ours is
faster.
"""

import contextlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

from benchmarks.kit import command, taking_turns
from benchmarks.kit.command import Found, Log
from benchmarks.kit.process_groups import group
from benchmarks.kit.result import Measured, Target
from benchmarks.twins import training
from parallel.backend import malloc_environment

OURS = "ours"
PYTORCH, DDP = "PyTorch", "PyTorch DDP, 2 processes"
TUNED = {PYTORCH: f"{PYTORCH}, tuned", DDP: f"{DDP}, tuned"}


class Comparison(NamedTuple):
    """A comparison of one of our recipes with PyTorch at the batch of all its workers together.

    Attributes:
      name: the recipe's name.
      config: the config's name and overrides.
      model: a model of ``torch_twins``.
      batch: the number of examples in a step.
      devices: the number of our virtual devices.
      steps: the number of steps in a turn.
      targets: contender -> target of our images per second over its own with default options, or None.
    """

    name: str
    config: Sequence[str]
    model: str
    batch: int
    devices: int
    steps: int
    targets: Mapping[str, Target | None]

    def ours(self) -> str:
        """Returns the line by which a group makes our contender."""
        name, *overrides = self.config
        return " ".join(("step", name, str(self.steps), *overrides))

    def peers(self) -> dict[str, tuple[str, ...]]:
        """Returns module and arguments of each PyTorch contender, with default options and tuned."""
        alone = ("benchmarks.twins.training", f"--model={self.model}", f"--batch={self.batch}", f"--steps={self.steps}")
        all_of = {PYTORCH: alone, DDP: (*alone, "--processes=2")}
        return {
            name: (*all_of[peer], *more)
            for peer in self.targets
            for name, more in ((peer, ()), (TUNED[peer], ("--tuned",)))
        }


def lenet5(num_workers: int, *, devices: int, steps: int, over_pytorch: float) -> Comparison:
    """Returns the comparison for the recipe of Adasum's authors, with 32 examples per worker."""
    targets = {PYTORCH: Target(">=", over_pytorch), DDP: Target(">=", 1.3)}
    name = f"LeNet-5, {num_workers} workers x 32, Adasum"
    config = ("mnist_adasum", f"num_workers={num_workers}")
    return Comparison(name, config, "lenet5", 32 * num_workers, devices, steps, targets)


# PyTorch's images are not cropped and flipped, so ours are not either.
RESNET20 = ("cifar10", "num_workers=8", "data.augment=none")
COMPARISONS = (
    lenet5(8, devices=2, steps=5, over_pytorch=1.0),
    lenet5(32, devices=8, steps=2, over_pytorch=1.2),
    Comparison(
        "ResNet-20, 8 workers x 16, mean",
        RESNET20,
        "resnet20",
        batch=128,
        devices=8,
        steps=4,
        targets={PYTORCH: None, DDP: None},
    ),
)


def rows(comparison: Comparison, seconds: Mapping[str, Sequence[float]]) -> list[Measured]:
    """Returns the results of one comparison.

    >>> two_images = Comparison("two images", (), "lenet5", 2, 1, 1, {PYTORCH: Target(">=", 1.5)})
    >>> found = rows(two_images, {OURS: [1.0], PYTORCH: [2.0], TUNED[PYTORCH]: [1.0]})
    >>> for row in found:
    ...   print(row.name, row.values)
    two images, over PyTorch at batch 2 [2.0]
    two images, over PyTorch at batch 2, tuned [1.0]
    two images, ours [2.0]
    two images, PyTorch at batch 2 [1.0]
    two images, PyTorch at batch 2, tuned [2.0]
    """
    name = comparison.name
    at_batch = f"{PYTORCH} at batch {comparison.batch}"
    in_words = {PYTORCH: at_batch, TUNED[PYTORCH]: f"{at_batch}, tuned"}
    found = [
        Measured(
            f"{name}, over {in_words.get(peer, peer)}",
            taking_turns.ratios(seconds, peer, OURS),
            target=comparison.targets.get(peer),
        )
        for peer in comparison.peers()
    ]
    for contender in (OURS, *comparison.peers()):
        rates = [comparison.batch / s for s in seconds[contender]]
        found.append(Measured(f"{name}, {in_words.get(contender, contender)}", rates, unit="images/s"))
    return found


def compare(comparison: Comparison, *, repeats: int, log: Log) -> list[Measured]:
    """Starts the contenders of one comparison, times them in turns, and ends them."""
    log(comparison.name)
    with contextlib.ExitStack() as stack:
        turn_of = stack.enter_context(group(num_devices=comparison.devices))
        contenders = {OURS: turn_of(comparison.ours())}
        for peer, arguments in comparison.peers().items():
            environment = {**os.environ, **(malloc_environment() if peer in TUNED.values() else {})}
            contenders[peer] = stack.enter_context(taking_turns.Child.module(*arguments, environment=environment))
        return rows(comparison, taking_turns.in_turns(contenders, repeats=repeats, log=log))


def benchmark(*, repeats: int, log: Log, comparisons: Sequence[Comparison] = COMPARISONS) -> Found:
    """Measures all comparisons, one after another.

    Raises:
      ModuleNotFoundError: one line, if PyTorch is not installed, before anything starts.
    """
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError(training.MISSING)
    measured = [row for one in comparisons for row in compare(one, repeats=repeats, log=log)]
    packages = {"torch": importlib.metadata.version("torch")}
    return Found(measured, devices=["cpu"], packages=packages)


def main(argv: Sequence[str]) -> int:
    """Executes a command line; returns its exit code: 0, 2 for bad input or without PyTorch, 130 for Ctrl-C."""
    try:
        return command.run(benchmark, name="step", doc=__doc__, argv=argv, repeats=6)
    except ModuleNotFoundError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    launch.command.run(main, sys.argv[1:])
