"""Compiles contenders of one device side by side, and times them alone, until a limit."""

import concurrent.futures
import contextlib
import functools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
      profile: the folder for traces of contenders that miss their targets, or None.
    """

    def __init__(self, *, repeats: int, clock: Clock, folder: Path, log: command.Log, profile: Path | None):
        self._repeats, self._clock, self._log, self._profile = repeats, clock, log, profile
        self._compile_seconds: dict[str, float] = {}  # by line
        self._not_compiled: dict[str, str] = {}  # by line: why
        self._environment = {
            **with_repository(os.environ),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # processes share the memory, which they never give back
            **taking_turns.keeping_programs(folder / "jax"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }

    # ---- processes ----

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

    # ---- phases ----

    def compile(self, contenders: Sequence[Contender], *, beside: Sequence[Callable[[], Any]] = ()) -> None:
        """Compiles contenders side by side, each once and the largest first, into the folder of programs.

        Three fifths of the time that is left are for compiling; a program that takes longer is not measured.

        Args:
          contenders: those to compile.
          beside: other work to do meanwhile.
        """
        largest = sorted(contenders, key=lambda c: -c.share)
        lines = {c.line: c for c in largest if c.is_compiled and not missing(c)}

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

        if not lines and not beside:
            return
        self._log(f"compiling {len(lines)} programs side by side")
        with (
            Clock(_COMPILING * self._clock.left, of=" for compiling") as clock,
            concurrent.futures.ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as threads,
        ):
            done = [threads.submit(compile_one, contender, clock) for contender in lines.values()]
            done += [threads.submit(work) for work in beside]
        for one in done:
            one.result()

    def turns(self, parts: Mapping[str, Part]) -> Iterator[list[Measured]]:
        """Starts the contenders of some parts side by side, and yields the rows of each part, timed alone.

        Programs are loaded side by side. First steps, for which JAX takes memory in powers of two as long as there is
        enough, are taken one after another.

        Args:
          parts: parts whose contenders fit into the memory together.
        """
        with contextlib.ExitStack() as stack:
            children: dict[tuple[str, str], taking_turns.Child] = {}
            reasons: dict[tuple[str, str], str] = {}
            keyed = {(name, c.name): c for name, part in parts.items() for c in part.contenders}
            for key, contender in keyed.items():
                if reason := missing(contender) or self._not_compiled.get(contender.line):
                    reasons[key] = reason
                else:
                    children[key] = stack.enter_context(self._started(contender, self._clock))

            def begin(key: tuple[str, str], verb: str) -> None:
                try:
                    if key not in reasons:
                        self._ask(children[key], keyed[key], verb)
                except RuntimeError as error:
                    reasons[key] = self._clock.reason(error)
                    self._log(f"not started: {', '.join(key)}: {reasons[key]}")

            self._log(f"starting {len(children)} contenders of {', '.join(parts)}")
            with concurrent.futures.ThreadPoolExecutor(max(1, len(children))) as threads:
                list(threads.map(functools.partial(begin, verb="compile"), children))
            for key in sorted(children, key=lambda key: -keyed[key].share):  # the largest take their memory first
                begin(key, "")
            for name, part in parts.items():
                ready = {c.name: children[name, c.name] for c in part.contenders if (name, c.name) not in reasons}
                of_part = {c.name: reasons[name, c.name] for c in part.contenders if (name, c.name) in reasons}
                yield self._turns_of(name, part, ready, reasons=of_part)

    def _turns_of(
        self, name: str, part: Part, children: Mapping[str, taking_turns.Child], *, reasons: dict[str, str]
    ) -> list[Measured]:
        chosen = {c.name: c for c in part.contenders if c.name in children}
        turns: dict[str, taking_turns.Turn] = {
            key: functools.partial(self._ask, children[key], contender) for key, contender in chosen.items()
        }
        taken: dict[str, Taken] = {}
        try:
            seconds = taking_turns.in_turns(turns, repeats=self._repeats, log=lambda line: self._log(f"{name}: {line}"))
            for key, contender in chosen.items():
                compile_seconds = self._compile_seconds.get(contender.line, math.nan)
                peak_bytes = self._ask(children[key], contender, "peak")
                taken[key] = Taken(contender, seconds[key], peak_bytes, compile_seconds)
        except RuntimeError as error:
            reasons |= {key: self._clock.reason(error) for key in chosen if key not in taken}
        rows = self._rows(part, taken, reasons=reasons)
        self._trace_missed(name, part, rows, children)
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

    def _trace_missed(
        self, name: str, part: Part, found: Sequence[Measured], children: Mapping[str, taking_turns.Child]
    ) -> None:
        """Traces the first contender of each row that misses its target, if it is one of ours."""
        first = {row.name: row.contenders[0] for row in part.rows}
        contenders = {c.name: c for c in part.contenders if not c.packages}
        if self._profile is None:
            return
        for key in dict.fromkeys(first[one.name] for one in found if one.verdict == "missed"):
            if key in contenders and key in children:
                folder = self._profile / re.sub(r"\W+", "-", f"{name} {key}")
                try:
                    self._ask(children[key], contenders[key], f"trace {folder}")
                    self._log(f"traced {key} into {folder}")
                except RuntimeError as error:
                    self._log(f"not traced: {key}: {self._clock.reason(error)}")
