"""The time to collect k of 100 gradients on the paper's cluster, whose last few are the slow ones."""

from typing import Any

import jax
import numpy as np

from experiments.arrivals import ARRIVED_BY, MEAN_SECONDS
from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Bound,
    Rule,
)
from experiments.study.run import Rows, Scale, repeated
from reducers import arrivals

CLUSTER, LIGHT = "paper_cluster", "shifted_exponential"
# With 100 workers, as many of the last gradients within 2 s as the cluster's model, and its median; but no outliers.
LIGHT_OPTIONS: dict[str, Any] = {"shift_seconds": 1.53, "scale_seconds": 0.107}
STEPS: dict[Scale, int] = {"smoke": 2_000, "laptop": 100_000}
DRAWN = (50, 90, 95, 98, 99, 100)
SHARES = [round(share, 2) for share in np.linspace(0.02, 0.98, 49)]


def _measure(*, model: str, steps: int, seed: int, **options: float) -> dict[str, Any]:
    """Draws steps of 100 workers and sorts each; index k - 1 of a list belongs to the k-th gradient."""
    built = arrivals.make(model, **options)
    seconds = arrivals.sample(built, jax.random.key(seed), num_workers=100, num_steps=steps)
    seconds.sort(axis=1)  # (S, 100)
    quantiles = {str(k): np.quantile(seconds[:, k - 1], SHARES).round(4).tolist() for k in DRAWN}
    return {
        "mean": seconds.mean(axis=0, dtype=np.float64).round(4).tolist(),
        "median": np.median(seconds, axis=0).astype(float).round(4).tolist(),
        "within_2_seconds": (seconds <= 2).mean(axis=0, dtype=np.float64).round(5).tolist(),
        "slowest": float(seconds.max()),
        "quantiles": quantiles,
    }


def _of(rows: Rows, model: str, key: str) -> np.ndarray:
    """Returns a quantity of all gradients, (seeds, 100)."""
    return np.array([row[key] for row in ask.select(rows, model=model)])


def _growth(mean: np.ndarray) -> np.ndarray:
    """Returns the factors from the mean time of one gradient to the next, 96th to 100th: (seeds, 4)."""
    return mean[:, 96:] / mean[:, 95:-1]


def _findings(rows: Rows) -> list[Finding]:
    mean, median = (_of(rows, CLUSTER, key) for key in ("mean", "median"))
    growth, light = _growth(mean), _of(rows, LIGHT, "mean")[:, 99] / _of(rows, LIGHT, "median")[:, 99]
    low, high = MEAN_SECONDS
    usual = ((mean >= low) & (mean <= high)).sum(axis=1)
    exponential = Quoted("the last few means grow as an exponential does", "MEM med")
    below = Quoted("the median stays far below the mean in the tail", "MEM med")
    slowest = Quoted("about 310 s, in an unknown number of steps", "MEM hi")
    return [
        Finding(
            "of the 100 mean times to the k-th gradient, those within 1.4 to 1.8 s (fitted)",
            paper=Quoted("most", "MEM hi"),
            ours=Sample.of(list(usual), digits=0),
        ),
        Finding(
            "factor of the mean from the 96th to the 97th gradient, ..., from the 99th to the 100th",
            paper=exponential,
            ours=_in_words(growth),
        ),
        Finding("mean over median, 100th gradient", paper=below, ours=Sample.of(mean[:, 99] / median[:, 99], digits=2)),
        Finding("the same for workers without outliers", ours=Sample.of(light, digits=2)),
        Finding("mean over median, 90th gradient", ours=Sample.of(mean[:, 89] / median[:, 89], digits=3)),
        Finding("slowest step", paper=slowest, ours=Sample.of(list(_of(rows, CLUSTER, "slowest")), digits=0, unit="s")),
    ]


def _in_words(growth: np.ndarray) -> str:
    return ", ".join(f"{factor:.2f}" for factor in growth.mean(axis=0))


def _paper_table(rows: Rows) -> Table:
    mean, median, within = (_of(rows, CLUSTER, key) for key in ("mean", "median", "within_2_seconds"))
    known = {98: Quoted("about 80 %", "MEM hi"), 100: Quoted("about 30 %", "MEM hi")}
    cells = {}
    for k in DRAWN:
        share, *seconds = (list(values[:, k - 1]) for values in (within, mean, median))
        ours = [Sample.of([100 * value for value in share], digits=1, unit="%")]
        ours += [Sample.of(values, digits=2, unit="s") for values in seconds]
        cells[str(k)] = [Cell(paper, value) for paper, value in zip((known.get(k), None, None), ours, strict=True)]
    note = "Most of the paper's means lie within 1.4 to 1.8 s, its slowest step took about 310 s [MEM hi]."
    return paper_table.table("k", ["within 2 s", "mean", "median"], cells, note=note)


