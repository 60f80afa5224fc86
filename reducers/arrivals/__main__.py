"""Names the command that replaces ``python -m reducers.arrivals``."""

import sys


def main() -> int:
    """Prints the new spelling, and returns the exit code of bad input."""
    print(
        "python -m reducers.arrivals: renamed; use python -m experiments.arrivals with the same flags", file=sys.stderr
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
