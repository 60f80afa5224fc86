"""What all benchmarks are as commands: their flags, their lines of progress, their file."""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import measured
from benchmarks.measured import Measured

Tell = Callable[[str], Any]


class Found(NamedTuple):
    """What a benchmark measured, on which devices, and the versions of the peers that took part."""

    measured: Sequence[Measured]
    devices: Sequence[str]
    packages: Mapping[str, str] = {}


def run(benchmark: Callable[..., Found], *, name: str, doc: str, argv: Sequence[str], repeats: int) -> int:
    """Does what a command line says; returns its exit code: 0, 2 for bad input, 130 after Ctrl-C.

    Args:
      benchmark: ``(*, repeats, tell) -> Found``.
      name: of its file.
      doc: of its module.
      argv: the command line, without the program.
      repeats: rounds that are counted, by default.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=repeats, help="rounds that are counted (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for all values, and what they were measured on")
    given = parser.parse_args(argv)
    if given.repeats < 1:
        print(f"repeats={given.repeats}: must be 1 or more", file=sys.stderr)
        return 2
    if given.json is not None and not given.json.parent.is_dir():
        print(f"json={str(given.json)!r}: must be a file in a folder that exists", file=sys.stderr)
        return 2
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {line}", file=sys.stderr, flush=True)

    try:
        found = benchmark(repeats=given.repeats, tell=tell)
    except KeyboardInterrupt:
        return 130
    for one in found.measured:
        print(measured.in_words(one))
    if given.json is not None:
        measured.write(name, found.measured, devices=found.devices, packages=found.packages, path=given.json)
    return 0
