"""Several processes of one run on this machine, and the name of the first that fails."""

import contextlib
import math
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from launch import children

ROOT = Path(__file__).resolve().parent.parent
MAX_PROCESSES = 64
# After one has failed the others notice by themselves, by a broken connection or a missing heartbeat.
SECONDS_TO_NOTICE = 60.0
_LOOK_SECONDS = 0.5
TOLD = (2, 128 + signal.SIGTERM)  # of bad input and of a stop, which the first process tells for all


class Ended(NamedTuple):
    """A process that has ended, and how: its exit status, negative for a signal."""

    process: int
    status: int

    def named(self, num_processes: int) -> str:
        """Which it was, and how it ended.

        >>> Ended(1, -9).named(2), Ended(0, 1).named(2)
        ('process 1 of 2 was killed by SIGKILL', 'process 0 of 2 ended with exit code 1')
        """
        killed = self.status < 0
        how = f"was killed by {signal.Signals(-self.status).name}" if killed else f"ended with exit code {self.status}"
        return f"process {self.process} of {num_processes} {how}"

    @property
    def exit_code(self) -> int:
        """As a shell has it: 128 + n for signal n."""
        return 128 - self.status if self.status < 0 else self.status


def run(command: Sequence[str], *, num_processes: int, seconds_to_notice: float = SECONDS_TO_NOTICE) -> int:
    """Runs a command as several processes that find each other, and waits for all.

    The first process has this one's output. What another prints before it has a log of its own, in the run's folder, is
    kept: its last line is shown if it is the first to fail. SIGINT and SIGTERM are handed on as SIGTERM, at which a run
    saves and stops; the second one kills.

    Args:
      command: of train.py, without the flags that say which process it is.
      num_processes: P.
      seconds_to_notice: after which those are killed that have not ended by themselves when one has failed.

    Returns:
      The exit code of the run: that of the first process to fail, 128 + n where signal n killed it; 0 if none did.
    """
    flags = [f"--coordinator=127.0.0.1:{free_port()}", f"--num_processes={num_processes}"]
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(children.collected_signals())
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(num_processes)]
        processes: list[subprocess.Popen] = []
        stack.callback(_tell, processes, signal.SIGKILL)
        for index in range(num_processes):
            processes.append(
                subprocess.Popen(
                    [*command, *flags, f"--process_id={index}"],
                    cwd=ROOT,
                    stdout=outputs[index] if index else None,
                    stderr=outputs[index] if index else None,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for this process, which hands it on once
                )
            )
        first = _watch(processes, signals, seconds_to_notice=seconds_to_notice)
        if first is None:
            return 0
        if first.exit_code not in TOLD:
            said = children.last_line(outputs[first.process]) if first.status > 0 else ""
            told = f"{first.named(num_processes)}{said and ': '}{said}"
            print(f"{told}; the same command goes on from the last checkpoint", file=sys.stderr)
        return first.exit_code


def _watch(processes: Sequence[subprocess.Popen], signals: list[int], *, seconds_to_notice: float) -> Ended | None:
    """Waits until all have ended, and returns the first that failed."""
    ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
    for index, process in enumerate(processes):  # threads, since the order in which they end is wanted
        wait = threading.Thread(target=lambda i=index, p=process: ended.put(Ended(i, p.wait())), daemon=True)
        wait.start()
    first, deadline, handed_on, left = None, math.inf, 0, len(processes)
    while left:
        with contextlib.suppress(queue.Empty):
            one = ended.get(timeout=_LOOK_SECONDS)
            left -= 1
            if one.status != 0 and first is None:
                first, deadline = one, time.monotonic() + seconds_to_notice
        if len(signals) > handed_on:
            handed_on = len(signals)
            _tell(processes, signal.SIGTERM if handed_on == 1 else signal.SIGKILL)
        if time.monotonic() > deadline:
            _tell(processes, signal.SIGKILL)
    return first


def _tell(processes: Sequence[subprocess.Popen], number: int) -> None:
    for process in processes:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)


def free_port() -> int:
    """A port of this machine that nobody listens on just now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
