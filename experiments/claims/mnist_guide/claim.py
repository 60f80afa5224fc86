"""Horovod's guide on MNIST: Adasum at 2.5 times the best learning rate of one worker, against averaging."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.claims.lenet_workers import claim as lenet_workers
from experiments.plots import drawing
from experiments.study import figures, frames, tuning
from experiments.study.claim import Facts, Figure, Frame, Rows, Run, Scale, Value, beside
from experiments.study.datasets import LENET_RATE as RATE
from experiments.study.verdict import Verdict, decide, holm, welch

ADASUM, MEAN = "adasum", "mean"
DIVERGED = 10.0  # percent of errors, where axes end
LABELS = {ADASUM: "Adasum", MEAN: "averaging"}
WORKERS = {"smoke": 4, "laptop": 16}
GUIDE = 2.5  # times the rate of one worker, for Adasum
GRIDS: Mapping[str, tuple[float, ...]] = {ADASUM: (1.25, 2.5, 5.0), MEAN: (4.0, 8.0, 16.0)}  # times the same
SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 5}
PAPER = "consistently better than averaging with the same steps, no numbers [READ]"


def untuned(num_workers: int) -> list[tuple[str, float]]:
    """Returns the reducers and the multiples of one worker's rate that are run without tuning.

    >>> untuned(16)
    [('adasum', 2.5), ('mean', 1.0), ('mean', 2.5), ('mean', 16.0)]
    """
    return [(ADASUM, GUIDE), (MEAN, 1.0), (MEAN, GUIDE), (MEAN, float(num_workers))]


TUNED = tuning.Tuned(
    points=lambda scale: [{"reducer": reducer} for reducer in GRIDS],
    grid=lambda scale, point: GRIDS[point["reducer"]][: 2 if scale == "smoke" else None],
    recipe=lambda scale, **case: lenet_workers.recipe(scale, num_workers=WORKERS[scale], evaluations=4, **case),
    seeds=SEEDS,
    key="factor",
    value="multiple of the rate of one worker",
    tuning_seeds={"smoke": 1, "laptop": 2},
)


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    """Returns the untuned runs, the tuning runs, then the runs of picks that are not among the untuned ones."""
    first = []
    for reducer, factor in untuned(WORKERS[scale]):
        first += TUNED.reported_runs(scale, {"reducer": reducer}, factor)
    points = TUNED.points(scale)
    if not all(TUNED.is_tuned(scale, rows, point) for point in points):
        return first + TUNED.tuning_runs(scale, rows, points)
    names = {run.name for run in first}
    return first + [run for run in TUNED.runs(scale, rows) if run.name not in names]


def _name(reducer: str, factor: float) -> str:
    marks = {(ADASUM, GUIDE): " (the guide's)", (MEAN, 1.0): " (one worker's)"}
    return f"{LABELS[reducer]} at {factor:g} times the rate{marks.get((reducer, factor), '')}"


def frame(rows: Rows) -> Frame:
    """Returns the reported runs by reducer and multiple of the rate; a column marks the tuned ones."""
    df = TUNED.frame(rows).sort_values(["reducer", "factor", "seed"], ignore_index=True)
    picks = {reducer: TUNED.picked(rows, reducer=reducer) for reducer in GRIDS}
    return df.assign(
        gradients=[_name(*point) for point in zip(df["reducer"], df["factor"], strict=True)],
        tuned=np.where(df["factor"] == df["reducer"].map(picks), "tuned", ""),
        learning_rate=df["factor"] * RATE,
    )


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    ends = frames.groups(df, ["reducer", "factor"], "end")
    guide, *others = untuned(WORKERS[df["scale"].iloc[0]])
    tests = [welch(_name(*guide), ends[guide], "above", _name(*one), ends[one], unit="points") for one in others]
    return decide(holm(*tests))


def _facts(df: Frame) -> Facts:
    found: Facts = {}
    for gradients, ends in df.groupby("gradients", sort=False)["end"]:
        each = ", ".join(f"{end:.2f}" for end in ends)
        words = f"test accuracy (%) of each seed, {gradients}"
        found[words] = (each, PAPER) if gradients == _name(ADASUM, GUIDE) else each
    tuned = frames.groups(df[df["tuned"] == "tuned"], "reducer", "end")
    test = welch(LABELS[ADASUM], tuned[ADASUM], "above", LABELS[MEAN], tuned[MEAN], unit="points")
    if not test.missing:
        found["both tuned (not judged), Adasum above averaging by"] = f"{test.interval}, p = {test.p:.2g}"
    return found


def _draw(df: Frame, figure: Figure) -> None:
    rates, curves = figure.subplots(1, 2)
    df = df.assign(
        label=df["reducer"].map(LABELS),
        error=100 - df["end"],
        errors=frames.errors(df),
        curve=df["gradients"] + df["tuned"].replace("tuned", ", tuned"),
    )
    looks: Any = {"ylabel": "test error (%)", "yscale": "log"}
    y = {"error": looks["ylabel"]}
    xlabel = "rate (× one worker's)"
    figures.values(rates, df, x="factor", y=y, by="label", xlabel=xlabel, xscale="log", **looks)
    figures.curves(curves, df, along="epoch", of="errors", by="curve", xlabel="epochs", legend=False, **looks)
    for axes in (rates, curves):
        drawing.end_at(axes, DIVERGED)
        drawing.percent_ticks(axes)
    drawing.legend_below(figure, curves)


CLAIM = TUNED.claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.05, "laptop": 1.3},
    runs=_runs,
    frame=frame,
    model="LeNet-5",
    labels=["gradients", "tuned"],
    values={
        "learning rate": Value("learning_rate", 5, is_fixed=True),
        "test accuracy at the end": Value("end", unit="%"),
    },
    facts=_facts,
    draw=_draw,
    inches=(7.0, 3.2),
)
