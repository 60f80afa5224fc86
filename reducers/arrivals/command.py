"""What commands about an arrival model have in common."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from reducers.arrivals import ARRIVALS
from reducers.registry import parse_options


class Parser(argparse.ArgumentParser):
    """Has ``--model``; flags that it does not know are options of the model. What is wrong is one ValueError."""

    def __init__(self, *, prog: str, description: str):
        epilog = "All other --key=value are options of the model."
        super().__init__(prog=prog, description=description, epilog=epilog, allow_abbrev=False)
        self.add_argument("--model", required=True, help=f"one of {', '.join(sorted(ARRIVALS))}")

    def error(self, message: str) -> NoReturn:
        """Raises ValueError where argparse would exit."""
        raise ValueError(message)

    def read(self, argv: Sequence[str] | None, *, counts: Sequence[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
        """Returns the arguments, and the options of the model.

        Args:
          argv: of the command line; None for that of this process.
          counts: arguments that must be at least 1.
        """
        arguments, rest = self.parse_known_args(argv)
        for key in counts:
            if getattr(arguments, key) < 1:
                raise ValueError(f"{key}={getattr(arguments, key)}: must be at least 1")
        return arguments, parse_options(rest)
