"""Asynchronous SGD without a server: whether steps to a target follow the average staleness or the largest."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.study import datasets, figures, frames
from experiments.study.claim import Facts, Figure, Frame, Rows, Run, Scale, Value, beside, evaluations_of
from experiments.study.tuning import Score, Tuned
from experiments.study.verdict import Verdict, decide, equivalent, holm, trend, untested

WORKERS = 8
FACTOR = 5.0  # how many times as long the slow worker takes
LATENCIES = (0.0, 0.5, 2.0)  # seconds of a message; the median duration of a gradient is a second
ALIKE, SLOW = "alike", "one slow"
ARRIVALS: Mapping[str, Mapping[str, Any]] = {
    ALIKE: {"arrivals.name": "lognormal"},
    SLOW: {"arrivals.name": "slow_workers", "arrivals.num_slow": 1, "arrivals.factor": FACTOR},
}
LABELS = {ALIKE: "all workers alike", SLOW: f"one worker {FACTOR:g} times as slow"}
MARGIN = 0.1  # share of the steps, of S_avg and of S_max; differences up to it count as none
LEAST_COMPARED = 2  # latencies
TARGETS = {"mnist": 0.92, "digits": 0.9}  # accuracy; stated before the runs
PAPER = "as S_avg, if gradients are bounded [MEM: abstract]"
RATES = {"smoke": (0.02, 0.05), "laptop": (0.005, 0.01, 0.02, 0.04)}
STEPS = {"smoke": 160, "laptop": 5000}  # each is the update of one worker


def _recipe(scale: Scale, *, latency: float, workers: str, rate: float) -> Run:
    steps = STEPS[scale]
    overrides = {
        **datasets.mlp(scale, momentum=None),
        "optimizer.learning_rate": rate,
        "server.name": "decentralised",
        "server.latency_seconds": latency,
        **ARRIVALS[workers],
        "num_workers": WORKERS,
        "batch_size_per_worker": 4,
        "train_steps": steps,
        "eval_every_steps": 20 if scale == "smoke" else 50,
        "log_every_steps": steps // 4,
        "checkpoint_every_steps": steps,
    }
    return Run(spec="configs/mnist.py", overrides=overrides)


def _reduce(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the accuracies of a run, and the average and the largest staleness of all of its gradients."""
    found = evaluations_of("step", "simulated_seconds", "accuracy", "staleness_mean", "staleness_max")(records)
    return {key: values[-1] if key.startswith("staleness") else values for key, values in found.items()}


TUNED = Tuned(
    points=lambda scale: [{"latency": at, "workers": workers} for workers in ARRIVALS for at in LATENCIES],
    grid=lambda scale, point: RATES[scale],
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 44},
    first_seeds={"laptop": 30},
    score=Score(target=lambda rows: TARGETS[rows[0]["data"]], along="step"),
    tuned_at=lambda scale, point: {"latency": 0.0, "workers": ALIKE},
    first=("data",),
)


def frame(rows: Rows) -> Frame:
    """Returns the reported runs with their steps to the target; the steps of the whole run if it is not reached."""
    df = TUNED.frame(rows)
    way = frames.until(df, df["data"].map(TARGETS))
    whole = frames.last(df, "step")
    return df.assign(
        way=way,
        steps=np.fmin(way, whole),
        S_avg=df["staleness_mean"],
        S_max=df["staleness_max"],
        seconds=frames.last(df, "simulated_seconds") / whole,  # seconds of an update
    )


def _slow_over_alike(df: Frame) -> Frame:
    """Returns the means with a slow worker divided by those without, a line for each latency."""
    groups = df.groupby(["workers", "latency"])[["steps", "S_avg", "S_max", "seconds"]]
    means = groups.agg(lambda values: values.mean(skipna=False))
    return means.loc[SLOW] / means.loc[ALIKE]


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    way = frames.groups(df, ["latency", "workers"], "way")
    steps = frames.groups(df, ["latency", "workers"], "steps")
    ratios = _slow_over_alike(df)
    near = (ratios - 1).abs() <= MARGIN
    alone = ratios.index[near["S_avg"] & ~near["S_max"]]
    compared = [at for at in alone if np.isfinite(way[at, ALIKE]).all()]
    if len(compared) < LEAST_COMPARED:
        return untested(
            f"Only at {len(compared)} of {len(ratios)} latencies do all runs with workers alike reach the target, with "
            "an average staleness that the slow worker leaves as it is and a largest one that it does not."
        )
    slow, alike = LABELS[SLOW], LABELS[ALIKE]
    same = [
        equivalent(slow, steps[at, SLOW], alike, steps[at, ALIKE], share=MARGIN, digits=0, at=f"latency {at:g}")
        for at in compared
    ]
    words = "the steps grow with the latency, along which S_avg grows"
    grow = []
    for workers, at in LABELS.items():
        by_seed = frames.by_seed(df[df["workers"] == workers], "latency", "steps")
        grow.append(trend(words, by_seed, digits=0, at=at))
    tests = holm(*same, *grow)
    differs = any(test.is_beyond for test in tests[: len(same)])
    all_grow = all(test.holds for test in tests[len(same) :])
    return decide(tests, refuted=differs or not all_grow)


def _facts(df: Frame) -> Facts:
    aim = f"{100 * TARGETS[df['data'].iloc[0]]:g} %"
    found: Facts = {}
    for latency, ratio in _slow_over_alike(df).iterrows():
        where = f"one worker slow over all alike, latency {latency:g}"
        unbounded = np.sqrt(ratio["S_avg"] * ratio["S_max"])
        found |= {
            f"steps to {aim}, {where}": (f"{ratio['steps']:.2f}", PAPER),
            f"S_avg, {where}": f"{ratio['S_avg']:.2f}",
            f"S_max, {where}": f"{ratio['S_max']:.2f}",
            f"sqrt(S_avg S_max), which bounds steps if gradients are unbounded, {where}": f"{unbounded:.2f}",
            f"simulated time of an update, {where}; by construction of the arrival model": f"{ratio['seconds']:.2f}",
        }
    return found


def _draw(df: Frame, figure: Figure) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (of, name) in zip(panels, {"S_avg": "average", "S_max": "largest"}.items(), strict=True):
        for position, (workers, label) in enumerate(LABELS.items()):
            cells = df[df["workers"] == workers].groupby("latency")
            steps = [each.to_numpy() for _, each in cells["steps"]]
            if steps:
                figures.band(axes, cells[of].mean(), steps, position=position, label=label)
        axes.set(xlabel=f"{name} staleness (updates)", xlim=(0, None), ylim=(0, None))
    panels[0].set_ylabel(f"steps to {100 * TARGETS[df['data'].iloc[0]]:g} %")
    panels[0].legend(loc="lower right")


CLAIM = TUNED.claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.02, "laptop": 0.35},
    reduce=_reduce,
    frame=frame,
    model=f"MLP of 64 hidden units, {WORKERS} workers",
    labels=["latency", "workers"],
    values={
        "S_avg": Value("S_avg", 1),
        "S_max": Value("S_max", 1),
        "steps to the target": Value("way", 0),
        "test accuracy at the end": Value("end", unit="%"),
    },
    facts=_facts,
    draw=_draw,
    inches=(7.5, 3.4),
)
