"""TensorFlow's published gains of one to five backup workers for fifty, against models of independent workers.

A worker that is late finishes its gradient, as TensorFlow's do: its synchronous optimizer drops gradients of an earlier
step when they come.
"""

import functools
import math
from collections.abc import Collection
from typing import Any

import jax
import numpy as np
from scipy import optimize

from experiments.plots import drawing
from experiments.study import figures, frames
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Value, beside, repeated
from experiments.study.verdict import Verdict, bound, decide, untested
from planning import step_times
from reducers import arrivals

REQUIRED = 50  # gradients that a step waits for
BACKUPS = range(6)
STEPS = {"smoke": 2_000, "laptop": 10_000}
SHORTER, GAIN = 23.0, 9.5  # % of the median step at b = 4; % of the score per machine at b = 3
BEST = 3  # backups with the highest score per machine
FLAT = 1.0  # % by which a fifth backup may still shorten the step
PUBLISHED = {
    1: "about 6 % shorter: about 2.35 s",
    BEST: f"gains {GAIN:g} %, the largest",
    4: f"{SHORTER:g} % shorter: 1.93 s of about 2.5",
    5: "slightly less shorter than with 4",
}
MARK = "[READ-2nd]"

_BASE = {"name": "lognormal", "median_seconds": 1.58, "sigma": 0.06}  # of the mixture
_OUTLIER = {"name": "lognormal", "median_seconds": 1.0, "sigma": 1.5}
# Model -> its options with a shape, which is fitted, and the values between which the shape is looked for.
FAMILIES: dict[str, tuple[Any, tuple[float, float]]] = {
    "lognormal": (lambda shape: {"sigma": shape}, (0.01, 3.0)),
    "shifted_exponential": (lambda shape: {"shift_seconds": 1.0, "scale_seconds": shape}, (0.001, 10.0)),
    "pareto": (lambda shape: {"alpha": 1 / shape}, (0.01, 0.99)),
    "mixture": (lambda shape: {"base": _BASE, "outlier": _OUTLIER, "probability": shape}, (0.001, 0.04)),
}
CLUSTER, NOTHING = "paper_cluster", "nothing"
# Figure that a model is fitted to -> the number of backups, and the median step with them over the one without.
FITS = {
    "step_at_4": (4, 1 - SHORTER / 100),
    "gain_at_3": (BEST, REQUIRED / (REQUIRED + BEST) / (1 + GAIN / 100)),
}
FITTED_TO = {NOTHING: NOTHING, "step_at_4": f"{SHORTER:g} % at b = 4", "gain_at_3": f"{GAIN:g} % at b = 3"}
CASES = [
    {"model": CLUSTER, "fitted_to": NOTHING},
    *({"model": model, "fitted_to": fit} for fit in FITS for model in FAMILIES),
]
PAPER = {
    (case["model"], FITTED_TO[case["fitted_to"]], b): f"{said} {MARK}"
    for case in CASES
    for b, said in PUBLISHED.items()
}
LABELS = {"shifted_exponential": "shifted exponential", "pareto": "Pareto", "mixture": "paper_cluster's mixture"}


def median_steps(
    model: str,
    *,
    steps: int,
    seed: int,
    late_workers: step_times.LateWorkers = "finish",
    backups: Collection[int] = BACKUPS,
    **options: Any,
) -> dict[int, float]:
    """Returns the median time of a step that waits for 50 gradients of 50 + b workers, for each b.

    All b share their draws: the first 50 + b of 55 workers.
    """
    built = arrivals.make(model, **options)
    seconds = arrivals.sample(built, jax.random.key(seed), num_workers=REQUIRED + max(BACKUPS), num_steps=steps)
    found = {}
    for b in backups:
        rule = step_times.first(REQUIRED + b, choices=[REQUIRED])
        took = step_times.simulate(seconds[:, : REQUIRED + b], rule, late_workers=late_workers)
        found[b] = float(np.median(took.seconds))
    return found


def _measure(
    *, model: str, fitted_to: str, late_workers: step_times.LateWorkers, steps: int, seed: int
) -> dict[str, Any]:
    """Fits the model's shape to the one figure, if to any, and returns its median steps."""
    medians = functools.partial(median_steps, model, late_workers=late_workers, steps=steps, seed=seed)
    if fitted_to == NOTHING:
        return {"shape": None, "median": list(medians().values())}
    options, (low, high) = FAMILIES[model]
    backups, ratio = FITS[fitted_to]

    def excess(log_shape: float) -> float:
        times = medians(backups=(0, backups), **options(math.exp(log_shape)))
        return times[backups] / times[0] - ratio

    shape = math.exp(optimize.brentq(excess, math.log(low), math.log(high), xtol=1e-3))
    return {"shape": shape, "median": list(medians(**options(shape)).values())}


