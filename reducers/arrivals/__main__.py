"""Names the command that replaces ``python -m reducers.arrivals``."""

import sys

if __name__ == "__main__":
    print(
        "python -m reducers.arrivals: renamed; use python -m experiments.arrivals with the same flags", file=sys.stderr
    )
    sys.exit(2)
