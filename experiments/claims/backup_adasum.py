"""Whether backup workers and Adasum compose: accuracy against simulated time at equal machines."""

import math
from typing import TYPE_CHECKING, Any

from experiments import datasets, drawing
from experiments import rows as ask
from experiments.experiment import Experiment, Finding, Rows, Run, Sample, Scale, Table, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINES, REQUIRED = 32, 30
BOTH = "backup_adasum"
METHODS: dict[str, dict[str, Any]] = {
    "mean": {"reducer.name": "mean"},
    "adasum": {"reducer.name": "adasum"},
    "backup": {"reducer.name": "backup_workers", "reducer.num_required": REQUIRED},
    BOTH: {"reducer.name": "backup_workers", "reducer.num_required": REQUIRED, "reducer.combine": "adasum"},
    "async": {"server.name": "asynchronous"},
}
RATES = {"smoke": (0.2,), "laptop": (0.005, 0.0125, 0.03, 0.08, 0.2, 0.5, 1.2)}
BATCHES = {"smoke": 8, "laptop": 16}  # of one worker
EPOCHS = {"smoke": 20, "laptop": 4}  # of examples that were used, so the same for all methods
TARGETS = {"mnist": (0.9, 0.93, 0.95), "digits": (0.8, 0.85, 0.9)}  # accuracies; the last one decides


def _run(scale: Scale, *, stage: str, method: str, rate: float, seed: int) -> Run:
    data = datasets.image_set(scale)
    overrides = {
        **data,
        "data.evaluate_on": "validation" if stage == "tuning" else "test",
        "model.name": "mlp",
        "model.hidden_sizes": (64,),
        "optimizer.momentum": 0.0,
        "optimizer.learning_rate": rate,
        "schedule.name": "constant",
        "learning_rate_scaling": "none",
        "arrivals.name": "paper_cluster",
        "num_workers": MACHINES,
        "batch_size_per_worker": BATCHES[scale],
        "train_epochs": EPOCHS[scale],
        "eval_every_epochs": 0.5 if scale == "smoke" else 0.1,
        "checkpoint_every_epochs": EPOCHS[scale],
        "log_every_epochs": 0.5,
        "seed": seed,
        **METHODS[method],
    }
    tells = {"stage": stage, "data": data["data.name"], "method": method, "rate": rate, "seed": seed}
    return Run(tells=tells, spec="configs/mnist.py", overrides=overrides, flags={"num_devices": 1})


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    runs = []
    for method in METHODS:
        tuning = [_run(scale, stage="tuning", method=method, rate=rate, seed=0) for rate in RATES[scale]]
        runs += tuning
        tuned = ask.select(rows, stage="tuning", method=method)
        if len(tuned) == len(tuning):
            seeds = range(1 if scale == "smoke" else 3)
            runs += [_run(scale, stage="final", method=method, rate=_fastest(tuned), seed=seed) for seed in seeds]
    return runs


def _seconds(row: Any, target: float) -> float:
    return ask.first_at(row, target, of="accuracy", along="simulated_seconds")


def _fastest(rows: Rows) -> float:
    return ask.earliest(rows, _decides(rows), of="accuracy", along="simulated_seconds")["rate"]


def _final(rows: Rows, method: str) -> list[Any]:
    return sorted(ask.select(rows, stage="final", method=method), key=lambda row: row["seed"])


def _to_target(rows: Rows, method: str, target: float) -> Sample | str:
    """Returns the simulated seconds to an accuracy, over seeds; in words where not all of them get there."""
    found = [_seconds(row, target) for row in _final(rows, method)]
    reached = [seconds for seconds in found if math.isfinite(seconds)]
    if len(reached) == len(found) and found:
        return Sample.of(found, digits=0, unit="s")
    return f"{len(reached)} of {len(found)} runs reach it"


def _decides(rows: Rows) -> float:
    return TARGETS[rows[0]["data"]][-1]


