"""The planner of backup workers was here; it is ``python -m planning backups`` now."""

import sys

from launch.output import say

if __name__ == "__main__":
    say("planner: moved to `python -m planning backups`, with the same options", error=True)
    sys.exit(2)
