"""The PyTorch contender of ``benchmarks.step`` and ``benchmarks.gpu``, in a process that ``taking_turns.Child`` starts.

    python -m benchmarks.twins.training --model=lenet5 --batch=256 --steps=10
    python -m benchmarks.twins.training --model=resnet50 --batch=256 --device=cuda --precision=bfloat16 --compile

It has the same network, batch, loss and optimizer as our step, in float32, on artificial images in memory as floats.
So, unlike our step, it does not read, gather, crop or normalize images. By default PyTorch chooses the memory
layout, the update and the number of threads. With ``--tuned`` the first turn tries both memory layouts of images and
kernels, the fused and the plain update, and all threads and one. It keeps the fastest, and prints it to standard error.

With ``--device`` it is the contender on an accelerator, with the fused update. With ``--precision=bfloat16`` autocast
computes in bfloat16, and images and kernels have the layout "channels_last"; ``--compile`` uses ``torch.compile``.
An input line that begins with "compile" asks for the seconds of the first step, which compiles; one that begins with
"peak" for the most bytes allocated on the device; any other for a turn.
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


def variants_of(arguments: argparse.Namespace, *, threads: int) -> dict[str, Callable[[], Train]]:
    """Returns the combinations of layout, update and threads to try; only PyTorch's default without ``--tuned``."""
    memories, updates, numbers = ["contiguous_format"], ["plain"], [threads]
    if arguments.tuned:
        memories, updates, numbers = [*memories, "channels_last"], [*updates, "fused"], [*numbers, 1]
    return {
        f"{memory}, {update} update, {number} threads": functools.partial(
            _on_threads, arguments, number, memory=memory, update=update
        )
        for memory, update, number in itertools.product(memories, updates, dict.fromkeys(numbers))
    }


def _on_threads(arguments: argparse.Namespace, threads: int, *, memory: str, update: str) -> Train:
    import torch

    train = make_step(arguments.model, batch=arguments.batch, memory=memory, update=update)

    def run(steps: int) -> Any:
        torch.set_num_threads(threads)
        return train(steps)

    return run


class Contender:
    """Trains on a CPU with the fastest variant, or on an accelerator; ``--device=cpu`` tries the latter on a CPU.

    Args:
      arguments: the command line.

    Raises:
      RuntimeError: one line, if PyTorch has no such device.
    """

    def __init__(self, arguments: argparse.Namespace):
        import torch

        if arguments.device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"torch {torch.__version__} finds no CUDA device")
        self._steps, self._device = arguments.steps, arguments.device
        if arguments.device is None:
            name, self._train = fastest(variants_of(arguments, threads=torch.get_num_threads()))
            print(f"PyTorch: {arguments.model}: {name}", file=sys.stderr, flush=True)
        else:
            in_half = arguments.precision == "bfloat16" and len(NETWORKS[arguments.model].shape) == 3
            self._train = make_step(
                arguments.model,
                batch=arguments.batch,
                memory="channels_last" if in_half else "contiguous_format",
                update="fused",
                compiled=arguments.compile,
                device=arguments.device,
                precision=arguments.precision,
            )
        self._first_seconds = taking_turns.timed(lambda: self._train(1))

    def answer(self, line: str) -> float:
        """Returns the number for which the first word of a line asks."""
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
    arguments = parser.parse_args(argv)
    if arguments.device is None and (arguments.model in LARGE or arguments.precision != "float32" or arguments.compile):
        parser.error(f"{', '.join(LARGE)}, precision and compile need device")
    return arguments


def main(argv: Sequence[str]) -> int:
    """Serves turns until standard input ends, and returns the exit code; the first turn makes the contender."""
    arguments = parse(argv)
    if importlib.util.find_spec("torch") is None:
        print(MISSING, file=sys.stderr)
        return 2
    made = functools.cache(lambda: Contender(arguments))
    taking_turns.serve(lambda line: made().answer(line))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
