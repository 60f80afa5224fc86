"""The learning rate at 100 workers and 6 backups: what it does to the final accuracy, and to the way there."""

from collections.abc import Mapping
from fractions import Fraction
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
    Rule,
    all_finite,
)
from experiments.study.run import Rows, Run, Scale, evaluations_of
from experiments.study.tuning import Tuned

# Factor of the linear rule's rate -> the paper's rate, test precision@1, iterations and epochs to converge.
PAPER = {
    0.25: ("1.125", "77.29 %", "52,628", "131"),
    0.5: ("2.25", "77.75 %", "65,811", "164"),
    1.0: ("4.5", "78.15 %", "76,209", "190"),
    2.0: ("9.0", "78.17 %", "77,235", "193"),
}
FACTORS = tuple(PAPER)
LOW, FULL = 0.25, 1.0  # the two factors that the rule compares
DECAYS = 95  # of the learning rate, by 0.94: as many as in the paper's 190 epochs
TARGETS = {"digits": 0.9, "mnist": 0.95, "cifar10": 0.85}  # modest accuracies, stated before the runs
SEVERAL_TARGETS = (0.9, 0.93, 0.95, 0.96, 0.97)  # accuracies to which the epochs are reported, whatever the rule
LEAST_UPDATES = 3000  # with fewer, a low rate is slower to everything
NEAR = 0.001  # of accuracy: what counts as converged


class Setting(NamedTuple):
    """The training at a scale.

    Attributes:
      overrides: of the config: the model, and data if they are not images of any scale.
      bases: rates of one worker that are tried; the linear rule multiplies them by the 100 that are waited for.
      epochs: length of a run.
      evaluations: number of evaluations in a run.
    """

    overrides: Mapping[str, Any]
    bases: tuple[float, ...]
    epochs: int
    evaluations: int


BASES = (0.0005, 0.001, 0.002, 0.004)
RESNET = {**datasets.RESNET, "batch_size_per_worker": 8}
STAND_IN_EPOCHS = 400  # on digits, an epoch is less than an update
SETTINGS: Mapping[Scale, Setting] = {
    "smoke": Setting({"model.name": "mlp"}, BASES, epochs=8, evaluations=2),
    "laptop": Setting({"model.name": "mlp"}, BASES, epochs=30, evaluations=60),
    "gpu": Setting(RESNET, (0.002, 0.004, 0.008), epochs=60, evaluations=60),
}


def _recipe(scale: Scale, *, base: float, factor: float) -> Run:
    setting = SETTINGS[scale]
    data = {**datasets.image_set(scale), **setting.overrides}["data.name"]
    epochs = STAND_IN_EPOCHS if (scale, data) == ("laptop", datasets.STAND_IN) else setting.epochs
    checkpoint = epochs / 6 if scale == "gpu" else None  # a run that is stopped goes on from there
    overrides = {
        "data.name": data,
        **setting.overrides,
        "optimizer.learning_rate": base * factor,
        "schedule.every_epochs": epochs / DECAYS,
        **tuning.epochs(epochs, evaluate=epochs / setting.evaluations, checkpoint=checkpoint),
    }
    return Run(labels={"data": data}, spec="configs/mnist_backup_106.py", overrides=overrides)


TUNED = Tuned(
    points=lambda scale: [{"factor": factor} for factor in FACTORS],
    tuned_at=lambda scale, point: {"factor": FULL},
    grid=lambda scale, point: SETTINGS[scale].bases,
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 3, "gpu": 3},
    key="base",
    value="rate of one worker",
    first=("base",),
    tuning_seeds=tuning.ONE_SEED,
    extensions={"laptop": 0},  # whose runs are too short to decide, whatever the rate
)


def _finals(rows: Rows) -> dict[float, Rows]:
    """Returns the reported rows of each multiple of the rate, ascending."""
    tests = TUNED.tests(rows)
    return {factor: ask.select(tests, factor=factor) for factor in ask.distinct(tests, "factor")}


def _target(rows: Rows) -> float:
    """Returns the modest accuracy to be reached."""
    return TARGETS[rows[0]["data"]]


def _epochs(rows: Rows) -> list[float]:
    """Returns the epochs of each run to the modest accuracy; infinity where it does not get there."""
    return [ask.first_at(row, _target(rows), of="accuracy", along="epoch") for row in rows]


def _to_converge(rows: Rows, *, along: str) -> Sample:
    """Returns the way until a run is within 0.1 points of its own best."""
    found = [ask.first_at(row, max(row["accuracy"]) - NEAR, of="accuracy", along=along) for row in rows]
    return Sample.of(found, digits=0 if along == "step" else 1)


def _name(factor: float) -> str:
    return f"{Fraction(factor)} of the linear rule's rate"


