"""Cleans up after a live run that ended or was killed: ends the processes of its Ray, and removes their folder.

It is a separate program that needs only Python: it outlives a server that is killed, or that Ray ends because one of
Ray's processes died. It reads standard input until the server, which holds the other end, closes it or is gone.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import sys

LAST_WORD = b"ended"  # sent by a server that ends its run itself


def main(folder: str) -> None:
    """Waits for the end of the server, kills the processes that have files of the folder open, and removes it."""
    server = os.getppid()
    is_killed = sys.stdin.buffer.read() != LAST_WORD
    for files in pathlib.Path("/proc").glob("[0-9]*/fd"):
        process = int(files.parent.name)
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if process != server and any(os.readlink(file).startswith(f"{folder}/") for file in files.iterdir()):
                os.kill(process, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    if is_killed:
        with contextlib.suppress(OSError):
            print(
                "live: the server ended without saving; the same command goes on where it saved last", file=sys.stderr
            )


if __name__ == "__main__":
    main(sys.argv[1])
