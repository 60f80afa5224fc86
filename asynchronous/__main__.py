"""Names the command that replaces ``python -m asynchronous``."""

import sys

if __name__ == "__main__":
    print("python -m asynchronous: renamed; use python -m experiments.staleness with the same flags", file=sys.stderr)
    sys.exit(2)
