"""Horovod's guide on MNIST: Adasum at 2.5 times the best learning rate of one worker, against averaging."""

from collections.abc import Mapping

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import datasets, paper_table, tuning
from experiments.study import rows as ask
from experiments.study.datasets import LENET_RATE as RATE
from experiments.study.findings import Basis, Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    ACCURACY,
    Compare,
    Group,
    Rule,
)
from experiments.study.run import Row, Rows, Run, Scale
from experiments.study.tuning import Tuned

ADASUM, MEAN = "adasum", "mean"
LABELS = {ADASUM: "Adasum", MEAN: "averaging"}
WORKERS = {"smoke": 4, "laptop": 16}
GUIDE = 2.5  # times the rate of one worker, for Adasum
GRIDS: Mapping[str, tuple[float, ...]] = {ADASUM: (1.25, 2.5, 5.0), MEAN: (4.0, 8.0, 16.0)}  # times the same
SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 5}
EPOCHS = {"mnist": 2, "digits": 40}
CONSISTENTLY = Quoted("consistently better than averaging, no numbers", "READ")


def untuned(num_workers: int) -> list[tuple[str, float]]:
    """Returns the reducers and multiples of one worker's rate that need no tuning: the guide's, and averaging's.

    >>> untuned(16)
    [('adasum', 2.5), ('mean', 1.0), ('mean', 2.5), ('mean', 16.0)]
    """
    return [(ADASUM, GUIDE), (MEAN, 1.0), (MEAN, GUIDE), (MEAN, float(num_workers))]


def _recipe(scale: Scale, *, reducer: str, factor: float) -> Run:
    data = datasets.image_set(scale)
    epochs = 1 if scale == "smoke" else EPOCHS[data["data.name"]]
    overrides = {
        **data,
        "num_workers": WORKERS[scale],
        "reducer.name": reducer,
        "optimizer.learning_rate": factor * RATE,
        **tuning.epochs(epochs, evaluate=epochs / 4),
    }
    return Run(labels={"data": data["data.name"]}, spec="configs/mnist_adasum.py", overrides=overrides)


TUNED = Tuned(
    points=lambda scale: [{"reducer": reducer} for reducer in GRIDS],
    grid=lambda scale, point: GRIDS[point["reducer"]][: 2 if scale == "smoke" else None],
    recipe=_recipe,
    seeds=SEEDS,
    key="factor",
    value="multiple of the rate of one worker",
    tuning_seeds={"smoke": 1, "laptop": 2},
)


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    """Returns the untuned runs, the tuning runs, then those of the picks that are not among the untuned."""
    pairs, points = untuned(WORKERS[scale]), TUNED.points(scale)
    runs = [
        TUNED.run(scale, {"reducer": reducer}, factor, stage=1, seed=seed)
        for reducer, factor in pairs
        for seed in range(SEEDS[scale])
    ]
    runs += TUNED.tuning_runs(scale, rows, points)
    if not all(TUNED.is_tuned(scale, rows, point) for point in points):
        return runs
    finals = [run for point in points for run in TUNED.final_runs(scale, rows, point)]
    return runs + [run for run in finals if (run.labels["reducer"], run.labels["factor"]) not in pairs]


def _of(rows: Rows, reducer: str, factor: float) -> list[Row]:
    return TUNED.tests(rows, reducer=reducer, factor=factor)


def _shown(rows: Rows) -> dict[tuple[str, float], list[Row]]:
    """Returns the reported rows of each reducer and multiple of the rate, by reducer and ascending."""
    tests = TUNED.tests(rows)
    keys = sorted({(row["reducer"], row["factor"]) for row in tests})
    return {key: _of(rows, *key) for key in keys}


def _picks(rows: Rows) -> dict[str, float]:
    """Returns each reducer's tuned multiple of the rate; none before its grid is finished."""
    found = {reducer: TUNED.picked(rows, reducer=reducer) for reducer in GRIDS}
    return {reducer: factor for reducer, factor in found.items() if factor is not None and _of(rows, reducer, factor)}


def _name(reducer: str, factor: float, *, picks: Mapping[str, float]) -> str:
    ours = {(ADASUM, GUIDE): "the guide's", (MEAN, 1.0): "one worker's"}
    marks = [ours.get((reducer, factor), ""), "tuned" if picks.get(reducer) == factor else ""]
    marked = ", ".join(filter(None, marks))
    return f"{LABELS[reducer]} at {factor:g} times the rate{marked and f' ({marked})'}"


