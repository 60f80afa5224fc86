"""TensorFlow's published gains of one to five backup workers for fifty, against models of independent workers.

A worker that is late finishes its gradient, as TensorFlow's do: its synchronous optimizer drops gradients of an earlier
step when they come.
"""

import functools
import math
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Bound,
    Need,
    Rule,
)
from experiments.study.run import Rows, Scale, repeated
from planning import step_times
from reducers import arrivals

REQUIRED = 50  # gradients that a step waits for
BACKUPS = range(6)
STEPS: dict[Scale, int] = {"smoke": 2_000, "laptop": 10_000}
SHORTER, GAIN = 23.0, 9.5  # % of the median step at b = 4; % of the score per machine at b = 3
BEST = 3  # backups with the highest score per machine
FLAT = 1.0  # % by which a fifth backup may still shorten the step
SECONDS = {0: "about 2.5", 1: "about 2.35", 4: "1.93"}
DIGEST = "READ-2nd"
SOURCE = "TensorFlow, OSDI 2016, section 6.3, the figure of backup workers for Inception-v3"

# Model -> its options with a shape, which is fitted, and the values between which the shape is looked for.
FAMILIES: dict[str, tuple[Any, tuple[float, float]]] = {
    "lognormal": (lambda shape: {"sigma": shape}, (0.01, 3.0)),
    "shifted_exponential": (lambda shape: {"shift_seconds": 1.0, "scale_seconds": shape}, (0.001, 10.0)),
    "pareto": (lambda shape: {"alpha": 1 / shape}, (0.01, 0.99)),
    "mixture": (
        lambda shape: {
            "base": {"name": "lognormal", "median_seconds": 1.58, "sigma": 0.06},
            "outlier": {"name": "lognormal", "median_seconds": 1.0, "sigma": 1.5},
            "probability": shape,
        },
        (0.001, 0.04),
    ),
}
CLUSTER, NOTHING = "paper_cluster", "nothing"
# Figure that a model is fitted to -> the number of backups, and the median step with them over the one without.
FITS = {
    "step_at_4": (4, 1 - SHORTER / 100),
    "gain_at_3": (BEST, REQUIRED / (REQUIRED + BEST) / (1 + GAIN / 100)),
}
FITTED_TO = {NOTHING: "", "step_at_4": f"{SHORTER:g} % at b = 4", "gain_at_3": f"{GAIN:g} % at b = 3"}
CASES = [
    {"model": CLUSTER, "fitted_to": NOTHING},
    *({"model": model, "fitted_to": fit} for fit in FITS for model in FAMILIES),
]
LABELS = {
    CLUSTER: "paper_cluster",
    "lognormal": "lognormal",
    "shifted_exponential": "shifted exponential",
    "pareto": "Pareto",
    "mixture": "paper_cluster's mixture",
}


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
    from scipy import optimize

    options, (low, high) = FAMILIES[model]
    backups, ratio = FITS[fitted_to]

    def excess(log_shape: float) -> float:
        times = medians(backups=(0, backups), **options(math.exp(log_shape)))
        return times[backups] / times[0] - ratio

    try:
        shape = math.exp(optimize.brentq(excess, math.log(low), math.log(high), xtol=1e-3))
    except ValueError:
        raise ValueError(f"model={model!r}: cannot be fitted to {FITTED_TO[fitted_to]}") from None
    return {"shape": shape, "median": list(medians(**options(shape)).values())}


def shorter(row: Mapping[str, Any]) -> list[float]:
    """Returns how many per cent each number of backups takes off the median step."""
    return [100 * (1 - seconds / row["median"][0]) for seconds in row["median"]]


def gains(row: Mapping[str, Any]) -> list[float]:
    r"""Returns the gain per machine in per cent, :math:`t(0) / t(b) \cdot 50 / (50 + b) - 1`.

    >>> [round(gain, 1) for gain in gains({"median": [2.5, 2.35, 2.2, 2.0, 1.93, 1.93]})]
    [0.0, 4.3, 9.3, 17.9, 19.9, 17.8]
    """
    return [
        100 * (row["median"][0] / seconds * REQUIRED / (REQUIRED + b) - 1)
        for b, seconds in zip(BACKUPS, row["median"], strict=True)
    ]


def best(row: Mapping[str, Any]) -> int:
    """Returns the number of backups that gains most per machine."""
    return int(np.argmax(gains(row)))


def fifth(row: Mapping[str, Any]) -> float:
    """Returns how many per cent of the step with four backups a fifth takes off."""
    return 100 * (1 - row["median"][5] / row["median"][4])


def _fits(rows: Rows) -> dict[tuple[str, str], Rows]:
    """Returns the rows of each model and fit that has some."""
    found = {(case["model"], case["fitted_to"]): ask.select(rows, **case) for case in CASES}
    return {key: same for key, same in found.items() if same}


def _agrees(rows: Rows) -> bool:
    return all(best(row) == BEST and fifth(row) < FLAT for row in rows)


def _name(model: str, fitted_to: str) -> str:
    return LABELS[model] if fitted_to == NOTHING else f"{LABELS[model]}, fitted to {FITTED_TO[fitted_to]}"


