"""Starts one run as several processes on this machine.

    python -m launch --processes=2 --config=configs/digits.py --num_devices=2

All flags but ``--processes`` are passed to train.py.
"""

import argparse
import sys
from collections.abc import Sequence

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

from launch import local
from launch.children import ROOT


def main(argv: Sequence[str] | None = None) -> int:
    """Starts the processes that the command line asks for, and returns the exit code of the run."""
    parser = argparse.ArgumentParser(prog="python -m launch", usage=__doc__, allow_abbrev=False)
    parser.add_argument("--processes", nargs="?", const="", default="2")
    arguments, rest = parser.parse_known_args(argv)
    if arguments.processes not in map(str, range(1, local.MAX_PROCESSES + 1)):
        print(f"processes={arguments.processes!r}: must be in [1, {local.MAX_PROCESSES}]", file=sys.stderr)
        return 2
    command = [sys.executable, str(ROOT / "train.py"), *rest]
    return local.run(command, num_processes=int(arguments.processes))


if __name__ == "__main__":
    sys.exit(main())
