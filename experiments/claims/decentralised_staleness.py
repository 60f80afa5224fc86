"""Asynchronous SGD without a server: whether steps to a target follow the average staleness or the largest."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import datasets, paper_table
from experiments.study import rows as ask
from experiments.study.experiment import (
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
    evaluations_of,
    holds,
)
from experiments.study.paper_table import Cell
from experiments.study.significance import Contrast, equivalent, holm, trend
from experiments.study.tuning import Score, Tuned

WORKERS = 8
FACTOR = 5.0  # how many times as long the slow worker takes
LATENCIES = (0.0, 0.5, 2.0)  # of a message, in median durations of a gradient, which is a second
ALIKE, SLOW = "alike", "one slow"
ARRIVALS: Mapping[str, Mapping[str, Any]] = {
    ALIKE: {"arrivals.name": "lognormal"},
    SLOW: {"arrivals.name": "slow_workers", "arrivals.num_slow": 1, "arrivals.factor": FACTOR},
}
LABELS = {ALIKE: "all workers alike", SLOW: f"one worker {FACTOR:g} times as slow"}
MARGIN = 0.1  # of the steps, and of S_avg and S_max: differences up to it count as none
LEAST_COMPARED = 2  # latencies
TARGETS = {"mnist": 0.92, "digits": 0.9}  # accuracy; stated before the runs
MARK = "MEM: abstract"


class Map(NamedTuple):
    """The runs of a scale.

    Attributes:
      rates: learning rates that are tried at first.
      steps: length of a run; each step is the update of one worker.
      every: steps between evaluations.
      seeds: runs of each cell.
    """

    rates: tuple[float, ...]
    steps: int
    every: int
    seeds: int


MAPS: Mapping[Scale, Map] = {
    "smoke": Map((0.02, 0.05), steps=160, every=20, seeds=1),
    "laptop": Map((0.005, 0.01, 0.02, 0.04), steps=5000, every=50, seeds=30),
}


def _points(scale: Scale) -> list[dict[str, Any]]:
    del scale
    return [{"latency": latency, "workers": workers} for workers in ARRIVALS for latency in LATENCIES]


def _recipe(scale: Scale, *, latency: float, workers: str, rate: float) -> Run:
    data, sizes = datasets.image_set(scale), MAPS[scale]
    overrides = {
        **data,
        "model.name": "mlp",
        "model.hidden_sizes": (64,),
        "optimizer.momentum": None,
        "optimizer.learning_rate": rate,
        "schedule.name": "constant",
        "learning_rate_scaling": "none",
        "server.name": "decentralised",
        "server.latency_seconds": latency,
        **ARRIVALS[workers],
        "num_workers": WORKERS,
        "batch_size_per_worker": 4,
        "train_steps": sizes.steps,
        "eval_every_steps": sizes.every,
        "log_every_steps": sizes.steps // 4,
        "checkpoint_every_steps": sizes.steps,
    }
    return Run(labels={"data": data["data.name"]}, spec="configs/mnist.py", overrides=overrides, cost=1 + latency / 8)


def _reduce(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the accuracies of a run, and the average and the largest staleness of all of its gradients."""
    found = evaluations_of("step", "simulated_seconds", "accuracy", "staleness_mean", "staleness_max")(records)
    return {key: values[-1] if key.startswith("staleness") else values for key, values in found.items()}


def _target(rows: Rows) -> float:
    return TARGETS[rows[0]["data"]]


TUNED = Tuned(
    points=_points,
    grid=lambda scale, point: MAPS[scale].rates,
    recipe=_recipe,
    seeds={scale: sizes.seeds for scale, sizes in MAPS.items()},
    score=Score(target=_target, along="step"),
    tuned_at=lambda scale, point: {"latency": 0.0, "workers": ALIKE},
    first=("data",),
)


def _cell(rows: Rows, latency: float, workers: str) -> list[Row]:
    """Returns the reported rows of a cell, by seed."""
    return TUNED.tests(rows, latency=latency, workers=workers)


def _both(rows: Rows) -> dict[float, tuple[list[Row], list[Row]]]:
    """Returns, for each latency at which both have rows, those with workers alike and with a slow one."""
    cells = TUNED.reported(rows)
    return {
        latency: (cells[latency, ALIKE], cells[latency, SLOW])
        for latency in LATENCIES
        if (latency, ALIKE) in cells and (latency, SLOW) in cells
    }


def _reached(rows: Rows) -> list[bool]:
    return [math.isfinite(ask.first_at(row, _target(rows), of="accuracy")) for row in rows]


def _steps(rows: Rows) -> list[float]:
    """Returns each run's steps to the target; those of the whole run where it does not get there."""
    return [min(ask.first_at(row, _target(rows), of="accuracy"), float(row["step"][-1])) for row in rows]


def _steps_in_words(rows: Rows) -> Sample | str:
    reached = _reached(rows)
    if not all(reached):
        return f"{sum(reached)} of {len(reached)} runs get there in {rows[0]['step'][-1]:,}"
    return Sample.of(_steps(rows), digits=0)


def _staleness(rows: Rows, of: str) -> Sample:
    return Sample.of([row[f"staleness_{of}"] for row in rows], digits=1)


