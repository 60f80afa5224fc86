"""Local SGD whose averages come late: the accuracy at the end, by how many steps late they are."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.plots import drawing
from experiments.study import datasets, figures, frames
from experiments.study.claim import Facts, Figure, Frame, Rows, Run, Scale, Value, beside, evaluations_of
from experiments.study.tuning import RATE_AND_ACCURACY, Tuned
from experiments.study.verdict import Test, Verdict, decide_both_ways, untested, welch
from planning.network import Network, exposed
from runs.reporting.progress import counted

WORKERS, BATCH = 8, 16
EVERY = 4  # H, steps from one launch to the next
DELAYS = (0, 1, 2, 4)  # d, steps from a launch to its average
LEARNED = 90  # % of test accuracy that no delay must end at, or there is nothing to be as good as
STEPS = {"smoke": 40, "laptop": 1000}
RATES = {"smoke": (0.03, 0.06), "laptop": (0.02, 0.03, 0.045, 0.0675)}
MARK = "[READ: abstract, arXiv 2006.00441]"
MARGIN = 0.25  # percentage points: the least difference that matters
LINK = Network(bytes_per_second=1e9 / 8)
RATIOS = (1, 2, 4, 8)  # time of the link over that of a step, for the figure


def recipe(scale: Scale, *, delay: int, rate: float, split: Mapping[str, Any] | None = None) -> Run:
    """Returns one run; ``split`` are overrides that give each worker a share of the data."""
    steps = STEPS[scale]
    overrides = {
        **(split or {}),
        **datasets.image_set(scale),
        **datasets.MLP,
        "optimizer.learning_rate": rate,
        "learning_rate_scaling": "none",
        "reducer_on": "updates",
        "reducer.name": "local_sgd",
        "reducer.every_steps": EVERY,
        "reducer.delay_steps": delay,
        "arrivals.name": "lognormal",
        "num_workers": WORKERS,
        "batch_size_per_worker": BATCH,
        "train_steps": steps,
        "eval_every_steps": steps // 10,
        "log_every_steps": steps // 10,
        "checkpoint_every_steps": steps,
    }
    return Run(spec="configs/mnist.py", overrides=overrides)


def _reduce(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a run's evaluations, what a worker sends in a communication, and the time of a worker's gradient."""
    fastest = max(record["examples_per_second"] for record in records if record["kind"] == "train")
    return {
        **evaluations_of("step", "epoch", "simulated_seconds", "accuracy", "sent_bytes")(records),
        "bytes_per_worker": records[-1]["bytes_per_worker"],
        "gradient_seconds": BATCH / fastest,
    }


TUNED = Tuned(
    points=lambda scale: [{"delay": delay} for delay in DELAYS],
    grid=lambda scale, point: RATES[scale],
    recipe=recipe,
    seeds={"smoke": 1, "laptop": 40},
    first=("data",),
)


def frame(rows: Rows) -> Frame:
    """Returns the reported runs with the times of a communication and of a step, and of the wait that is not hidden."""
    df = TUNED.frame(rows)
    link = df["bytes_per_worker"].map(LINK.seconds)
    step = df["gradient_seconds"].median()
    waits = [
        exposed(seconds, step_seconds=step, every_steps=EVERY, delay_steps=delay)
        for seconds, delay in zip(link, df["delay"], strict=True)
    ]
    return df.assign(
        simulated=frames.last(df, "simulated_seconds") / frames.last(df, "step"),
        link=1e3 * link,
        measured=1e3 * step,
        exposed=1e3 * np.array(waits),
    )


def no_worse(ends: Mapping[int, Any], *, margin: float, learned: float, test: Callable[..., Test]) -> Verdict:
    """Returns the verdict that each delay loses at most a margin to none, by accuracies; none must have learned."""
    none = ends[0]
    if not none.mean(skipna=False) > learned:
        return untested(f"Without a delay little is learnt: the runs end at {frames.text(none, 2, '%')}.")
    tests = [test(f"delay {d}", ends[d], "above", "delay 0", none, by=-margin, unit="points") for d in DELAYS[1:]]
    return decide_both_ways(tests)


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    return no_worse(frames.groups(df, "delay", "end"), margin=MARGIN, learned=LEARNED, test=welch)


def _facts(df: Frame) -> Facts:
    link, step = df["link"].iloc[0], df["measured"].iloc[0]
    least = math.ceil(link / step)
    hidden = f"{least} steps"
    if least > EVERY:
        hidden += f", more than a round's {EVERY}"
    return {
        "communication over 1 Gb/s (modelled: bytes of an all-reduce)": f"{link:.2f} ms",
        "a worker's step (median of runs, fastest of ten laps; without a network)": f"{step:.2f} ms",
        "least delay that hides all of the communication, by arithmetic": hidden,
    }


def draw(df: Frame, figure: Any, *, margin: float) -> None:
    """Draws the accuracy at the end by the delay, and what no delay has less a margin, in percentage points."""
    (axes,) = figures.values(figure, df, x="delay", y={"end": "test accuracy at the end (%)"}, dots=True)
    least = df.loc[df["delay"] == 0, "end"].mean() - margin
    figures.line(axes, least, f"no delay less {margin:g} points", linestyle=":")
    axes.set(xlabel="delay (steps)", xticks=DELAYS)
    axes.legend(loc="lower left")


def _draw(df: Frame, figure: Figure) -> None:
    accuracy, waits = figure.subplots(1, 2)
    draw(df, accuracy, margin=MARGIN)
    along = np.linspace(0, EVERY, 17)
    for position, ratio in enumerate(RATIOS):
        waiting = np.maximum(0, ratio - along) / EVERY
        waits.plot(along, waiting, color=drawing.COLOURS[position], label=counted(ratio, "step"))
    waits.set(xlabel="delay (steps)", ylabel="waiting a step, in steps", xticks=DELAYS, title="by arithmetic")
    waits.set(ylim=(None, 1.3 * max(RATIOS) / EVERY))  # room for the legend
    waits.legend(ncols=2, title="a communication takes")


CLAIM = TUNED.claim(
    prose=beside(globals()),
    judge=verdict,
    frame=frame,
    model=f"MLP of 64 hidden units, {WORKERS} workers",
    labels=["delay"],
    values={
        **RATE_AND_ACCURACY,
        "simulated seconds of a step": Value("simulated", 3),
        "exposed ms of a step": Value("exposed", is_fixed=True),
    },
    paper={
        0: f"local SGD {MARK}",
        **dict.fromkeys(DELAYS[1:], f"convergence rate of SGD, communication hidden {MARK}"),
    },
    facts=_facts,
    hours={"smoke": 0.05, "laptop": 0.4},
    reduce=_reduce,
    timings=("gradient_seconds",),
    draw=_draw,
    inches=(7.5, 3.4),
)
