"""PixelCNN with 1, 8 and 16 workers: synchronous SGD with one backup worker against asynchronous SGD."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.study import figures, frames, tuning
from experiments.study.claim import Figure, Frame, Rows, Run, Scale, Value, beside, evaluations_of
from experiments.study.verdict import Verdict, decide, holm, not_finite, untested, welch

MODES = ("synchronous", "asynchronous")
MANY = (8, 16)
# By mode and number of workers: staler gradients need lower rates.
RATES: Mapping[tuple[str, int], tuple[float, ...]] = {
    ("alone", 1): (0.001, 0.003, 0.01),
    ("synchronous", 8): (0.003, 0.01, 0.03),
    ("asynchronous", 8): (0.0003, 0.001, 0.003),
    ("synchronous", 16): (0.003, 0.01, 0.03),
    ("asynchronous", 16): (0.0001, 0.0003, 0.001),
}
SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 5, "gpu": 3, "paper": 3}
# Variant of the config, overrides, epochs, and how often a run is evaluated and saved. CIFAR-10 takes a CPU core hours:
# on a laptop, digits stand in for it.
SIZES: Mapping[Scale, tuple[str, dict[str, Any], float, int, int]] = {
    "smoke": (":smoke", {}, 1, 2, 1),
    "laptop": (":laptop", {"data.name": "digits", "batch_size_per_worker": 4}, 30, 30, 1),
    "gpu": (":laptop", {"batch_size_per_worker": 16}, 12, 24, 4),
    "paper": ("", {}, 60, 60, 20),
}
LEAST_EPOCHS = 10  # fewer say nothing of where training ends
TARGETS = {"digits": 2.2, "cifar10": 4.2}  # bits per dimension
PAPER = {  # the order of curves of likelihood over time, as recalled
    (8, "synchronous"): "lower than asynchronous, in less time [MEM lo-med]",
    (16, "synchronous"): "lower than asynchronous, in less time [MEM lo-med]",
    (16, "asynchronous"): "the worst, at a lower rate [MEM lo-med]",
}


def _recipe(scale: Scale, *, mode: str, num_workers: int, rate: float) -> Run:
    variant, sizes, epochs, evaluations, checkpoints = SIZES[scale]
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
        **tuning.epochs(epochs, evaluate=epochs / evaluations, log=epochs / 4, checkpoint=epochs / checkpoints),
    }
    data = "digits" if scale in ("smoke", "laptop") else "cifar10"
    return Run(labels={"data": data}, spec=f"configs/cifar10_pixelcnn.py{variant}", overrides=overrides)


TUNED = tuning.Tuned(
    # Half an hour of a GPU is for the modes and numbers of workers that the rule compares.
    points=lambda scale: [{"mode": mode, "num_workers": n} for mode, n in RATES if scale != "gpu" or n in MANY],
    grid=lambda scale, point: RATES[point["mode"], point["num_workers"]][: 2 if scale == "smoke" else None],
    recipe=_recipe,
    seeds=SEEDS,
    first_seeds={"laptop": 5},
    score=tuning.Score("bits_per_dim", mode="min", digits=3),
    tuning_seeds={"gpu": 1, "paper": 1},
)


def frame(rows: Rows) -> Frame:
    """Returns the reported runs, with their bits per dimension at the end, and the time to the target."""
    df = TUNED.frame(rows)
    aim = df["data"].map(TARGETS)
    seconds = frames.until(df, aim, of="bits_per_dim", along="simulated_seconds", mode="min")
    return df.assign(
        bits=frames.last(df, "bits_per_dim"),
        seconds=seconds,
        capped=np.fmin(seconds, frames.last(df, "simulated_seconds")),  # as if it were at the target at its end
        epochs=frames.last(df, "epoch"),
    )


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    bits, seconds, capped = (frames.groups(df, ["mode", "num_workers"], key) for key in ("bits", "seconds", "capped"))
    short = df.loc[df["mode"].isin(MODES), "epochs"].min(skipna=False)
    if not short >= LEAST_EPOCHS:
        return untested(f"{short:.1f} epochs say nothing of where training ends; the rule needs {LEAST_EPOCHS}.")
    if late := not_finite({f"synchronous, {n} workers": seconds["synchronous", n] for n in MANY}):
        return untested(f"The target is not reached in a run of {late}.")
    tests, (ours, theirs) = [], MODES
    for n in MANY:
        at = f"{n} workers"
        tests += [
            welch(ours, bits[ours, n], "below", f"{theirs} in bits", bits[theirs, n], unit="bits", digits=3, at=at),
            welch(ours, capped[ours, n], "below", f"{theirs} in time", capped[theirs, n], unit="s", digits=0, at=at),
        ]
    return decide(holm(*tests))


def _draw(df: Frame, figure: Figure) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    shown: Any = {"of": "bits_per_dim", "by": "mode", "styles": "num_workers", "marker": "", "legend": False}
    xlabel, ylabel = "simulated time (s)", "test bits per dimension"
    figures.curves(panels[0], df, along="simulated_seconds", xlabel=xlabel, ylabel=ylabel, xscale="log", **shown)
    figures.curves(panels[1], df, along="epoch", **shown, xlabel="epochs")
    panels[1].legend()


CLAIM = TUNED.claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.2, "laptop": 0.5, "gpu": 0.45, "paper": 120},
    reduce=evaluations_of("step", "epoch", "simulated_seconds", "bits_per_dim"),
    frame=frame,
    model=lambda df: "PixelCNN" + ("" if "paper" in set(df["scale"]) else " of 3 layers"),
    labels=["num_workers", "mode"],
    values={
        "test bits per dimension at the end": Value("bits", 3),
        "simulated time to the target": Value("seconds", 0, "s"),
    },
    paper=PAPER,
    draw=_draw,
    inches=(7.0, 3.2),
)
