"""The two constants of the convergence proof: how far Adasum's mean may turn, and how much longer it may get."""

from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp

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
    Rule,
)
from experiments.study.run import Rows, Scale, repeated
from reducers.adasum import pair

COSINE = 2 * np.sqrt(2) / 3  # Kantorovich's bound for eigenvalues in [1, 2]; an angle of 0.1082 pi
TOLERANCE = 1e-4  # float32
NEAR = 1e-3  # in units of pi: how near to the bound a search must come that is able to refute it
MARK = "MEM-hi; DERIVED again"
PAPER = {
    "largest angle, in units of pi": Quoted("at most 0.108", f"{MARK}: arccos(2 sqrt(2) / 3) = 0.1082 pi"),
    "shortest |E[Adasum]| / |E[g]|": Quoted("at least 1", MARK),
    "longest |E[Adasum]| / |E[g]|": Quoted("at most 2", MARK),
}
STEPS: dict[Scale, int] = {"smoke": 100, "laptop": 3000}
LAWS: dict[Scale, list[tuple[int, int]]] = {  # dimension, number of points
    "smoke": [(2, 3)],
    "laptop": [(2, 2), (2, 3), (3, 4), (10, 8), (100, 16)],
}


def _measure(*, dimension: int, num_points: int, steps: int, seed: int) -> dict[str, Any]:
    """Searches the worst law of gradients with so many values, by gradient descent from a random one.

    The mean of Adasum over two independent gradients is exact, as a sum over all pairs of values.
    """

    def outcome(law: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        weights, points = jax.nn.softmax(law["logits"]), law["points"]  # (K,), (K, dimension)
        both = jax.vmap(lambda a: jax.vmap(lambda b: pair(a, b))(points))(points)  # (K, K, dimension)
        combined, mean = jnp.einsum("i,j,ijd->d", weights, weights, both), weights @ points
        lengths = jnp.linalg.norm(combined), jnp.linalg.norm(mean)
        return combined @ mean / (lengths[0] * lengths[1]), lengths[0] / lengths[1]

    keys = jax.random.split(jax.random.key(seed))
    law = {
        "points": jax.random.normal(keys[0], (num_points, dimension)),
        "logits": jax.random.normal(keys[1], (num_points,)),
    }
    optimizer = optax.adam(optax.cosine_decay_schedule(0.02, steps))

    def step(carry, _):
        law, state = carry
        (cosine, ratio), back = jax.value_and_grad(outcome, has_aux=True)(law)
        changes, state = optimizer.update(back, state, law)
        return (optax.apply_updates(law, changes), state), (cosine, ratio)

    _, (cosines, ratios) = jax.jit(lambda law: jax.lax.scan(step, (law, optimizer.init(law)), length=steps))(law)
    shown = np.unique(np.geomspace(1, steps, 60).astype(int)) - 1
    return {
        "step": (shown + 1).tolist(),
        "cosine": np.minimum.accumulate(cosines)[shown].tolist(),
        "worst_cosine": float(jnp.min(cosines)),
        "shortest": float(jnp.min(ratios)),
        "longest": float(jnp.max(ratios)),
    }


def _found(rows: Rows) -> dict[str, Sample | str]:
    """Returns the extremes over all laws, of the angle one for each seed of the searches."""
    worst = [min(row["worst_cosine"] for row in ask.select(rows, seed=seed)) for seed in ask.distinct(rows, "seed")]
    shortest, longest = _lengths(rows)
    extremes = (Sample.of(list(map(_angle, worst))), f"{shortest:.4f}", f"{longest:.4f}")
    return dict(zip(PAPER, extremes, strict=True))


def _findings(rows: Rows) -> list[Finding]:
    """Returns how many searches were able to find what they looked for."""
    near = sum(_angle(row["worst_cosine"]) >= _angle(COSINE) - NEAR for row in rows)
    return [Finding(f"searches that end within {NEAR:g} pi of the bound on the angle", ours=f"{near} of {len(rows)}")]


def _paper_table(rows: Rows) -> Table:
    found = _found(rows)
    return paper_table.table("Constant", ["Bound"], {name: [Cell(PAPER[name], found[name])] for name in PAPER})


def _angle(cosine: float) -> float:
    """Returns the angle in units of pi."""
    return float(np.arccos(cosine) / np.pi)


def _lengths(rows: Rows) -> tuple[float, float]:
    return min(row["shortest"] for row in rows), max(row["longest"] for row in rows)


def _draw(rows: Rows, figure: Figure) -> None:
    axes = figure.subplots()
    for position, (dimension, points) in enumerate(sorted({(row["dimension"], row["num_points"]) for row in rows})):
        same = ask.select(rows, dimension=dimension, num_points=points)
        worst = np.min([row["cosine"] for row in same], axis=0)
        look = drawing.look(position) | {"marker": ""}
        axes.plot(same[0]["step"], np.arccos(worst) / np.pi, label=f"{points} values in {dimension} dimensions", **look)
    axes.axhline(np.arccos(COSINE) / np.pi, linestyle="--", label="bound, 0.108 π", **drawing.REFERENCE)
    axes.set(xlabel="step of the search", ylabel="largest angle so far (π)", xscale="log", ylim=(0, 0.12))
    axes.legend(fontsize=8)


RULE = Rule(
    setting="of laws of gradients that searches find, which maximise the angle by gradient descent over the values and "
    "weights of discrete laws, whose mean Adasum is exact",
    constructed=True,
    parts=lambda scale: [
        Bound(
            words="the least cosine, less the bound's,",
            values=lambda rows: [min(row["worst_cosine"] for row in rows) - COSINE],
            least=-TOLERANCE,
            digits=5,
        ),
        Bound(words="the shortest length", values=lambda rows: [_lengths(rows)[0]], least=1 - TOLERANCE, digits=4),
        Bound(words="the longest length", values=lambda rows: [_lengths(rows)[1]], most=2 + TOLERANCE, digits=4),
        Bound(
            words="the largest angle found, less the bound's, in units of pi,",
            values=lambda rows: [_angle(min(row["worst_cosine"] for row in rows)) - _angle(COSINE)],
            least=-NEAR,
            digits=4,
            refutes=False,
        ),
    ],
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("ab8b981fbf42",),
    hours={"smoke": 0.01, "laptop": 0.02},
    runs=repeated(
        lambda scale: [{"dimension": d, "num_points": k, "steps": STEPS[scale]} for d, k in LAWS[scale]],
        seeds={"smoke": 1, "laptop": 5},
    ),
    measure=_measure,
    findings=_findings,
    basis=lambda rows: ask.basis(rows, data="drawn gradients", model="no model"),
    paper_table=_paper_table,
    draw=_draw,
)
