"""The PyTorch contender of ``benchmarks.step`` and ``benchmarks.gpu``, in a process that ``taking_turns.Child`` starts.

    python -m benchmarks.twins.training --model=lenet5 --batch=256 --steps=10
    python -m benchmarks.twins.training --model=resnet50 --batch=256 --device=cuda --precision=bfloat16 --compile

It has the same network, batch, loss and optimizer as our step, in float32, on artificial images that lie in memory as
floats. So it does not read, gather, crop or normalize them, which our step does. By default PyTorch chooses the memory
layout, the update and the number of threads. With ``--tuned`` the first turn tries both memory layouts of images and
kernels, the fused and the plain update, and all threads and one. It keeps the fastest, and prints it to standard error.

With ``--device`` it is the contender of an accelerator: the fused update, images and kernels in the layout
"channels_last" where the precision is bfloat16, which autocast computes in, and ``torch.compile`` with ``--compile``.
A line of its input that begins with "compile" asks for the seconds of the first step, which compiles, one with "peak"
for the most bytes that were allocated on the device, and any other for a turn.
"""

import argparse
import functools
import importlib.util
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.kit import taking_turns
from benchmarks.twins.networks import LARGE, NETWORKS, make_step

Train = Callable[[int], Any]  # trains for a number of steps
TRIALS = 3  # steps of each variant in the first turn; the first one of them is ignored
MISSING = "torch: is not installed; pip install -r requirements-bench.txt"


def fastest(variants: Mapping[str, Callable[[], Train]]) -> tuple[str, Train]:
    """Returns the name of the variant with the fastest step, and its training function.

    >>> import time
    >>> fastest({"slow": lambda: lambda steps: time.sleep(0.01), "quick": lambda: lambda steps: None})[0]
    'quick'
    """
    trained, seconds = {}, {}
    for name, make in variants.items():
        trained[name] = make()
        taken = [taking_turns.timed(functools.partial(trained[name], 1)) for _ in range(TRIALS)]
        seconds[name] = min(taken[1:])
    chosen = min(seconds, key=seconds.__getitem__)
    return chosen, trained[chosen]


def variants_of(given: argparse.Namespace, *, threads: int) -> dict[str, Callable[[], Train]]:
    """Returns the combinations of layout, update and threads to try; PyTorch's default alone if it is not tuned."""
    memories, updates, numbers = ["contiguous_format"], ["plain"], [threads]
    if given.tuned:
        memories, updates, numbers = [*memories, "channels_last"], [*updates, "fused"], [*numbers, 1]
    return {
        f"{memory}, {update} update, {number} threads": functools.partial(
            _on_threads, given, number, memory=memory, update=update
        )
        for memory, update, number in itertools.product(memories, updates, dict.fromkeys(numbers))
    }


def _on_threads(given: argparse.Namespace, threads: int, *, memory: str, update: str) -> Train:
    import torch

    train = make_step(given.model, batch=given.batch, memory=memory, update=update)

    def run(steps: int) -> Any:
        torch.set_num_threads(threads)
        return train(steps)

    return run


class Contender:
    """Trains on a CPU by the fastest variant, or on an accelerator, for which "cpu" serves to try it.

    Args:
      given: the command line.

    Raises:
      RuntimeError: one line, if PyTorch has no such device.
    """

    def __init__(self, given: argparse.Namespace):
        import torch

        if given.device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"torch {torch.__version__} finds no CUDA device")
        self._steps, self._device = given.steps, given.device
        if given.device is None:
            name, self._train = fastest(variants_of(given, threads=torch.get_num_threads()))
            print(f"PyTorch: {given.model}: {name}", file=sys.stderr, flush=True)
        else:
            in_half = given.precision == "bfloat16" and len(NETWORKS[given.model].shape) == 3
            self._train = make_step(
                given.model,
                batch=given.batch,
                memory="channels_last" if in_half else "contiguous_format",
                update="fused",
                compiled=given.compile,
                device=given.device,
                precision=given.precision,
            )
        self._first_seconds = taking_turns.timed(lambda: self._train(1))

    def answer(self, line: str) -> float:
        """Returns the number that the first word of a line asks for."""
        import torch

        verb = line.partition(" ")[0]
        if verb == "compile":
            return self._first_seconds
        if verb == "peak":
            return float(torch.cuda.max_memory_allocated()) if self._device == "cuda" else math.nan
        return taking_turns.timed(lambda: self._train(self._steps)) / self._steps


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses a command line; exits with code 2 and a message if it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twins.training", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", choices=list(NETWORKS), required=True)
    parser.add_argument("--batch", type=int, required=True, help="examples per step")
    parser.add_argument("--steps", type=int, default=10, help="steps per turn (default: 10)")
    parser.add_argument("--tuned", action="store_true", help="use the fastest options, found in the first turn")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="an accelerator's contender, on this device")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="with --device")
    parser.add_argument("--compile", action="store_true", help="use torch.compile; with --device")
    given = parser.parse_args(argv)
    if given.device is None and (given.model in LARGE or given.precision != "float32" or given.compile):
        parser.error(f"{', '.join(LARGE)}, precision and compile need device")
    return given


def main(argv: Sequence[str]) -> int:
    """Serves turns until standard input ends, and returns the exit code; the first turn makes the contender."""
    given = parse(argv)
    if importlib.util.find_spec("torch") is None:
        print(MISSING, file=sys.stderr)
        return 2
    made = functools.cache(lambda: Contender(given))
    taking_turns.serve(lambda line: made().answer(line))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