def _findings(rows: Rows) -> list[Finding]:
    picks = _picks(rows)
    return [
        Finding(f"test accuracy, {_name(*key, picks=picks)}", ours=ask.accuracy(same))
        for key, same in _shown(rows).items()
    ]


def _paper_table(rows: Rows) -> Table:
    """Returns the guide's comparison, which has no numbers, with ours beside."""
    picks = _picks(rows)
    cells = {
        _name(*key, picks=picks): [Cell(CONSISTENTLY if key == (ADASUM, GUIDE) else None, str(ask.accuracy(same)))]
        for key, same in _shown(rows).items()
    }
    note = "The guide does not say at which rate it averages; its example script multiplies by the number of workers "
    return paper_table.table("Gradients", ["Accuracy with the same steps"], cells, note=f"{note}[READ].")


def _table(rows: Rows) -> Table:
    picks = _picks(rows)
    cells = []
    for key, same in _shown(rows).items():
        each = ", ".join(f"{100 * ask.last(row, 'accuracy'):.2f}" for row in same)
        cells.append([_name(*key, picks=picks), f"{key[1] * RATE:.4g}", each])
    return Table(["Gradients", "Learning rate", "Test accuracy (%) of each seed"], cells)


def _draw(rows: Rows, figure: Figure) -> None:
    rates, curves = figure.subplots(1, 2)
    rows = ask.errors(rows)
    for position, reducer in enumerate(LABELS):
        shown = {factor: same for (name, factor), same in _shown(rows).items() if name == reducer}
        samples = [Sample.of([ask.last(row, "error") for row in same]) for same in shown.values()]
        if shown:
            drawing.band(rates, list(shown), samples, position=position, label=LABELS[reducer])
    picks = _picks(rows)
    groups = {_name(*key, picks=picks): same for key, same in _shown(rows).items()}
    drawing.curves(curves, groups, along="epoch", of="error", linewidth=1.2)
    rates.set(xscale="log", yscale="log", xlabel="rate (× one worker's)", ylabel="test error (%)")
    drawing.ticks(rates, {row["factor"]: f"{row['factor']:g}" for row in TUNED.tests(rows)})
    curves.set(yscale="log", xlabel="epochs", ylabel="test error (%)")
    for axes in (rates, curves):
        drawing.percent_ticks(axes)
    rates.legend(fontsize=8)
    drawing.legend_below(figure, curves, columns=2)


def _at(reducer: str, factor: float) -> Group:
    return Group(_name(reducer, factor, picks={}), ACCURACY, lambda rows: _of(rows, reducer, factor))


def _parts(scale: Scale) -> list[Compare]:
    guide, *others = untuned(WORKERS[scale])
    return [Compare(ours=_at(*guide), is_="above", theirs=_at(*other)) for other in others]


def _tuned(rows: Rows) -> list[Finding]:
    """Returns the comparison in which each has its own tuned rate, which is not judged."""
    picks = _picks(rows)
    if set(picks) != set(GRIDS) or any(len(_of(rows, *pick)) < 2 for pick in picks.items()):
        return []
    found = Compare(ours=_at(ADASUM, picks[ADASUM]), is_="above", theirs=_at(MEAN, picks[MEAN])).contrast(rows)
    return [Finding("both tuned (not judged), Adasum above averaging by", ours=f"{found.interval}, p = {found.p:.2g}")]


RULE = Rule(
    setting=f"{SEEDS['laptop']} seeds, {WORKERS['laptop']} workers, multiples of the authors' rate of one worker, "
    f"{RATE}",
    parts=_parts,
    remark="Nothing is tuned for this, as in the guide. The comparison in which each has its own tuned rate is printed "
    "beside it and is not part of the rule.",
)


EXPERIMENT = TUNED.experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("20503c410ae3",),
    model="LeNet-5",
    hours={"smoke": 0.05, "laptop": 1.3},
    runs=_runs,
    findings=lambda rows: [*_findings(rows), *_tuned(rows)],
    basis=lambda rows: Basis(
        ", ".join(ask.distinct(rows, "data")), "LeNet-5", n=min(map(len, _shown(rows).values()), default=0)
    ),
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(7.0, 4.2),
)
