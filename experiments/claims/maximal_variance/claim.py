"""MAdam and Adam with each fixed decay on a noisy quadratic, at their best rates."""

from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Finding, Sample, Table
from experiments.study.prose import beside
from experiments.study.rule import Compare, Group, Measure, Need, Rule
from experiments.study.run import Row, Rows, Scale, repeated
from optim.maximal_variance import madam
from reducers.dtypes import mixing_dtypes

CURVATURES, NOISE, RANGE = (1.0, 20.0), 0.2, (0.5, 0.99)
DECAYS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999)
RATES = tuple(float(rate) for rate in np.logspace(-3, -1.5, 25).round(6))
STEPS, LAST = 1000, 100
TRIALS: dict[Scale, int] = {"smoke": 4, "laptop": 100}
PICKED_WITH = 0  # the seed that rates and the decay of Adam are picked with
MADAM = "madam"


def name_of(decay: float | None) -> str:
    """Returns the name of Adam with a decay, or of MAdam."""
    return MADAM if decay is None else f"adam, b2 = {decay:g}"


METHODS = {name_of(decay): decay for decay in (None, *DECAYS)}


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

    keys, rates = jax.random.split(jax.random.key(seed), trials), jnp.array(RATES)

    def adam(rate, decay):
        return jax.vmap(lambda key: loss_at_end(optax.adam(rate, b2=decay), key))(keys).mean()

    def ours(rate):
        return jax.vmap(lambda key: loss_at_end(madam(rate, low=RANGE[0], high=RANGE[1]), key))(keys).mean()

    with jax.numpy_rank_promotion("allow"):
        found = {MADAM: jax.jit(jax.vmap(ours))(rates)}
        by_decay = jax.jit(jax.vmap(jax.vmap(adam, (0, None)), (None, 0)))(rates, jnp.array(DECAYS))
    found |= {name_of(decay): losses for decay, losses in zip(DECAYS, by_decay, strict=True)}
    return {name: np.asarray(losses).astype(float).tolist() for name, losses in found.items()}


def _picked(rows: Rows, method: str) -> int:
    """Returns the index of a method's best rate, by the seed that is for picking."""
    (row,) = ask.select(rows, seed=PICKED_WITH)
    return int(np.nanargmin(row[method]))


def best_adam(rows: Rows) -> str:
    """Returns the name of Adam with the best decay, by the seed that is for picking."""
    (row,) = ask.select(rows, seed=PICKED_WITH)
    return min((name_of(decay) for decay in DECAYS), key=lambda name: float(np.nanmin(row[name])))


def _reported(rows: Rows) -> list[Row]:
    return [row for row in rows if row["seed"] != PICKED_WITH]


def losses(rows: Rows, method: str) -> list[float]:
    """Returns the losses of the reported seeds at a method's best rate."""
    best = _picked(rows, method)
    return [row[method][best] for row in _reported(rows)]


def _findings(rows: Rows) -> list[Finding]:
    best = best_adam(rows)
    ratio = [ours / theirs for ours, theirs in zip(losses(rows, MADAM), losses(rows, best), strict=True)]
    return [
        Finding("best decay of Adam", ours=best.removeprefix("adam, b2 = ")),
        Finding("loss of MAdam over that of Adam with its best decay", ours=Sample.of(ratio, digits=3)),
    ]


def _table(rows: Rows) -> Table:
    methods = METHODS if _reported(rows) else ()
    cells = [
        [name, f"{RATES[_picked(rows, name)]:g}", str(Sample.of(losses(rows, name), digits=4))] for name in methods
    ]
    return Table(["Optimizer", "Best rate", "Loss"], cells)


def _draw(rows: Rows, figure: Figure) -> None:
    axes = figure.subplots()
    for position, name in enumerate((MADAM, *dict.fromkeys((best_adam(rows), name_of(0.999))))):
        samples = ask.curve(_reported(rows), name)
        drawing.band(axes, RATES, samples, position=position, label="MAdam" if name == MADAM else f"Adam{name[4:]}")
    axes.set(xscale="log", yscale="log", xlabel="rate", ylabel="loss")
    axes.legend(fontsize=8)


def _loss(name: str, method: Any) -> Group:
    """Returns the losses of the reported seeds, of a method that may depend on the rows."""
    loss = Measure(words="the loss, each at its best rate", values=lambda rows: losses(rows, method(rows)), digits=5)
    return Group(name, loss)


RULE = Rule(
    setting="over seeds of 100 trials each, whose starts and noise both share",
    needs=[
        Need(
            "there are fewer than two seeds besides the one that is for picking",
            lambda rows: "" if len(_reported(rows)) > 1 else "The rule needs two seeds besides the one for picking.",
        )
    ],
    parts=lambda scale: [
        Compare(
            ours=_loss("MAdam", lambda rows: MADAM),
            is_="below",
            theirs=_loss("Adam with the best decay", best_adam),
            paired=True,
        )
    ],
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    selection="The rate of each optimizer, and the decay of Adam: the lowest loss with seed 0, which is not reported. "
    f"Rates: {len(RATES)} from {RATES[0]:g} to {RATES[-1]:g}, equally far on a logarithmic scale; decays: "
    f"{', '.join(f'{decay:g}' for decay in DECAYS)}. There is no training set: noise is drawn.",
    hours={"smoke": 0.02, "laptop": 0.06},
    runs=repeated(lambda scale: [{"trials": TRIALS[scale]}], seeds={"smoke": 2, "laptop": 6}),
    measure=_measure,
    findings=_findings,
    basis=lambda rows: ask.basis(_reported(rows), data="drawn noise", model="noisy quadratic"),
    enough=lambda rows: bool(ask.select(rows, seed=PICKED_WITH)) and len(_reported(rows)) > 0,
    table=_table,
    draw=_draw,
)
