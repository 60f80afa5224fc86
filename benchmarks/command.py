"""The command line of a benchmark: flags, progress, and the JSON file of its results."""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import measured
from benchmarks.measured import Measured

Log = Callable[[str], Any]


class Found(NamedTuple):
    """The results of a benchmark, its devices, and the versions of other libraries that it measured."""

    measured: Sequence[Measured]
    devices: Sequence[str]
    packages: Mapping[str, str] = {}


def run(benchmark: Callable[..., Found], *, name: str, doc: str, argv: Sequence[str], repeats: int) -> int:
    """Executes a command line; returns its exit code: 0, 2 for bad input, 130 after Ctrl-C.

    Args:
      benchmark: ``(*, repeats, log) -> Found``; it calls ``log`` with lines of progress.
      name: the name of its module.
      doc: the docstring of its module.
      argv: the command line, without the program.
      repeats: the default number of counted rounds.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=repeats, help="counted rounds (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for all values and their environment")
    given = parser.parse_args(argv)
    if given.repeats < 1:
        print(f"repeats={given.repeats}: must be 1 or more", file=sys.stderr)
        return 2
    if given.json is not None and not given.json.parent.is_dir():
        print(f"json={str(given.json)!r}: must be a file in a folder that exists", file=sys.stderr)
        return 2
    began = time.monotonic()

    def log(line: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {line}", file=sys.stderr, flush=True)

    try:
        found = benchmark(repeats=given.repeats, log=log)
    except KeyboardInterrupt:
        return 130
    for one in found.measured:
        print(measured.in_words(one))
    if given.json is not None:
        measured.write(name, found.measured, devices=found.devices, packages=found.packages, path=given.json)
    return 0
