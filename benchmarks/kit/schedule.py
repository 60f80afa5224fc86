"""Compiles contenders of one device side by side, and times them alone, until a limit."""

import concurrent.futures
import contextlib
import functools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.kit import command, taking_turns
from benchmarks.kit.contenders import Contender, Part, Taken, details, missing
from benchmarks.kit.result import Measured
from benchmarks.kit.time_limit import Clock
from launch.children import with_repository

_COMPILING = 0.6  # of the seconds that are left: programs that take longer are left out


class Bench:
    """Compiles and times contenders, and keeps the results.

    Args:
      repeats: the number of counted rounds.
      clock: the limit of the run.
      folder: an empty folder for compiled programs.
      log: called with lines of progress.
    """

    def __init__(self, *, repeats: int, clock: Clock, folder: Path, log: command.Log):
        self._repeats, self._clock, self._log = repeats, clock, log
        self._compile_seconds: dict[str, float] = {}  # by line
        self._not_compiled: dict[str, str] = {}  # by line: why
        self._environment = {
            **with_repository(os.environ),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # processes share the memory, which they never give back
            **taking_turns.keeping_programs(folder / "jax"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }

    def _started(self, contender: Contender, clock: Clock) -> contextlib.AbstractContextManager[taking_turns.Child]:
        if contender.packages:
            module, arguments = "benchmarks.twins.training", contender.line.split()
        else:
            module, arguments = (
                "benchmarks.kit.process_groups",
                ["localhost:1", "1", "0", "1"],
            )  # one process, one device
        return clock.watch(taking_turns.Child.module(module, *arguments, environment=self._environment))

    def _ask(self, child: taking_turns.Child, contender: Contender, verb: str = "") -> float:
        """Asks a contender's process for a turn, or for what a verb names."""
        if verb == "peak" or contender.packages:  # PyTorch's processes have one contender each
            return child(verb or "go")
        return child(f"{verb} {contender.line}".strip())

    def compile(self, contenders: Sequence[Contender]) -> None:
        """Compiles contenders side by side, each once, into the folder of programs.

        Three fifths of the time that is left are for compiling; a program that takes longer is not measured.
        """
        lines = {c.line: c for c in contenders if c.is_compiled and not missing(c)}

        def compile_one(contender: Contender, clock: Clock) -> None:
            try:
                with self._started(contender, clock) as child:
                    seconds = self._ask(child, contender, "compile")
            except RuntimeError as error:
                ended = clock if self._clock.left > 0 else self._clock
                self._not_compiled[contender.line] = ended.reason(error)
                self._log(f"not compiled: {contender.name}: {self._not_compiled[contender.line]}")
                return
            self._compile_seconds[contender.line] = seconds
            self._log(f"compiled in {seconds:.0f} s: {contender.name}")

        self._log(f"compiling {len(lines)} programs side by side")
        with (
            Clock(_COMPILING * self._clock.left, of=" for compiling") as clock,
            concurrent.futures.ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as threads,
        ):
            for done in [threads.submit(compile_one, contender, clock) for contender in lines.values()]:
                done.result()

    def turns(self, name: str, part: Part) -> list[Measured]:
        """Starts the contenders of a part, lets them take turns, and returns the part's rows.

        First steps are taken one after another, because JAX takes memory in powers of two as long as there is enough.
        """
        taken: dict[str, Taken] = {}
        reasons: dict[str, str] = {}
        with contextlib.ExitStack() as stack:
            turns: dict[str, taking_turns.Turn] = {}
            children: dict[str, taking_turns.Child] = {}
            for contender in part.contenders:
                key, reason = contender.name, missing(contender) or self._not_compiled.get(contender.line, "")
                if self._clock.left <= 0:
                    reason = self._clock.reason()
                try:
                    if not reason:
                        children[key] = stack.enter_context(self._started(contender, self._clock))
                        turns[key] = functools.partial(self._ask, children[key], contender)
                        turns[key]()
                except RuntimeError as error:
                    del turns[key]
                    reason = self._clock.reason(error)
                if reason:
                    reasons[key] = reason
                    self._log(f"{name}: {key} is not measured: {reason}")
            chosen = {c.name: c for c in part.contenders if c.name in turns}
            try:
                log = lambda line: self._log(f"{name}: {line}")  # noqa: E731
                seconds = taking_turns.in_turns(turns, repeats=self._repeats, log=log)
                for key, contender in chosen.items():
                    compile_seconds = self._compile_seconds.get(contender.line, math.nan)
                    peak_bytes = self._ask(children[key], contender, "peak")
                    taken[key] = Taken(contender, seconds[key], peak_bytes, compile_seconds)
            except RuntimeError as error:
                reasons |= {key: self._clock.reason(error) for key in chosen if key not in taken}
        rows = self._rows(part, taken, reasons=reasons)
        return [*rows, *(row for one in taken.values() for row in details(name, one, examples=part.examples))]

    def _rows(self, part: Part, taken: Mapping[str, Taken], *, reasons: Mapping[str, str]) -> list[Measured]:
        found = []
        for row in part.rows:
            absent = [f"{key}: {reasons[key]}" for key in row.contenders if key not in taken]
            values = [] if absent else [float(x) for x in row.values(*(taken[key] for key in row.contenders))]
            if not absent and not np.isfinite(values).all():
                absent, values = ["the device does not say"], []
            found.append(Measured(row.name, values, row.unit, row.target, missing="; ".join(absent)))
        return found
