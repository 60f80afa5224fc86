"""Child processes that receive this process's signals and do not outlive it; the last line of an output."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO

from launch import signals

ROOT = Path(__file__).resolve().parent.parent
TAIL_BYTES = 1 << 16  # size of an output's end in which its last line is searched
POLL_SECONDS = 0.2


class Children:
    """Starts commands as child processes, forwards signals to them, and kills those that still run at the block's end.

    Within the ``with`` block, the signals of ``signals.STOPS`` are collected instead of ending this process. Each child
    leads a process group, which the terminal's Ctrl-C does not reach, so that a child gets a signal once: from
    ``forward_signals``.

    A process that is killed by SIGKILL forwards nothing. So each child holds the reading end of a pipe whose only
    writing end this process has: the pipe ends with this process, and a child that called ``command.begin`` then stops
    as by SIGTERM. Linux's parent-death signal would do the same, but only on Linux, and already when the thread that
    started the child ends.

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
        with contextlib.ExitStack() as stack:
            self._pipe, theirs = os.pipe()
            stack.callback(os.close, self._pipe)
            stack.callback(os.close, theirs)
            stack.enter_context(signals.handled(self.signals.append))
            stack.callback(self._end)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        self.kill()
        for process in self._processes:
            process.wait()

    def start(
        self,
        command: Sequence[str],
        *,
        output: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
        cores: Collection[int] = (),
        keep: Collection[int] = (),
    ) -> subprocess.Popen:
        """Starts a command in this process's folder.

        Args:
          command: the program and its arguments.
          output: the file that receives standard output and standard error; None shares those of this process.
          environment: the child's environment variables; None gives it those of this process.
          cores: the CPU cores that the child may use; an empty collection allows all cores of this process.
          keep: descriptors of open files that the child inherits, such as a lock's.

        Returns:
          The process; the caller waits for it.
        """
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**(os.environ if environment is None else environment), **signals.parent_variable(self._pipe)},
            pass_fds=[self._pipe, *keep],
        )
        self._processes.append(process)
        if cores:
            with contextlib.suppress(OSError):  # the process may have ended
                os.sched_setaffinity(process.pid, cores)  # before it has threads, which inherit the setting
        return process

    def wait(self, process: subprocess.Popen) -> int:
        """Waits for a child, and forwards signals meanwhile; returns its exit code, or -n after signal n."""
        while process.poll() is None:
            self.forward_signals()
            time.sleep(POLL_SECONDS)
        return process.returncode

    def forward_signals(self) -> None:
        """Sends SIGTERM to all children after the first signal; kills them at a later one.

        A repeated SIGHUP, from a terminal that closes, or SIGUSR1, from a scheduler, does not count as a later one.
        """
        new = self.signals[self._num_forwarded :]
        is_first = self._num_forwarded == 0
        self._num_forwarded += len(new)
        if new and is_first:
            self.terminate()
        elif any(number not in signals.WARNINGS for number in new):
            self.kill()

    def terminate(self, *processes: subprocess.Popen) -> None:
        """Sends SIGTERM to these children, or to all of them, if they are running."""
        self._send(signal.SIGTERM, processes or self._processes)

    def kill(self) -> None:
        """Kills the running children, with all processes of their groups."""
        self._send(signal.SIGKILL, self._processes)

    def _send(self, number: int, processes: Sequence[subprocess.Popen]) -> None:
        for process in processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)


def with_repository(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which a child finds the modules of this repository from any folder.

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
