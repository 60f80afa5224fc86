"""Residual networks with ever more examples before each communication: epochs to a target, with the sum and Adasum."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments import drawing
from experiments import rows as ask
from experiments.experiment import Experiment, Finding, Quoted, Row, Rows, Run, Sample, Scale, Table, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPECS = {"sum": "configs/imagenet_resnet50_sum.py", "adasum": "configs/imagenet_resnet50.py"}
REDUCERS = tuple(SPECS)
LABELS = {"sum": "sum", "adasum": "Adasum"}
SEEDS = {"smoke": 1, "laptop": 3, "gpu": 3, "paper": 1}
MORE = 1.1  # times the epochs of Adasum
# What the paper says, from the smallest batch to the largest: 2K, 16K, 64K.
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
    """What is trained at a scale, or on a set of images."""

    variant: str
    overrides: Mapping[str, Any]
    num_workers: int
    parts: Mapping[int, int]  # examples before a communication -> in how many parts a worker takes its own
    epochs: float  # at most
    target: float  # accuracy
    eval_epochs: float
    rates: Mapping[str, tuple[float, ...]]  # those of a sum times the number of workers: what a mean would have


_NARROW = {"data.augment": "none", "model.num_filters": 4, "schedule.name": "constant"}
_CIFAR = {"schedule.name": "constant"}
_RATES = {"sum": (0.1, 0.4, 1.6), "adasum": (0.025, 0.1, 0.4)}
_RATES_OF_PAPER = {"sum": (0.8, 3.2, 12.8), "adasum": (0.05, 0.1, 0.2)}
SETTINGS: dict[Scale, Setting] = {
    "laptop": Setting("laptop", _NARROW, 4, {64: 1, 256: 1, 1024: 1}, 40, 0.95, 2, _RATES),
    "gpu": Setting("laptop", _CIFAR, 32, {512: 1, 4096: 1, 16384: 4}, 60, 0.85, 1, _RATES),
    "paper": Setting("", {}, 64, {2048: 1, 16384: 1, 65536: 4}, 93, 0.749, 1, _RATES_OF_PAPER),
}
DATA = {"smoke": "digits", "laptop": "digits", "gpu": "cifar10", "paper": "imagenet2012"}
SMOKE = SETTINGS["laptop"]._replace(
    parts={64: 1, 256: 1}, epochs=2, target=0.1, eval_epochs=1, rates={"sum": (0.1,), "adasum": (0.1,)}
)


def _setting(scale: Scale) -> Setting:
    return SMOKE if scale == "smoke" else SETTINGS[scale]


def _run(scale: Scale, *, batch: int, reducer: str, rate: float, seed: int, split: str) -> Run:
    data, setting = DATA[scale], _setting(scale)
    parts = setting.parts[batch]
    overrides = {
        **setting.overrides,
        "data.name": data,
        "data.evaluate_on": split,
        "num_workers": setting.num_workers,
        "batch_size_per_worker": batch // setting.num_workers,
        "accumulation.name": "local_steps" if reducer == "adasum" and parts > 1 else "micro_batches",
        "accumulation.count": parts,
        "optimizer.learning_rate": rate / setting.num_workers if reducer == "sum" else rate,
        "train_epochs": setting.epochs,
        "log_every_epochs": setting.eval_epochs,
        "eval_every_epochs": setting.eval_epochs,
        "checkpoint_every_epochs": setting.epochs,
        "keep_checkpoints": 1,
        "seed": seed,
    }
    tells = {"batch": batch, "reducer": reducer, "rate": rate, "split": split, "seed": seed, "data": data}
    tells |= {"target": setting.target, "budget": setting.epochs}
    spec = SPECS[reducer] + (f":{setting.variant}" if setting.variant else "")
    return Run(tells=tells, spec=spec, overrides=overrides, flags={} if scale == "paper" else {"num_devices": 1})


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    """Those that rates are picked from, then the picks with all seeds."""
    setting = _setting(scale)
    points: list[dict[str, Any]] = [
        {"batch": batch, "reducer": reducer} for batch in setting.parts for reducer in REDUCERS
    ]
    runs = []
    for point in points:
        rates = setting.rates[point["reducer"]]
        runs += [_run(scale, **point, rate=rate, seed=0, split="validation") for rate in rates]
    for point in points:
        tried = ask.select(rows, **point, split="validation")
        if len(tried) == len(setting.rates[point["reducer"]]):
            rate = _picked(tried)
            runs += [_run(scale, **point, rate=rate, seed=seed, split="test") for seed in range(SEEDS[scale])]
    return runs


def _picked(tried: Rows) -> float:
    return ask.earliest(tried, target=tried[0]["target"], of="accuracy")["rate"]


def _epochs(row: Row) -> float:
    return ask.first_at(row, row["target"], of="accuracy", along="epoch")


def _tests(rows: Rows, batch: int, reducer: str) -> list[Row]:
    return ask.select(rows, batch=batch, reducer=reducer, split="test")


def _reached(rows: Rows) -> int:
    return sum(_epochs(row) < math.inf for row in rows)


def _sample(rows: Rows) -> Sample:
    """Epochs to the target; a run that does not get there counts as long as it was."""
    return Sample.of([min(_epochs(row), row["budget"]) for row in rows], digits=2)


def _told(rows: Rows) -> Sample | str:
    if not rows:
        return "not run"
    if not _reached(rows):
        best = ask.accuracy(rows)
        return f"not reached in {rows[0]['budget']:g} epochs, at {best} then"
    return _sample(rows) if _reached(rows) == len(rows) else f"{_sample(rows)}, {_reached(rows)} runs of {len(rows)}"


def _findings(rows: Rows) -> list[Finding]:
    batches = ask.distinct(rows, "batch")
    return [
        Finding(
            quantity=f"epochs to {rows[0]['target']:.1%}, {batch:,} examples before a communication, {LABELS[reducer]}",
            ours=_told(_tests(rows, batch, reducer)),
            paper=PAPER[reducer][place] if len(batches) == len(PAPER[reducer]) else None,
        )
        for place, batch in enumerate(batches)
        for reducer in REDUCERS
    ]


def _judge(rows: Rows) -> Verdict:
    batches = ask.distinct(rows, "batch")
    found = {(b, r): _tests(rows, b, r) for b in (batches[0], batches[-1]) for r in REDUCERS}
    if not all(found.values()) or not all(_reached(of) == len(of) for (b, _), of in found.items() if b == batches[0]):
        told = f"{rows[0]['target']:.1%} is not reached in every run with {batches[0]:,} examples before communication."
        return Verdict("not tested at this scale", told)
    added, adasum = (found[batches[-1], reducer] for reducer in REDUCERS)
    because = (
        f"With {batches[-1]:,} examples before each communication, epochs to {rows[0]['target']:.1%}: Adasum "
        f"{_told(adasum)}; the sum {_told(added)}. With {batches[0]:,}: Adasum {_told(found[batches[0], 'adasum'])}; "
        f"the sum {_told(found[batches[0], 'sum'])}."
    )
    slower = not _reached(added) or _sample(added).mean >= MORE * _sample(adasum).mean
    return Verdict("supported" if _reached(adasum) == len(adasum) and slower else "not supported", because)


def _table(rows: Rows) -> Table:
    cells = []
    for batch in ask.distinct(rows, "batch"):
        for reducer in REDUCERS:
            tried = ask.select(rows, batch=batch, reducer=reducer, split="validation")
            grid = [
                f"{row['rate']:g}: {ask.reached(_epochs(row), digits=1)} ({100 * ask.last(row, 'accuracy'):.1f} %)"
                for row in tried
            ]
            tests = _tests(rows, batch, reducer)
            final = str(ask.accuracy(tests)) if tests else ""
            picked = f"{_picked(tried):g}" if tried else ""
            cells.append([f"{batch:,}", LABELS[reducer], picked, str(_told(tests)), final, ", ".join(grid)])
    header = ["Examples", "Reducer", "Rate", "Epochs to the target", "Accuracy at the end", "By rate, validation"]
    return Table(header, cells, "Rates of the sum are times the number of workers: what a mean would have.")


def _draw(rows: Rows, figure: "Figure") -> None:
    axes = figure.subplots()
    batches = ask.distinct(rows, "batch")
    for position, reducer in enumerate(REDUCERS):
        there = [batch for batch in batches if _tests(rows, batch, reducer)]
        found = [_tests(rows, batch, reducer) for batch in there]
        drawing.band(axes, there, [_sample(of) for of in found], position=position, label=LABELS[reducer])
        fails = [batch for batch, of in zip(there, found, strict=True) if _reached(of) < len(of)]
        look = drawing.look(position) | {"linestyle": "", "marker": "x"}
        axes.plot(fails, [rows[0]["budget"]] * len(fails), markersize=10, **look)
    axes.axhline(rows[0]["budget"], color="#666666", linewidth=1, linestyle="--", label="end of the runs (x: not all)")
    axes.set(xscale="log", xlabel="examples before a communication", ylim=(0, None))
    axes.set(ylabel=f"epochs to {rows[0]['target']:.1%}", xticks=batches, xticklabels=[f"{b:,}" for b in batches])
    axes.minorticks_off()
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
    runs=_runs,
    findings=_findings,
    judge=_judge,
    table=_table,
    draw=_draw,
    notes=(
        "What the laptop can say: a ResNet-20 of a quarter of the channels on digits of 8 x 8 pixels, as a core takes "
        "minutes for one pass over MNIST. Its largest batch is four fifths of the training set, where 64K are a "
        "twentieth of ImageNet's. It tells whether Adasum bears larger batches than the sum on a small residual "
        "network, nothing of ImageNet's epochs.",
        "As in the configs: the sum is of gradients, then one optimizer; Adasum is of the deltas of optimizers of the "
        "workers' own. The most examples are in 4 local steps for Adasum, 4 micro-batches for the sum, where they do "
        "not fit (GPU and paper). Each worker has its own BatchNorm statistics.",
        "Differs in: a constant rate but on ImageNet, so that epochs to the target do not hang on a schedule's length. "
        "The paper's epochs are unverified recollections, and none is a target.",
    ),
)
