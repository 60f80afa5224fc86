"""How each command of this repository begins, before the imports that take seconds, and how it ends."""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from launch import output, signals


def begin() -> None:
    """Makes output that cannot be written harmless, and a signal end the process in one line.

    A module that is a command calls it above its other imports, and ``run`` at its end if it cleans up at
    KeyboardInterrupt::

        if __name__ == "__main__":
            import launch.command

            launch.command.begin()
    """
    output.never_fail()
    signals.listen()


def run(main: Callable[..., int], /, *arguments: Any, **options: Any) -> NoReturn:
    """Exits with what ``main`` returns, which may catch the KeyboardInterrupt that a signal raises in it."""
    sys.exit(signals.interruptible(lambda: main(*arguments, **options)))
