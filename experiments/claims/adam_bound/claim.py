"""Adam's mean squared gradient on a clipped noisy quadratic, beside the bound, by momentum."""

import functools
import math
from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp
from jax.scipy.stats import norm

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Finding, Quoted, Sample, Table
from experiments.study.prose import beside
from experiments.study.rule import Bound, Compare, Group, Measure, Rule
from experiments.study.run import Row, Rows, Scale, repeated
from optim import bounds
from optim.plain import adam_plain
from reducers.dtypes import mixing_dtypes
from runs.reporting.progress import counted

MOMENTA = (0.0, 0.9, 0.99)
WORKERS = (1, 16)
STEPS: dict[Scale, int] = {"smoke": 200, "laptop": 5_000}
CURVATURES = np.linspace(0.1, 1.0, 10)
START, NOISE, MOST, EPS, DRAWS = 3.0, 0.5, 1.0, 1e-8, 8


def mean_gradient(x: jax.Array) -> jax.Array:
    """Returns the mean of clipped noisy gradients, [D], for x [D]: what the loss has as its gradient.

    >>> print(mean_gradient(jnp.array([0.0] * 9 + [100.0]))[-1])
    1.0
    """
    u = jnp.asarray(CURVATURES, x.dtype) * x
    high, low = (MOST - u) / NOISE, (-MOST - u) / NOISE
    inside = u * (norm.cdf(high) - norm.cdf(low)) + NOISE * (norm.pdf(low) - norm.pdf(high))
    return inside + MOST * (norm.sf(high) - norm.cdf(low))


def _measure(*, b1: float, num_workers: int, steps: int, seed: int) -> dict[str, Any]:
    """Returns the weighted mean of squared gradients over the updates, averaged over draws."""
    optimizer = adam_plain(steps**-0.5, b1=b1, b2=1 - 1 / steps, eps=EPS)
    weights = jnp.asarray(bounds.weights(steps, b1), jnp.float32)

    def step(carry, given):
        x, state, total = carry
        weight, key = given
        noise = NOISE * jax.random.normal(key, (num_workers, x.size))
        gradient = jnp.clip(jnp.asarray(CURVATURES, x.dtype) * x + noise, -MOST, MOST).mean(axis=0)
        total += weight * jnp.sum(mean_gradient(x) ** 2)
        updates, state = mixing_dtypes(optimizer.update)(gradient, state, x)
        return (optax.apply_updates(x, updates), state, total), None

    def draw(key):
        x = jnp.full(len(CURVATURES), START)
        begin = (x, optimizer.init(x), jnp.zeros(()))
        return jax.lax.scan(step, begin, (weights, jax.random.split(key, steps)))[0][2]

    with jax.numpy_rank_promotion("allow"):
        found = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(seed), DRAWS))
    return {"squared": float(np.mean(found))}


def bound(row: Row) -> float:
    """Returns the bound of a run; the gap is at most the quadratic's at the start."""
    N = row["steps"]
    gap = float(CURVATURES.sum() * START**2 / 2)
    most = MOST + math.sqrt(EPS)
    b2 = 1 - 1 / N
    return bounds.adam(N, len(CURVATURES), most, float(CURVATURES.max()), N**-0.5, row["b1"], b2, gap=gap, eps=EPS)


def _finished(rows: Rows, *, num_workers: int) -> list[dict[float, float]]:
    """Returns, for each seed that has every momentum, the measurement by momentum."""
    same = ask.select(rows, num_workers=num_workers)
    by_seed = [{row["b1"]: row["squared"] for row in ask.select(same, seed=s)} for s in ask.distinct(same, "seed")]
    return [found for found in by_seed if found.keys() == set(MOMENTA)]


def slopes(rows: Rows, *, num_workers: int) -> list[float]:
    """Returns, for each finished seed, the slope of the logarithm of the measurement along that of 1 / (1 - b1)."""
    along = np.log([1 / (1 - b1) for b1 in MOMENTA])
    return [
        float(np.polyfit(along, np.log([found[b1] for b1 in MOMENTA]), 1)[0])
        for found in _finished(rows, num_workers=num_workers)
    ]