def _ratio(ours: Rows, theirs: Rows, of: str) -> float:
    """Returns the mean of ours over that of theirs: of steps, or of the "mean" or "max" staleness of runs."""
    one, other = (
        _steps(rows) if of == "steps" else [row[f"staleness_{of}"] for row in rows] for rows in (ours, theirs)
    )
    return statistics.fmean(one) / statistics.fmean(other)


def _longer(alike: Rows, slow: Rows) -> str:
    """Returns the steps to the target with a slow worker over those without, and who does not get there."""
    reached = {"with": _reached(slow), "without": _reached(alike)}
    told = ", ".join(
        f"{runs.count(False)} of {len(runs)} runs {name} it do not get there"
        for name, runs in reached.items()
        if not all(runs)
    )
    return f"{_ratio(slow, alike, 'steps'):.2f}{told and f' ({told})'}"


def _is_compared(alike: Rows, slow: Rows) -> bool:
    """Returns whether the steps of a latency test the claim: they are known, and S_max differs while S_avg does not."""
    near = {of: abs(_ratio(slow, alike, of) - 1) <= MARGIN for of in ("mean", "max")}
    return near["mean"] and not near["max"] and all(_reached(alike))


def _judge(rows: Rows) -> Verdict:
    both = _both(rows)
    compared = {latency: pair for latency, pair in both.items() if _is_compared(*pair)}
    if len(compared) < LEAST_COMPARED:
        return Verdict.untested(
            f"Only at {len(compared)} of {len(both)} latencies do all runs with workers alike reach {_aim(rows)}, with "
            "an average staleness that the slow worker leaves as it is and a largest one that it does not."
        )
    same, margins = [], []
    for latency, (alike, slow) in compared.items():
        margins.append(MARGIN * statistics.fmean(_steps(alike)))
        compare = f"steps with a slow worker as without, latency {latency:g}"
        same.append(equivalent(_steps(slow), _steps(alike), margin=margins[-1], compared=compare, digits=0))
    growth = [
        trend(
            list(zip(*(_steps(_cell(rows, latency, workers)) for latency in LATENCIES), strict=True)),
            compared=f"steps with latency, {LABELS[workers]}",
            digits=0,
        )
        for workers in ARRIVALS
    ]
    found = holm([*same, *growth])
    same, growth = found[: len(same)], found[len(same) :]
    are_same, grow = (all(contrast.holds for contrast in tests) for tests in (same, growth))
    ratios = ", ".join(f"{_longer(*pair)} at latency {latency:g}" for latency, pair in compared.items())
    left_out = "".join(f" Latency {latency:g} is not compared." for latency in both if latency not in compared)
    because = (
        f"Steps to {_aim(rows)} with a slow worker over those without: {ratios} (the same: {holds(are_same)}). Steps "
        f"grow with the latency, and so with the average staleness: {holds(grow)}.{left_out}"
    )
    if grow and not are_same and not any(map(_is_beyond, same, margins)):
        because += (
            " No interval lies beyond the margin, so that the steps are shown neither to be the same nor to differ."
        )
        return Verdict.untested(because, contrasts=found)
    return Verdict.of(are_same and grow, because, contrasts=found)


def _is_beyond(contrast: Contrast, margin: float) -> bool:
    return contrast.low > margin or contrast.high < -margin


def _aim(rows: Rows) -> str:
    return f"{100 * _target(rows):g} %"


def _findings(rows: Rows) -> list[Finding]:
    found = []
    for latency, (alike, slow) in _both(rows).items():
        more = statistics.fmean(_seconds(slow)) / statistics.fmean(_seconds(alike))
        other = math.sqrt(_ratio(slow, alike, "mean") * _ratio(slow, alike, "max"))
        where = f"one worker slow over all alike, latency {latency:g}"
        found += [
            Finding(f"sqrt(S_avg S_max), which bounds steps if gradients are unbounded, {where}", ours=f"{other:.2f}"),
            Finding(f"simulated time of an update, {where}; by construction of the arrival model", ours=f"{more:.2f}"),
        ]
    return found


def _seconds(rows: Rows) -> list[float]:
    """Returns the simulated time of an update in each run."""
    return [ask.last(row, "simulated_seconds") / ask.last(row, "step") for row in rows]


def _paper_table(rows: Rows) -> Table:
    as_average = Quoted("as S_avg, if gradients are bounded", MARK)
    cells = {
        f"{latency:g}": [
            Cell(ours=f"{_ratio(slow, alike, 'mean'):.2f}"),
            Cell(ours=f"{_ratio(slow, alike, 'max'):.2f}"),
            Cell(as_average, _longer(alike, slow)),
        ]
        for latency, (alike, slow) in _both(rows).items()
    }
    note = (
        "With one worker slow over all alike; latencies in median durations of a gradient. The paper proves rates: "
        "O(sigma / eps^2) + O(Q S_avg / eps^1.5) + O(S_avg / eps) for gradients bounded by Q, and with "
        f"sqrt(S_avg S_max) / eps without the bound [{MARK}]."
    )
    columns = ["S_avg", "S_max", f"steps to {_aim(rows)}"]
    return paper_table.table("Latency (durations)", columns, cells, note=note) if cells else Table((), ())