def _findings(rows: Rows) -> list[Finding]:
    """Returns what was not fitted."""
    found = []
    for (model, fit), same in _fits(rows).items():
        name, fitted = _name(model, fit), FITS[fit][0] if fit in FITS else None
        if fitted != 4:
            ours = Sample.of([shorter(row)[4] for row in same], digits=1, unit="%")
            quantity = f"shorter median step with 4 backups, {name}"
            found.append(Finding(quantity, ours=ours, paper=Quoted(f"{SHORTER:g} %", DIGEST), paper_number=SHORTER))
        if fitted != BEST:
            ours = Sample.of([gains(row)[BEST] for row in same], digits=1, unit="%")
            quantity = f"gain per machine with {BEST} backups, {name}"
            found.append(Finding(quantity, ours=ours, paper=Quoted(f"{GAIN:g} %", DIGEST), paper_number=GAIN))
        most = ", ".join(map(str, sorted({best(row) for row in same})))
        quantity = f"backups with the largest gain per machine, {name}"
        found.append(Finding(quantity, ours=most, paper=Quoted(f"{BEST}", DIGEST)))
    return found


def _paper_table(rows: Rows) -> Table:
    """Returns the figure's curves: the median step and the gain per machine by number of backups."""
    published = {
        ("shorter", 1): f"about {100 * (1 - 2.35 / 2.5):.0f} %: {SECONDS[1]} s",
        ("shorter", 4): f"{SHORTER:g} %: {SECONDS[4]} s of {SECONDS[0]}",
        ("shorter", 5): "slightly less than with 4",
        ("gain", BEST): f"{GAIN:g} %, the largest",
    }
    known = {key: Quoted(text, DIGEST) for key, text in published.items()}
    same = ask.select(rows, model=CLUSTER)
    cells = {
        str(b): [
            Cell(known.get((column, b)), Sample.of([of(row)[b] for row in same], digits=1, unit="%") if same else "")
            for column, of in (("shorter", shorter), ("gain", gains))
        ]
        for b in BACKUPS
    }
    note = "Ours: `paper_cluster`, with nothing fitted to these figures; the fitted models are in the table below."
    return paper_table.table("Backups", ["shorter median step", "gain per machine"], cells, note=note)


def _table(rows: Rows) -> Table:
    cells = []
    for (model, fit), same in _fits(rows).items():
        shape = "" if same[0]["shape"] is None else f"{Sample.of([row['shape'] for row in same], digits=3).mean:.3f}"
        percents = [np.mean([of(row) for row in same], axis=0) for of in (shorter, gains)]
        by_backups = [" ".join(f"{value:.1f}" for value in values[1:]) for values in percents]
        most = ", ".join(map(str, sorted({best(row) for row in same})))
        last = f"{np.mean([fifth(row) for row in same]):.1f}"
        cells.append(
            [LABELS[model], FITTED_TO[fit] or fit, shape, *by_backups, most, last, "yes" if _agrees(same) else "no"]
        )
    header = ["Model", "Fitted to", "Shape", "Shorter by, %, b = 1 to 5", "Gain per machine, %, b = 1 to 5"]
    return Table([*header, "Best b", "A fifth takes off, %", "As published"], cells, "Means over seeds.")


def _draw(rows: Rows, figure: Figure) -> None:
    panels = figure.subplots(1, 2)
    published = ({4: SHORTER}, {BEST: GAIN})
    heads = ("shorter median step (%)", "gain per machine (%)")
    for axes, of, points, head in zip(panels, (shorter, gains), published, heads, strict=True):
        for (model, fit), same in _fits(rows).items():
            position = list(LABELS).index(model)
            style: dict[str, Any] = {"linestyle": "-" if fit == next(iter(FITS)) else "--" if fit in FITS else ":"}
            samples = [Sample.of([of(row)[b] for row in same]) for b in BACKUPS]
            drawing.band(axes, list(BACKUPS), samples, position=position, label=_name(model, fit), **style)
        axes.plot(list(points), list(points.values()), "kx", markersize=9, label="TensorFlow's paper")
        axes.set(xlabel="backup workers", ylabel=head)
    drawing.legend_below(figure, panels[0], columns=2)


RULE = Rule(
    setting="of models of independent workers, of whom late ones finish what they began, fitted to one of the two "
    "percentages or to neither",
    needs=[
        Need(
            "a model or a fit is missing",
            lambda rows: "" if len(_fits(rows)) == len(CASES) else f"The rule needs all {len(CASES)} models and fits.",
        )
    ],
    parts=lambda scale: [
        Bound(
            words=f"the number of those that gain most per machine with {BEST} backups, and whose step gets less than "
            f"{FLAT:g} % shorter from the fourth backup to the fifth, in every seed,",
            values=lambda rows: [sum(map(_agrees, _fits(rows).values()))],
            least=1,
            digits=0,
        )
    ],
    remark="The percentage that a model is fitted to is by construction. The other one is printed and not part of the "
    "rule.",
)


def _by_the_score(rows: Rows) -> list[Finding]:
    """Returns that the two percentages exclude each other by the score as it is recalled."""
    del rows
    score = 100 * (REQUIRED / (REQUIRED + 4) / (1 - SHORTER / 100) - 1)
    quantity = f"gain per machine with 4 backups, if they make the step {SHORTER:g} % shorter, by arithmetic"
    return [Finding(quantity, ours=f"{score:.1f} %", paper=Quoted(f"below {GAIN:g} %, the largest", DIGEST))]


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    hours={"smoke": 0.03, "laptop": 0.15},
    runs=repeated(
        lambda scale: [
            {**case, "late_workers": "finish", "steps": STEPS[scale]} for case in CASES[:: 4 if scale == "smoke" else 1]
        ],
        seeds={"smoke": 1, "laptop": 3},
    ),
    measure=_measure,
    findings=lambda rows: [*_findings(rows), *_by_the_score(rows)],
    basis=lambda rows: ask.basis(rows, data="simulated arrival times", model="no model"),
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(7.0, 4.6),
)
