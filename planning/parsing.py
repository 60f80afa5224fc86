"""Command lines and answers of the planner, and of commands about arrival models."""

import argparse
import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launch.output import say
from launch.parser import Parser
from reducers import arrivals
from reducers.arrivals import foreign_files
from reducers.registry import literal
from runs import encode_numbers, expand, files
from runs.errors import one_line
from runs.reporting import figures

MOST_MACHINES = 65536  # as many as a config may have workers
MOST_STEPS = 10**7
MOST_TABLE_BYTES = 2**22  # size of a CSV file; its rows take fifty times as much memory
SMALLEST, LARGEST = 1e-30, 1e30  # range of numbers on the command line
MOST_COUNTS = 256  # numbers of machines in one command


class Answer(NamedTuple):
    """The answer of a command.

    Attributes:
      text: sentences and tables for the terminal.
      numbers: the same as JSON.
      draw: draws the answer into an empty figure.
      inches: width and height of the figure.
    """

    text: str
    numbers: Mapping[str, Any]
    draw: Callable[["figures.Figure"], None]
    inches: tuple[float, float] = (7.0, 3.4)


def table(rows: Sequence[Mapping[str, Any]], *, digits: int = 4) -> str:
    """Returns rows in columns below their keys: words aligned left, numbers of ``digits`` digits aligned right.

    >>> print(table([{"method": "mean", "machines": 8, "s": 1.5}, {"method": "sum", "machines": 16, "s": 2e5}]))
    method  machines      s
    mean           8    1.5
    sum           16  2e+05
    """
    lines = [[*rows[0]]]
    for row in rows:
        lines.append([f"{cell:.{digits}g}" if isinstance(cell, float) else str(cell) for cell in row.values()])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = ["<" if isinstance(cell, str) else ">" for cell in rows[0].values()]
    aligned = []
    for line in lines:
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)]
        aligned.append("  ".join(cells).rstrip())
    return "\n".join(aligned)


class PlanParser(Parser):
    """Parses the command line of a planner command, which can also write its answer as JSON and draw it."""

    def __init__(self, *, prog: str, description: str):
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        add_outputs(self)

    def run(self, find: Callable[[argparse.Namespace], Answer], argv: Sequence[str] | None) -> int:
        """Prints the answer, or one line for an error; returns the exit code, 0 or 2."""

        def report() -> str:
            arguments = self.parse_args(argv)
            return write_files(find(arguments), arguments)

        return print_report(report, prog=self.prog)


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that name the files of an answer."""
    parser.add_argument("--json", help="path of a JSON file to write")
    parser.add_argument("--figure", help="path of a figure to draw: .png, .pdf or .svg")
    figures.add_size(parser)


def print_report(report: Callable[[], str], *, prog: str) -> int:
    """Prints a report, or one line for an error; returns the exit code, 0 or 2."""
    try:
        say(report())
    except (ValueError, OSError) as error:
        say(one_line(f"{prog.rpartition(' ')[2].rpartition('.')[2]}: {error}"), error=True)
        return 2
    return 0


def write_files(answer: Answer, arguments: argparse.Namespace) -> str:
    """Writes an answer into the files that the command line names; returns its text.

    Raises:
      OSError: if a file cannot be written.
    """
    if arguments.json:
        content = files.to_json(encode_numbers(answer.numbers))
        files.write_atomically(expand(arguments.json, key="json"), content)
    if arguments.figure:
        with figures.new_figure(*answer.inches, columns=arguments.columns) as figure:
            answer.draw(figure)
        figures.save(figure, expand(arguments.figure, key="figure"), dpi=arguments.dpi)
    return answer.text


def number(text: str, *, key: str, least: float = SMALLEST, most: float = LARGEST, is_open: bool = False) -> float:
    """Parses a number of the command line.

    Args:
      text: the number as the user wrote it.
      key: the flag's name, for errors.
      least, most: the range. Default: positive numbers whose products and ratios neither overflow nor underflow.
      is_open: whether the range excludes ``least``.

    Raises:
      ValueError: one line, if the text is not a number in the range.

    >>> number("1e9", key="bytes_per_second"), number("0", key="latency_seconds", least=0.0)
    (1000000000.0, 0.0)
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most or (is_open and value == least):
        bracket = "(" if is_open else "["
        raise ValueError(f"{key}={text!r}: must be a number in {bracket}{least:g}, {most:g}]")
    return value


