"""The command lines of benchmarks: flags, progress, and the JSON files of results."""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kit import result
from benchmarks.kit.result import Measured

Log = Callable[[str], Any]


class Found(NamedTuple):
    """The results of a benchmark, its devices, and the versions of other libraries that it measured."""

    measured: Sequence[Measured]
    devices: Sequence[str]
    packages: Mapping[str, str] = {}


def writable(flag: str, text: str | None) -> Path | None:
    """Returns the path that a flag gives, or None.

    Raises:
      ValueError: one line, if no file can be written there.
    """
    if text is None:
        return None
    path = Path(text).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{flag}={text!r}: must be a file in a folder that exists")
    return path


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
    parser.add_argument("--json", help="file for all values and their environment")
    given = parser.parse_args(argv)
    try:
        if given.repeats < 1:
            raise ValueError(f"repeats={given.repeats}: must be 1 or more")
        path = writable("json", given.json)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    began = time.monotonic()

    def log(line: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {line}", file=sys.stderr, flush=True)

    try:
        found = benchmark(repeats=given.repeats, log=log)
    except KeyboardInterrupt:
        return 130
    for one in found.measured:
        print(result.in_words(one))
    if path is not None:
        environment = result.environment_of(devices=found.devices, packages=found.packages)
        result.write(name, found.measured, environment=environment, path=path)
    return 0
