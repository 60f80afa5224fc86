"""Residual networks with ever more examples before each communication: epochs to a target, with the sum and Adasum."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments import drawing, tuning
from experiments import rows as ask
from experiments.drawing import Figure
from experiments.experiment import Experiment, Finding, Quoted, Row, Rows, Run, Sample, Scale, Table, Verdict
from experiments.tuning import Score, Tuned

SPECS = {"sum": "configs/imagenet_resnet50_sum.py", "adasum": "configs/imagenet_resnet50.py"}
LABELS = {"sum": "sum", "adasum": "Adasum"}
MORE = 1.1  # times the epochs of Adasum
# The paper's values, from the smallest batch to the largest: 2K, 16K, 64K.
PAPER = {
    "sum": (
        Quoted("62 epochs at 2K", "MEM-lo"),
        Quoted("not reached at 16K", "MEM-lo"),
        Quoted("no MLPerf v0.5 entry converged above 16K", "READ: abstract, arXiv"),
    ),
    "adasum": (
        Quoted("62 epochs at 2K", "MEM-lo"),
        Quoted("69 epochs at 16K", "MEM-lo"),
        Quoted("converges at 64K", "READ: abstract, arXiv"),
    ),
}


class Setting(NamedTuple):
    """The training at a scale."""

    data: str
    variant: str
    overrides: Mapping[str, Any]
    num_workers: int
    parts: Mapping[int, int]  # examples before a communication -> number of parts that a worker takes its own in
    epochs: float  # at most
    target: float  # accuracy
    eval_epochs: float
    rates: Mapping[str, tuple[float, ...]]  # those of a sum times the number of workers, as a mean would have


_NARROW = {"data.augment": "none", "model.num_filters": 4, "schedule.name": "constant"}
_CIFAR = {"schedule.name": "constant"}
_ONE = {"sum": (0.1,), "adasum": (0.1,)}
_RATES = {"sum": (0.1, 0.4, 1.6), "adasum": (0.025, 0.1, 0.4)}
_RATES_OF_PAPER = {"sum": (0.8, 3.2, 12.8), "adasum": (0.05, 0.1, 0.2)}
SETTINGS: dict[Scale, Setting] = {
    "smoke": Setting("digits", ":laptop", _NARROW, 4, {64: 1, 256: 1}, 2, 0.1, 1, _ONE),
    "laptop": Setting("digits", ":laptop", _NARROW, 4, {64: 1, 256: 1, 1024: 1}, 40, 0.95, 2, _RATES),
    "gpu": Setting("cifar10", ":laptop", _CIFAR, 32, {512: 1, 4096: 1, 16384: 4}, 60, 0.85, 1, _RATES),
    "paper": Setting("imagenet2012", "", {}, 64, {2048: 1, 16384: 1, 65536: 4}, 93, 0.749, 1, _RATES_OF_PAPER),
}


def _recipe(scale: Scale, *, batch: int, reducer: str, rate: float) -> Run:
    setting = SETTINGS[scale]
    parts = setting.parts[batch]
    overrides = {
        **setting.overrides,
        "data.name": setting.data,
        "num_workers": setting.num_workers,
        "batch_size_per_worker": batch // setting.num_workers,
        "accumulation.name": "local_steps" if reducer == "adasum" and parts > 1 else "micro_batches",
        "accumulation.count": parts,
        "optimizer.learning_rate": rate / setting.num_workers if reducer == "sum" else rate,
        **tuning.epochs(setting.epochs, evaluate=setting.eval_epochs, log=setting.eval_epochs),
    }
    labels = {"data": setting.data, "target": setting.target, "budget": setting.epochs}
    return Run(labels=labels, spec=SPECS[reducer] + setting.variant, overrides=overrides)


TUNED = Tuned(
    points=lambda scale: [{"batch": b, "reducer": reducer} for b in SETTINGS[scale].parts for reducer in SPECS],
    grid=lambda scale, point: SETTINGS[scale].rates[point["reducer"]],
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 3, "gpu": 3, "paper": 1},
    score=Score(target=lambda tried: tried[0]["target"]),
    tuning_seeds=tuning.ONE_SEED,
)


def _epochs(row: Row) -> float:
    return ask.first_at(row, row["target"], of="accuracy", along="epoch")


def _reached(rows: Rows) -> int:
    return sum(_epochs(row) < math.inf for row in rows)


def _sample(rows: Rows) -> Sample:
    """Returns the epochs to the target; a run that does not get there counts as long as it was."""
    return Sample.of([min(_epochs(row), row["budget"]) for row in rows], digits=2)


def _in_words(rows: Rows) -> Sample | str:
    if not rows:
        return "not run"
    if not _reached(rows):
        return f"not reached in {rows[0]['budget']:g} epochs, at {ask.accuracy(rows)} then"
    return _sample(rows) if _reached(rows) == len(rows) else f"{_sample(rows)}, {_reached(rows)} runs of {len(rows)}"


def _findings(rows: Rows) -> list[Finding]:
    batches = ask.distinct(rows, "batch")
    return [
        Finding(
            f"epochs to {rows[0]['target']:.1%}, {batch:,} examples before a communication, {label}",
            ours=_in_words(TUNED.tests(rows, batch=batch, reducer=reducer)),
            paper=PAPER[reducer][place] if len(batches) == len(PAPER[reducer]) else None,
        )
        for place, batch in enumerate(batches)
        for reducer, label in LABELS.items()
    ]


def _judge(rows: Rows) -> Verdict:
    target, batches = f"{rows[0]['target']:.1%}", ask.distinct(rows, "batch")
    few, many = ([TUNED.tests(rows, batch=b, reducer=r) for r in SPECS] for b in (batches[0], batches[-1]))
    if not all([*few, *many]) or not all(_reached(found) == len(found) for found in few):
        return Verdict.untested(
            f"{target} is not reached in every run with {batches[0]:,} examples before communication."
        )
    added, adasum = many
    slower = not _reached(added) or _sample(added).mean >= MORE * _sample(adasum).mean
    return Verdict.of(
        _reached(adasum) == len(adasum) and slower,
        f"With {batches[-1]:,} examples before each communication, epochs to {target}: Adasum {_in_words(adasum)}; "
        f"the sum {_in_words(added)}. With {batches[0]:,}: Adasum {_in_words(few[1])}; the sum {_in_words(few[0])}.",
    )


def _table(rows: Rows) -> Table:
    cells = []
    for batch in ask.distinct(rows, "batch"):
        for reducer, label in LABELS.items():
            tried = TUNED.tried(rows, batch=batch, reducer=reducer)
            tests = TUNED.tests(rows, batch=batch, reducer=reducer)
            grid = [
                f"{row['rate']:g}: {ask.reached(_epochs(row), digits=1)} ({100 * ask.last(row, 'accuracy'):.1f} %)"
                for row in tried
            ]
            picked = f"{TUNED.picked(rows, batch=batch, reducer=reducer):g}" if tried else ""
            final = str(ask.accuracy(tests)) if tests else ""
            cells.append([f"{batch:,}", label, picked, str(_in_words(tests)), final, ", ".join(grid)])
    header = ["Examples", "Reducer", "Rate", "Epochs to the target", "Accuracy at the end", "By rate, validation"]
    return Table(header, cells, "Rates of the sum are times the number of workers: what a mean would have.")


def _draw(rows: Rows, figure: Figure) -> None:
    axes, batches, budget = figure.subplots(), ask.distinct(rows, "batch"), rows[0]["budget"]
    for position, (reducer, label) in enumerate(LABELS.items()):
        found = {batch: TUNED.tests(rows, batch=batch, reducer=reducer) for batch in batches}
        found = {batch: of for batch, of in found.items() if of}
        drawing.band(axes, list(found), [_sample(of) for of in found.values()], position=position, label=label)
        fails = [batch for batch, of in found.items() if _reached(of) < len(of)]
        look = drawing.look(position) | {"linestyle": "", "marker": "x"}
        axes.plot(fails, [budget] * len(fails), markersize=10, **look)
    axes.axhline(budget, linestyle="--", label="end of the runs (x: not all)", **drawing.REFERENCE)
    axes.set(xscale="log", xlabel="examples before a communication", ylim=(0, None))
    axes.set(ylabel=f"epochs to {rows[0]['target']:.1%}")
    drawing.ticks(axes, {batch: f"{batch:,}" for batch in batches})
    axes.legend(fontsize=8)


EXPERIMENT = Experiment(
    number=11,
    title="Large batches with Momentum-SGD",
    claim="With Adasum, Momentum-SGD trains residual networks with 64K examples before each communication, four times "
    "as many as without.",
    source="arXiv 2006.02924, abstract, and the table of ResNet-50 on ImageNet",
    rule="Supported if, with the most examples before a communication, every run with Adasum reaches the target "
    f"accuracy, and with the sum none does, or it takes {MORE:g} times the epochs at least (a run that does not get "
    "there counts as long as it was). Not tested if with the fewest examples one of the two does not get there.",
    selection="The learning rate of each reducer and batch: fewest epochs to the target on the validation split (last "
    "tenth of the training set), then accuracy; seed 0; three rates each, a factor of 4 apart (2 for Adasum on "
    "ImageNet), which the table has.",
    hours={"smoke": 0.03, "laptop": 1.0, "gpu": 6.0, "paper": 320.0},
    runs=TUNED.runs,
    findings=_findings,
    basis=lambda rows: TUNED.basis(rows, model="ResNet-20"),
    tuned=TUNED,
    judge=_judge,
    table=_table,
    draw=_draw,
    notes=(
        "The laptop trains a ResNet-20 of a quarter of the channels on digits of 8 x 8 pixels, as a core takes "
        "minutes for one pass over MNIST. Its largest batch is four fifths of the training set, where 64K are a "
        "twentieth of ImageNet's. It shows whether Adasum bears larger batches than the sum on a small residual "
        "network, and nothing about ImageNet's epochs.",
        "As in the configs: the sum is of gradients, then one optimizer; Adasum is of the deltas of optimizers of the "
        "workers' own. The most examples are in 4 local steps for Adasum, 4 micro-batches for the sum, where they do "
        "not fit (GPU and paper). Each worker has its own BatchNorm statistics.",
        "Differs in: a constant rate but on ImageNet, so that epochs to the target do not hang on a schedule's length. "
        "The paper's epochs are unverified recollections, and none is a target.",
    ),
)
