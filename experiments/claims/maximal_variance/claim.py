"""MAdam and Adam with each fixed decay on a noisy quadratic, at their best rates."""

from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp

from experiments.study import figures, frames
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Value, beside, repeated
from experiments.study.verdict import Verdict, decide, paired, untested
from optim.rules.maximal_variance import madam
from reducers.dtypes import mixing_dtypes

CURVATURES, NOISE, RANGE = (1.0, 20.0), 0.2, (0.5, 0.99)
DECAYS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999)
RATES = tuple(float(rate) for rate in np.logspace(-3, -1.5, 25).round(6))
NUM_RATES = len(RATES)
STEPS, LAST = 1000, 100
TRIALS = {"smoke": 4, "laptop": 100}
PICKED_WITH = 0  # the seed that rates and the decay of Adam are picked with
MADAM = "madam"
METHODS = (MADAM, *(f"adam, b2 = {decay:g}" for decay in DECAYS))


def _measure(*, trials: int, seed: int) -> dict[str, Any]:
    """Returns the loss of each method at each rate, averaged over the last steps and over trials, [R]."""

    def loss_at_end(optimizer, key):
        h = jnp.array(CURVATURES)
        start, noise = jax.random.split(key)
        x = jax.random.normal(start, h.shape)

        def step(carry, noise):
            x, state = carry
            updates, state = mixing_dtypes(optimizer.update)(h * (x - noise), state, x)
            x = optax.apply_updates(x, updates)
            return (x, state), 0.5 * jnp.sum(h * x**2)

        noises = NOISE * jax.random.normal(noise, (STEPS, *h.shape))
        losses = jax.lax.scan(step, (x, optimizer.init(x)), noises)[1]
        return losses[-LAST:].mean()

    keys = jax.random.split(jax.random.key(seed), trials)
    rates = jnp.array(RATES)

    def mean_loss(optimizer):
        return jax.vmap(lambda key: loss_at_end(optimizer, key))(keys).mean()

    def of_madam(rate):
        return mean_loss(madam(rate, low=RANGE[0], high=RANGE[1]))

    def of_adam(decay):
        return jax.vmap(lambda rate: mean_loss(optax.adam(rate, b2=decay)))(rates)

    with jax.numpy_rank_promotion("allow"):
        losses = [jax.jit(jax.vmap(of_madam))(rates), *jax.jit(jax.vmap(of_adam))(jnp.array(DECAYS))]
    return {name: np.asarray(of, float).tolist() for name, of in zip(METHODS, losses, strict=True)}


def frame(rows: Rows) -> Frame:
    """Returns a line for each reported run and optimizer, at the rate that was best in the picking seed."""
    lines = frames.frame(rows).melt(["seed", "scale"], [*METHODS], "optimizer", "losses")
    best = frames.picked(lines, ["optimizer"], "losses", seed=PICKED_WITH, least=np.nanargmin)
    lines = lines.assign(rates=[RATES] * len(lines), loss=frames.at(lines["losses"], best))
    lines["rate"] = frames.at(lines["rates"], best)
    picking = lines[lines["seed"] == PICKED_WITH].set_index("optimizer")["loss"]
    lines = lines.assign(best=picking.drop(MADAM).idxmin() if len(picking) else "")
    return lines[(lines["seed"] != PICKED_WITH) & best.notna()]


def _by_seed(df: Frame) -> tuple[Any, Any]:
    """Returns the losses of MAdam, and of Adam with the best decay."""
    losses = frames.by_seed(df, "optimizer", "loss")
    return losses[MADAM], losses[df["best"].iloc[0]]


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    if df["seed"].nunique() < 2:
        return untested("The rule needs two seeds besides the one for picking.")
    ours, theirs = _by_seed(df)
    return decide([paired("MAdam", ours, "below", "Adam with the best decay", theirs, digits=5)])


def _facts(df: Frame) -> Facts:
    ours, theirs = _by_seed(df)
    return {
        "best decay of Adam": df["best"].iloc[0].removeprefix("adam, b2 = "),
        "loss of MAdam over that of Adam with its best decay": frames.text(ours / theirs, 3),
    }


def _draw(df: Frame, figure: Figure) -> None:
    shown = [MADAM, *dict.fromkeys((df["best"].iloc[0], "adam, b2 = 0.999"))]
    figures.curves(
        figure,
        df[df["optimizer"].isin(shown)],
        along="rates",
        of="losses",
        by="optimizer",
        order=shown,
        name=lambda same: same["optimizer"].iloc[0].replace("madam", "MAdam"),
        xscale="log",
        yscale="log",
        xlabel="rate",
        ylabel="loss",
    )


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.02, "laptop": 0.06},
    runs=repeated(lambda scale: [{"trials": TRIALS[scale]}], seeds={"smoke": 2, "laptop": 6}),
    measure=_measure,
    data="drawn noise",
    model="noisy quadratic",
    frame=frame,
    labels=["optimizer"],
    values={"best rate": Value("rate", None, is_fixed=True), "loss": Value("loss", 4)},
    facts=_facts,
    draw=_draw,
)