def counts(text: str, *, key: str) -> list[int]:
    """Parses comma-separated numbers of machines; returns them sorted, each once.

    >>> counts("8,1,2", key="nodes")
    [1, 2, 8]
    """
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1 or found[-1] > MOST_MACHINES:
        raise ValueError(f"{key}={text!r}: must be whole numbers from 1 to {MOST_MACHINES}, separated by commas")
    if len(found) > MOST_COUNTS:
        raise ValueError(f"{key}: names {len(found)} numbers, must name at most {MOST_COUNTS}")
    return found


def read_csv(path: str, columns: Mapping[str, Callable[[str], Any]], *, refused: str) -> list[tuple]:
    """Returns the values in some columns of a CSV file, row by row.

    Args:
      path: the file.
      columns: name -> a function from a cell's text to its value.
      refused: the beginning of the error.

    Raises:
      ValueError: one line, if the file cannot be read or lacks a column, or a cell is refused.
    """
    try:
        text = foreign_files.content(Path(path).expanduser(), most=MOST_TABLE_BYTES).decode("utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        return [tuple(parse(row[name]) for name, parse in columns.items()) for row in rows]
    except (OSError, ValueError, LookupError, TypeError, csv.Error) as error:
        raise ValueError(f"{refused} ({error})") from None


class ModelParser(Parser):
    """Parses the command line of a command about an arrival model.

    ``--model`` names the model; flags that the parser does not know are options of the model, such as
    ``--median_seconds=1.5`` or ``--base="{'name': 'pareto', 'alpha': 1.5}"``.
    """

    def __init__(self, *, prog: str, description: str, count: str, default: int):
        """Adds the flags of a model.

        Args:
          prog, description: for the help.
          count: the flag for the number of workers that the model draws times for, such as "machines".
          default: its default for models other than a trace.
        """
        epilog = "All other --key=value are options of the model."
        super().__init__(prog=prog, description=description, epilog=epilog, allow_abbrev=False)
        self._count, self._default = count, default
        words = f"number of {count} (default: all of a trace, {default} with another model)"
        self.add_argument(f"--{count}", type=int, help=words)
        self.add_argument("--model", required=True, help=f"one of {', '.join(sorted(arrivals.ARRIVALS))}")
        self.add_argument("--seed", type=int, default=0, help="seed of the arrival times (default: 0)")

    def run(
        self,
        report: Callable[[argparse.Namespace, dict[str, Any]], str],
        argv: Sequence[str] | None,
        *,
        most: Mapping[str, int],
    ) -> int:
        """Prints a report, or one line for an error in the command line.

        Args:
          report: (arguments, options of the model) -> the report.
          argv: the command line; None for this process's.
          most: argument -> its largest value; the smallest is 1.

        Returns:
          The exit code: 0, or 2 after an error.
        """

        def checked() -> str:
            arguments, rest = self.parse_known_args(argv)
            for key, end in most.items():
                value = getattr(arguments, key)
                if value is not None and not 1 <= value <= end:
                    raise ValueError(f"{key}={value}: must be in [1, {end}]")
            if not 0 <= arguments.seed < 2**32:
                raise ValueError(f"seed={arguments.seed}: must be in [0, 4294967295]")
            options = parse_options(rest)
            if "name" in options:
                raise ValueError("name: is no option; --model names the arrival model")
            arrivals.ARRIVALS.check({"name": arguments.model, **options})
            if getattr(arguments, self._count) is None:
                recorded = arrivals.num_recorded(arguments.model, of="workers", **options)
                setattr(arguments, self._count, recorded or self._default)
            try:
                return report(arguments, options)
            except ValueError as error:  # models call it num_workers
                raise ValueError(re.sub(r"\bnum_workers(=\d+)$", rf"{self._count}\1", str(error))) from None

        return print_report(checked, prog=self.prog)


def parse_options(arguments: Sequence[str]) -> dict[str, Any]:
    """Parses ``--key=value`` arguments.

    >>> parse_options(["--sigma=0.5", "--base={'name': 'constant'}", "--path=a.csv"])
    {'sigma': 0.5, 'base': {'name': 'constant'}, 'path': 'a.csv'}
    """
    options = {}
    for argument in arguments:
        key, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not equals or not key.replace(".", "").isidentifier():
            raise ValueError(f"{argument!r}: must be --key=value")
        options[key] = literal(text)
    return options