def _findings(rows: Rows) -> list[Finding]:
    target = _decides(rows)
    return [
        Finding(quantity=f"simulated time to {100 * target:g} %, {method}", ours=_to_target(rows, method, target))
        for method in METHODS
        if _final(rows, method)
    ]


def _judge(rows: Rows) -> Verdict:
    target = _decides(rows)
    times = {method: [_seconds(row, target) for row in _final(rows, method)] for method in (BOTH, "backup", "adasum")}
    if not all(found and all(map(math.isfinite, found)) for found in times.values()):
        return Verdict("not tested at this scale", f"Not all runs reach {100 * target:g} %.")
    first = [ours < min(others) for ours, *others in zip(*times.values(), strict=True)]
    means = {method: Sample.of(found).mean for method, found in times.items()}
    because = (
        f"Both together are at {100 * target:g} % first in {sum(first)} of {len(first)} seeds (needed: all), on "
        f"average after {means[BOTH]:.0f} simulated seconds; backup workers alone after {means['backup']:.0f}, Adasum "
        f"alone after {means['adasum']:.0f}."
    )
    return Verdict("supported" if all(first) else "not supported", because)


def _table(rows: Rows) -> Table:
    targets = TARGETS[rows[0]["data"]]
    cells = []
    for method in METHODS:
        found = _final(rows, method)
        if found:
            accuracy = ask.final(found, "accuracy", digits=2, scale=100, unit="%")
            last = ask.final(found, "simulated_seconds", digits=0, unit="s")
            times = [str(_to_target(rows, method, target)) for target in targets]
            cells.append([method, f"{found[0]['rate']:g}", *times, str(accuracy), str(last)])
    header = ["Method", "rate", *(f"to {100 * target:g} %" for target in targets), "accuracy at the end", "end"]
    return Table(header, cells, note="Times are simulated.")


def _draw(rows: Rows, figure: "Figure") -> None:
    axes = figure.subplots()
    for position, method in enumerate(METHODS):
        found = _final(rows, method)
        if not found:
            continue
        length = min(len(row["accuracy"]) for row in found)
        times = [Sample.of([row["simulated_seconds"][i] for row in found]).mean for i in range(length)]
        accuracies = [Sample.of([100 * row["accuracy"][i] for row in found]) for i in range(length)]
        drawing.band(axes, times, accuracies, position=position, label=f"{method}, rate {found[0]['rate']:g}")
        axes.lines[-1].set_markevery(max(1, length // 8))
    target = 100 * _decides(rows)
    axes.axhline(target, color="#666666", linewidth=1, linestyle=":", label=f"target, {target:g} %")
    axes.set(xlabel="simulated time (s)", ylabel="test accuracy (%)", xscale="log", ylim=(target - 7.5, 100))
    axes.legend(fontsize=7, loc="lower right")


EXPERIMENT = Experiment(
    number=17,
    title="Backup workers and Adasum together",
    claim="Backup workers and Adasum compose: together they reach a given accuracy in less simulated time than either "
    "alone.",
    source="ours: of no paper",
    rule="Supported if in every seed the first 30 of 32 machines combined by Adasum are at the target (test accuracy "
    "95 % on MNIST, 90 % on digits) in less simulated time than both the mean of the first 30 and Adasum of all 32. "
    "Not tested where one of the three does not get there.",
    selection="Each method's learning rate: first at the target in simulated time on the validation split, seed 0, "
    "of 0.005, 0.0125, 0.03, 0.08, 0.2, 0.5, 1.2.",
    hours={"smoke": 0.05, "laptop": 0.3},
    runs=_runs,
    findings=_findings,
    judge=_judge,
    table=_table,
    draw=_draw,
    notes=(
        "32 machines whatever the method, an MLP (64 hidden units), 16 examples a worker, SGD without momentum at a "
        "constant rate, 4 epochs of examples that are used, evaluated 10 times in each. Times are those of the arrival "
        "model `paper_cluster`, the same for all methods with the same seed; combining takes no time, which favours "
        "Adasum. The numbers of backups and of examples a worker were set and not tuned.",
    ),
)
