"""Horovod's guide on MNIST: Adasum at 2.5 times the best learning rate of one worker, against averaging."""

from collections.abc import Mapping

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import datasets, paper_table, tuning
from experiments.study import rows as ask
from experiments.study.emulation import RATE
from experiments.study.experiment import (
    Basis,
    Experiment,
    Finding,
    Quoted,
    Row,
    Rows,
    Run,
    Sample,
    Scale,
    Table,
    Verdict,
    holds,
    scale_of,
)
from experiments.study.paper_table import Cell
from experiments.study.significance import Contrast, holm, welch
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


def _judge(rows: Rows) -> Verdict:
    guide, *others = untuned(WORKERS[scale_of(rows)])
    picks = _picks(rows)

    def above(ours: tuple[str, float], theirs: tuple[str, float]) -> Contrast:
        compared = f"{_name(*ours, picks=picks)} above {_name(*theirs, picks=picks)}"
        one, other = (ask.accuracies(_of(rows, *key)) for key in (ours, theirs))
        return welch(one, other, compared=compared, side="greater", unit="points")

    as_guided = holm([above(guide, other) for other in others])
    tuned = above((ADASUM, picks[ADASUM]), (MEAN, picks[MEAN]))
    fails = ", ".join(contrast.compared for contrast in as_guided if not contrast.holds)
    return Verdict.of(
        not fails,
        f"At 2.5 times the rate of one worker Adasum ends at {ask.accuracy(_of(rows, *guide))}; "
        f"{f'not shown: {fails}' if fails else 'it is above averaging at each of the three untuned rates'}. Beside it, "
        f"and not part of the rule: with both tuned, Adasum above averaging {holds(tuned.holds)} ({tuned.interval}).",
        contrasts=[*as_guided, tuned],
    )


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


EXPERIMENT = Experiment(
    number=20,
    title="Horovod's guide on MNIST",
    claim="Adasum at 2.5 times the best learning rate of one worker trains MNIST to a better accuracy than averaging "
    "in the same number of steps.",
    source="Horovod's user guide to Adasum, case study on MNIST",
    rule=f"By test accuracy after the last step, {SEEDS['laptop']} seeds, 16 workers. Supported if Adasum at 2.5 times "
    "the authors' rate of one worker, 0.03278, is above averaging at 1, 2.5 and 16 times that rate, each by a "
    "one-sided Welch's t-test, corrected by Holm's method for three tests, at alpha = 0.05. Nothing is tuned for this, "
    "as in the guide. The comparison in which each has its own tuned rate is printed beside it and is not part of the "
    "rule.",
    selection="For the tuned comparison alone: each reducer's rate by mean accuracy after the last step on the "
    "validation split, two seeds, from 1.25, 2.5, 5 times the rate of one worker for Adasum and 4, 8, 16 times for "
    "averaging.",
    hours={"smoke": 0.05, "laptop": 1.3},
    runs=_runs,
    findings=_findings,
    basis=lambda rows: Basis(
        ", ".join(ask.distinct(rows, "data")), "LeNet-5", n=min(map(len, _shown(rows).values()), default=0)
    ),
    tuned=TUNED,
    judge=_judge,
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(7.0, 4.2),
    notes=(
        "The recipe is that of the authors' MNIST code, whose rate for one worker is known (READ): LeNet-5, "
        "Momentum-SGD of 0.9, 32 examples a worker, 2 epochs, one linear cycle of the rate; 16 workers take 234 steps. "
        "The guide names no recipe. Horovod's example script (READ) has a smaller network, 64 examples a worker, a "
        "constant rate of 0.01 with momentum 0.5, and 10 epochs; it multiplies the rate by the number of workers for "
        "averaging, and by 1 for Adasum.",
        "Adasum and the mean are of the updates of each worker's own Momentum-SGD. For the mean this equals averaging "
        "gradients before one optimizer, as Momentum-SGD is linear in the gradients.",
        "As in all claims, a grid goes on by its own ratio until the pick is inside of it, though the selection does "
        "not say so: Adasum's went on to 0.625 and 0.312, and its pick is 0.625.",
        "Seen after the runs: the authors' rate is for 2 epochs and near the largest that trains. Adasum trains with "
        "1.25 times it, and no more with 2.5 times.",
    ),
)
