"""The two constants of the convergence proof: how far Adasum's mean may turn, and how much longer it may get."""

from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp

from experiments.study import figures, frames
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Value, beside, repeated
from experiments.study.verdict import Verdict, bound, decide
from reducers.adasum import pair

COSINE = 2 * np.sqrt(2) / 3  # Kantorovich's bound for eigenvalues in [1, 2]; an angle of 0.1082 pi
TOLERANCE = 1e-4  # float32
SHORTEST, LONGEST = 1 - TOLERANCE, 2 + TOLERANCE  # over the length of the mean gradient
NEAR = 1e-3  # in units of pi: how near to the bound a search must come that is able to refute it
STEPS = {"smoke": 100, "laptop": 3000}
LAWS = {  # dimension, number of points
    "smoke": [(2, 3)],
    "laptop": [(2, 2), (2, 3), (3, 4), (10, 8), (100, 16)],
}
MARK = "[MEM-hi; DERIVED again]"
ANGLE = "at most 0.108 [MEM-hi; DERIVED again: arccos(2 sqrt(2) / 3) = 0.1082 pi]"


def _measure(*, dimension: int, num_points: int, steps: int, seed: int) -> dict[str, Any]:
    """Searches the worst distribution of gradients over so many values, by gradient descent from a random one.

    The mean of Adasum over two independent gradients is exact, as a sum over all pairs of values.
    """

    def outcome(law: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        weights, points = jax.nn.softmax(law["logits"]), law["points"]  # (K,), (K, dimension)
        both = jax.vmap(lambda a: jax.vmap(lambda b: pair(a, b))(points))(points)  # (K, K, dimension)
        combined = jnp.einsum("i,j,ijd->d", weights, weights, both)
        mean = weights @ points
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

    def search(law):
        return jax.lax.scan(step, (law, optimizer.init(law)), length=steps)[1]

    cosines, ratios = jax.jit(search)(law)
    shown = np.unique(np.geomspace(1, steps, 60).astype(int)) - 1
    return {
        "step": (shown + 1).tolist(),
        "cosine": np.minimum.accumulate(cosines)[shown].tolist(),
        "worst_cosine": float(jnp.min(cosines)),
        "shortest": float(jnp.min(ratios)),
        "longest": float(jnp.max(ratios)),
    }


def frame(rows: Rows) -> Frame:
    """Returns the searches, with the angles that they find and the law in words."""
    df = frames.frame(rows)
    law = df["num_points"].astype(str) + " values in " + df["dimension"].astype(str) + " dimensions"
    angles = [list(_angle(cosines)) for cosines in df["cosine"]]
    return df.assign(law=law, angle=_angle(df["worst_cosine"]), angles=angles)


def _angle(cosine: Any) -> Any:
    """Returns the angle in units of pi; NaN if the number is not a cosine."""
    with np.errstate(invalid="ignore"):
        return np.arccos(cosine) / np.pi


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    cosine, shortest = (df[key].min(skipna=False) for key in ("worst_cosine", "shortest"))
    longest = df["longest"].max(skipna=False)
    near = _angle(cosine) - _angle(COSINE)
    return decide(
        (),
        bound("the least cosine, less the bound's,", cosine - COSINE, least=-TOLERANCE, digits=5),
        bound("the shortest length", shortest, least=SHORTEST, digits=4),
        bound("the longest length", longest, most=LONGEST, digits=4),
        bound("the largest angle found, less the bound's, in units of pi,", near, least=-NEAR, digits=4, refutes=False),
        refuted=False,
        built=True,
    )


def _facts(df: Frame) -> Facts:
    near = (df["angle"] >= _angle(COSINE) - NEAR).sum()
    return {
        "largest angle, in units of pi": (frames.text(df.groupby("seed")["angle"].max(), 4), ANGLE),
        "shortest |E[Adasum]| / |E[g]|": (f"{df['shortest'].min():.4f}", f"at least 1 {MARK}"),
        "longest |E[Adasum]| / |E[g]|": (f"{df['longest'].max():.4f}", f"at most 2 {MARK}"),
        f"searches that end within {NEAR:g} pi of the bound on the angle": f"{near} of {len(df)}",
    }


def _draw(df: Frame, figure: Figure) -> None:
    laws = df.groupby("law", sort=False)
    worst = laws.agg({"step": "first", "angles": lambda runs: np.max(runs.tolist(), axis=0)}).reset_index()
    (axes,) = figures.curves(figure, worst, along="step", of="angles", by="law", marker="", xscale="log")
    axes.set(xlabel="step of the search", ylabel="largest angle so far (π)", ylim=(0, 0.12))
    figures.line(axes, _angle(COSINE), "bound, 0.108 π", linestyle="--")


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.01, "laptop": 0.02},
    runs=repeated(
        lambda scale: [{"dimension": d, "num_points": k, "steps": STEPS[scale]} for d, k in LAWS[scale]],
        seeds={"smoke": 1, "laptop": 5},
    ),
    measure=_measure,
    data="drawn gradients",
    model="no model",
    frame=frame,
    labels=["law"],
    values={"largest angle (π)": Value("angle", 4)},
    facts=_facts,
    draw=_draw,
)
