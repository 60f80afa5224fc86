"""The two constants of the convergence proof: how far Adasum's mean may turn, and how much longer it may get."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import drawing
from experiments import rows as ask
from experiments.experiment import Experiment, Finding, Quoted, Row, Rows, Run, Sample, Scale, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COSINE = 2 * np.sqrt(2) / 3  # Kantorovich's bound for eigenvalues in [1, 2]; an angle of 0.1082 pi
TOLERANCE = 1e-4  # float32
STEPS = {"smoke": 100, "laptop": 3000}


def _measure(*, dimension: int, num_points: int, steps: int, seed: int) -> dict[str, Any]:
    """Looks for the worst law of gradients with so many values, by gradient descent from a random one.

    The mean of Adasum over two independent gradients is exact: all pairs of values are added up.
    """
    import jax
    import optax
    from jax import numpy as jnp

    from reducers.adasum.pairs import pair

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


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    del rows
    laws = [(2, 3)] if scale == "smoke" else [(2, 2), (2, 3), (3, 4), (10, 8), (100, 16)]
    seeds = range(1 if scale == "smoke" else 5)
    return [
        Run(labels={"dimension": d, "num_points": k, "steps": STEPS[scale], "seed": seed})
        for d, k in laws
        for seed in seeds
    ]


def _findings(rows: Rows) -> list[Finding]:
    worst = [min(row["worst_cosine"] for row in ask.select(rows, seed=seed)) for seed in ask.distinct(rows, "seed")]
    angles = [float(np.arccos(cosine) / np.pi) for cosine in worst]
    lengths = [row["shortest"] for row in rows], [row["longest"] for row in rows]
    return [
        Finding(
            quantity="largest angle that was found, in units of pi",
            paper=Quoted("at most 0.108", "MEM-hi; DERIVED again: arccos(2 sqrt(2) / 3) = 0.1082 pi"),
            paper_number=0.1082,
            ours=Sample.of(angles),
        ),
        Finding(
            quantity="shortest |E[Adasum]| / |E[g]|",
            paper=Quoted("at least 1", "MEM-hi; DERIVED again"),
            ours=f"{min(lengths[0]):.4f}",
        ),
        Finding(
            quantity="longest |E[Adasum]| / |E[g]|",
            paper=Quoted("at most 2", "MEM-hi; DERIVED again"),
            ours=f"{max(lengths[1]):.4f}",
        ),
    ]


def _judge(rows: Rows) -> Verdict:
    cosine = min(row["worst_cosine"] for row in rows)
    shortest, longest = min(row["shortest"] for row in rows), max(row["longest"] for row in rows)
    held = cosine >= COSINE - TOLERANCE and shortest >= 1 - TOLERANCE and longest <= 2 + TOLERANCE
    because = (
        f"Of {len(rows)} searches for a law that breaks them, the worst has cosine {cosine:.5f} (bound {COSINE:.5f}) "
        f"and lengths from {shortest:.4f} to {longest:.4f} times the mean gradient's (bounds 1 and 2)."
    )
    return Verdict("supported" if held else "not supported", because)


def _draw(rows: Rows, figure: "Figure") -> None:
    axes = figure.subplots()
    laws: Sequence[tuple] = sorted({(row["dimension"], row["num_points"]) for row in rows})
    for position, (dimension, points) in enumerate(laws):
        same: Sequence[Row] = ask.select(rows, dimension=dimension, num_points=points)
        worst = np.min([row["cosine"] for row in same], axis=0)
        look = drawing.look(position) | {"marker": ""}
        axes.plot(same[0]["step"], np.arccos(worst) / np.pi, label=f"{points} values in {dimension} dimensions", **look)
    axes.axhline(np.arccos(COSINE) / np.pi, color="#666666", linewidth=1, linestyle="--", label="bound, 0.108 π")
    axes.set(xlabel="step of the search", ylabel="largest angle so far (π)", xscale="log", ylim=(0, 0.12))
    axes.legend(fontsize=8)


EXPERIMENT = Experiment(
    number=16,
    title="Constants of the convergence proof",
    claim="The mean of Adasum of two independent gradients is at most 0.108 pi away from the mean gradient, and "
    "between one time and two times as long.",
    source="arXiv 2006.02924, section on convergence",
    rule="Supported if no law of gradients that a search finds breaks a bound by more than 1e-4; the search maximises "
    "the angle by gradient descent over the values and weights of discrete laws, whose mean Adasum is exact.",
    hours={"smoke": 0.01, "laptop": 0.02},
    runs=_runs,
    measure=_measure,
    findings=_findings,
    judge=_judge,
    draw=_draw,
)
