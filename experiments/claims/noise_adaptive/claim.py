"""Exponential, constant and 1 / sqrt(t) steps of logistic regression with 1 to 64 workers, tuned once with eight."""

import functools
import math
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Finding, Sample, Table
from experiments.study.prose import beside
from experiments.study.rule import Compare, Group, Measure, Need, Rule
from experiments.study.run import Row, Rows, Scale, repeated
from optim import schedules

WORKERS = (1, 2, 4, 8, 16, 32, 64)
TUNED_WITH = 8
RATES = tuple(float(rate) for rate in np.logspace(-3, 1.5, 19).round(5))
STEPS: dict[Scale, int] = {"smoke": 50, "laptop": 1_000}
TRIALS: dict[Scale, int] = {"smoke": 2, "laptop": 16}
EXAMPLES, SIZE, PENALTY, FLIPPED = 1_000, 20, 0.01, 0.1
PICKED_WITH = 0  # the seed that rates are picked with
LABELS = {"exponential": "exponential", "constant": "constant", "root": "1 / sqrt(t)"}


@functools.cache
def problem() -> tuple[np.ndarray, np.ndarray]:
    """Returns the examples [m, d], and their labels [m], -1 or 1: the same for all seeds."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, SIZE))
    y = np.sign(x @ rng.normal(size=SIZE)) * np.where(rng.random(EXAMPLES) < FLIPPED, -1, 1)
    return x, y


def loss(w: np.ndarray) -> float:
    """Returns the loss of all examples, in float64."""
    x, y = problem()
    return float(np.logaddexp(0, -y * (x @ w)).mean() + PENALTY / 2 * w @ w)


def minimum() -> np.ndarray:
    """Returns the minimum, by Newton's method in float64."""
    x, y = problem()
    w = np.zeros(SIZE)
    for _ in range(20):
        share = 1 / (1 + np.exp(y * (x @ w)))
        gradient = -(y * share) @ x / EXAMPLES + PENALTY * w
        hessian = (x.T * (share * (1 - share))) @ x / EXAMPLES + PENALTY * np.eye(SIZE)
        w = w - np.linalg.solve(hessian, gradient)
    return w


def _factor(schedule: str, steps: int) -> Any:
    if schedule == "root":
        return lambda step: (1.0 + jnp.asarray(step, jnp.float32)) ** -0.5
    name = {"exponential": "exponential_to", "constant": "constant"}[schedule]
    return schedules.make({"name": name}, total_steps=steps, steps_per_epoch=steps)


def _measure(*, steps: int, trials: int, seed: int) -> dict[str, Any]:
    """Returns by how much losses end above the minimum, for each schedule and number of workers at each rate, [R]."""
    x, y = (jnp.asarray(part, jnp.float32) for part in problem())
    factors = {name: jax.vmap(_factor(name, steps))(jnp.arange(steps)) for name in LABELS}
    rates = jnp.array(RATES)

    def end(rate, factors, chosen):
        def step(w, given):
            factor, batch = given
            gradient = -jnp.mean(y[batch] * jax.nn.sigmoid(-y[batch] * (x[batch] @ w)) * x[batch].T, axis=1)
            return w - rate * factor * (gradient + PENALTY * w), None

        return jax.lax.scan(step, jnp.zeros(SIZE), (factors, chosen))[0]

    least, found = loss(minimum()), {}
    ends = jax.jit(jax.vmap(jax.vmap(end, (None, None, 0)), (0, None, None)))
    for n in WORKERS:
        chosen = jax.random.randint(jax.random.key(seed), (trials, steps, n), 0, EXAMPLES)
        for name in LABELS:
            with jax.numpy_rank_promotion("allow"):
                reached = np.asarray(ends(rates, factors[name], chosen), np.float64)  # [R, trials, d]
            above = np.array([[loss(w) - least for w in of_rate] for of_rate in reached]).mean(axis=1)
            found[key(name, n)] = np.where(np.isfinite(above), np.maximum(above, 1e-12), 1e9).tolist()
    return found


def key(schedule: str, num_workers: int) -> str:
    """Returns the name of a quantity in a row."""
    return f"{schedule}, {num_workers} workers"


def picked(rows: Rows, schedule: str, num_workers: int) -> int:
    """Returns the index of the best rate, by the seed that is for picking."""
    (row,) = ask.select(rows, seed=PICKED_WITH)
    return int(np.argmin(row[key(schedule, num_workers)]))


