"""Runs train.py as several processes of this machine, and names the first one that fails."""

import contextlib
import math
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from launch import signals
from launch.children import Children, last_line

MAX_PROCESSES = 64
HOST = "127.0.0.1"
# After one process has failed, the others notice by a broken connection or a missing heartbeat.
SECONDS_TO_NOTICE = 60.0
# Then they are asked to stop: a process that is still starting up waits for minutes for one that has failed.
SECONDS_TO_ASK = 5.0
_POLL_SECONDS = 0.5
LOST_THE_OTHERS = (1, -signal.SIGABRT)  # status of a process whose collectives fail, or that misses a heartbeat
REFUSED = 2
# Bad input and a stop; each process prints a line about them.
REPORTED_BY_THE_RUN = (REFUSED, *(128 + number for number in signals.STOPS))


class Exit(NamedTuple):
    """A process that has ended.

    Attributes:
      process: its index.
      status: its exit code, or -n if signal n killed it.
    """

    process: int
    status: int

    def describe(self, *, num_processes: int) -> str:
        """Returns in words which process it was and how it ended.

        >>> Exit(1, -9).describe(num_processes=2), Exit(0, 1).describe(num_processes=2)
        ('process 1 of 2 was killed by SIGKILL', 'process 0 of 2 ended with exit code 1')
        >>> Exit(0, -40).describe(num_processes=2)
        'process 0 of 2 was killed by signal 40'
        """
        how = f"ended with exit code {self.status}"
        if self.status < 0:
            names = {-number: number.name for number in signal.Signals}  # most real-time signals have none
            how = f"was killed by {names.get(self.status, f'signal {-self.status}')}"
        return f"process {self.process} of {num_processes} {how}"

    @property
    def code(self) -> int:
        """The exit code that a shell reports: 128 + n for signal n."""
        return 128 - self.status if self.status < 0 else self.status


def run(command: Sequence[str], *, num_processes: int, seconds_to_notice: float = SECONDS_TO_NOTICE) -> int:
    """Runs a command as several processes that connect to each other, and waits for all of them.

    The first process writes to the output of this one. The output of each other process, before it has a log in the
    run's folder, goes to a temporary file, whose last line is printed if that process is the first to fail. A first
    signal of ``signals.STOPS`` is forwarded as SIGTERM, at which a run saves and stops; a second one kills, unless it
    is one of ``signals.WARNINGS``. When a process has failed, the others get SIGTERM after SECONDS_TO_ASK.

    Args:
      command: a command line of train.py, without the flags of multi-process runs.
      num_processes: P.
      seconds_to_notice: how long the other processes may run on after one has failed, before they are killed.

    Returns:
      The exit code of the first process to fail, 128 + n if signal n killed it; 0 if none failed. A killed process
      counts as first, before those that lost it.
    """
    flags = [f"--coordinator={HOST}:{free_port()}", f"--num_processes={num_processes}"]
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(num_processes)]
        children = stack.enter_context(Children())
        processes = [
            children.start(
                [*command, *flags, f"--process_id={i}"],
                output=outputs[i] if i else None,
                environment=without_proxy(os.environ),
            )
            for i in range(num_processes)
        ]
        first = _wait(processes, children, seconds_to_notice=seconds_to_notice)
        if first is None:
            return 0
        if first.code not in REPORTED_BY_THE_RUN or processes[0].returncode != first.code:
            reason = first.describe(num_processes=num_processes)
            if first.status > 0 and (line := last_line(outputs[first.process])):
                reason += f": {line}"
            if first.code != REFUSED:
                reason += "; the same command goes on from the last checkpoint"
            print(reason, file=sys.stderr)
        return first.code


def _wait(processes: Sequence[subprocess.Popen], children: Children, *, seconds_to_notice: float) -> Exit | None:
    """Waits until all processes have ended, and returns the one that failed first."""
    exits: queue.SimpleQueue[Exit] = queue.SimpleQueue()
    for index, process in enumerate(processes):  # one thread each, to learn the order in which they end
        threading.Thread(target=lambda i=index, p=process: exits.put(Exit(i, p.wait())), daemon=True).start()
    failed: list[Exit] = []  # in order, without those killed below
    ask = deadline = math.inf
    num_running = len(processes)
    while num_running:
        with contextlib.suppress(queue.Empty):
            ended = exits.get(timeout=_POLL_SECONDS)
            num_running -= 1
            if ended.status != 0 and time.monotonic() <= deadline:
                failed.append(ended)
                if deadline == math.inf:
                    ask = time.monotonic() + SECONDS_TO_ASK
                    deadline = time.monotonic() + seconds_to_notice
        children.forward_signals()
        if time.monotonic() > ask:
            ask = math.inf
            children.terminate()
        if time.monotonic() > deadline:
            children.kill()
    if not failed:
        return None
    # Process 0 may lose its connection to a killed process, and end, before the system reports that one's end.
    killed = (ended for ended in failed if ended.status == -signal.SIGKILL)
    return next(killed, failed[0]) if failed[0].status in LOST_THE_OTHERS else failed[0]


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which processes of this machine connect to each other directly, without a proxy.

    >>> without_proxy({"http_proxy": "http://proxy:3128", "no_proxy": "intranet"})["no_proxy"]
    'intranet,127.0.0.1'
    """
    named = environment.get("no_proxy") or environment.get("NO_PROXY")
    exempt = {"no_proxy": named, "NO_PROXY": named}
    if "no_grpc_proxy" in environment:  # for gRPC it overrides the others
        exempt["no_grpc_proxy"] = environment["no_grpc_proxy"]
    named_too = {name: ",".join(filter(None, [hosts, HOST])) for name, hosts in exempt.items()}
    return {**environment, **named_too}


def free_port() -> int:
    """Returns a port of this machine on which no process listens at this moment."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        return free.getsockname()[1]
