"""PixelCNN with 1, 8 and 16 workers: synchronous SGD with one backup worker against asynchronous SGD."""

from collections.abc import Mapping
from typing import Any

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table, tuning
from experiments.study import rows as ask
from experiments.study.findings import Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Compare,
    Group,
    Measure,
    Need,
    Rule,
    all_finite,
    at_end,
    capped,
    until,
)
from experiments.study.run import Rows, Run, Scale, evaluations_of, scale_of
from experiments.study.tuning import Score, Tuned

Case = tuple[str, int]  # mode and number of workers
MODES = ("synchronous", "asynchronous")
MANY = (8, 16)
RATES: Mapping[Case, tuple[float, ...]] = {  # the staler the gradients, the lower
    ("alone", 1): (0.001, 0.003, 0.01),
    ("synchronous", 8): (0.003, 0.01, 0.03),
    ("asynchronous", 8): (0.0003, 0.001, 0.003),
    ("synchronous", 16): (0.003, 0.01, 0.03),
    ("asynchronous", 16): (0.0001, 0.0003, 0.001),
}
SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 5, "gpu": 3, "paper": 3}
# A worker's batch, and epochs. CIFAR-10 takes a CPU core hours: on a laptop, digits stand in for it.
SIZES: Mapping[Scale, tuple[str, dict[str, Any], float]] = {
    "smoke": (":smoke", {}, 1),
    "laptop": (":laptop", {"data.name": "digits", "batch_size_per_worker": 4}, 30),
    "gpu": (":laptop", {"batch_size_per_worker": 16}, 12),
    "paper": ("", {}, 60),
}
EVALUATIONS = {"smoke": 2, "laptop": 30, "gpu": 24, "paper": 60}
LEAST_EPOCHS = 10  # fewer say nothing of where training ends
TARGETS = {"digits": 2.2, "cifar10": 4.2}  # bits per dimension


def _recipe(scale: Scale, *, mode: str, num_workers: int, rate: float) -> Run:
    variant, sizes, epochs = SIZES[scale]
    own: dict[str, dict[str, Any]] = {
        "alone": {"reducer.name": "mean"},
        "synchronous": {"reducer.name": "backup_workers", "reducer.num_required": num_workers - 1},
        "asynchronous": {"reducer.name": "mean", "server.name": "asynchronous", "clip_norm": 1.0},
    }
    overrides = {
        **sizes,
        "num_workers": num_workers,
        "optimizer.learning_rate": rate,
        **own[mode],
        **tuning.epochs(
            epochs,
            evaluate=epochs / EVALUATIONS[scale],
            log=epochs / 4,
            checkpoint=epochs / {"gpu": 4, "paper": 20}.get(scale, 1),
        ),
    }
    data = "digits" if scale in ("smoke", "laptop") else "cifar10"
    return Run(labels={"data": data}, spec=f"configs/cifar10_pixelcnn.py{variant}", overrides=overrides)


def _cases(scale: Scale) -> list[Case]:
    """Returns the modes and numbers of workers; half an hour of a GPU is for those that the rule compares."""
    return [case for case in RATES if scale != "gpu" or case[1] in MANY]


TUNED = Tuned(
    points=lambda scale: [{"mode": mode, "num_workers": n} for mode, n in _cases(scale)],
    grid=lambda scale, point: RATES[point["mode"], point["num_workers"]][: 2 if scale == "smoke" else None],
    recipe=_recipe,
    seeds=SEEDS,
    first_seeds={"laptop": 5},
    score=Score("bits_per_dim", mode="min", digits=3, factor=1.0),
    tuning_seeds={"gpu": 1, "paper": 1},
)


def _target(rows: Rows) -> float:
    """Returns the bits per dimension to be reached."""
    return TARGETS[rows[0]["data"]]


def _bits(rows: Rows) -> Sample:
    return ask.final(rows, "bits_per_dim", digits=3)


def _findings(rows: Rows) -> list[Finding]:
    return [
        Finding(f"simulated time to {_target(same):g} bits per dimension, {_name(case)}", ours=TIME.reached(same))
        for case, same in TUNED.reported(rows).items()
    ]


def _name(case: Case) -> str:
    mode, n = case
    return f"{n} worker{'s' if n > 1 else ''}, {mode}"


def _paper_table(rows: Rows) -> Table:
    worst = Quoted("the worst, at a lower rate", "MEM lo-med")
    cells = {
        _name(case): [
            Cell(worst if case == ("asynchronous", 16) else None, _bits(same)),
            Cell(ours=TIME.reached(same)),
        ]
        for case, same in TUNED.reported(rows).items()
    }
    note = "The paper's curves of likelihood over time; what we recall of them is the order [MEM lo-med]: synchronous "
    note += "training gets lower, in less time."
    columns = ["test bits per dimension", "time to the rule's target"]
    return paper_table.table("Workers", columns, cells, note=note) if cells else Table((), ())


def _draw(rows: Rows, figure: Figure) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    groups = {mode if n == 1 else f"{mode}, {n}": same for (mode, n), same in TUNED.reported(rows).items()}
    for axes, along in zip(panels, ("simulated_seconds", "epoch"), strict=True):
        drawing.curves(axes, groups, along=along, of="bits_per_dim", marker="", linewidth=1.2)
    panels[0].set(xlabel="simulated time (s)", ylabel="test bits per dimension", xscale="log")
    panels[1].set(xlabel="epochs")
    if groups:
        panels[1].legend(fontsize=8)


BITS = at_end("bits_per_dim", words="test bits per dimension at the end", unit="bits", digits=3, short="bits")
TIME = until(
    _target,
    words="simulated time to 2.2 bits on digits, 4.2 on CIFAR-10",
    of="bits_per_dim",
    along="simulated_seconds",
    mode="min",
    unit="s",
    short="time",
)
CAPPED = capped(TIME, along="simulated_seconds")


def _with(mode: str, num_workers: int, measure: Measure) -> Group:
    return TUNED.group(mode, measure, mode=mode, num_workers=num_workers)


def _is_short(rows: Rows) -> str:
    compared = [row for row in TUNED.tests(rows) if row["mode"] in MODES]
    short = min((ask.last(row, "epoch") for row in compared), default=0.0)
    words = f"{short:.1f} epochs say nothing of where training ends; the rule needs {LEAST_EPOCHS}."
    return "" if short >= LEAST_EPOCHS else words


RULE = Rule(
    setting=f"{SEEDS['laptop']} seeds",
    needs=[
        Need(f"a run has less than {LEAST_EPOCHS} epochs", _is_short),
        all_finite(*(_with("synchronous", n, TIME) for n in MANY)),
    ],
    parts=lambda scale: [
        Compare(
            ours=_with("synchronous", n, measure),
            is_="below",
            theirs=_with("asynchronous", n, measure),
            at=f"{n} workers",
        )
        for n in MANY
        for measure in (BITS, CAPPED)
    ],
)


EXPERIMENT = TUNED.experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("5c079a680263",),
    model=lambda rows: "PixelCNN" + ("" if scale_of(rows) == "paper" else " of 3 layers"),
    hours={"smoke": 0.2, "laptop": 0.5, "gpu": 0.45, "paper": 120},
    reduce=evaluations_of("step", "epoch", "simulated_seconds", "bits_per_dim"),
    findings=_findings,
    paper_table=_paper_table,
    draw=_draw,
    inches=(7.0, 3.2),
)