def _reported(rows: Rows) -> list[Row]:
    return [row for row in rows if row["seed"] != PICKED_WITH]


def above(rows: Rows, schedule: str, num_workers: int) -> list[float]:
    """Returns the losses of the reported seeds above the minimum, at the rate tuned with eight workers."""
    once = picked(rows, schedule, TUNED_WITH)
    return [row[key(schedule, num_workers)][once] for row in _reported(rows)]


def lost(rows: Rows, schedule: str, num_workers: int) -> list[float]:
    """Returns, for each reported seed, the logarithm of what the rate tuned with eight workers loses to its own."""
    anew = picked(rows, schedule, num_workers)
    best = [row[key(schedule, num_workers)][anew] for row in _reported(rows)]
    return [math.log(once / own) for once, own in zip(above(rows, schedule, num_workers), best, strict=True)]


def _complete(rows: Rows) -> bool:
    return bool(ask.select(rows, seed=PICKED_WITH)) and bool(_reported(rows))


def _findings(rows: Rows) -> list[Finding]:
    return [
        Finding(
            f"logarithm of what {label} steps lose, mean over the other numbers of workers",
            ours=Sample.of(
                np.mean([lost(rows, name, n) for n in WORKERS if n != TUNED_WITH], axis=0).tolist(), digits=3
            ),
        )
        for name, label in LABELS.items()
    ]


def _table(rows: Rows) -> Table:
    cells = []
    for n in WORKERS if _complete(rows) else ():
        row = [str(n)]
        for name in LABELS:
            losses = Sample.of([1e3 * value for value in above(rows, name, n)], digits=3)
            row += [f"{RATES[picked(rows, name, n)]:.3g}", str(losses), str(Sample.of(lost(rows, name, n), digits=2))]
        cells.append(row)
    columns = ("own best rate", "1,000 x loss above the minimum", "lost")
    header = ["Workers", *(f"{column}; {label}" for label in LABELS.values() for column in columns)]
    return Table(header, cells, f"Losses are at the rate tuned with {TUNED_WITH} workers; lost is a logarithm.")


def _draw(rows: Rows, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    for position, (name, label) in enumerate(LABELS.items()):
        samples = [Sample.of(lost(rows, name, n), digits=3) for n in WORKERS]
        drawing.band(left, WORKERS, samples, position=position, label=label)
        losses = [Sample.of(above(rows, name, n), digits=5) for n in WORKERS]
        drawing.band(right, WORKERS, losses, position=position, label=label)
    left.set(xscale="log", xlabel="workers", ylabel="lost to a rate tuned anew (log)")
    right.set(xscale="log", yscale="log", xlabel="workers", ylabel="loss above the minimum")
    left.legend(fontsize=8)


def _lost(schedule: str, num_workers: int) -> Group:
    measure = Measure(
        words="the logarithm of what the rate tuned with eight workers loses to one tuned anew",
        values=lambda rows: lost(rows, schedule, num_workers),
        digits=3,
    )
    return Group(f"{LABELS[schedule]} steps", measure)


def _too_few(rows: Rows) -> str:
    words = "The rule needs two seeds besides the one that rates are picked with."
    return words if len(_reported(rows)) < 2 else ""


RULE = Rule(
    setting="over seeds of 16 trials each, whose examples all schedules share",
    needs=[Need("there are fewer than two seeds besides the one that rates are picked with", _too_few)],
    parts=lambda scale: [
        Compare(
            ours=_lost("exponential", n),
            is_="below",
            theirs=_lost(other, n),
            paired=True,
            at=f"{n} workers" if n > 1 else "1 worker",
            refuted="reversed",
        )
        for n in WORKERS
        if n != TUNED_WITH
        for other in ("constant", "root")
    ],
    listed=False,
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    selection="The peak of each schedule, once with eight workers and once for each number of workers: the lowest loss "
    f"with seed 0, which is not reported, out of {len(RATES)} rates from {RATES[0]:g} to {RATES[-1]:g}, equally far on "
    "a logarithmic scale. All examples are training examples.",
    hours={"smoke": 0.03, "laptop": 0.1},
    runs=repeated(lambda scale: [{"steps": STEPS[scale], "trials": TRIALS[scale]}], seeds={"smoke": 2, "laptop": 6}),
    measure=_measure,
    findings=_findings,
    basis=lambda rows: ask.basis(_reported(rows), data="drawn examples", model="logistic regression"),
    enough=_complete,
    table=_table,
    draw=_draw,
    inches=(7.0, 3.2),
)
