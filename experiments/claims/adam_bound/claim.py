"""Adam's mean squared gradient on a clipped noisy quadratic, beside the bound, by momentum."""

import math
from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp
from jax.scipy.stats import norm

from experiments.study import figures, frames
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Value, beside, repeated
from experiments.study.verdict import Verdict, bound, decide, paired
from optim import bounds
from optim.rules.plain import adam_plain
from reducers.dtypes import mixing_dtypes
from runs.reporting.progress import counted

MOMENTA = (0.0, 0.9, 0.99)
WORKERS = (1, 16)
STEPS = {"smoke": 200, "laptop": 5_000}
CURVATURES = np.linspace(0.1, 1.0, 10)
PAPER = "at most 1 [READ, by a note of others]"
START = 3.0  # each parameter
NOISE = 0.5  # standard deviation of a gradient
MOST = 1.0  # magnitude at which gradients are clipped
EPS = 1e-8
DRAWS = 8


def mean_gradient(x: jax.Array) -> jax.Array:
    """Returns the mean of clipped noisy gradients, [D], at x [D], which is the gradient of the loss.

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
        keys = jax.random.split(key, steps)
        (_, _, total), _ = jax.lax.scan(step, begin, (weights, keys))
        return total

    keys = jax.random.split(jax.random.key(seed), DRAWS)
    with jax.numpy_rank_promotion("allow"):
        found = jax.jit(jax.vmap(draw))(keys)
    return {"squared": float(np.mean(found))}


def limit(steps: int, b1: float) -> float:
    """Returns the bound of a run; the gap is at most the quadratic's at the start."""
    gap = float(CURVATURES.sum() * START**2 / 2)
    most = MOST + math.sqrt(EPS)
    smoothness = float(CURVATURES.max())
    rate = steps**-0.5
    betas = (b1, 1 - 1 / steps)
    return bounds.adam(steps, len(CURVATURES), most, smoothness, rate, betas, gap=gap, eps=EPS)


def frame(rows: Rows) -> Frame:
    """Returns the runs, with the bound of each."""
    df = frames.frame(rows)
    return df.assign(
        limit=list(map(limit, df["steps"], df["b1"])),
        along=1 / (1 - df["b1"]),
        workers=[counted(n, "worker") for n in df["num_workers"]],
    )


def slopes(df: Frame, num_workers: int) -> Any:
    """Returns, for each seed with every momentum, the slope of log squared gradient along log 1 / (1 - b1)."""
    same = df[df["num_workers"] == num_workers].groupby("seed").filter(lambda runs: len(runs) == len(MOMENTA))
    squared = frames.by_seed(same, "b1", "squared").reindex(columns=[*MOMENTA])
    along = -np.log1p(-np.array(MOMENTA))
    along -= along.mean()
    return np.log(squared) @ along / (along @ along)


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    few, many = (counted(n, "worker") for n in WORKERS)
    middle = df[df["b1"] == MOMENTA[1]]
    squared = frames.by_seed(middle, "workers", "squared").reindex(columns=[few, many])
    over = "the measured mean squared gradient over its bound, at every momentum,"
    slope = "its slope along 1 / (1 - b1), both logarithmic, with"
    return decide(
        [paired(many, squared[many], "below", few, squared[few], digits=4)],
        bound(over, *(df["squared"] / df["limit"]), most=1.0, digits=5),
        *(bound(f"{slope} {counted(n, 'worker')},", *slopes(df, n), most=1.0, digits=3) for n in WORKERS),
        judged=[],
    )


def _facts(df: Frame) -> Facts:
    found: Facts = {}
    for n in WORKERS:
        words = f"slope of the squared gradient along 1 / (1 - b1), {counted(n, 'worker')}"
        found[words] = frames.text(slopes(df, n), 3), PAPER
    _, less, more = MOMENTA
    steps = df["steps"].iloc[0]
    rise = math.log(limit(steps, more) / limit(steps, less))
    slope = rise / math.log((1 - less) / (1 - more))
    return found | {"slope of the bound from 0.9 to 0.99": f"{slope:.2f}"}


def _draw(df: Frame, figure: Figure) -> None:
    y = {"squared": "mean squared gradient"}
    (axes,) = figures.values(figure, df, x="along", y=y, by="workers", xscale="log", yscale="log")
    figures.known(axes, df, x="along", y="limit", label="bound", linestyle="--")
    figures.finish(axes, xlabel="1 / (1 - b1)", yscale="log")


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.02, "laptop": 0.08},
    runs=repeated(
        lambda scale: [{"b1": b1, "num_workers": n, "steps": STEPS[scale]} for b1 in MOMENTA for n in WORKERS],
        seeds={"smoke": 1, "laptop": 5},
    ),
    measure=_measure,
    data="drawn noise",
    model="clipped quadratic",
    frame=frame,
    labels=["num_workers", "b1"],
    values={"mean squared gradient": Value("squared", 4), "bound": Value("limit", 1, is_fixed=True)},
    facts=_facts,
    draw=_draw,
)