def _findings(rows: Rows) -> list[Finding]:
    found = []
    for factor, same in _finals(rows).items():
        epochs = _epochs(same)
        late = sum(value == float("inf") for value in epochs)
        ours = f"{late} of {len(epochs)} runs do not get there" if late else Sample.of(epochs, digits=1, unit="epochs")
        found.append(Finding(f"epochs to {100 * _target(same):g} %, {_name(factor)}", ours=ours))
    return found


def _paper_table(rows: Rows) -> Table:
    cells = {}
    for factor, same in _finals(rows).items():
        rate, accuracy, steps, epochs = PAPER[factor]
        cells[f"{rate} ({Fraction(factor)} of 0.045 x 100)"] = [
            Cell(Quoted(accuracy, "MEM med-hi"), ask.accuracy(same)),
            Cell(Quoted(steps, "MEM med-hi"), _to_converge(same, along="step")),
            Cell(Quoted(epochs, "DERIVED from MEM med-hi"), _to_converge(same, along="epoch")),
        ]
    columns = ["test precision@1 at convergence", "iterations to converge", "epochs to converge"]
    note = "The paper: Inception on ImageNet. Ours: accuracy at the end, and the way until a run is within 0.1 points "
    return paper_table.table("Initial rate", columns, cells, note=f"{note}of its own best.")


def _table(rows: Rows) -> Table:
    """Returns the epochs to several accuracies for each multiple of the rate."""
    cells = [
        [str(Fraction(factor)), *(_epochs_in_words(same, target) for target in SEVERAL_TARGETS)]
        for factor, same in _finals(rows).items()
    ]
    return Table(["Rate (× linear rule's)", *(f"epochs to {100 * target:g} %" for target in SEVERAL_TARGETS)], cells)


def _epochs_in_words(rows: Rows, target: float) -> str:
    there = sum(max(row["accuracy"]) >= target for row in rows)
    if there < len(rows):
        return f"{there} of {len(rows)} runs get there"
    return str(ask.until(rows, target, of="accuracy", along="epoch", digits=1))


def _draw(rows: Rows, figure: Figure) -> None:
    finals = _finals(rows)
    levels, curves = figure.subplots(1, 2)
    if not finals:
        return
    drawing.band(levels, list(finals), [ask.accuracy(same) for same in finals.values()], position=0, label="ours")
    groups = {str(Fraction(factor)): ask.errors(same) for factor, same in finals.items()}
    drawing.curves(curves, groups, along="epoch", of="error", marker="", linewidth=1.2)
    curves.axhline(100 * (1 - _target(rows)), label=f"{100 * _target(rows):g} %", **drawing.REFERENCE)
    levels.set(xlabel="learning rate (× linear rule's)", ylabel="final test accuracy (%)", xscale="log")
    drawing.ticks(levels, {factor: str(Fraction(factor)) for factor in finals})
    curves.set(xlabel="epochs", ylabel="test error (%)", yscale="log")
    drawing.plain_numbers(curves.yaxis)
    curves.legend(fontsize=8, title="× linear rule's", title_fontsize=8)


WAY = Measure(
    words="epochs to 85 % on CIFAR-10, 95 % on MNIST, 90 % on digits",
    values=_epochs,
    unit="epochs",
    digits=1,
    short="epochs",
)


def _at(factor: float, measure: Measure) -> Group:
    name = "the rate that was picked" if factor == FULL else f"{Fraction(factor)} of it"
    return TUNED.group(name, measure, factor=factor)


def _few_updates(rows: Rows) -> str:
    updates = min(ask.last(row, "step") for factor in (LOW, FULL) for row in TUNED.tests(rows, factor=factor))
    words = (
        f"A run has {updates:.0f} updates. With fewer than {LEAST_UPDATES:,} it is the number of updates that limits "
        "training, so that a lower rate is slower to everything."
    )
    return "" if updates >= LEAST_UPDATES else words


RULE = Rule(
    setting="three seeds",
    needs=[
        Need(f"a run has fewer than {LEAST_UPDATES:,} updates", _few_updates),
        all_finite(_at(LOW, WAY), _at(FULL, WAY)),
    ],
    parts=lambda scale: [
        Compare(ours=_at(LOW, measure), is_="below", theirs=_at(FULL, measure)) for measure in (FINITE_ACCURACY, WAY)
    ],
)


EXPERIMENT = TUNED.experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("677175a1fe1b",),
    model=lambda rows: "ResNet-20" if rows[0]["data"] == "cifar10" else "MLP",
    hours={"smoke": 0.05, "laptop": 0.25, "gpu": 0.48},
    reduce=evaluations_of("step", "epoch", "accuracy"),
    findings=_findings,
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(7.0, 3.2),
)
