"""The command lines of benchmarks: flags, progress, and the JSON files of results."""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kit import result
from benchmarks.kit.result import Measured
from launch.parser import Parser

Log = Callable[[str], Any]


class Flags(NamedTuple):
    """The flags of a benchmark besides ``--repeats`` and ``--json``.

    Attributes:
      add: adds them to a parser.
      read: turns their values into keywords of the benchmark; raises ValueError, one line, if one is not allowed.
    """

    add: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    read: Callable[[argparse.Namespace], dict[str, Any]] = lambda arguments: {}


NO_FLAGS = Flags()


def writable(flag: str, text: str | None) -> Path | None:
    """Returns the path in the value of a flag; None if it has no value.

    Raises:
      ValueError: one line, if no file can be written there.
    """
    if text is None:
        return None
    path = Path(text).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{flag}={text!r}: must be a file in a folder that exists")
    return path


def run(
    benchmark: Callable[..., Iterable[Measured]],
    *,
    name: str,
    doc: str,
    argv: Sequence[str],
    repeats: int,
    flags: Flags = NO_FLAGS,
    packages: Sequence[str] = (),
) -> int:
    """Executes a command line; returns its exit code: 0, 2 for bad input, 130 after Ctrl-C.

    Results are printed and written as they come. Earlier results in the file are kept if they are from the same commit
    and devices, so that parts can be measured one after another.

    Args:
      benchmark: ``(*, repeats, log, **keywords of flags)`` -> its results; it calls ``log`` with lines of progress.
      name: the name of its module.
      doc: the docstring of its module.
      argv: the command line, without the program.
      repeats: the default number of counted rounds.
      flags: further flags.
      packages: other libraries that are measured.
    """
    parser = Parser(
        prog=f"python -m benchmarks.{name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=repeats, help="counted rounds (default: %(default)s)")
    parser.add_argument("--json", help="file for all values and their environment")
    flags.add(parser)
    try:
        arguments = parser.parse_args(argv)
        if arguments.repeats < 1:
            raise ValueError(f"repeats={arguments.repeats}: must be 1 or more")
        path = writable("json", arguments.json)
        options = flags.read(arguments)
    except ValueError as error:
        print(f"benchmarks.{name}: {error}", file=sys.stderr)
        return 2
    began = time.monotonic()

    def log(line: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {line}", file=sys.stderr, flush=True)

    found: dict[str, Measured] = {}
    environment: dict[str, Any] = {}
    try:
        for one in benchmark(repeats=arguments.repeats, log=log, **options):
            print(result.in_words(one), flush=True)
            if path is None:
                continue
            if not environment:  # not before the first result, because the benchmark chooses the devices
                environment = result.environment_of(packages=packages)
                found = result.kept(path, environment=environment)
            found[one.title] = one
            result.write(name, list(found.values()), environment=environment, path=path)
    except KeyboardInterrupt:
        return 130
    return 0
