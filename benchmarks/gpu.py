"""One accelerator: workers as lanes against one large batch and against PyTorch, compiling and memory.

    python -m benchmarks gpu                                       # make bench-gpu; 25 minutes at most
    python -m benchmarks gpu --only=resnet50,bert
    python -m benchmarks gpu --size=tiny --repeats=1               # small models of the same kinds, on any machine

Each contender is a process of its own. Programs are compiled side by side into an empty folder, and found there by the
processes that are timed; each turn has the device alone. A program that compiles for more than three fifths of the
limit is not measured. All data are made up, and lie on the device. A step is timed from the feed to the numbers on the
host. Ratios are of examples per second, above 1 where the first is faster, unless they are said to be of seconds. Peak
memory is the most that the timed process of a contender has held. PyTorch is measured in the same rounds where it and
torchvision or transformers are installed. Results are written after each part; with `--only`, the other parts of an
earlier run on the same commit and device are kept.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import math
import os
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import jax

from benchmarks.kit import command, result, step_loop
from benchmarks.kit.contenders import Part
from benchmarks.kit.gpu_parts import SIZES, Size, make_parts
from benchmarks.kit.result import Measured
from benchmarks.kit.schedule import Bench
from benchmarks.kit.time_limit import Clock

JSON: Mapping[Size, Path] = {"full": Path("out/bench/gpu.json"), "tiny": Path("out/bench/gpu-tiny.json")}
LIMIT_SECONDS = 1500.0
REPEATS = 5
_PEERS = ("torch", "torchvision", "transformers")


def benchmark(
    *,
    parts: Mapping[str, Part],
    repeats: int,
    limit_seconds: float,
    log: command.Log,
) -> Generator[list[Measured], None, None]:
    """Yields the rows of part after part.

    Args:
      parts: what to measure, by name.
      repeats: the number of counted rounds.
      limit_seconds: of all; what is not measured by then is reported as such.
      log: called with lines of progress.
    """
    with Clock(limit_seconds) as clock, tempfile.TemporaryDirectory() as folder:
        bench = Bench(repeats=repeats, clock=clock, folder=Path(folder), log=log)
        bench.compile([contender for part in parts.values() for contender in part.contenders])
        for name, part in parts.items():
            yield bench.turns(name, part)


# ---- the command -------------------------------------------------------------------------------------------------


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses a command line.

    Raises:
      ValueError: one line, if a value is not allowed.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(make_parts("full", platform="gpu"))
    parser.add_argument("--only", help=f"parts, separated by commas: {', '.join(names)} (default: all)")
    parser.add_argument("--size", choices=SIZES, default="full", help="tiny: small models of the same kinds")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="counted rounds (default: %(default)s)")
    parser.add_argument(
        "--limit_seconds", type=float, default=LIMIT_SECONDS, help="of the whole run (default: %(default)g)"
    )
    parser.add_argument("--json", help=f"file for all values (default: {JSON['full']})")
    given = parser.parse_args(argv)
    given.only = names if given.only is None else given.only.split(",")
    if unknown := [name for name in given.only if name not in names]:
        raise ValueError(f"only={unknown[0]!r}: must be of {', '.join(names)}")
    if given.repeats < 1:
        raise ValueError(f"repeats={given.repeats}: must be 1 or more")
    if not given.limit_seconds > 0:
        raise ValueError(f"limit_seconds={given.limit_seconds:g}: must be above 0")
    given.json = command.writable("json", given.json)
    return given


def merged(found: Sequence[Measured], path: Path, *, environment: Mapping[str, Any]) -> list[Measured]:
    """Returns new rows and, if they are of the same commit and devices, the other rows of a file."""
    rows: dict[str, Measured] = {}
    if path.exists():
        before, old = result.read(path)
        same = all(before[key] == environment[key] for key in ("commit", "tree", "devices"))
        rows = {one.name: one for one in old} if same else {}
    return list({**rows, **{one.name: one for one in found}}.values())


def _device() -> jax.Device:
    """Returns the device; this process takes none of its memory."""
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        return jax.devices()[0]
    finally:
        del os.environ[name]
        os.environ.update({} if before is None else {name: before})


def main(argv: Sequence[str]) -> int:
    """Executes a command line; returns its exit code: 0, 2 for bad input or without a GPU, 130 after Ctrl-C."""
    try:
        given = parse(argv)
        device = _device()
        if given.size == "full" and device.platform != "gpu":
            raise ValueError(f"size='full': needs a GPU, JAX finds {device.platform}; --size=tiny runs on any device")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    path, began = given.json or JSON[given.size], time.monotonic()
    path.parent.mkdir(parents=True, exist_ok=True)

    def log(line: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {line}", file=sys.stderr, flush=True)

    memory = float((device.memory_stats() or {}).get("bytes_limit", math.nan))
    parts = make_parts(given.size, platform=device.platform, memory=memory)
    versions = {name: importlib.metadata.version(name) for name in _PEERS if importlib.util.find_spec(name)}
    found: list[Measured] = []
    results = benchmark(
        parts={name: parts[name] for name in parts if name in given.only},
        repeats=given.repeats,
        limit_seconds=given.limit_seconds,
        log=log,
    )
    with contextlib.closing(results):
        try:
            for rows in results:
                found += rows
                for one in rows:
                    print(result.in_words(one), flush=True)
                write(found, path, devices=step_loop.devices(), packages=versions)
        except KeyboardInterrupt:
            return 130
    log(f"written to {path}")
    return 0


def write(found: Sequence[Measured], path: Path, *, devices: Sequence[str], packages: Mapping[str, str]) -> None:
    """Writes rows, beside those of other parts that an earlier run on the same commit and devices has written."""
    environment = result.environment_of(devices=devices, packages=packages)
    result.write("gpu", merged(found, path, environment=environment), environment=environment, path=path)


if __name__ == "__main__":
    launch.command.run(main, sys.argv[1:])