def frame(rows: Rows) -> Frame:
    r"""Returns a line for each run and number b of backups.

    ``shorter`` is what b backups take off the median step, and ``gain`` what they gain per machine,
    :math:`t(0) / t(b) \cdot 50 / (50 + b) - 1`, in percent; ``best`` is the b that gains most in the run, and ``fifth``
    what a fifth backup takes off.

    >>> df = frame([{"model": "pareto", "fitted_to": "gain_at_3", "median": [2.5, 2.35, 2.2, 2.0, 1.93, 1.93]}])
    >>> df["gain"].round(1).tolist(), int(df["best"][0])
    ([0.0, 4.3, 9.3, 17.9, 19.9, 17.8], 4)
    """
    lines, machines = [], REQUIRED + np.array(BACKUPS)
    for row in rows:
        median = np.array(row["median"])
        gain = 100 * (median[0] / median * REQUIRED / machines - 1)
        shorter = 100 * (1 - median / median[0])
        of_run = {**row, "fitted_to": FITTED_TO[row["fitted_to"]], "best": int(np.argmax(gain))}
        of_run["fifth"] = 100 * (1 - median[5] / median[4])
        lines += [{**of_run, "backups": b, "gain": gain[b], "shorter": shorter[b]} for b in BACKUPS]
    return frames.frame(lines)


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    agrees = ((df["best"] == BEST) & (df["fifth"] < FLAT)).groupby([df["model"], df["fitted_to"]]).all()
    if len(agrees) < len(CASES):
        return untested(f"The rule needs all {len(CASES)} models and fits.")
    words = (
        f"the number of those that gain most per machine with {BEST} backups, and whose step gets less than {FLAT:g} % "
        "shorter from the fourth backup to the fifth, in every seed,"
    )
    return decide([], bound(words, int(agrees.sum()), least=1, digits=0))


def _facts(df: Frame) -> Facts:
    found: Facts = {}
    for (model, fit), same in df[df["backups"] == 0].groupby(["model", "fitted_to"], sort=False):
        name = LABELS.get(model, model) + (f", fitted to {fit}" if fit != NOTHING else "")
        most = ", ".join(map(str, sorted(same["best"].unique())))
        found[f"backups with the largest gain per machine, {name}"] = (most, f"{BEST} {MARK}")
        found[f"a fifth backup takes off the step with four, {name}"] = frames.text(same["fifth"], 1, "%")
        if fit != NOTHING:
            found[f"shape, {name}"] = f"{same['shape'].astype(float).mean():.3f}"
    score = 100 * (REQUIRED / (REQUIRED + 4) / (1 - SHORTER / 100) - 1)
    words = f"gain per machine with 4 backups, if they make the step {SHORTER:g} % shorter, by arithmetic"
    return found | {words: (f"{score:.1f} %", f"below {GAIN:g} %, the largest {MARK}")}


def _draw(df: Frame, figure: Figure) -> None:
    named = df.assign(model=df["model"].replace(LABELS), fit="fitted to " + df["fitted_to"])
    y = {"shorter": "shorter median step (%)", "gain": "gain per machine (%)"}
    xlabel = "backup workers"
    panels = figures.values(figure, named, x="backups", y=y, by="model", styles="fit", xlabel=xlabel, legend=False)
    for axes, point in zip(panels, ((4, SHORTER), (BEST, GAIN)), strict=True):
        axes.plot(*point, "kx", markersize=9, label="TensorFlow's paper")
    drawing.legend_below(figure, panels[0])


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.03, "laptop": 0.15},
    runs=repeated(
        lambda scale: [
            {**case, "late_workers": "finish", "steps": STEPS[scale]} for case in CASES[:: 4 if scale == "smoke" else 1]
        ],
        seeds={"smoke": 1, "laptop": 3},
    ),
    measure=_measure,
    frame=frame,
    data="simulated arrival times",
    model="no model",
    labels=["model", "fitted_to", "backups"],
    values={"shorter median step": Value("shorter", 1, "%"), "gain per machine": Value("gain", 1, "%")},
    paper=PAPER,
    facts=_facts,
    draw=_draw,
    inches=(7.0, 3.2),
)
