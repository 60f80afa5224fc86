"""DiLoCo beside synchronous AdamW on equal examples: a small byte transformer, each at its own learning rate."""

from typing import Any

import numpy as np

from experiments.study import figures, frames, tuning
from experiments.study.claim import Facts, Frame, Rows, Run, Scale, Value, beside, evaluations_of
from experiments.study.verdict import Verdict, decide_both_ways, untested, welch
from runs.reporting.progress import counted

WORKERS = (8, 1)
SYNC = 0  # steps between communications that stand for AdamW on the mean gradient
EVERY = (SYNC, 1, 10, 50)  # H
LONGEST = EVERY[-1]
MARGIN = 0.02  # share of AdamW's loss: the claim's "to within 2 %"
LEARNED = 2.5  # nats a byte that AdamW must end below, or there is nothing to be as good as
OUTER = {"name": "sgd", "learning_rate": 0.7, "momentum": 0.9, "nesterov": True}
STEPS = {"smoke": 100, "laptop": 3000}
RATES = {
    (8, SYNC): (0.005, 0.01, 0.02),
    (8, 1): (0.0005, 0.001, 0.002),
    (8, 10): (0.0025, 0.005, 0.01),
    (8, 50): (0.0025, 0.005, 0.01),
    (1, SYNC): (0.0025, 0.005, 0.01),
    (1, 1): (0.0005, 0.001, 0.002),
    (1, 10): (0.0005, 0.001, 0.002),
    (1, 50): (0.0005, 0.001, 0.002),
}


def _recipe(scale: Scale, *, workers: int, every: int, rate: float) -> Run:
    steps = STEPS[scale]
    local = {
        "reducer_on": "updates",
        "reducer.name": "local_sgd",
        "reducer.every_steps": every,
        **{f"outer.{key}": value for key, value in OUTER.items()},
    }
    overrides = {
        "data.source": "pydoc",
        "data.sequence_length": 32,
        "model.num_layers": 1,
        "model.width": 32,
        "model.num_heads": 2,
        "model.max_length": 32,
        "optimizer.learning_rate": rate,
        "schedule.warmup_epochs": None,
        "schedule.warmup_steps": steps // 20,
        **(local if every else {}),
        "num_workers": workers,
        "batch_size_per_worker": 1,
        **tuning.steps(steps, evaluate=steps // 10, log=steps // 10),
    }
    return Run(labels={"data": "text"}, spec="configs/shakespeare.py", overrides=overrides)


TUNED = tuning.Tuned(
    points=lambda scale: [{"workers": workers, "every": every} for workers in WORKERS for every in EVERY],
    grid=lambda scale, point: (0.005, 0.01) if scale == "smoke" else RATES[point["workers"], point["every"]],
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 5},
    score=tuning.Score(of="loss", mode="min", digits=3),
    tuning_seeds=tuning.ONE_SEED,
    first=("data",),
)


def frame(rows: Rows) -> Frame:
    """Returns the reported runs with their loss at the end and the data that a worker sent."""
    df = TUNED.frame(rows)
    method = ["AdamW" if every == SYNC else f"DiLoCo, H = {every}" for every in df["every"]]
    case = [counted(workers, "worker") for workers in df["workers"]]
    megabytes = frames.last(df, "sent_bytes") / 1e6
    return df.assign(method=method, case=case, nats=frames.last(df, "loss"), sent=megabytes)


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    nats = frames.groups(df, ["workers", "every"], "nats")
    if not np.isfinite(df["nats"]).all():
        return untested("A value is not finite in a run.")
    if not nats[8, SYNC].mean() < LEARNED:
        return untested(f"AdamW learns little: it ends at {frames.text(nats[8, SYNC], 3, 'nats')}.")

    ours = f"DiLoCo, H = {LONGEST}"
    near, sync = nats[8, LONGEST], nats[8, SYNC]
    less, alone = nats[1, LONGEST], nats[1, SYNC]
    tests = [
        welch(ours, near, "below", "AdamW", sync, share=MARGIN, at="8 workers", unit="nats", digits=3),
        welch(ours, less, "below", "AdamW", alone, at="1 worker", unit="nats", digits=3),
    ]
    return decide_both_ways(tests)


def _facts(df: Frame) -> Facts:
    mean = df.pivot_table(index="workers", columns="every", values=["nats", "sent"]).reindex(WORKERS)
    above = 100 * (mean["nats"][LONGEST] / mean["nats"][SYNC] - 1)
    papers = {8: "less than 2 % [READ: notes of others on DiLoCo]", 1: "below it [READ: notes of others on DiLoCo]"}
    found: Facts = {}
    for n in WORKERS:
        found[f"loss of H = {LONGEST} above that of AdamW, {counted(n, 'worker')}"] = f"{above[n]:+.1f} %", papers[n]
    less = f"{mean['sent'][SYNC][8] / mean['sent'][LONGEST][8]:g}"
    words = "bytes that a worker sends, AdamW's over those of the longest rounds (by construction)"
    return found | {words: (less, f"{LONGEST} [DERIVED: H]")}


def _draw(df: Frame, figure: Any) -> None:
    first, *_ = figures.curves(
        figure, df, along="step", of="loss", by="every", panels="case", name=figures.with_rate, xlabel="steps"
    )
    first.set_ylabel("loss on the test split (nats a byte)")


CLAIM = TUNED.claim(
    prose=beside(globals()),
    judge=verdict,
    frame=frame,
    model="byte transformer of 22 k parameters",
    labels=["workers", "method"],
    values={"nats a byte at the end": Value("nats", 3), "MB that a worker sent": Value("sent", is_fixed=True)},
    paper={
        (8, "DiLoCo, H = 50"): "as good as AdamW [READ: notes of others on DiLoCo]",
        (1, "DiLoCo, H = 50"): "gains [READ: notes of others on DiLoCo]",
    },
    facts=_facts,
    hours={"smoke": 0.05, "laptop": 0.6},
    reduce=evaluations_of("step", "epoch", "loss", "sent_bytes"),
    draw=_draw,
    inches=(7.5, 3.4),
)
