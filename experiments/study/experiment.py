"""An experiment: a claim of a paper, the runs that test it, and the rule that decides from their rows."""

import contextlib
import dataclasses
import functools
import hashlib
import math
import statistics
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import runs as run_folders
from configs import dependencies
from configs import flags as config_flags
from experiments.study.prose import Prose
from experiments.study.significance import Contrast, TooFewRuns
from runs.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scale = Literal["smoke", "laptop", "gpu", "paper"]
OLYMPIC = 5  # values of which the extremes may be left out, as MLPerf does
SCALES: tuple[Scale, ...] = ("smoke", "laptop", "gpu", "paper")
Row = Mapping[str, Any]  # one finished run: its labels, its measurements, its origin
Rows = Sequence[Row]
Reduce = Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]  # a run's records -> the measurements in its row


class Quoted(NamedTuple):
    """A value of a paper, and how it is known."""

    text: str
    mark: str  # READ in a source, DERIVED from facts, or MEM (recalled and unverified)

    def __str__(self) -> str:
        return f"{self.text} [{self.mark}]"


class Sample(NamedTuple):
    """Values of runs that differ in their seed alone.

    >>> str(Sample.of([0.98, 0.99, 1.0], digits=3))
    '0.990 ± 0.010 (n=3)'
    """

    mean: float
    std: float  # of the sample, with n - 1; 0 for a single one
    n: int
    digits: int = 4
    unit: str = ""
    olympic: float | None = None  # the mean without the lowest and the highest value, of five values or more

    @classmethod
    def of(cls, values: Sequence[float], *, digits: int = 4, unit: str = "") -> "Sample":
        values = [float(value) for value in values]
        finite = all(map(math.isfinite, values))
        std = (statistics.stdev(values) if finite else math.nan) if len(values) > 1 else 0.0
        olympic = statistics.fmean(sorted(values)[1:-1]) if len(values) >= OLYMPIC and finite else None
        return cls(statistics.fmean(values), std, len(values), digits, unit, olympic)

    def __str__(self) -> str:
        unit = self.unit and f" {self.unit}"
        return f"{self.mean:,.{self.digits}f} ± {self.std:,.{self.digits}f}{unit} (n={self.n})"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One quantity: the paper's value beside ours.

    Attributes:
      quantity: the quantity in words.
      ours: the value that our runs gave, or a text where they gave no number.
      paper: the paper's value; None where it gives none.
      paper_number: the same as a number in the unit of ``ours``; None where the two do not compare.
    """

    quantity: str
    _: dataclasses.KW_ONLY
    ours: Sample | str
    paper: Quoted | None = None
    paper_number: float | None = None

    @property
    def olympic(self) -> str:
        """Our mean without the lowest and the highest run; "" for a text, and of fewer than five runs."""
        if not isinstance(self.ours, Sample) or self.ours.olympic is None:
            return ""
        return f"{self.ours.olympic:,.{self.ours.digits}f}"

    @property
    def difference(self) -> str:
        """Our value minus the paper's."""
        if self.paper_number is None or not isinstance(self.ours, Sample):
            return ""
        return f"{self.ours.mean - self.paper_number:+,.{self.ours.digits}f}"


class Table(NamedTuple):
    """Cells under a header, as text."""

    header: Sequence[str]
    cells: Sequence[Sequence[str]]
    note: str = ""


class RowsError(ValueError):
    """Rows lack what a claim needs, or have it in another type; the message is one line."""


Word = Literal["supported at this scale", "not supported at this scale", "by construction", "not tested"]


