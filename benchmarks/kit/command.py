"""The command lines of benchmarks: flags, progress, and the JSON files of results."""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks.kit import result
from benchmarks.kit.result import Measured
from launch.parser import Parser

Log = Callable[[str], Any]


def run(
    benchmark: Callable[..., Iterable[Measured]],
    argv: Sequence[str],
    *,
    name: str,
    doc: str | None,
    repeats: int,
    add_flags: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
    read_flags: Callable[[argparse.Namespace], dict[str, Any]] = lambda arguments: {},
    packages: Sequence[str] = (),
    start: Literal["anew", "where it stopped"] = "anew",
) -> int:
    """Executes a command line; returns its exit code: 0, 2 for bad input, 130 after Ctrl-C.

    Results are printed and written as they come. Earlier results in the file are kept if they are from the same commit,
    devices and versions, so that parts can be measured one after another.

    Args:
      benchmark: ``(*, repeats, log, **keywords of flags)`` -> its results; it calls ``log`` with lines of progress.
      argv: the command line, without the program.
      name: the name of its module.
      doc: the docstring of its module.
      repeats: the default number of counted rounds.
      add_flags: adds flags besides ``--repeats`` and ``--json``.
      read_flags: turns their values into keywords of the benchmark; raises ValueError, one line, if one is not allowed.
      packages: other libraries that are measured.
      start: "where it stopped" gives the benchmark the keyword ``kept``, title -> earlier result in the file, so that
        it measures only what is missing; {} if a file of the checkout is changed, because the commit then does not say
        which code gave the results. Such a benchmark must not choose the devices.
    """
    parser = Parser(
        prog=f"python -m benchmarks.{name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=repeats, help="counted rounds (default: %(default)s)")
    parser.add_argument("--json", help="file for all values and their environment")
    add_flags(parser)
    try:
        arguments = parser.parse_args(argv)
        if arguments.repeats < 1:
            raise ValueError(f"repeats={arguments.repeats}: must be 1 or more")
        path = Path(arguments.json).expanduser() if arguments.json is not None else None
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise ValueError(f"json={arguments.json!r}: must be a file in a folder that exists")
        options = read_flags(arguments)
    except ValueError as error:
        print(f"benchmarks.{name}: {error}", file=sys.stderr)
        return 2
    began = time.monotonic()

    def log(line: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {line}", file=sys.stderr, flush=True)

    found: dict[str, Measured] = {}
    environment: dict[str, Any] = {}
    if start == "where it stopped" and path is not None:
        environment = result.environment_of(packages=packages)
        found = result.kept(path, environment=environment)
        options["kept"] = dict(found) if environment["tree"] == "clean" else {}
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
