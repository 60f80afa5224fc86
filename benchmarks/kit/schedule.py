"""Compiles contenders of one device side by side, then times each alone, within a time limit."""

import concurrent.futures
import contextlib
import functools
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.kit import command, taking_turns
from benchmarks.kit.contenders import Contender, Part, Taken, details, missing
from benchmarks.kit.result import Measured
from launch.children import with_repository

_COMPILING = 0.6  # the share of the remaining seconds for compiling; programs that take longer are left out


class Limit(NamedTuple):
    """The time at which processes are killed and no more are started.

    Attributes:
      words: a sentence for contenders that are not measured because of it.
      end: the time on the clock ``time.monotonic``.
    """

    words: str
    end: float

    @classmethod
    def of(cls, seconds: float, *, what: str = "") -> "Limit":
        """Returns a limit that begins now."""
        return cls(f"the limit of {seconds:.3g} s{what} was reached", time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """The remaining seconds; 0 after the end."""
        return max(0.0, self.end - time.monotonic())

    def reason(self, error: Exception) -> str:
        """Returns why a contender was not measured: the limit, or else the last words of its process."""
        return str(error).rpartition("and said: ")[2] if self.left else self.words


class Bench:
    """Compiles and times contenders.

    Args:
      repeats: the number of counted rounds.
      limit_seconds: the limit for the whole run.
      folder: an empty folder for compiled programs.
      log: called with lines of progress.
    """

    def __init__(self, *, repeats: int, limit_seconds: float, folder: Path, log: command.Log):
        self._repeats, self._limit, self._log = repeats, Limit.of(limit_seconds), log
        self._compile_seconds: dict[str, float] = {}  # by line
        self._not_compiled: dict[str, str] = {}  # by line: why
        self._environment = {
            **with_repository(os.environ),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # processes share the memory, and never give it back
            **taking_turns.keeping_programs(folder / "jax"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }

    def _started(self, contender: Contender, limit: Limit) -> taking_turns.Child:
        if contender.packages:
            command = ["benchmarks.twins.training", *contender.line.split()]
        else:
            command = ["benchmarks.kit.process_groups", "localhost:1", "1", "0", "1"]  # one process, one device
        return taking_turns.Child("-m", *command, environment=self._environment, limit_seconds=limit.left)

    def compile(self, contenders: Sequence[Contender]) -> None:
        """Compiles contenders side by side, each once, into the folder of programs.

        Compiling may take three fifths of the remaining time; a program that takes longer is not measured.
        """
        lines = {}
        for one in contenders:
            is_compiled = not one.packages or "--compile" in one.line.split()  # PyTorch's are only with torch.compile
            if is_compiled and not missing(one):
                lines[one.line] = one
        compile_limit = Limit.of(_COMPILING * self._limit.left, what=" for compiling")

        def compile_one(contender: Contender) -> None:
            try:
                with self._started(contender, compile_limit) as child:
                    seconds = child(f"compile {contender.line}")
            except RuntimeError as error:
                reason = (compile_limit if self._limit.left else self._limit).reason(error)
                self._not_compiled[contender.line] = reason
                self._log(f"not compiled: {contender.name}: {reason}")
                return
            self._compile_seconds[contender.line] = seconds
            self._log(f"compiled in {seconds:.0f} s: {contender.name}")

        self._log(f"compiling {len(lines)} programs side by side")
        with concurrent.futures.ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as threads:
            list(threads.map(compile_one, lines.values()))

    def turns(self, name: str, part: Part) -> list[Measured]:
        """Starts the contenders of a part, lets them take turns, and returns the part's rows.

        First steps run one after another, because JAX allocates memory in powers of two while enough is free.
        """
        taken: dict[str, Taken] = {}
        reasons: dict[str, str] = {}
        children: dict[str, taking_turns.Child] = {}
        with contextlib.ExitStack() as stack:
            for contender in part.contenders:
                key = contender.name
                try:
                    reason = missing(contender) or self._not_compiled.get(contender.line, "")
                    if reason or not self._limit.left:
                        raise RuntimeError(reason)
                    child = stack.enter_context(self._started(contender, self._limit))
                    child(contender.line)
                    children[key] = child
                except RuntimeError as error:
                    reasons[key] = self._limit.reason(error)
                    self._log(f"{name}: {key} is not measured: {reasons[key]}")
            chosen = {one.name: one for one in part.contenders if one.name in children}
            turns = {key: functools.partial(children[key], one.line) for key, one in chosen.items()}
            try:
                seconds = taking_turns.in_turns(
                    turns, repeats=self._repeats, log=lambda line: self._log(f"{name}: {line}")
                )
                for key, one in chosen.items():
                    peak_bytes = children[key](f"peak {one.line}")
                    compile_seconds = self._compile_seconds.get(one.line, math.nan)
                    taken[key] = Taken(one, seconds[key], peak_bytes, compile_seconds)
            except RuntimeError as error:
                reasons |= {key: self._limit.reason(error) for key in chosen if key not in taken}
        rows = self._rows(part, taken, reasons=reasons)
        for measured in taken.values():
            rows += details(name, measured, examples=part.examples)
        return rows

    def _rows(self, part: Part, taken: Mapping[str, Taken], *, reasons: Mapping[str, str]) -> list[Measured]:
        found = []
        for row in part.rows:
            absent = [f"{key}: {reasons[key]}" for key in row.contenders if key not in taken]
            values: Sequence[float] = []
            if not absent:
                values = row.values(*(taken[key] for key in row.contenders))
                if not np.isfinite(values).all():
                    values, absent = [], ["the device does not say"]
            found.append(Measured(row.name, values, row.unit, row.target, missing="; ".join(absent)))
        return found
