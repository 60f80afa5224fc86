"""PyTorch's turn at the recipes that ``benchmarks.step`` holds ours against: a process that ``rounds.Child`` talks to.

    python -m benchmarks.torch_twins --model=lenet5 --batch=256 --steps=10 --processes=1

The same network, batch, loss and optimizer, float32, on made-up images that lie in memory as floats: nothing is read,
gathered, cropped or normalised, which ours does in its step. As it comes, PyTorch has its own memory layout, update and
number of threads. With ``--tuned`` the first turn tries images and kernels in both memory layouts, the update in one
loop (``fused``) and parameter by parameter, and all threads and one, and keeps what was fastest; it says what on
standard error. Several processes are ``DistributedDataParallel`` over gloo on the loopback, each with its part of the
batch and of the cores. Not used: ``torch.compile``, reduced precision.
"""

import argparse
import contextlib
import datetime
import functools
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import rounds
from benchmarks.torch_networks import MODELS, make_step

Train = Callable[[int], Any]  # for so many steps
TRIALS = 3  # steps of each variant in the first turn; the first of them is not looked at
MISSING = "torch: is not installed; pip install -r requirements-bench.txt"


def fastest(variants: Mapping[str, Callable[[], Train]], *, agree: Callable[[int], int] = int) -> tuple[str, Train]:
    """Returns the variant whose quickest step is the quickest, and its training.

    Args:
      variants: by name, what makes the training.
      agree: this process's choice -> that of all.

    >>> import time
    >>> fastest({"slow": lambda: lambda steps: time.sleep(0.01), "quick": lambda: lambda steps: None})[0]
    'quick'
    """
    trained, seconds = [], []
    for make in variants.values():
        trained.append(make())
        taken = [rounds.timed(functools.partial(trained[-1], 1)) for _ in range(TRIALS)]
        seconds.append(min(taken[1:]))
    chosen = agree(seconds.index(min(seconds)))
    return list(variants)[chosen], trained[chosen]


def variants_of(given: argparse.Namespace, *, wrap: Callable[[Any], Any] = lambda network: network) -> dict[str, Any]:
    """Returns the ways in which PyTorch may lay images out and update, of a process's part of the batch; if not tuned,
    the one that is its own choice."""
    make = functools.partial(make_step, given.model, batch=given.batch // given.processes, wrap=wrap)
    return {
        f"{memory}, {update} update": functools.partial(make, memory=memory, update=update)
        for memory in (("contiguous_format", "channels_last") if given.tuned else ("contiguous_format",))
        for update in (("plain", "fused") if given.tuned else ("plain",))
    }


def alone(given: argparse.Namespace) -> rounds.Turn:
    """Returns the turn of one process: with PyTorch's own number of threads; tuned, with one if that is faster."""
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
    return lambda: rounds.timed(lambda: train(given.steps)) / given.steps


class Together:
    """One of several processes that train with ``DistributedDataParallel``.

    Args:
      given: the command line.
      rank: which one this is.
      meeting: a file by which they find each other.
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
            timeout=datetime.timedelta(hours=12),  # between two turns, others have theirs
        )
        self._steps = given.steps
        wrap = functools.partial(
            torch.nn.parallel.DistributedDataParallel, gradient_as_bucket_view=True, forward_sync_buffers=False
        )
        name, self._train = fastest(variants_of(given, wrap=wrap), agree=self._tell)
        if rank == 0:
            print(f"torch_twins: {given.model}: {name}, {given.processes} processes", file=sys.stderr, flush=True)

    def _tell(self, number: int) -> int:
        """Returns what the first process says."""
        import torch

        told = torch.tensor([number])
        torch.distributed.broadcast(told, src=0)
        return int(told)

    def _both_ends(self) -> float:
        from torch import distributed

        distributed.barrier()
        return rounds.timed(lambda: (self._train(self._steps), distributed.barrier())) / self._steps

    def turn(self) -> float:
        """Leads one turn, as the first process."""
        self._tell(1)
        return self._both_ends()

    def follow(self) -> None:
        """Takes part in all turns, as another process, until the first ends them."""
        while self._tell(0):
            self._both_ends()

    def close(self) -> None:
        """Ends the others, as the first process."""
        self._tell(0)


def _loopback() -> str:
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


def several(given: argparse.Namespace, stack: contextlib.ExitStack) -> rounds.Turn:
    """Starts the other processes; returns the turn of all, which end with the stack."""
    meeting = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "meeting")
    flags = [f"--{name}={getattr(given, name)}" for name in ("model", "batch", "steps", "processes")]
    flags += ["--tuned"] if given.tuned else []
    command = [sys.executable, "-m", "benchmarks.torch_twins", *flags, f"--meeting={meeting}"]
    for rank in range(1, given.processes):
        other = subprocess.Popen([*command, f"--rank={rank}"], stdin=subprocess.DEVNULL, stdout=sys.stderr)
        stack.callback(other.wait)
    first = Together(given, rank=0, meeting=meeting)
    stack.callback(first.close)
    return first.turn


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Reads a command line; exits with code 2 and says why where it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_twins", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", choices=list(MODELS), required=True)
    parser.add_argument("--batch", type=int, required=True, help="examples of a step, of all processes together")
    parser.add_argument("--steps", type=int, default=10, help="of a turn")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--tuned", action="store_true", help="at its best, found out in the first turn")
    parser.add_argument("--rank", type=int, default=0, help="set for the processes that the first one starts")
    parser.add_argument("--meeting", default="", help="likewise")
    given = parser.parse_args(argv)
    if min(given.batch, given.steps, given.processes) < 1 or given.batch % given.processes:
        parser.error("batch, steps and processes must be 1 or more, and processes divide the batch")
    return given


def main(argv: Sequence[str]) -> int:
    """Serves turns until standard input ends; returns the exit code. The first turn starts all."""
    given = parse(argv)
    if importlib.util.find_spec("torch") is None:
        print(MISSING, file=sys.stderr)
        return 2
    if given.rank:
        Together(given, rank=given.rank, meeting=given.meeting).follow()
        return 0
    with contextlib.ExitStack() as stack:
        begun = functools.cache(lambda: alone(given) if given.processes == 1 else several(given, stack))
        rounds.serve(lambda line: begun()())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
