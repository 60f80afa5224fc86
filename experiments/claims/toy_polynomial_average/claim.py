"""The toy polynomial of Horovod's guide, averaged over random samples: steps with Adasum and with averaging."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Finding, Quoted, Sample, Table
from experiments.study.polynomials import LABELS, NOT_STOPPED, NUM_STEPS, RATES, REDUCERS, percent_fewer, steps_to_stop
from experiments.study.prose import beside
from experiments.study.rule import (
    Compare,
    Group,
    Measure,
    Need,
    Rule,
)
from experiments.study.run import Row, Rows, Scale, repeated

PROBLEMS = [("square", 1), ("square", 2), ("cubic", 1), ("cubic", 2)]
DRAWS: dict[Scale, int] = {"smoke": 20, "laptop": 1000}
PICKED_WITH = 0  # the seed that learning rates are picked with
COUNTS = (NOT_STOPPED, NUM_STEPS)  # of a run that does not stop: the script's, and the steps that it took
PAPER = Quoted("fewer, up to 50 %", "READ: Horovod's guide to Adasum")


def _measure(*, polynomial: str, x_max: float, num_draws: int, seed: int) -> dict[str, Any]:
    """Counts steps at all rates, over many draws of the samples, which are the same for both."""
    rates = jnp.array(RATES)
    many = jax.random.uniform(jax.random.key(seed), (num_draws, NUM_STEPS, 2), minval=-x_max, maxval=x_max)
    row: dict[str, Any] = {}
    for reducer in REDUCERS:

        def steps(x, reducer=reducer):
            return steps_to_stop(x, rates, polynomial=polynomial, reducer=reducer)

        counts = np.asarray(jax.jit(jax.vmap(steps))(many))  # [draws, R]
        row[f"{reducer}_steps"] = counts.mean(axis=0).tolist()
        row[f"{reducer}_stopped"] = (counts < NOT_STOPPED).mean(axis=0).tolist()
    return row


def _steps(row: Row, reducer: str, *, not_stopped: int = NOT_STOPPED) -> np.ndarray:
    """Returns the mean steps at each rate, where a run that does not stop counts as given: [R]."""
    steps, stopped = np.array(row[f"{reducer}_steps"]), np.array(row[f"{reducer}_stopped"])
    return steps - (NOT_STOPPED - not_stopped) * (1 - stopped)


def _best(rows: Rows, reducer: str, *, not_stopped: int = NOT_STOPPED) -> int:
    """Returns the index of the rate with the fewest steps, by the seed that is for picking."""
    (row,) = ask.select(rows, seed=PICKED_WITH)
    return int(np.argmin(_steps(row, reducer, not_stopped=not_stopped)))


def _reported(rows: Rows) -> list[Row]:
    return [row for row in rows if row["seed"] != PICKED_WITH]


def _at_best(rows: Rows, *, not_stopped: int = NOT_STOPPED) -> dict[str, list[float]]:
    """Returns the steps of each reported seed on one problem, each reducer at its own best rate."""
    return {
        reducer: [float(_steps(row, reducer, not_stopped=not_stopped)[best]) for row in _reported(rows)]
        for reducer in REDUCERS
        for best in [_best(rows, reducer, not_stopped=not_stopped)]
    }


def _fewer(rows: Rows, *, not_stopped: int = NOT_STOPPED) -> Sample:
    """Returns how many per cent fewer steps Adasum needs on one problem, each at its own best rate."""
    mean, adasum = _at_best(rows, not_stopped=not_stopped).values()
    fewer = [percent_fewer(ours, than=theirs) for ours, theirs in zip(adasum, mean, strict=True)]
    return Sample.of(fewer, digits=1, unit="%")


def _problems(rows: Rows) -> dict[tuple[str, int], list[Row]]:
    return {(name, x_max): ask.select(rows, polynomial=name, x_max=x_max) for name, x_max in PROBLEMS}


def _findings(rows: Rows) -> list[Finding]:
    return [
        Finding(
            f"fewer steps, {name}, x_max {x_max}, {count} for a run that does not stop",
            ours=_fewer(same, not_stopped=count),
            paper=PAPER if name == "square" else None,
        )
        for (name, x_max), same in _problems(rows).items()
        for count in COUNTS
    ]


def _table(rows: Rows) -> Table:
    cells = []
    for (name, x_max), same in _problems(rows).items():
        for reducer in REDUCERS:
            best = _best(same, reducer)
            steps = Sample.of([row[f"{reducer}_steps"][best] for row in _reported(same)], digits=1)
            stopped = Sample.of([100 * row[f"{reducer}_stopped"][best] for row in _reported(same)], digits=1, unit="%")
            cells.append([f"{name}, {x_max}", LABELS[reducer], f"{RATES[best]:g}", str(steps), str(stopped)])
    header = ["Polynomial, x_max", "Gradients", "Best rate", "Steps", "Draws that stop"]
    return Table(header, cells, "Steps: as the script counts, 100 for a run that does not stop before step 50.")


def _draw(rows: Rows, figure: Figure) -> None:
    panels: Sequence = figure.subplots(1, 2, sharey=True)
    square = {x_max: same for (name, x_max), same in _problems(rows).items() if name == "square"}
    for ax, (x_max, same) in zip(panels, square.items(), strict=True):
        for position, reducer in enumerate(REDUCERS):
            samples = ask.curve(_reported(same), f"{reducer}_steps")
            look = {"marker": "", "linestyle": drawing.LINE_STYLES[position]}
            drawing.band(ax, RATES, samples, position=position, label=LABELS[reducer], **look)
        ax.set_title(f"square, x in [-{x_max}, {x_max}]", fontsize=9)
        ax.set(xlabel="learning rate", ylim=(0, NOT_STOPPED + 5))
    panels[0].set_ylabel("mean steps (100: did not stop)")
    panels[0].legend(fontsize=8)


def _steps_of(reducer: str, x_max: int, count: int) -> Group:
    """Returns the steps of each reported seed on the square polynomial, at the reducer's best rate."""
    steps = Measure(
        words="mean steps on the square polynomial, each at its best rate",
        values=lambda rows: _at_best(_problems(rows)["square", x_max], not_stopped=count)[reducer],
        unit="steps",
        digits=1,
    )
    return Group(LABELS[reducer], steps)