class Basis(NamedTuple):
    """The data, the model and the number of runs that a verdict rests on.

    >>> str(Basis("MNIST", "LeNet-5", n=5))
    'MNIST, LeNet-5, n = 5'
    """

    data: str
    model: str
    n: int  # seeds of each case; of several numbers the least

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.data, self.model, f"n = {self.n}")))


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


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One run: of a config by train.py, or of the experiment's own ``measure``.

    Attributes:
      labels: keys and values that set it apart, in its name and in its row; the arguments of a measurement.
      spec: config file with an optional :variant; "" for a measurement.
      overrides: dotted key of the config -> value.
      flags: flags of train.py, such as num_devices.
      cost: duration relative to the experiment's other runs, from which the time left is predicted.
      cores: how many CPU cores its process has, of those that it could have; None leaves it all.
    """

    labels: Mapping[str, Any]
    spec: str = ""
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cost: float = 1.0
    cores: int | None = None

    @property
    def name(self) -> str:
        """The labels as one text.

        >>> Run(labels={"reducer": "adasum", "num_workers": 8, "seed": 0}).name
        'reducer=adasum,num_workers=8,seed=0'
        """
        return ",".join(f"{key}={value}" for key, value in self.labels.items()) or "all"

    @property
    def all_overrides(self) -> dict[str, Any]:
        """The overrides; a run that diverges goes on unless they say otherwise, as that is a result."""
        return {"on_nonfinite": "ignore", **self.overrides}

    @property
    def overriding(self) -> list[str]:
        """All overrides as arguments."""
        return [f"--config.{key}={value}" for key, value in self.all_overrides.items()]

    @property
    def arguments(self) -> list[str]:
        """Arguments of train.py."""
        return [f"--config={self.spec}", *self.overriding, *(f"--{key}={value}" for key, value in self.flags.items())]

    @property
    def config(self) -> dict[str, Any]:
        """Everything that the run's result depends on.

        Raises:
          ConfigError: one line, if there is no such config.
        """
        return self._loaded[0]

    @property
    def code(self) -> run_folders.Code:
        """The files outside of this repository that the run's result depends on."""
        return self._loaded[1]

    @functools.cached_property
    def _loaded(self) -> tuple[dict[str, Any], run_folders.Code]:
        if not self.spec:
            return {"measure": dict(self.labels)}, {}
        config = config_flags.load(self.spec, self.overriding)
        return config.to_dict(), dependencies.describe(config)


def repeated(
    cases: Callable[[Scale], Sequence[Mapping[str, Any]]], *, seeds: Mapping[Scale, int]
) -> Callable[[Scale, Rows], list[Run]]:
    """Returns the ``runs`` of an experiment that measures each case with several seeds.

    >>> runs = repeated(lambda scale: [{"n": 2}, {"n": 4}], seeds={"smoke": 1, "laptop": 5})
    >>> [run.name for run in runs("smoke", [])]
    ['n=2,seed=0', 'n=4,seed=0']
    """

    def runs(scale: Scale, rows: Rows) -> list[Run]:
        del rows
        return [Run(labels={**case, "seed": seed}) for case in cases(scale) for seed in range(seeds[scale])]

    return runs


def evaluations(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a run's evaluations, with one list per quantity; most experiments need nothing else of a run.

    >>> evaluations([{"kind": "train", "step": 1}, {"kind": "eval", "step": 2, "loss": 0.5, "accuracy": 0.9}])
    {'step': [2], 'loss': [0.5], 'accuracy': [0.9]}
    """
    found = [record for record in records if record["kind"] == "eval"]
    keys = [key for key in (found[0] if found else {}) if key not in ("kind", *run_folders.HOST_CLOCK_FIELDS)]
    return {key: [record[key] for record in found if key in record] for key in keys}


def evaluations_of(*keys: str) -> Reduce:
    """Returns a ``reduce`` that keeps only these quantities; each evaluation must have all of them.

    >>> evaluations_of("loss")([{"kind": "eval", "step": 2, "loss": 0.5, "accuracy": 0.9}])
    {'loss': [0.5]}
    """

    def reduce(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        found = [record for record in records if record["kind"] == "eval"]
        return {key: [record[key] for record in found] for key in keys}

    return reduce


class Selection(Protocol):
    """How values such as learning rates are picked: `experiments.study.tuning.Tuned`."""

    @property
    def key(self) -> str:
        """Label of the value."""

    def edge(self, scale: Scale, rows: Rows) -> str:
        """Returns a sentence on the first pick at the edge of its grid; "" if none is."""

    def table(self, scale: Scale, rows: Rows) -> Table:
        """Returns the values that were tried, their scores and the picks."""

    def tests(self, rows: Rows) -> Rows:
        """Returns the reported rows."""

    def awaited_runs(self, scale: Scale, rows: Rows) -> list[Run]:
        """Returns runs like those whose values are not picked yet."""


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


def hash_of(text: str) -> str:
    """Returns the digits by which a text of rule and selection is known."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def scale_of(rows: Rows) -> Scale:
    """Returns the scale that rows were made at."""
    return rows[0].get("origin", {}).get("scale", "laptop")
