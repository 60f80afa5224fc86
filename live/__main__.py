"""Trains with workers that are processes: a step ends when enough workers for the reducer have arrived.

    python -m live --config=configs/digits.py --config.reducer.name=backup_workers --config.reducer.num_required=3 \
        --config.num_workers=4 --config.arrivals.name=constant --delays=shifted_exponential

It is ``train.py --live``, and takes its flags.
"""

import os
import sys
from collections.abc import Sequence

from launch.children import ROOT


def command(arguments: Sequence[str]) -> list[str]:
    """Returns the command that this one becomes."""
    return [sys.executable, str(ROOT / "train.py"), "--live", *arguments]


if __name__ == "__main__":
    os.execv(sys.executable, command(sys.argv[1:]))
