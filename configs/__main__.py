"""``python -m configs list`` lists what a config can have.

    python -m configs list                    # the kinds: reducer, optimizer, model, ...
    python -m configs list reducers           # the names of a kind, with a line each
    python -m configs list reducers krum      # the keys of a name: types, ranges, defaults, meanings

All keys of a config are listed by ``python train.py --config=... --helpconfig``.
"""

import argparse
import signal
import sys
from collections.abc import Sequence

from configs import listing


def main(argv: Sequence[str]) -> int:
    """Executes a command line, and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m configs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["list"])
    parser.add_argument("kind", nargs="?", help=f"one of {', '.join(listing.KINDS)}, or its plural")
    parser.add_argument("name", nargs="?", help="a name of this kind")
    given = parser.parse_args(argv[1:])
    try:
        if given.kind is None:
            lines = [f"{kind} ({len(names)})" for kind, names in listing.KINDS.items()]
        elif given.name is None:
            lines = listing.names_of(listing.kind_of(given.kind))
        else:
            lines = listing.keys_of(listing.kind_of(given.kind), given.name)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(*lines, sep="\n")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ends without a traceback if the reader stops, as in `| head`
    sys.exit(main(sys.argv))
