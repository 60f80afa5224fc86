"""One accelerator: workers as lanes against one large batch and against PyTorch, compiling, memory and whole runs.

    python -m benchmarks gpu                                       # make bench-gpu; 25 minutes at most
    python -m benchmarks gpu --only=resnet50,bert --profile=out/profile
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
import re
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

from benchmarks.accelerator.parts import SIZES, Size, make_parts
from benchmarks.accelerator.whole_runs import WholeRuns
from benchmarks.kit import command, result, step_loop
from benchmarks.kit.contenders import Part, together
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
    size: Size,
    repeats: int,
    limit_seconds: float,
    log: command.Log,
    profile: Path | None = None,
) -> Generator[list[Measured], None, None]:
    """Yields the rows of part after part.

    Args:
      parts: what to measure, by name.
      size: of the contenders.
      repeats: the number of counted rounds.
      limit_seconds: of all; what is not measured by then is reported as such.
      log: called with lines of progress.
      profile: the folder for traces of contenders that miss their targets, or None.
    """

    def by(measure: str) -> dict[str, Part]:
        return {name: part for name, part in parts.items() if part.measure == measure}

    with Clock(limit_seconds) as clock, tempfile.TemporaryDirectory() as folder:
        bench = Bench(repeats=repeats, clock=clock, folder=Path(folder), log=log, profile=profile)
        timed = by("turns")
        runs = WholeRuns(size, folder=Path(folder)) if by("runs") else None
        contenders = [c for part in timed.values() for c in part.contenders]
        bench.compile(contenders, beside=[] if runs is None else [runs.prepare])
        for batch in together(timed):
            if clock.left > 0:
                yield from bench.turns(batch)
            else:
                rows = [row for part in batch.values() for row in part.rows]
                yield [Measured(row.name, [], row.unit, row.target, missing=clock.reason()) for row in rows]
        if runs is not None:
            yield runs.measure(repeats=repeats, clock=clock, log=log)


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
    parser.add_argument("--profile", help="folder for a trace of each contender of ours that misses its target")
    parser.add_argument("--json", help=f"file for all values (default: {JSON['full']})")
    given = parser.parse_args(argv)
    given.only = names if given.only is None else given.only.split(",")
    if unknown := [name for name in given.only if name not in names]:
        raise ValueError(f"only={unknown[0]!r}: must be of {', '.join(names)}")
    if given.repeats < 1:
        raise ValueError(f"repeats={given.repeats}: must be 1 or more")
    if not given.limit_seconds > 0:
        raise ValueError(f"limit_seconds={given.limit_seconds:g}: must be above 0")
    if given.profile is not None and (not given.profile or re.search(r"\s", given.profile)):
        raise ValueError(f"profile={given.profile!r}: must be a path without spaces")
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
    profile = None if given.profile is None else Path(given.profile).expanduser().resolve()
    found: list[Measured] = []
    results = benchmark(
        parts={name: parts[name] for name in parts if name in given.only},
        size=given.size,
        repeats=given.repeats,
        limit_seconds=given.limit_seconds,
        log=log,
        profile=profile,
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
