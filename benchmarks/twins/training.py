"""The PyTorch contender of ``benchmarks.step`` and ``benchmarks.gpu``, in a process that ``taking_turns.Child`` starts.

    python -m benchmarks.twins.training --model=lenet5 --batch=256 --steps=10 --processes=1
    python -m benchmarks.twins.training --model=resnet50 --batch=256 --device=cuda --precision=bfloat16 --compile

It has the same network, batch, loss and optimizer as our step, in float32, on artificial images that lie in memory as
floats. So it does not read, gather, crop or normalize them, which our step does. By default PyTorch chooses the memory
layout, the update and the number of threads. With ``--tuned`` the first turn tries both memory layouts of images and
kernels, the fused and the plain update, and all threads and one. It keeps the fastest, and prints it to standard error.
Several processes use ``DistributedDataParallel`` over gloo on the loopback, each with its part of the batch and of the
cores.

With ``--device`` it is the contender of an accelerator: one process, the fused update, images and kernels in the layout
"channels_last" where the precision is bfloat16, which autocast computes in, and ``torch.compile`` with ``--compile``.
The line "compile" of its input asks for the seconds of the first step, which compiles, and "peak" for the most bytes
that were allocated on the device.
"""

import argparse
import contextlib
import datetime
import functools
import importlib.util
import math
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.kit import taking_turns
from benchmarks.twins.networks import LARGE, NETWORKS, make_step

Train = Callable[[int], Any]  # trains for a number of steps
TRIALS = 3  # steps of each variant in the first turn; the first one of them is ignored
MISSING = "torch: is not installed; pip install -r requirements-bench.txt"


def fastest(variants: Mapping[str, Callable[[], Train]], *, agree: Callable[[int], int] = int) -> tuple[str, Train]:
    """Returns the name of the variant with the fastest step, and its training function.

    Args:
      variants: name -> function that makes a training function.
      agree: the choice of this process -> the choice of all processes.

    >>> import time
    >>> fastest({"slow": lambda: lambda steps: time.sleep(0.01), "quick": lambda: lambda steps: None})[0]
    'quick'
    """
    trained, seconds = [], []
    for make in variants.values():
        trained.append(make())
        taken = [taking_turns.timed(functools.partial(trained[-1], 1)) for _ in range(TRIALS)]
        seconds.append(min(taken[1:]))
    chosen = agree(seconds.index(min(seconds)))
    return list(variants)[chosen], trained[chosen]


def variants_of(given: argparse.Namespace, *, wrap: Callable[[Any], Any] = lambda network: network) -> dict[str, Any]:
    """Returns the combinations of memory layout and update to try; PyTorch's default alone if it is not tuned."""
    make = functools.partial(make_step, given.model, batch=given.batch // given.processes, wrap=wrap)
    return {
        f"{memory}, {update} update": functools.partial(make, memory=memory, update=update)
        for memory in (("contiguous_format", "channels_last") if given.tuned else ("contiguous_format",))
        for update in (("plain", "fused") if given.tuned else ("plain",))
    }


def alone(given: argparse.Namespace) -> taking_turns.Turn:
    """Returns the turn of one process, with PyTorch's default number of threads; tuned, with one if that is faster."""
    import torch

    def on(threads: int, train: Train) -> Train:
        def run(steps: int) -> Any:
            torch.set_num_threads(threads)
            return train(steps)

        return run

    name, train = fastest(variants_of(given))
    numbers = (torch.get_num_threads(), 1) if given.tuned else (torch.get_num_threads(),)
    threads = {f"{number} threads": functools.partial(on, number, train) for number in numbers}
    number, train = fastest(threads)
    print(f"torch_twins: {given.model}: {name}, {number}", file=sys.stderr, flush=True)
    return lambda: taking_turns.timed(lambda: train(given.steps)) / given.steps


class Together:
    """One of several processes that train with ``DistributedDataParallel``.

    Args:
      given: the command line.
      rank: the rank of this process.
      meeting: the path of a file by which the processes find each other.
    """

    def __init__(self, given: argparse.Namespace, *, rank: int, meeting: str):
        import torch
        from torch import distributed

        os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // given.processes))
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=given.processes,
            timeout=datetime.timedelta(hours=12),  # other contenders have their turns in between
        )
        self._steps = given.steps
        wrap = functools.partial(
            torch.nn.parallel.DistributedDataParallel, gradient_as_bucket_view=True, forward_sync_buffers=False
        )
        name, self._train = fastest(variants_of(given, wrap=wrap), agree=self._broadcast)
        if rank == 0:
            print(f"torch_twins: {given.model}: {name}, {given.processes} processes", file=sys.stderr, flush=True)

    def _broadcast(self, number: int) -> int:
        """Returns the number of the first process."""
        import torch

        value = torch.tensor([number])
        torch.distributed.broadcast(value, src=0)
        return int(value)

    def _train_together(self) -> float:
        from torch import distributed

        distributed.barrier()
        return taking_turns.timed(lambda: (self._train(self._steps), distributed.barrier())) / self._steps

    def turn(self) -> float:
        """Leads one turn, as the first process."""
        self._broadcast(1)
        return self._train_together()

    def follow(self) -> None:
        """Takes part in all turns, as another process, until the first process ends them."""
        while self._broadcast(0):
            self._train_together()

    def close(self) -> None:
        """Ends the other processes, as the first one."""
        self._broadcast(0)


