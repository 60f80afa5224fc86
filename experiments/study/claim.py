"""A claim of a paper: the runs that test it, and the rule that decides from a frame of the reported runs."""

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import runs as run_folders
from experiments.plots.drawing import Figure
from experiments.study import frames
from experiments.study.frames import Frame, Value
from experiments.study.prose import Prose, beside
from experiments.study.run import Reduce, Rows, Run, Scale, evaluations, evaluations_of, hash_of, repeated, scale_of
from experiments.study.verdict import Verdict, untested
from runs.errors import ConfigError

# A claim's module imports from here all that its declaration needs.
__all__ = ["Figure", "Frame", "Rows", "Run", "Scale", "Value", "beside", "evaluations_of", "repeated"]
KIT, ROOT = Path(__file__).parent, Path(__file__).parents[2]
Facts = dict[str, str | tuple[str, str]]  # quantity -> ours, or ours and the paper's value with its mark


class RowsError(ValueError):
    """Rows lack a value that a claim needs, or have one of another type; the message is one line."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim, and how it is tested. All functions but ``measure`` are pure.

    A frame has at least one run. Others may be missing while runs go on; ``judge`` and ``facts`` see all of them.

    Attributes:
      prose: its number, title, sentence, source, topic, rule and notes: `experiments.study.prose.beside`.
      hours: predicted hours on two cores (or one GPU), for each scale that the claim has.
      runs: (scale, rows so far) -> the runs. Runs that depend on a pick are among them once the rows to pick from are
        finished.
      judge: frame -> the verdict, by the rule of the prose.
      model: the model in words, or frame -> it.
      labels: columns that, besides the seed, tell reported runs apart; the summary has a line for each combination.
      values: head of a column of the summary -> the column of the frame, with its digits and unit.
      draw: frame, an empty figure -> the figure drawn, by one of `experiments.study.figures`.
      paper: value of the labels, a tuple if there are several -> the paper's value with its mark.
      facts: frame -> values that are not means of groups: quantity -> our value, or ours and the paper's with its mark.
      frame: rows -> the frame of the reported runs, with the columns that the claim adds.
      rests_on: frame -> the judged runs, whose smallest number of seeds a verdict states; by default all runs.
      data: the data in words, unless a column "data" names them.
      tuned: how values are picked, if any are, an `experiments.study.tuning.Tuned`, whose file imports this one. The
        report shows the grids; no verdict rests on a pick at an edge.
      measure: a run's ``labels`` -> its row, for runs without a config.
      reduce: records of a run of train.py -> the measurements in its row.
      timings: measured times, and other facts of the machine, among the measurements: a rerun need not repeat them.
      inches: size of the figure.
    """

    prose: Prose
    hours: Mapping[Scale, float]
    runs: Callable[[Scale, Rows], Sequence[Run]]
    judge: Callable[[Frame], Verdict]
    model: str | Callable[[Frame], str]
    labels: Sequence[str]
    values: Mapping[str, Value]
    draw: Callable[[Frame, Figure], Any]
    paper: Mapping[Any, str] = dataclasses.field(default_factory=dict)
    facts: Callable[[Frame], Facts] = lambda df: {}
    frame: Callable[[Rows], Frame] = frames.frame
    rests_on: Callable[[Frame], Frame] = lambda df: df
    data: str = ""
    tuned: Any = None
    measure: Callable[..., dict[str, Any]] | None = None
    reduce: Reduce = evaluations
    timings: Sequence[str] = ()
    inches: tuple[float, float] = (5.0, 3.4)

    def verdict(self, rows: Rows) -> Verdict:
        """Returns the verdict on rows; some may be missing.

        Raises:
          ValueError: one line, for rows that lack what the claim needs.
        """
        with self.reading_rows():
            if not self.enough(rows):
                return untested(f"{len(rows) or 'No'} runs are finished, which is not enough to decide.")
            if missing := self.missing(rows):
                others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                return untested(f"Runs are missing: {missing[0]}{others}.")
            verdict = self.judge(self.frame(rows))
            if verdict.word == "not tested" or not self.tuned:
                return verdict
            edge = self.tuned.edge(scale_of(rows), rows)
            return untested(edge) if edge else verdict

    def reported(self, rows: Rows) -> Rows:
        """Returns the rows of reported runs: all but those from which values are picked."""
        return self.tuned.tests(rows) if self.tuned else rows

    def missing(self, rows: Rows) -> list[str]:
        """Returns the names of the runs that are not finished."""
        finished = {row.get("run") for row in rows}
        return [run.name for run in self.runs(scale_of(rows), rows) if run.name not in finished]

    def enough(self, rows: Rows) -> bool:
        """Returns whether there is a reported run, which a summary and a figure need; raises like ``verdict``."""
        with self.reading_rows():
            return bool(self.reported(rows)) and len(self.frame(rows)) > 0

    @contextlib.contextmanager
    def reading_rows(self) -> Iterator[None]:
        """Turns an exception of the claim's code, such as for rows that lack a quantity, into a ValueError of one line.

        Raises:
          ValueError: with the title of the claim, the exception, and the last place in the claim's code.
        """
        try:
            yield
        except (RowsError, ConfigError):
            raise
        except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
            calls = [(Path(call.filename), call.lineno) for call in traceback.extract_tb(error.__traceback__)]
            own = ((file, line) for file, line in calls if file.is_relative_to(ROOT))
            ours = [(file, line) for file, line in own if "site-packages" not in file.parts]  # of a venv below
            of_claim = [(file, line) for file, line in ours if file.parent != KIT]
            file, line = (of_claim or ours)[-1]
            where = f"{file.name}:{line}"
            what = f"{type(error).__name__}: {run_folders.files.reason(error)}"
            raise RowsError(f"{self.prose.title}: its code fails on these rows ({what}, at {where})") from error

    def basis(self, df: Frame) -> str:
        """Returns the data, the model and the number of seeds that a verdict rests on, in words."""
        data = self.data or ", ".join(sorted(df["data"].dropna().unique()))
        model = self.model if isinstance(self.model, str) else self.model(df)
        seeds = self.rests_on(df).groupby(list(self.labels)).size()  # not count(), which leaves out NaN
        return f"{data}, {model}, n = {seeds.min() if len(seeds) else 0}"

    def summary(self, df: Frame) -> Frame:
        """Returns a line for each group of runs that differ only in their seed, with the paper's value."""
        return frames.summary(df, self.labels, self.values, self.paper)

    @property
    def selection(self) -> str:
        """How values are picked, in a sentence; "" if none are."""
        return self.tuned.selection if self.tuned else self.prose.selection

    @property
    def stated(self) -> dict[str, str]:
        """The text of rule and selection with its hash, which each run records."""
        text = self.prose.rule
        if self.selection:
            text += f"\n\n{self.selection}"
        return {"hash": hash_of(text), "text": text}

    @property
    def decides_alike(self) -> frozenset[str]:
        """Hashes of the present text of rule and selection, and of earlier texts that decide the same."""
        return frozenset({self.stated["hash"], *self.prose.reworded.split()})
