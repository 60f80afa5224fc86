"""Processes that decode: started when they are needed, shared out small requests, ended at once or by themselves."""

import collections
import contextlib
import multiprocessing.connection
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent  # where the package ``data`` is
REQUESTS_AHEAD = 2  # of one process: the next is there when it has sent an answer
LOOK_SECONDS = 0.5  # how often a wait for answers looks whether it is to end
PATIENCE_SECONDS = 1.0  # for the exit code of a process that answers no more


class Request(NamedTuple):
    """Crops that are asked for, and where they go."""

    tasks: list[tuple[int, int, int]]  # record, batch_index, position
    place: np.ndarray  # [n, S, S, 3] uint8, contiguous
    take: Callable[[Mapping[str, Any]], None]  # given the answer, before the crops; raises if they do not follow


class _Process(NamedTuple):
    child: subprocess.Popen
    link: socket.socket
    under_way: collections.deque[Request]


class Processes:
    """A number of decoding processes, each at the end of a socket of its own.

    A process ends when its socket does, so none outlives this one, whatever ended it. Each is a fresh interpreter that
    imports NumPy and Pillow: not forked, because JAX has threads, and not ``multiprocessing``'s spawn, which imports
    the main module and with it JAX.
    """

    def __init__(self, job: Mapping[str, Any], *, count: int):
        """Starts nothing.

        Args:
          job: the fields of ``data.decoding.process.Job``.
          count: of processes, at least 1.
        """
        self._job, self._count = dict(job), count
        self._running: list[_Process] = []
        self._lock, self._closing = threading.Lock(), threading.Event()

    def run(self, requests: Iterable[Request]) -> None:
        """Has all requests answered, in no particular order. One call at a time: others wait.

        Raises:
          RuntimeError: if a process has died, or ``close`` was called meanwhile.
          Exception: what ``take`` raises.
        """
        waiting = collections.deque(requests)
        with self._lock:
            try:
                self._run(waiting)
            except (EOFError, ConnectionError):
                raise RuntimeError(self._why_one_ended()) from None
            except BaseException:
                self._end()  # answers to other requests are still to come
                raise

    def _run(self, waiting: collections.deque[Request]) -> None:
        from data.decoding import process as protocol

        def ask(process: _Process) -> None:
            if waiting:
                process.under_way.append(waiting.popleft())
                protocol.send(process.link, process.under_way[-1].tasks)

        if not self._running:
            self._start()
        by_link: dict[Any, _Process] = {process.link: process for process in self._running}
        for _ in range(REQUESTS_AHEAD):
            for process in self._running:
                ask(process)
        while any(process.under_way for process in self._running):
            if self._closing.is_set():
                raise RuntimeError("these examples are closed")
            for link in multiprocessing.connection.wait(list(by_link), LOOK_SECONDS):
                process = by_link[link]
                answer = protocol.receive(process.link)
                request = process.under_way.popleft()
                request.take(answer)
                protocol.receive_into(process.link, request.place.reshape(-1).data)
                ask(process)

    def _start(self) -> None:
        from data.decoding import process as protocol

        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OPENBLAS_NUM_THREADS": "1"}
        for _ in range(self._count):
            ours, theirs = socket.socketpair()
            with theirs:
                child = subprocess.Popen(
                    [sys.executable, "-P", "-m", "data.decoding.process", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=environment,
                    process_group=0,  # the terminal's Ctrl-C does not reach it, not even before it can ignore one
                )
            self._running.append(_Process(child, ours, collections.deque()))
        for process in self._running:  # now that all of them are starting: a long list of files waits for its reader
            protocol.send(process.link, self._job)

    def _why_one_ended(self) -> str:
        closing, deadline = self._closing.is_set(), time.monotonic() + PATIENCE_SECONDS
        while not (codes := [c for c in (p.child.poll() for p in self._running) if c is not None]):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)  # its socket is closed a moment before it has ended
        self._end()
        how = ", ".join(f"signal {-code}" if code < 0 else f"exit code {code}" for code in codes)
        return "these examples are closed" if closing else f"a decoding process has ended ({how or 'no code'})"

    def _end(self) -> None:
        for process in self._running:
            process.link.close()
            process.child.terminate()
        for process in self._running:
            process.child.wait()
        self._running = []

    def close(self) -> None:
        """Ends the processes at once; a ``run`` under way in another thread fails. The next one starts them again."""
        self._closing.set()
        for process in list(self._running):
            process.child.terminate()
        with self._lock:
            self._end()
            self._closing.clear()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be ending
            self._end()


def resolve_processes(processes: int | Literal["auto"]) -> int:
    """Returns how many processes decode: "auto" leaves one of the cores that this process may use to the program.

    Raises:
      ValueError: if it is neither "auto" nor a count.

    >>> resolve_processes(2), resolve_processes("auto") >= 1
    (2, True)
    """
    if processes == "auto":
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, usable - 1)
    if not isinstance(processes, int) or isinstance(processes, bool) or not 0 <= processes <= 1024:
        raise ValueError(f"data.processes={processes!r}: must be auto, or a count in [0, 1024]")
    return processes
