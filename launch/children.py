"""Child processes that receive this process's signals and do not outlive it, and the last line that one printed."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
TAIL_BYTES = 1 << 16  # how much of an output's end is searched for its last line


class Children:
    """Starts commands as child processes, forwards signals to them, and kills those that run when the block ends.

    Within the ``with`` block, SIGINT and SIGTERM are collected instead of ending this process. Each child leads a
    process group, which the terminal's Ctrl-C does not reach, so that a child hears of a signal once: from
    ``forward_signals``. Children of a process that was killed by SIGKILL run on.

    Attributes:
      signals: the signals received so far, oldest first.

    >>> with Children() as children:
    ...     process = children.start(["sleep", "60"])
    ...     signal.raise_signal(signal.SIGINT)
    ...     children.forward_signals()  # as SIGTERM
    ...     process.wait() == -signal.SIGTERM
    True
    """

    def __init__(self) -> None:
        self.signals: list[int] = []
        self._num_forwarded = 0
        self._processes: list[subprocess.Popen] = []

    def __enter__(self) -> "Children":
        self._handlers = {n: signal.signal(n, self._collect) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        for process in self._processes:
            process.wait()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def start(
        self,
        command: Sequence[str],
        *,
        output: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
        cores: Collection[int] = (),
    ) -> subprocess.Popen:
        """Starts a command in this process's folder.

        Args:
          command: the program and its arguments.
          output: the file that receives standard output and standard error; None shares those of this process.
          environment: the child's environment variables; None gives it those of this process.
          cores: the CPU cores that it may use; none given leaves it all cores of this process.

        Returns:
          The process; the caller waits for it.
        """
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment,
        )
        self._processes.append(process)
        if cores:
            with contextlib.suppress(OSError):  # the process may have ended
                os.sched_setaffinity(process.pid, cores)  # before it has threads, which inherit the setting
        return process

    def forward_signals(self) -> None:
        """Sends SIGTERM to all children if a first signal was received since the last call; kills them at a second."""
        if len(self.signals) > self._num_forwarded:
            self._num_forwarded = len(self.signals)
            self._send(signal.SIGTERM if self._num_forwarded == 1 else signal.SIGKILL)

    def kill(self) -> None:
        """Kills the children that run, with all processes of their groups."""
        self._send(signal.SIGKILL)

    def _collect(self, number: int, frame: object) -> None:
        self.signals.append(number)

    def _send(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)


def with_repository(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a child that finds the modules of this repository, in whatever folder it runs.

    >>> with_repository({"PYTHONPATH": "/mine"})["PYTHONPATH"]
    '...:/mine'
    """
    paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


def last_line(output: IO[bytes]) -> str:
    r"""Returns the last line that is not blank, or "" if there is none.

    >>> import io
    >>> last_line(io.BytesIO(b"one\ntwo \n\n"))
    'two'
    """
    output.seek(max(0, output.seek(0, os.SEEK_END) - TAIL_BYTES))
    lines = output.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
