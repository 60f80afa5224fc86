"""Finishes the runs of an experiment or a sweep; several machines can each finish a share of them."""

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.execution import queue, results
from experiments.execution.measure import command as measure_command
from experiments.execution.queue import Command, Failure, Judge
from experiments.execution.stages import stages
from experiments.study.run import Reduce, Rows, Run, evaluations
from launch.output import say


class Shard(NamedTuple):
    """The share of the runs that one of several machines executes, and how.

    Attributes:
      number, of: which machine this is, of how many; its runs are every n-th one.
      jobs: how many of its runs are active at once.
      until: when the time is up, on the clock of ``time.monotonic``; the runs then save and stop.
    """

    number: int = 1
    of: int = 1
    jobs: int = 1
    until: float = math.inf

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parses "2/4".

        >>> Shard.parse("2/4")[:2]
        (2, 4)
        """
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        number, of = map(int, found.groups()) if found else (0, 0)
        if not 1 <= number <= of:
            raise ValueError(f"shard={text[:40]!r}: must be i/n with 1 <= i <= n")
        return cls(number, of)

    def own(self, runs: Sequence[Run]) -> list[Run]:
        return list(runs[self.number - 1 :: self.of])


WHOLE = Shard()


def finish(
    title: str,
    wanted: Callable[[Rows], Sequence[Run]],
    *,
    root: Path,
    command: Command,
    shard: Shard = WHOLE,
    reduce: Reduce = evaluations,
    rule: Mapping[str, str] | None = None,
    saved: Rows = (),
    judge: Judge = lambda run, folder: None,
) -> list[Failure]:
    """Finishes this shard's runs; those that depend on picks start once the rows to pick from are finished.

    Args:
      title: beginning of the lines on standard error.
      wanted: rows so far -> runs.
      root: folder of the folders of runs.
      command: run, folder -> command line.
      shard: the share of this machine.
      reduce: records of a run -> the measurements in its row.
      rule: the experiment's rule as stated now, for the record of each run.
      saved: rows of runs that another machine has finished.
      judge: run, folder -> why an active run is to be stopped early; None lets it go on.

    Returns:
      The runs that failed.
    """
    failures: list[Failure] = []
    ours: set[str] = set()
    for stage in stages(wanted, lambda runs: results.finished(runs, root=root, reduce=reduce, saved=saved)):
        own = shard.own(stage.new)
        ours |= {run.name for run in own}
        if not stage.new or time.monotonic() >= shard.until:
            break
        failures += queue.execute(
            own,
            root=root,
            command=command,
            jobs=shard.jobs,
            title=title,
            until=shard.until,
            rule=rule,
            saved=saved,
            judge=judge,
        )
    for run, folder, reason in failures:
        say(f"failed: {run.name}: {reason} ({folder / 'output.log'})", error=True)
    unfinished = {run.name for run in results.unfinished(stage.runs, root=root, saved=saved)}
    if len(unfinished & ours) > len(failures):
        counts = f"{len(stage.runs) - len(unfinished)} of {len(stage.runs)} runs are finished"
        say(f"{title}: the time is up; {counts}; the same command goes on", error=True)
    if others := len(unfinished - ours):
        say(f"{title}: {others} runs are for other shards; copy their folders into {root} and repeat", error=True)
    return failures


def command_of(name: str) -> Command:
    """Returns the command of an experiment's runs: train.py, or the experiment's own measurement."""
    return lambda run, folder: queue.train_command(run, folder) if run.spec else measure_command(name, run, folder)
