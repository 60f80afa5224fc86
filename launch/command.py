"""Begins each command of this repository, before the imports that take seconds, and ends it."""

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from launch import compilers, output, signals


def begin() -> None:
    """Makes output that cannot be written harmless, and a signal end the process in one line.

    A module that is a command calls it above its other imports, and ``run`` at its end if it cleans up at
    KeyboardInterrupt::

        if __name__ == "__main__":
            import launch.command

            launch.command.begin()
    """
    several = any(argument.lstrip("-").startswith("num_processes") for argument in sys.argv)
    several |= not {"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}.isdisjoint(os.environ)
    if several and os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":  # 1 is what JAX sets
        # A process that loses the others prints one line, to which JAX's runtime would add pages of C++.
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    # Gloo announces each connection on standard output, before the first line of the run.
    output.never_fail(libraries="hidden" if several else "shown")
    signals.listen()
    compilers.ignore_missing_devices()


def run(main: Callable[..., int], /, *arguments: Any, **options: Any) -> NoReturn:
    """Exits with the code that ``main`` returns; ``main`` may catch the KeyboardInterrupt that a signal raises."""
    sys.exit(signals.interruptible(lambda: main(*arguments, **options)))
