"""One accelerator: workers as lanes against one large batch and against PyTorch, compiling and memory.

    python -m benchmarks.gpu --json=out/bench/gpu.json             # make bench-gpu; 25 minutes at most
    python -m benchmarks.gpu --only=resnet50,bert
    python -m benchmarks.gpu --size=tiny --repeats=1               # small models of the same kinds, on any machine

Each contender is a process of its own. Programs are compiled side by side into an empty folder, where the timed
processes find them; only one process uses the device in each turn. A program that compiles for more than three fifths
of the limit is not measured. All data are made up, and lie on the device. A step is timed from the feed to the numbers
on the host. Ratios are of examples per second, above 1 if the first is faster, unless the row names seconds. Peak
memory is the most that the timed process of a contender has held. PyTorch is measured in the same rounds if it is
installed with torchvision or transformers. Results are written after each part; with `--only`, the other parts of an
earlier run on the same commit and device are kept.
"""

import argparse
import functools
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import jax

from benchmarks.kit import command
from benchmarks.kit.contenders import Part
from benchmarks.kit.gpu_parts import SIZES, make_parts
from benchmarks.kit.result import Measured
from benchmarks.kit.schedule import Bench


def benchmark(*, repeats: int, log: command.Log, parts: Mapping[str, Part], limit_seconds: float) -> Iterator[Measured]:
    """Yields the rows of each part.

    Args:
      repeats: the number of counted rounds.
      log: called with lines of progress.
      parts: name -> part.
      limit_seconds: the limit for all parts; contenders that are not measured by then are reported as such.
    """
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(repeats=repeats, limit_seconds=limit_seconds, folder=Path(folder), log=log)
        bench.compile([contender for part in parts.values() for contender in part.contenders])
        for name, part in parts.items():
            yield from bench.turns(name, part)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that choose parts, sizes and the limit."""
    names = ", ".join(make_parts("full", platform="gpu"))
    parser.add_argument("--only", help=f"parts, separated by commas: {names} (default: all)")
    parser.add_argument("--size", choices=SIZES, default="full", help="tiny: small models of the same kinds")
    parser.add_argument("--limit_seconds", type=float, default=1500.0, help="of the whole run (default: %(default)g)")


def read_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the keywords of ``benchmark``.

    Raises:
      ValueError: one line, if a value is not allowed, or JAX finds no GPU.
    """
    if not arguments.limit_seconds > 0:
        raise ValueError(f"limit_seconds={arguments.limit_seconds:g}: must be above 0")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # this process must not take the device's memory
    device = jax.devices()[0]
    memory = float((device.memory_stats() or {}).get("bytes_limit", math.nan))
    parts = make_parts(arguments.size, platform=device.platform, memory=memory)
    only = list(parts) if arguments.only is None else arguments.only.split(",")
    if unknown := [name for name in only if name not in parts]:
        raise ValueError(f"only={unknown[0]!r}: must be of {', '.join(parts)}")
    if arguments.size == "full" and device.platform != "gpu":
        raise ValueError(f"size='full': needs a GPU, JAX finds {device.platform}; --size=tiny runs on any device")
    chosen = {name: part for name, part in parts.items() if name in only}
    return {"parts": chosen, "limit_seconds": arguments.limit_seconds}


main = functools.partial(
    command.run,
    benchmark,
    name="gpu",
    doc=__doc__,
    repeats=5,
    add_flags=add_flags,
    read_flags=read_flags,
    packages=("torch", "torchvision", "transformers"),
)

if __name__ == "__main__":
    launch.command.run(main, sys.argv[1:])
