"""Times contenders in turns, so that a slow phase of the machine slows all of them."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Turn = Callable[[], float]  # runs a contender's part of a round; returns its seconds


def in_turns(
    contenders: Mapping[str, Turn], *, repeats: int, log: Callable[[str], Any] = lambda line: None
) -> dict[str, list[float]]:
    """Returns the seconds of each contender in each round; the first round warms up and is not counted.

    Every other round is in reverse order, so that no contender always follows the same one.

    >>> in_turns({"a": lambda: 1.0, "b": lambda: 2.0}, repeats=2)
    {'a': [1.0, 1.0], 'b': [2.0, 2.0]}
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(repeats + 1):
        log(f"round {number} of {repeats}")
        for name in list(contenders)[:: -1 if number % 2 else 1]:
            taken = contenders[name]()
            if number:
                seconds[name].append(taken)
    return seconds


def timed(work: Callable[[], Any]) -> float:
    """Returns the seconds that a call takes.

    >>> timed(lambda: None) >= 0
    True
    """
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ratios(seconds: Mapping[str, Sequence[float]], above: str, below: str) -> list[float]:
    """Returns the time of one contender over that of another, round by round.

    >>> ratios({"a": [1.0, 3.0], "b": [2.0, 2.0]}, "a", "b")
    [0.5, 1.5]
    """
    return [a / b for a, b in zip(seconds[above], seconds[below], strict=True)]


def keeping_programs(folder: Path) -> dict[str, str]:
    """Returns environment variables for JAX to cache all compiled programs in a folder.

    >>> keeping_programs(Path("out"))["JAX_COMPILATION_CACHE_DIR"]
    'out'
    """
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


class Child:
    """A contender in a process of its own, which runs ``serve``: for other libraries or another number of devices.

    Between turns the process waits for a line of input and computes nothing. If it has several contenders, the line
    names one of them.

    Args:
      *arguments: Python's arguments: "-m", a module, and the module's arguments.
      environment: its environment variables; None for those of this process.
      limit_seconds: the seconds from now after which the process is killed.

    Raises:
      RuntimeError: at a turn, if the process has ended; its messages are on standard error.
    """

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        limit_seconds: float = threading.TIMEOUT_MAX,
    ):
        command = [sys.executable, *arguments]
        self._command = " ".join(command)
        self._process: Any = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._limit = threading.Timer(limit_seconds, self._process.kill)
        self._limit.daemon = True
        self._limit.start()

    def __call__(self, contender: str = "go") -> float:
        with contextlib.suppress(BrokenPipeError):
            print(contender, file=self._process.stdin, flush=True)
        said = ""
        for line in self._process.stdout:
            if line.startswith("seconds "):  # libraries may print other lines
                return float(line.split()[1])
            if line.startswith("failed "):
                said = f", and said: {line.removeprefix('failed ').strip()}"
        raise RuntimeError(f"{self._command}: ended with code {self._process.wait()}{said}")

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *exception: object) -> None:
        self._limit.cancel()
        with contextlib.suppress(BrokenPipeError):  # the process ended before it read a line
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(turn: Callable[[str], float]) -> None:
    """Runs ``turn`` for each line of standard input, which may name a contender, until the input ends.

    A turn that fails ends the process; the parent process gets the reason.
    """
    for line in sys.stdin:
        try:
            seconds = turn(line.strip())
        except Exception as error:
            print(f"failed {type(error).__name__}: {str(error).partition(chr(10))[0]}", flush=True)
            raise
        print(f"seconds {seconds}", flush=True)