def _table(rows: Rows) -> Table:
    cells = [
        [
            LABELS[workers],
            f"{latency:g}",
            str(_staleness(same, "mean")),
            str(_staleness(same, "max")),
            str(_steps_in_words(same)),
            str(ask.accuracy(same)),
        ]
        for (latency, workers), same in TUNED.reported(rows).items()
    ]
    steps = f"Steps to {_aim(rows)}"
    return Table(["Workers", "Latency (durations)", "S_avg", "S_max", steps, "Test accuracy at the end"], cells)


def _draw(rows: Rows, figure: Figure) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (of, name) in zip(panels, {"mean": "average", "max": "largest"}.items(), strict=True):
        for position, workers in enumerate(ARRIVALS):
            cells = [same for latency in LATENCIES if (same := _cell(rows, latency, workers))]
            xs = [_staleness(same, of).mean for same in cells]
            samples = [Sample.of(_steps(same)) for same in cells]
            if cells:
                drawing.band(axes, xs, samples, position=position, label=LABELS[workers])
        axes.set(xlabel=f"{name} staleness (updates)", xlim=(0, None), ylim=(0, None))
    panels[0].set_ylabel(f"steps to {_aim(rows)}")
    if panels[0].lines:
        panels[0].legend(fontsize=8, loc="lower right")


EXPERIMENT = Experiment(
    number=27,
    title="Average and largest staleness without a server",
    claim="For asynchronous SGD without a server, the average staleness matters and not the largest: a slow worker, "
    "which multiplies the largest alone, leaves the steps to a target as they are, and they grow with the average.",
    source="arXiv 2309.03754, abstract, recalled and unverified; its rates have S_avg, and sqrt(S_avg S_max) where "
    "gradients are unbounded; no numbers are known",
    rule=f"By steps (updates of one worker) to the target, test accuracy 92 % on MNIST, 90 % on digits; "
    f"{MAPS['laptop'].seeds} seeds, {WORKERS} workers, messages that take 0, 0.5 and 2 times the median duration of a "
    f"gradient, all workers alike or one {FACTOR:g} times as slow, one constant learning rate. A run that does not get "
    "there counts as if it did at its end. A latency is compared if all runs with workers alike get there, and if the "
    f"slow worker changes the mean of S_avg over seeds by at most {MARGIN:.0%} and that of S_max by more; S_avg and "
    "S_max are the average and the largest staleness of a run. Supported if at each latency that is compared the steps "
    "with the slow worker are equivalent to those without (two one-sided Welch tests, margin "
    f"{MARGIN:.0%} of the mean steps without), and if with and without it the steps grow with the latency, along which "
    "S_avg grows (Page's trend tests over the seeds), at alpha = 0.05 with Holm's correction for all of these tests. "
    f"Not tested if fewer than {LEAST_COMPARED} latencies are compared; or if the steps grow, an equivalence is not "
    "shown, and none is refuted by a 90 % interval of the difference that lies beyond the margin. Else not supported.",
    selection="One learning rate for all: first at the target on the validation split at latency 0 with workers alike, "
    "mean of 3 seeds, of 0.005, 0.01, 0.02, 0.04, a grid that goes on by its own ratio until the pick is inside.",
    hours={"smoke": 0.02, "laptop": 0.35},
    runs=TUNED.runs,
    reduce=_reduce,
    findings=_findings,
    basis=lambda rows: TUNED.basis(rows, model=f"MLP of 64 hidden units, {WORKERS} workers"),
    tuned=TUNED,
    judge=_judge,
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(7.5, 3.4),
    notes=(
        "The server is `decentralised`: each worker has a replica, which gets the updates of the others a latency "
        "after they are made. An MLP with 64 hidden units, 4 examples a gradient, SGD without momentum, which the mode "
        "refuses, and a constant rate; all workers draw from the same data. Durations are lognormal with a median of a "
        f"second and a spread of 10 %. The mean of the replicas is evaluated, every {MAPS['laptop'].every} steps.",
        "The arrival model decides how the slow worker changes the staleness. S_avg is about 7 at latency 0, 10 at "
        "0.5 and 20 at 2, and the slow worker lowers it by up to 8 %. S_max is about 13, 15 and 26, and with the slow "
        "worker about 46, 49 and 59. The slow worker makes one gradient in 36, so that few gradients are that stale.",
        "The latency raises S_max, too. That steps grow with it says that staleness matters; that it is the average "
        "which does is said by the comparison of a slow worker with none.",
        "Before the rule was written, trials with seeds that are not of this claim, all without a slow worker, set the "
        "batch, the target, the length of the runs and the number of seeds. With 32 examples a gradient the rate that "
        "is fastest at latency 0 did not get to the target at latency 2, as the largest rate at which training is "
        "stable falls with staleness; with 4 the noise of the gradients keeps the rate lower. In the trials the steps "
        "to the target differed by 10 to 15 % between seeds.",
        "Steps are updates, not time: with a slow worker fewer updates are made in a second.",
    ),
)