def _too_few(rows: Rows) -> str:
    square = [same for (name, _), same in _problems(rows).items() if name == "square"]
    words = "The rule needs two seeds besides the one that rates are picked with."
    return words if any(len(_reported(same)) < 2 for same in square) else ""


RULE = Rule(
    setting="over seeds, on samples that both share",
    needs=[Need("there are fewer than two seeds besides the one that rates are picked with", _too_few)],
    parts=lambda scale: [
        Compare(
            ours=_steps_of("adasum", x_max, count),
            is_="below",
            theirs=_steps_of("mean", x_max, count),
            paired=True,
            at=f"x_max {x_max} if a run that does not stop counts {count}",
        )
        for name, x_max in PROBLEMS
        if name == "square"
        for count in COUNTS
    ],
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("aa05c8dd30de",),
    selection="Each reducer's learning rate for each problem: fewest steps on average over the draws of seed 0, out of "
    "0.10, 0.11, ..., 1.59 (the guide's grid); seed 0 is not reported. There is no training set: samples are drawn.",
    hours={"smoke": 0.03, "laptop": 0.05},
    runs=repeated(
        lambda scale: [{"polynomial": name, "x_max": x_max, "num_draws": DRAWS[scale]} for name, x_max in PROBLEMS],
        seeds={"smoke": 2, "laptop": 6},
    ),
    measure=_measure,
    findings=_findings,
    basis=lambda rows: ask.basis(_reported(rows), data="drawn samples", model="polynomials"),
    enough=lambda rows: all(len(same) > len(_reported(same)) > 0 for same in _problems(rows).values()),
    table=_table,
    draw=_draw,
    inches=(7.0, 3.2),
)
