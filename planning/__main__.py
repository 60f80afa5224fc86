"""Plans a training before it runs: ``python -m planning COMMAND --help`` lists the options of a command.

python -m planning backups --model=paper_cluster --machines=100 --steps_to_target=power_law:0.85
python -m planning balance --config=configs/mnist.py --flop_per_second=1e12 --bytes_per_second=1.25e9
python -m planning scale out/sweep --machines=64
python -m planning choose out/sweep --target=0.3 --machines=16,32,64
"""

import importlib
import sys
from collections.abc import Sequence

if __name__ == "__main__":  # the imports of a command take seconds
    import launch.command

    launch.command.begin()

from launch.output import say

COMMANDS = {
    "backups": "how many of M machines should be backups, or how long a grace or a deadline should be",
    "balance": "computation and communication of each layer, and the time of a step on more and more nodes",
    "scale": "the seconds of a step on other numbers of machines, fitted to measured ones",
    "choose": "the method and the number of machines with the least time to a target, from finished runs",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments.pop(0) if arguments else ""
    if name in COMMANDS:
        return importlib.import_module(f"planning.{name}").main(arguments)
    lines = [f"  {command:<9} {words}" for command, words in COMMANDS.items()]
    if name in ("", "-h", "--help"):
        say("\n".join(["python -m planning COMMAND --help, where COMMAND is one of", *lines]))
        return 0
    say(f"planning: {name!r}: must be one of {', '.join(COMMANDS)}", error=True)
    return 2


if __name__ == "__main__":
    sys.exit(main())