def _bound_slope(rows: Rows) -> float:
    """Returns the slope of the bound between the two momenta that are not 0."""
    low, high = (bound(ask.select(rows, b1=b1)[0]) for b1 in MOMENTA[1:])
    return math.log(high / low) / math.log((1 - MOMENTA[1]) / (1 - MOMENTA[2]))


def _findings(rows: Rows) -> list[Finding]:
    found = [
        Finding(
            f"slope of the squared gradient along 1 / (1 - b1), {counted(n, 'worker')}",
            ours=Sample.of(slopes(rows, num_workers=n), digits=3),
            paper=Quoted("at most 1", "READ, by a note of others"),
        )
        for n in WORKERS
    ]
    return [*found, Finding("slope of the bound from 0.9 to 0.99", ours=f"{_bound_slope(rows):.2f}")]


def _table(rows: Rows) -> Table:
    cells = []
    for n in WORKERS:
        for b1 in MOMENTA:
            if same := ask.select(rows, b1=b1, num_workers=n):
                squares = Sample.of([row["squared"] for row in same], digits=4)
                cells.append([str(n), f"{b1:g}", str(squares), f"{bound(same[0]):,.1f}"])
    return Table(["Workers", "b1", "Mean squared gradient", "Bound"], cells)


def _draw(rows: Rows, figure: Figure) -> None:
    axes = figure.subplots()
    along = [1 / (1 - b1) for b1 in MOMENTA]
    for position, n in enumerate(WORKERS):
        samples = [
            Sample.of([row["squared"] for row in ask.select(rows, b1=b1, num_workers=n)], digits=4) for b1 in MOMENTA
        ]
        drawing.band(axes, along, samples, position=position, label=f"measured, {counted(n, 'worker')}")
    limits = [bound(ask.select(rows, b1=b1)[0]) for b1 in MOMENTA]
    axes.plot(along, limits, "--", label="bound", **drawing.REFERENCE)
    axes.set(xscale="log", yscale="log", xlabel="1 / (1 - b1)", ylabel="mean squared gradient")
    axes.legend(fontsize=8)


def _squared(num_workers: int) -> Group:
    """Returns the measurements with the middle momentum."""
    squares = Measure(
        words="the mean squared gradient at b1 = 0.9", values=lambda rows: [row["squared"] for row in rows], digits=4
    )
    return Group(
        counted(num_workers, "worker"), squares, functools.partial(ask.select, b1=MOMENTA[1], num_workers=num_workers)
    )


RULE = Rule(
    setting="with 1 and 16 workers, in every seed",
    parts=lambda scale: [
        Bound(
            words="the measured mean squared gradient over its bound, at every momentum,",
            values=lambda rows: [row["squared"] / bound(row) for row in rows],
            most=1.0,
            digits=5,
        ),
        *(
            Bound(
                words=f"its slope along 1 / (1 - b1), both logarithmic, with {counted(n, 'worker')},",
                values=functools.partial(slopes, num_workers=n),
                most=1.0,
                digits=3,
            )
            for n in WORKERS
        ),
        Compare(ours=_squared(16), is_="below", theirs=_squared(1), paired=True, judged=False),
    ],
    remark="That more workers have smaller gradients is shown and not judged.",
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("788c7f9a0256",),
    hours={"smoke": 0.02, "laptop": 0.08},
    runs=repeated(
        lambda scale: [{"b1": b1, "num_workers": n, "steps": STEPS[scale]} for b1 in MOMENTA for n in WORKERS],
        seeds={"smoke": 1, "laptop": 5},
    ),
    measure=_measure,
    findings=_findings,
    basis=lambda rows: ask.basis(rows, data="drawn noise", model="clipped quadratic"),
    enough=lambda rows: all(_finished(rows, num_workers=n) for n in WORKERS),
    table=_table,
    draw=_draw,
)
