"""Argument parsers of the commands in ``experiments``."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from launch.output import say
from launch.parser import Parser
from reducers import arrivals
from reducers.registry import literal


class ModelParser(Parser):
    """Parses the command line of a command about an arrival model.

    The model is named by ``--model``; flags that the parser does not know are options of the model, such as
    ``--median_seconds=1.5`` or ``--base="{'name': 'pareto', 'alpha': 1.5}"``.
    """

    def __init__(self, *, prog: str, description: str):
        epilog = "All other --key=value are options of the model."
        super().__init__(prog=prog, description=description, epilog=epilog, allow_abbrev=False)
        self.add_argument("--model", required=True, help=f"one of {', '.join(sorted(arrivals.ARRIVALS))}")
        self.add_argument("--seed", type=int, default=0, help="seed of the arrival times (default: 0)")

    def run(
        self,
        report: Callable[[argparse.Namespace, dict[str, Any]], str],
        argv: Sequence[str] | None,
        *,
        counts: Sequence[str],
    ) -> int:
        """Prints a report, or one line that says what is wrong with the command line.

        Args:
          report: the arguments, the options of the model -> the report.
          argv: the command line; None for that of this process.
          counts: the names of arguments that must be at least 1, if they are given.

        Returns:
          The exit code: 0, or 2 after an error.
        """
        try:
            arguments, rest = self.parse_known_args(argv)
            for key in counts:
                value = getattr(arguments, key)
                if value is not None and value < 1:
                    raise ValueError(f"{key}={value}: must be at least 1")
            if not 0 <= arguments.seed < 2**32:
                raise ValueError(f"seed={arguments.seed}: must be in [0, 4294967295]")
            options = parse_options(rest)
            if "name" in options:
                raise ValueError("name: is no option; --model names the arrival model")
            arrivals.ARRIVALS.check({"name": arguments.model, **options})
            say(report(arguments, options))
        except (ValueError, OSError) as error:
            say(f"{self.prog.rpartition('.')[2]}: {error}", error=True)
            return 2
        return 0


def parse_options(arguments: Sequence[str]) -> dict[str, Any]:
    """Reads ``--key=value`` arguments as options.

    >>> parse_options(["--sigma=0.5", "--base={'name': 'constant'}", "--path=a.csv"])
    {'sigma': 0.5, 'base': {'name': 'constant'}, 'path': 'a.csv'}
    """
    options = {}
    for argument in arguments:
        key, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not equals or not key.isidentifier():
            raise ValueError(f"{argument!r}: must be --key=value")
        options[key] = literal(text)
    return options
