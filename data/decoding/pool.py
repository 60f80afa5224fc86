"""A pool of processes that decode images: started when needed, and never left behind."""

import collections
import dataclasses
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import connection
from typing import Literal, NamedTuple

import numpy as np

from launch.children import with_repository

PROGRAM = "import sys; from data.decoding.process import main; main(int(sys.argv[1]))"
REQUESTS_AHEAD = 2  # per process, so that the next request has arrived when an answer is sent
EXIT_SECONDS = 1.0  # time to wait for the exit code of a process that has closed its socket

Task = tuple[int, int, int]  # record, batch_index, position in the batch


@dataclasses.dataclass(frozen=True)
class Job:
    """The settings of all requests of a pool.

    Attributes:
      files: Path and number of records of each array_record file, in order.
      image_size: Side of a crop, S, in pixels.
      num_classes: Labels are 0 to num_classes - 1.
      mode: "training" for random-resized crops, mirrored with probability 1/2; "evaluation" for centre crops.
      seed: Seed of the random crops, 0 to 2**64 - 1.
      on_damage: "stop" at a record that cannot be decoded, or "skip" it and take the next record of the range.
      records: The range [start, stop) of records that may be used.
    """

    files: Sequence[tuple[str, int]]
    image_size: int
    num_classes: int
    mode: Literal["training", "evaluation"]
    seed: int
    on_damage: Literal["stop", "skip"]
    records: tuple[int, int]


@dataclasses.dataclass
class Answer:
    """The result of one request.

    Attributes:
      labels: Label of each crop; incomplete if the request failed.
      damaged: Record -> why it cannot be decoded.
      stopped_at: The damaged record at which the request failed, if it did.
      error: Why a file cannot be read, if the request failed because of it.
    """

    labels: list[int] = dataclasses.field(default_factory=list)
    damaged: dict[int, str] = dataclasses.field(default_factory=dict)
    stopped_at: int | None = None
    error: str = ""

    @property
    def complete(self) -> bool:
        """Whether all crops were made."""
        return self.stopped_at is None and not self.error


class Request(NamedTuple):
    """Crops to make, and where to put them and their labels."""

    tasks: list[Task]
    images: np.ndarray  # [n, S, S, 3] uint8, contiguous
    labels: np.ndarray  # [n] int32


class _Process(NamedTuple):
    child: subprocess.Popen
    link: connection.Connection
    pending: collections.deque[Request]


class Pool:
    """Decoding processes, each a fresh interpreter at the other end of its own socket.

    A process ends when its socket is closed, so none survives this program, however it ends. It imports NumPy and
    Pillow only, and Ctrl-C in the terminal does not reach it.

    ``concurrent.futures.ProcessPoolExecutor`` gives neither: with "spawn" and "forkserver" its processes import the
    main module, and JAX with it, and they survive a program that was killed. "fork" is unsafe beside JAX's threads.
    """

    def __init__(self, job: Job, *, count: int):
        """Starts nothing yet.

        Args:
          job: The settings of all requests.
          count: Number of processes, at least 1.
        """
        self._job, self._count = job, count
        self._running: list[_Process] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def run(self, requests: Iterable[Request], *, check: Callable[[Answer], None]) -> None:
        """Has all requests answered, in any order. A second call waits until the first one returns.

        Args:
          requests: Lists of records to decode.
          check: Called with each answer; must raise an exception if the answer is not complete.

        Raises:
          RuntimeError: If a process died, or ``close`` was called meanwhile.
          Exception: Whatever ``check`` raises.
        """
        with self._lock:
            try:
                self._run(collections.deque(requests), check)
            except (EOFError, ConnectionError):
                reason = self._why_one_ended()
                self._end()
                raise RuntimeError(reason) from None
            except BaseException:
                self._end()  # answers to other requests are still to come
                raise

    def _run(self, waiting: collections.deque[Request], check: Callable[[Answer], None]) -> None:
        def ask(process: _Process) -> None:
            if waiting:
                process.pending.append(waiting.popleft())
                process.link.send(process.pending[-1].tasks)

        if not self._running:
            self._start()
        by_link = {process.link: process for process in self._running}
        for _ in range(REQUESTS_AHEAD):
            for process in self._running:
                ask(process)
        while any(process.pending for process in self._running):
            for link in connection.wait(list(by_link)):
                if self._closing.is_set():
                    raise RuntimeError("these examples are closed")
                process = by_link[link]  # type: ignore[index]
                answer = process.link.recv()
                request = process.pending.popleft()
                check(answer)
                request.labels[:] = answer.labels
                receive_into(link.fileno(), request.images.reshape(-1).data)  # type: ignore[union-attr]
                ask(process)

    def _start(self) -> None:
        environment = {**with_repository(os.environ), "OPENBLAS_NUM_THREADS": "1"}
        for _ in range(self._count):
            ours, theirs = multiprocessing.Pipe()
            with theirs:
                child = subprocess.Popen(
                    [sys.executable, "-P", "-c", PROGRAM, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=environment,
                    process_group=0,  # the terminal's Ctrl-C does not reach it, not even while it starts
                )
            self._running.append(_Process(child, ours, collections.deque()))
        # Only once all are starting: sending a long list of files waits until the process reads it.
        for process in self._running:
            process.link.send(self._job)

    def _why_one_ended(self) -> str:
        if self._closing.is_set():
            return "these examples are closed"
        deadline = time.monotonic() + EXIT_SECONDS
        codes: list[int] = []
        while not codes and time.monotonic() < deadline:  # a socket is closed shortly before its process has ended
            time.sleep(0.01)
            codes = [code for process in self._running if (code := process.child.poll()) is not None]
        how = ", ".join(f"signal {-code}" if code < 0 else f"exit code {code}" for code in codes)
        return f"a decoding process has ended ({how or 'no exit code'})"

    def _end(self) -> None:
        for process in self._running:
            process.link.close()
            process.child.terminate()
        for process in self._running:
            process.child.wait()
        self._running = []

    def close(self) -> None:
        """Ends the processes at once; a ``run`` in another thread fails. The next ``run`` starts them again."""
        self._closing.set()
        for process in list(self._running):
            process.child.terminate()
        with self._lock:
            self._end()
            self._closing.clear()


def send(descriptor: int, content: memoryview) -> None:
    """Writes the whole content. With ``Connection.send_bytes`` the reader would copy it three times."""
    while content:
        content = content[os.write(descriptor, content) :]


def receive_into(descriptor: int, place: memoryview) -> None:
    """Fills the place with what ``send`` wrote.

    Raises:
      EOFError: If the other side has ended.
    """
    while place:
        count = os.readv(descriptor, [place])
        if not count:
            raise EOFError
        place = place[count:]


def default_processes() -> int:
    """Returns the default number of decoding processes, which leaves one of the usable cores to the program."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable - 1)
