"""What an experiment is: a claim of a paper, the runs that test it, and the rule by which they decide."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import runs as run_folders

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scale = Literal["smoke", "laptop", "gpu", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "laptop", "gpu", "paper")
Row = Mapping[str, Any]  # what is known of one finished run
Rows = Sequence[Row]
Reduce = Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]  # records of a run -> what its row says of them


class Quoted(NamedTuple):
    """A value of a paper, and how it is known."""

    text: str
    mark: str  # READ in a source, DERIVED from facts, or MEM: recalled, unverified

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

    @classmethod
    def of(cls, values: Sequence[float], *, digits: int = 4, unit: str = "") -> "Sample":
        values = [float(value) for value in values]
        finite = all(map(math.isfinite, values))
        std = (statistics.stdev(values) if finite else math.nan) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values), std, len(values), digits, unit)

    def __str__(self) -> str:
        unit = self.unit and f" {self.unit}"
        return f"{self.mean:,.{self.digits}f} ± {self.std:,.{self.digits}f}{unit} (n={self.n})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One quantity: the paper's value beside ours.

    Attributes:
      quantity: in words.
      ours: of our runs, or what can be said of them.
      paper: the paper's value; None where it gives none.
      paper_number: the same as a number of the unit of ``ours``; None where the two do not compare.
    """

    quantity: str
    ours: Sample | str
    paper: Quoted | None = None
    paper_number: float | None = None

    @property
    def difference(self) -> str:
        """Ours less the paper's."""
        if self.paper_number is None or not isinstance(self.ours, Sample):
            return ""
        return f"{self.ours.mean - self.paper_number:+,.{self.ours.digits}f}"


class Table(NamedTuple):
    """Cells under a header, as text."""

    header: Sequence[str]
    cells: Sequence[Sequence[str]]
    note: str = ""


class Verdict(NamedTuple):
    """What the rule says of the rows, and the figures that it went by."""

    word: Literal["supported", "not supported", "not tested at this scale"]
    because: str


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One run: of a config by train.py, or of the experiment's own ``measure``.

    Attributes:
      tells: what sets it apart, in its name and in its row; of a measurement, the arguments.
      spec: config file with an optional :variant; "" for a measurement.
      overrides: dotted key of the config -> value.
      flags: of train.py: num_devices and so on.
      cost: against the other runs of the experiment; for the time left.
    """

    tells: Mapping[str, Any]
    spec: str = ""
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cost: float = 1.0

    @property
    def name(self) -> str:
        """For people.

        >>> Run(tells={"reducer": "adasum", "num_workers": 8, "seed": 0}).name
        'reducer=adasum,num_workers=8,seed=0'
        """
        return ",".join(f"{key}={value}" for key, value in self.tells.items()) or "all"

    @property
    def overriding(self) -> list[str]:
        """The overrides, as arguments. A run that diverges is a result: it goes on to its end, unless it says how."""
        overrides = {"on_nonfinite": "ignore", **self.overrides}
        return [f"--config.{key}={value}" for key, value in overrides.items()]

    @property
    def arguments(self) -> list[str]:
        """Of train.py."""
        return [f"--config={self.spec}", *self.overriding, *(f"--{key}={value}" for key, value in self.flags.items())]

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """All that the run's result depends on.

        Raises:
          ConfigError: one line, if there is no such config.
        """
        if not self.spec:
            return {"measure": dict(self.tells)}
        from configs import flags  # it imports JAX, which listing experiments can do without

        return flags.load(self.spec, self.overriding).to_dict()


def evaluations(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a run's evaluations, each quantity as a list: what most experiments need to know of a run.

    >>> evaluations([{"kind": "train", "step": 1}, {"kind": "eval", "step": 2, "loss": 0.5, "accuracy": 0.9}])
    {'step': [2], 'loss': [0.5], 'accuracy': [0.9]}
    """
    found = [record for record in records if record["kind"] == "eval"]
    keys = [key for key in (found[0] if found else {}) if key not in ("kind", *run_folders.HOST_CLOCK_FIELDS)]
    return {key: [record[key] for record in found if key in record] for key in keys}


def evaluations_of(*keys: str) -> Reduce:
    """Returns a ``reduce`` that keeps only these quantities of a run's evaluations, all of which each must have.

    >>> evaluations_of("loss")([{"kind": "eval", "step": 2, "loss": 0.5, "accuracy": 0.9}])
    {'loss': [0.5]}
    """

    def reduce(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        found = [record for record in records if record["kind"] == "eval"]
        return {key: [record[key] for record in found] for key in keys}

    return reduce


def _no_rows_needed(rows: Rows) -> Table:
    del rows
    return Table((), ())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A claim, and how it is tested. All functions but ``measure`` are pure.

    Attributes:
      number: its place in the report.
      title: of its section.
      claim: the sentence that is tested.
      source: paper, section, table or figure.
      rule: by which ``judge`` decides, written down before the runs.
      selection: what was picked, by which metric, on which split, over which grid; "" if nothing was.
      hours: predicted, of two cores (or one GPU), for each scale that there is.
      runs: (scale, rows so far) -> the runs; those that depend on picks come once their rows are there.
      measure: ``tells`` of a run -> its row, for runs without a config.
      reduce: records of a run of train.py -> what its row says of them.
      findings: rows -> quantities, the paper's value beside ours.
      judge: rows -> verdict.
      table: rows -> all there is to tell, in a table; an empty one where the findings tell all.
      draw: rows, an empty figure -> the figure drawn.
      enough: rows -> whether they are enough to be told; no other function is asked before.
      inches: of the figure.
      notes: what a reader must know: what differs from the paper, what was tried to be fair to it.
    """

    number: int
    title: str
    claim: str
    source: str
    rule: str
    hours: Mapping[Scale, float]
    runs: Callable[[Scale, Rows], Sequence[Run]]
    findings: Callable[[Rows], Sequence[Finding]]
    judge: Callable[[Rows], Verdict]
    draw: Callable[[Rows, "Figure"], None]
    table: Callable[[Rows], Table] = _no_rows_needed
    measure: Callable[..., dict[str, Any]] | None = None
    reduce: Reduce = evaluations
    selection: str = ""
    enough: Callable[[Rows], bool] = bool
    inches: tuple[float, float] = (5.0, 3.4)
    notes: Sequence[str] = ()
