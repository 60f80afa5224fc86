"""Synchronous SGD with backup workers against asynchronous SGD: accuracy, and time and epochs to a target."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import datasets, paper_table, tuning
from experiments.study import rows as ask
from experiments.study.findings import Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    FINITE_ACCURACY,
    Compare,
    Group,
    Measure,
    Need,
    Relation,
    Rule,
    capped,
    until,
)
from experiments.study.run import Rows, Run, Scale, evaluations_of
from experiments.study.tuning import Tuned

MODES = ("synchronous", "asynchronous")
SPECS = {"synchronous": "configs/mnist_backup_53.py", "asynchronous": "configs/mnist_async_53.py"}
DECAYS = 48  # of the learning rate, by 0.94
TARGETS = {"digits": 0.8, "mnist": 0.94, "cifar10": 0.7}  # accuracies
ALONG = {"simulated_seconds": ("simulated time", 0, "s"), "epoch": ("epochs", 1, "epochs")}
# Workers -> by how much the synchronous run was at its better accuracy sooner than the asynchronous one.
PAPER_SOONER = {53: "later", 106: "about 6 h", 212: "about 18 h"}
Rates = Mapping[str, tuple[float, ...]]


class Setting(NamedTuple):
    """The training at a scale.

    Attributes:
      overrides: of the config: the model, and data if they are not images of any scale.
      backups: number of workers -> of which so many are backups.
      rates: mode -> rates that are tried: of one worker where synchronous, of 53 where asynchronous.
      epochs: length of a run.
      evaluations: number of evaluations in a run.
    """

    overrides: Mapping[str, Any]
    backups: Mapping[int, int]
    rates: Rates
    epochs: int
    evaluations: int


RATES: Rates = {"synchronous": (0.002, 0.004, 0.008), "asynchronous": (0.02, 0.04, 0.08)}
RESNET = {**datasets.RESNET, "batch_size_per_worker": 16}
STAND_IN_EPOCHS = 200  # on digits, an epoch is an update of 50 workers
SETTINGS: Mapping[Scale, Setting] = {
    "smoke": Setting(
        {"model.name": "mlp"},
        backups={5: 1, 10: 2},
        rates={mode: rates[:2] for mode, rates in RATES.items()},
        epochs=2,
        evaluations=2,
    ),
    "laptop": Setting(
        {"model.name": "mlp"},
        backups={53: 3, 106: 6, 212: 12},
        rates=RATES,
        epochs=16,
        evaluations=32,
    ),
    "gpu": Setting(RESNET, backups={53: 3, 106: 6}, rates=RATES, epochs=12, evaluations=24),
}


def _recipe(scale: Scale, *, mode: str, num_workers: int, rate: float) -> Run:
    setting = SETTINGS[scale]
    data = {**datasets.image_set(scale), **setting.overrides}["data.name"]
    epochs = STAND_IN_EPOCHS if (scale, data) == ("laptop", datasets.STAND_IN) else setting.epochs
    if mode == "synchronous":
        own = {"optimizer.learning_rate": rate, "reducer.num_required": num_workers - setting.backups[num_workers]}
    else:  # a rate for 53 workers; a gradient misses as many updates as there are other workers
        own = {"optimizer.learning_rate": rate * 53 / num_workers}
    checkpoint = epochs / 4 if scale == "gpu" else None  # a run that is stopped goes on from there
    overrides = {
        "data.name": data,
        **setting.overrides,
        "num_workers": num_workers,
        **own,
        "schedule.name": "staircase",
        "schedule.decay_factor": 0.94,
        "schedule.every_epochs": epochs / DECAYS,
        "ema_decay": 0.9999,
        **tuning.epochs(epochs, evaluate=epochs / setting.evaluations, log=epochs / 4, checkpoint=checkpoint),
    }
    cost = 1.0 if mode == "synchronous" else 1.3
    return Run(labels={"data": data}, spec=SPECS[mode], overrides=overrides, cost=cost)


TUNED = Tuned(
    points=lambda scale: [{"mode": mode, "num_workers": n} for n in SETTINGS[scale].backups for mode in MODES],
    grid=lambda scale, point: SETTINGS[scale].rates[point["mode"]],
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 5, "gpu": 3},
    first_seeds={"laptop": 5},
    tuning_seeds={"gpu": 1},
)


def _finals(rows: Rows) -> dict[int, Mapping[str, Rows]]:
    """Returns the reported rows of each number of workers for which both modes have some."""
    tests = TUNED.tests(rows)
    found: dict[int, Mapping[str, Rows]] = {
        n: {mode: ask.select(tests, num_workers=n, mode=mode) for mode in MODES} for n in _workers(tests)
    }
    return {n: both for n, both in found.items() if all(both.values())}


def _workers(rows: Rows) -> list[int]:
    return ask.distinct(rows, "num_workers")


def _target(rows: Rows) -> float:
    """Returns the accuracy to be reached."""
    return TARGETS[rows[0]["data"]]


def _by_seed(both: Mapping[str, Rows], values: Callable[[Rows], list[float]]) -> list[tuple[float, ...]]:
    """Returns a value of the synchronous and of the asynchronous run of each seed that both have."""
    one, other = (
        {row["seed"]: value for row, value in zip(both[mode], values(both[mode]), strict=True)} for mode in MODES
    )
    return [(one[seed], other[seed]) for seed in sorted(set(one) & set(other))]


def _findings(rows: Rows) -> list[Finding]:
    return [
        Finding(f"{name} to {100 * _target(both[mode]):g} %, {n} workers, {mode}", ours=WAYS[along].reached(both[mode]))
        for n, both in _finals(rows).items()
        for along, (name, *_) in ALONG.items()
        for mode in MODES
    ]


def _in_seconds(times: list[float]) -> Sample | str:
    if not all(map(math.isfinite, times)):
        return "not all runs get there"
    return Sample.of(times, digits=0, unit="s") if times else ""


def _paper_table(rows: Rows) -> Table:
    cells = {}
    for n, both in _finals(rows).items():
        gaps, sooner = (
            _gaps(both),
            [theirs - ours for ours, theirs in _by_seed(both, lambda rows: list(TIME.values(rows)))],
        )
        quoted = Quoted(PAPER_SOONER[n], "MEM lo-med") if n in PAPER_SOONER else None
        cells[str(n)] = [
            *(Cell(ours=ask.accuracy(both[mode])) for mode in MODES),
            Cell(Quoted("0.5 to 0.9, wider with more workers", "MEM med"), Sample.of(gaps, digits=2) if gaps else None),
            Cell(quoted, _in_seconds(sooner)),
        ]
    columns = [*(f"{mode} accuracy" for mode in MODES), "gap (points)", "synchronous sooner by"]
    note = "The paper: Inception on ImageNet, to convergence. Ours: simulated time to the accuracy that the rule names."
    return paper_table.table("Workers", columns, cells, note=note)


def _draw(rows: Rows, figure: Figure) -> None:
    levels, curves = figure.subplots(1, 2)
    finals = _finals(rows)
    for position, mode in enumerate(MODES):
        samples = [ask.accuracy(both[mode]) for both in finals.values()]
        drawing.band(levels, list(finals), samples, position=position, label=mode)
        for shade, (n, both) in enumerate(finals.items()):
            mean = [sample.mean for sample in ask.curve(ask.errors(both[mode]), "error")]
            look = drawing.look(position) | {"marker": "", "linestyle": drawing.LINE_STYLES[shade]}
            curves.plot(both[mode][0]["simulated_seconds"], mean, label=f"{mode}, {n}", linewidth=1.2, **look)
    levels.set(xlabel="workers", ylabel="final test accuracy (%)", xscale="log")
    drawing.ticks(levels, {n: str(n) for n in finals})
    curves.set(xlabel="simulated time (s)", ylabel="test error (%)", xscale="log", yscale="log")
    drawing.plain_numbers(curves.xaxis, minor="bare")
    drawing.plain_numbers(curves.yaxis)
    drawing.legend_below(figure, curves, columns=2)


WAYS = {
    along: until(
        _target,
        words=f"{name} to 94 % on MNIST, 70 % on CIFAR-10, 80 % on digits",
        along=along,
        unit=unit,
        digits=digits,
        short="time",
    )
    for along, (name, digits, unit) in ALONG.items()
}
TIME = WAYS["simulated_seconds"]
CAPPED = capped(TIME, along="simulated_seconds")


def _with(mode: str, num_workers: int, measure: Measure) -> Group:
    return TUNED.group(mode, measure, mode=mode, num_workers=num_workers)


def _gaps(both: Mapping[str, Rows]) -> list[float]:
    """Returns synchronous less asynchronous final accuracy of each seed, in points."""
    return [ours - theirs for ours, theirs in _by_seed(both, lambda rows: list(FINITE_ACCURACY.values(rows)))]


def _gap(num_workers: int) -> Group:
    gap = Measure(
        words="synchronous less asynchronous accuracy by seed",
        values=lambda rows: _gaps({mode: TUNED.tests(rows, mode=mode, num_workers=num_workers) for mode in MODES}),
        unit="points",
        most=200,
    )
    return Group(f"the gap with {num_workers} workers", gap)


def _is_reached(rows: Rows) -> str:
    for n in _workers(TUNED.tests(rows))[1:]:
        if not all(map(math.isfinite, _with("synchronous", n, TIME).values(rows))):
            return f"Not all synchronous runs with {n} workers have reached {100 * _target(rows):g} %."
    return ""


def _parts(scale: Scale) -> list[Compare]:
    few, *many = SETTINGS[scale].backups
    relations: tuple[tuple[Measure, Relation], ...] = ((FINITE_ACCURACY, "above"), (CAPPED, "below"))
    found = [
        Compare(ours=_with("synchronous", n, of), is_=is_, theirs=_with("asynchronous", n, of), at=f"{n} workers")
        for n in many
        for of, is_ in relations
    ]
    return [*found, Compare(ours=_gap(many[-1]), is_="above", theirs=_gap(few))]


RULE = Rule(
    setting=f"{TUNED.seeds['laptop']} seeds",
    needs=[Need("a synchronous run does not reach the target", _is_reached)],
    parts=_parts,
    other_scales=("gpu",),
)


EXPERIMENT = TUNED.experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("f2292f0d312d",),
    model=lambda rows: "ResNet-20" if rows[0]["data"] == "cifar10" else "MLP",
    hours={"smoke": 0.1, "laptop": 0.65, "gpu": 0.45},
    reduce=evaluations_of("step", "epoch", "simulated_seconds", "accuracy"),
    findings=_findings,
    paper_table=_paper_table,
    draw=_draw,
    inches=(7.0, 3.7),
)