def _table(rows: Rows) -> Table:
    cells = []
    for k in DRAWN:
        row = [str(k)]
        for model in (CLUSTER, LIGHT):
            mean, median, within = (_of(rows, model, key)[:, k - 1] for key in ("mean", "median", "within_2_seconds"))
            row += [f"{mean.mean():.2f}", f"{median.mean():.2f}", f"{100 * within.mean():.1f}"]
        cells.append(row)
    columns = ("mean, s", "median, s", "within 2 s, %")
    header = ["k", *columns, *(f"{column}; no outliers" for column in columns)]
    return Table(header, cells, note="Means over seeds.")


def _draw(rows: Rows, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    for position, k in enumerate(DRAWN):
        quantiles = np.mean([row["quantiles"][str(k)] for row in ask.select(rows, model=CLUSTER)], axis=0)
        left.plot(quantiles, SHARES, label=f"k = {k}", **drawing.look(position) | {"marker": ""})
    _, seconds, shares = zip(*ARRIVED_BY, strict=True)
    left.plot(seconds, shares, "kx", markersize=7, label="paper: k = 98, 100 (fitted)")
    left.set(xlabel="time to the k-th of 100 gradients (s)", ylabel="share of steps", xlim=(1.3, 6), ylim=(0, 1.01))
    left.legend(fontsize=7)
    every = range(1, 101)
    curves = [(CLUSTER, "mean", "mean"), (CLUSTER, "median", "median"), (LIGHT, "mean", "mean, no outliers")]
    for position, (model, key, label) in enumerate(curves):
        samples = [Sample.of(values) for values in _of(rows, model, key).T]
        look: dict[str, Any] = {"marker": "", "linestyle": "--" if key == "median" else "-"}
        drawing.band(right, every, samples, position=position, label=label, **look)
    right.axhspan(*MEAN_SECONDS, color="#999999", alpha=0.25, linewidth=0, label="paper: most means (fitted)")
    right.set(xlabel="k", ylabel="time to the k-th gradient (s)", ylim=(1, None))
    right.legend(fontsize=7)


def _bounds(model: str) -> list[Bound]:
    """Returns what the rule asks of a model's times, in every seed."""

    def growth(rows: Rows) -> list[float]:
        return np.diff(_growth(_of(rows, model, "mean")), axis=1).ravel().tolist()

    def over_median(rows: Rows) -> np.ndarray:
        return _of(rows, model, "mean") / _of(rows, model, "median")

    return [
        Bound(
            words="by how much more the mean grows from one gradient to the next, 96th to 100th,",
            values=growth,
            beyond=0.0,
            digits=3,
        ),
        Bound(
            words="the mean over the median of the first 90 gradients",
            values=lambda rows: over_median(rows)[:, :90].ravel().tolist(),
            most=1.05,
            digits=3,
        ),
        Bound(words="that of the 100th", values=lambda rows: over_median(rows)[:, 99].tolist(), least=1.5),
    ]


RULE = Rule(
    setting="in every seed, of times that our model was not fitted to",
    constructed=True,
    parts=lambda scale: _bounds(CLUSTER),
)


def _without_outliers(rows: Rows) -> list[Finding]:
    """Returns what the rule would say of workers without outliers."""
    return [Finding(f"{bound.text()}, without outliers", ours=bound.found(rows).said) for bound in _bounds(LIGHT)]


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("38d2ee6bd8c1",),
    hours={"smoke": 0.01, "laptop": 0.02},
    runs=repeated(
        lambda scale: [
            {"model": model, **options, "steps": STEPS[scale]}
            for model, options in ((CLUSTER, {}), (LIGHT, LIGHT_OPTIONS))
        ],
        seeds={"smoke": 2, "laptop": 5},
    ),
    measure=_measure,
    findings=lambda rows: [*_findings(rows), *_without_outliers(rows)],
    basis=lambda rows: ask.basis(rows, data="simulated arrival times", model="`paper_cluster`"),
    enough=lambda rows: {row["model"] for row in rows} == {CLUSTER, LIGHT},
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(7, 3.2),
)
