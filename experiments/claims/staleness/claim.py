"""How many updates gradients of an asynchronous run miss, overall and layer by layer."""

from typing import Any

import jax
import numpy as np

import asynchronous
from experiments.plots import drawing
from experiments.study import frames
from experiments.study.claim import Claim, Figure, Frame, Rows, Value, beside, repeated
from experiments.study.verdict import Verdict, bound, decide
from reducers import arrivals

CLUSTER, WORKERS, LAYERS = "paper_cluster", 40, 18
# Gradients of 40 workers; other numbers have them in proportion, so that each worker does as many tasks.
GRADIENTS = {"smoke": 4_000, "laptop": 100_000}
TOLERANCE = 0.02  # as a share of the number of workers less one
STATISTICS = ("min", "mean", "median", "max", "std")
WHOLE = "whole"  # the "layer" of gradients that are read and sent as one
MEANS = {17: 14.54, 12: 11.35, 11: 19.8, 0: 38.97}  # the paper's means by layer, counted from 0 to 18
PAPER = {
    (CLUSTER, WORKERS, WHOLE): "39, by the documentation of TensorFlow: workers less one [READ]",
    (CLUSTER, WORKERS, 17): "top layer: 4 [MEM lo], 14.54, 13.94 [MEM med], 29 [MEM lo], 3.83 [MEM med]",
    (CLUSTER, WORKERS, 12): "layer 12: 5 [MEM lo], 11.35, 11.3 [MEM med], 23 [MEM lo], 3.09 [MEM med]",
    (CLUSTER, WORKERS, 11): "layer 11: 8 [MEM lo], 19.8, 19.59 [MEM med], 34 [MEM lo], 3.65 [MEM med]",
    (CLUSTER, WORKERS, 0): "bottom layer: 24 [MEM lo], 38.97, 38.43 [MEM med], 61 [MEM lo], 5.43 [MEM med]",
}
CASES = [(CLUSTER, n) for n in (10, 20, WORKERS, 80)] + [("shifted_exponential", WORKERS), ("lognormal", WORKERS)]


def _measure(*, model: str, num_workers: int, num_gradients: int, seed: int) -> dict[str, Any]:
    """Simulates the order of an asynchronous run; statistics omit its start, when all read the same parameters."""
    built, key = arrivals.make(model), jax.random.key(seed)
    durations = asynchronous.from_model(lambda step: built(key, step, num_workers))
    ((events, _),) = asynchronous.order(
        durations, num_workers=num_workers, num_events=num_gradients, events_per_piece=num_gradients
    )

    def described(num_layers: int) -> list[dict[str, float]]:
        times = asynchronous.layer_times([1.0] * num_layers)
        found = []
        for staleness in asynchronous.layer_staleness(events, times, num_workers=num_workers):
            counts = asynchronous.histogram(np.zeros(len(staleness), np.int32), staleness, num_workers=1)
            low, high = np.quantile(staleness, [0.1, 0.9]).tolist()
            found.append({**asynchronous.summary(counts)._asdict(), "low": low, "high": high})
        return found

    return {"whole": described(1)[0], "layers": described(LAYERS)}


def frame(rows: Rows) -> Frame:
    """Returns a line for each run's whole gradients, and one for each layer of the runs on the paper's cluster."""
    lines: list[dict[str, Any]] = []
    for row in rows:
        lines.append({**row, "layer": WHOLE, **row["whole"]})
        if (row["model"], row["num_workers"]) == (CLUSTER, WORKERS):
            lines += [{**row, "layer": layer, **row["layers"][layer]} for layer in reversed(range(LAYERS))]
    return frames.frame(lines)


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    whole, layers = df[df["layer"] == WHOLE], df[df["layer"] != WHOLE]
    off = whole["mean"] / (whole["num_workers"] - 1) - 1
    steps_down = -np.diff(frames.by_seed(layers, "layer", "mean").to_numpy(float), axis=1)
    near = "mean staleness over the number of workers less one, less 1,"
    gained = (
        f"with {WORKERS} workers on `{CLUSTER}`, what the mean gains from each of {LAYERS} layers to the next below"
    )
    return decide(
        [],
        bound(near, *off, least=-TOLERANCE, most=TOLERANCE, digits=4),
        bound(gained, *steps_down.ravel(), beyond=0.0),
        built=True,
    )


def _draw(df: Frame, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    whole, layers = df[df["layer"] == WHOLE], df[df["layer"] != WHOLE]
    at = layers.astype({"layer": int}).groupby("layer")[["mean", "low", "high"]].mean()
    spans = [at["mean"] - at["low"], at["high"] - at["mean"]]
    label = f"ours, {layers['seed'].nunique()} seeds; bars: 80 % of gradients"
    left.errorbar(at.index, at["mean"], spans, label=label, markersize=4, capsize=2, **drawing.look(0))
    left.plot(*zip(*MEANS.items(), strict=True), "kx", markersize=7, label="paper (recollected)")
    left.set(xlabel="layer (0 is the bottom)", ylabel="mean staleness (updates)", ylim=(0, 58))
    left.legend()
    for position, (model, same) in enumerate(whole.groupby("model", sort=False)):
        found = same.groupby("num_workers")["mean"]
        look = drawing.look(position) | {"linestyle": "", "markersize": 9 - 2 * position}
        right.errorbar(found.mean().index, found.mean(), found.std(), label=str(model), **look)
    right.plot([1, 80], [0, 79], zorder=0, label="workers less one", **drawing.REFERENCE)
    right.set(xlabel="workers", ylabel="mean staleness (updates)", xlim=(0, 84), ylim=(0, 84))
    right.legend()


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.01, "laptop": 0.05},
    runs=repeated(
        lambda scale: [
            {"model": model, "num_workers": n, "num_gradients": n * (GRADIENTS[scale] // WORKERS)} for model, n in CASES
        ],
        seeds={"smoke": 2, "laptop": 5},
    ),
    measure=_measure,
    frame=frame,
    data="simulated events",
    model="models of arrival times",
    labels=["model", "num_workers", "layer"],
    values={key: Value(key) for key in STATISTICS},
    paper=PAPER,
    draw=_draw,
    inches=(7, 3.2),
)