class OnDevice:
    """The contender of an accelerator; "cpu" serves to try it.

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
        in_half = given.precision == "bfloat16" and len(NETWORKS[given.model].shape) == 3
        self._train = make_step(
            given.model,
            batch=given.batch,
            memory="channels_last" if in_half else "contiguous_format",
            update="fused",
            wrap=torch.compile if given.compile else lambda network: network,
            device=given.device,
            precision=given.precision,
        )
        self._first_seconds = taking_turns.timed(lambda: self._train(1))

    def answer(self, line: str) -> float:
        """Returns the number that a line asks for."""
        import torch

        if line == "compile":
            return self._first_seconds
        if line == "peak":
            return float(torch.cuda.max_memory_allocated()) if self._device == "cuda" else math.nan
        return taking_turns.timed(lambda: self._train(self._steps)) / self._steps


def _loopback() -> str:
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


def several(given: argparse.Namespace, stack: contextlib.ExitStack) -> taking_turns.Turn:
    """Starts the other processes, which end with the stack, and returns the turn of all."""
    meeting = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "meeting")
    flags = [f"--{name}={getattr(given, name)}" for name in ("model", "batch", "steps", "processes")]
    flags += ["--tuned"] if given.tuned else []
    command = [sys.executable, "-m", "benchmarks.twins.training", *flags, f"--meeting={meeting}"]
    for rank in range(1, given.processes):
        other = subprocess.Popen([*command, f"--rank={rank}"], stdin=subprocess.DEVNULL, stdout=sys.stderr)
        stack.callback(other.wait)
    first = Together(given, rank=0, meeting=meeting)
    stack.callback(first.close)
    return first.turn


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses a command line; exits with code 2 and a message if it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twins.training", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", choices=list(NETWORKS), required=True)
    parser.add_argument("--batch", type=int, required=True, help="examples per step, of all processes together")
    parser.add_argument("--steps", type=int, default=10, help="steps per turn (default: 10)")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--tuned", action="store_true", help="use the fastest options, found in the first turn")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="an accelerator's contender, on this device")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="with --device")
    parser.add_argument("--compile", action="store_true", help="use torch.compile; with --device")
    parser.add_argument("--rank", type=int, default=0, help="set by the first process for those that it starts")
    parser.add_argument("--meeting", default="", help="set by the first process, too")
    given = parser.parse_args(argv)
    if min(given.batch, given.steps, given.processes) < 1 or given.batch % given.processes:
        parser.error("batch, steps and processes must be 1 or more, and processes divide the batch")
    if given.device is None and (given.model in LARGE or given.precision != "float32" or given.compile):
        parser.error(f"{', '.join(LARGE)}, precision and compile need device")
    return given


def main(argv: Sequence[str]) -> int:
    """Serves turns until standard input ends, and returns the exit code; the first turn starts all processes."""
    given = parse(argv)
    if importlib.util.find_spec("torch") is None:
        print(MISSING, file=sys.stderr)
        return 2
    if given.rank:
        Together(given, rank=given.rank, meeting=given.meeting).follow()
        return 0
    if given.device is not None:
        made = functools.cache(lambda: OnDevice(given))
        taking_turns.serve(lambda line: made().answer(line))
        return 0
    with contextlib.ExitStack() as stack:
        begun = functools.cache(lambda: alone(given) if given.processes == 1 else several(given, stack))
        taking_turns.serve(lambda line: begun()())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
