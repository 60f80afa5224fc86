"""An experiment: a claim of a paper, the runs that test it, and the rule that decides from their rows."""

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import runs as run_folders
from experiments.study.claim import Claim, RowsError, Selection, hash_of
from experiments.study.findings import Basis, Finding, Table
from experiments.study.prose import Prose
from experiments.study.run import Reduce, Rows, Run, Scale, evaluations, scale_of
from experiments.study.significance import Contrast, TooFewRuns
from experiments.study.verdict import Word
from runs.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Verdict(NamedTuple):
    """The rule's decision, and the numbers that it rests on.

    "By construction" is the word for what could hardly have come out otherwise, such as a claim about arrival times
    that is tested on a model which was fitted to the claim: it checks the model, and supports nothing.
    """

    word: Word
    because: str
    contrasts: Sequence[Contrast] = ()

    @classmethod
    def of(cls, held: bool, because: str, *, contrasts: Sequence[Contrast] = ()) -> "Verdict":
        """Returns the verdict of a rule that held or did not."""
        return cls("supported at this scale" if held else "not supported at this scale", because, contrasts)

    @classmethod
    def by_construction(cls, held: bool, because: str) -> "Verdict":
        """Returns the verdict of a check of our own model; a check that fails is no support."""
        return cls("by construction" if held else "not supported at this scale", because)

    @classmethod
    def untested(cls, because: str, *, contrasts: Sequence[Contrast] = ()) -> "Verdict":
        """Returns the verdict for rows that the rule cannot decide from."""
        return cls("not tested", because, contrasts)


def holds(part: bool) -> str:
    """Returns the word that reports write behind a part of a rule."""
    return "holds" if part else "fails"


class Judge(Protocol):
    """What decides a claim: `experiments.study.rule.Rule`, or a rule that is like no other."""

    @property
    def text(self) -> str:
        """The rule as it is stated before the runs."""

    def judge(self, rows: Rows) -> Verdict:
        """Returns the verdict on rows, of which none is missing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A claim, and how it is tested. All functions but ``measure`` are pure.

    Attributes:
      prose: its number, title, sentence, source and notes.
      rule: what decides, written down before the runs: `experiments.study.rule`.
      reworded: hashes of earlier texts of rule and selection by which the same is decided.
      selection: what was picked, by which metric, on which split, over which grid; "" if nothing was picked.
      hours: predicted hours on two cores (or one GPU), for each scale that the experiment has.
      runs: (scale, rows so far) -> the runs. Runs that depend on a pick are among them once the rows to pick from are
        finished.
      measure: a run's ``labels`` -> its row, for runs without a config.
      reduce: records of a run of train.py -> the measurements in its row.
      timings: measured times, and other facts of the machine, among the measurements: a rerun need not repeat them.
      findings: rows -> quantities, the paper's value beside ours.
      basis: rows -> data, model and number of seeds that the verdict rests on.
      tuned: how values are picked, if any are; the report shows the grids and refuses verdicts on picks at an edge.
      paper_table: rows -> the paper's own table or figure with our values beside, as far as it is known.
      table: rows -> the results in detail; an empty table where the findings suffice.
      draw: rows, an empty figure -> the figure drawn.
      enough: rows -> whether they are enough to report; no other function is called before they are.
      inches: size of the figure.
    """

    prose: Prose
    rule: Judge
    hours: Mapping[Scale, float]
    runs: Callable[[Scale, Rows], Sequence[Run]]
    draw: Callable[[Rows, "Figure"], None]
    basis: Callable[[Rows], Basis]
    findings: Callable[[Rows], Sequence[Finding]] = lambda rows: ()
    table: Callable[[Rows], Table] = lambda rows: Table((), ())
    tuned: Selection | None = None
    paper_table: Callable[[Rows], Table] = lambda rows: Table((), ())
    measure: Callable[..., dict[str, Any]] | None = None
    reduce: Reduce = evaluations
    timings: Sequence[str] = ()
    selection: str = ""
    reworded: Sequence[str] = ()
    enough: Callable[[Rows], bool] = bool
    inches: tuple[float, float] = (5.0, 3.4)

    def verdict(self, rows: Rows) -> Verdict:
        """Returns the verdict on rows, of which some may be missing.

        Raises:
          ValueError: one line, for rows that lack what the claim needs.
        """
        with self.reading_rows():
            return self._verdict(rows)

    def _verdict(self, rows: Rows) -> Verdict:
        if not self.enough(rows):
            return Verdict.untested(f"{len(rows) or 'No'} runs are finished, which is not enough to decide.")
        finished = {row.get("run") for row in rows}
        if missing := [run.name for run in self.runs(scale_of(rows), rows) if run.name not in finished]:
            others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            return Verdict.untested(f"Runs are missing: {missing[0]}{others}.")
        try:
            verdict = self.rule.judge(rows)
        except TooFewRuns as error:
            return Verdict.untested(f"{error}.")
        edge = self.tuned.edge(scale_of(rows), rows) if self.tuned else ""
        return Verdict.untested(edge) if edge and verdict.word != "not tested" else verdict

    @contextlib.contextmanager
    def reading_rows(self) -> Iterator[None]:
        """Turns an error of the claim's own code, at rows without a quantity for example, into one line.

        Raises:
          ValueError: with the title of the claim, and the place in its code.
        """
        try:
            yield
        except (RowsError, ConfigError):
            raise
        except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
            frames = traceback.extract_tb(error.__traceback__)
            where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
            what = f"{type(error).__name__}: {run_folders.files.reason(error)}"
            raise RowsError(
                f"{self.prose.title}: its rows are not what the claim reads ({what}, at {where})"
            ) from error

    @property
    def stated(self) -> dict[str, str]:
        """The rule and the selection as they are stated, with a hash, for the record of each run."""
        text = "\n\n".join(filter(None, (self.rule.text, self.selection)))
        return {"hash": hash_of(text), "text": text}

    @property
    def decides_alike(self) -> frozenset[str]:
        """Hashes of the text of rule and selection that is stated now, and of those by which the same is decided."""
        return frozenset({self.stated["hash"], *self.reworded})


AnyClaim = Claim | Experiment  # while there are claims of both kinds
