"""Exponential, constant and 1 / sqrt(t) steps of logistic regression with 1 to 64 workers, tuned once with eight."""

import functools
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from scipy import optimize

from experiments.study import figures, frames
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Value, beside, repeated
from experiments.study.verdict import Verdict, decide_both_ways, paired, untested
from optim import schedules
from runs.reporting.progress import counted

WORKERS = (1, 2, 4, 8, 16, 32, 64)
TUNED_WITH = 8
RATES = tuple(float(rate) for rate in np.logspace(-3, 1.5, 19).round(5))
NUM_RATES = len(RATES)
STEPS = {"smoke": 50, "laptop": 1_000}
TRIALS = {"smoke": 2, "laptop": 16}
EXAMPLES, SIZE, PENALTY, FLIPPED = 1_000, 20, 0.01, 0.1
PICKED_WITH = 0  # the seed that rates are picked with
LABELS = {"exponential": "exponential", "constant": "constant", "root": "1 / sqrt(t)"}


@functools.cache
def problem() -> tuple[np.ndarray, np.ndarray]:
    """Returns the examples [m, d], and their labels [m], -1 or 1: the same for all seeds."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, SIZE))
    labels = np.sign(x @ rng.normal(size=SIZE))
    return x, np.where(rng.random(EXAMPLES) < FLIPPED, -labels, labels)


def loss(w: np.ndarray) -> float:
    """Returns the loss of all examples, in float64."""
    x, y = problem()
    return float(np.logaddexp(0, -y * (x @ w)).mean() + PENALTY / 2 * w @ w)


def minimum() -> np.ndarray:
    """Returns the parameters with the least loss, in float64."""
    return optimize.minimize(loss, np.zeros(SIZE), jac="3-point", tol=1e-9).x


def _factor(schedule: str, steps: int) -> Any:
    if schedule == "root":
        return lambda step: (1.0 + jnp.asarray(step, jnp.float32)) ** -0.5
    name = "exponential_to" if schedule == "exponential" else schedule
    return schedules.make({"name": name}, total_steps=steps, steps_per_epoch=steps)


def _measure(*, steps: int, trials: int, seed: int) -> dict[str, Any]:
    """Returns the last loss less the minimum at each rate, [R], for each schedule and number of workers."""
    x, y = (jnp.asarray(part, jnp.float32) for part in problem())
    factors = {name: jax.vmap(_factor(name, steps))(jnp.arange(steps)) for name in LABELS}
    rates = jnp.array(RATES)

    def end(rate, factors, chosen):
        def step(w, given):
            factor, batch = given
            gradient = -jnp.mean(y[batch] * jax.nn.sigmoid(-y[batch] * (x[batch] @ w)) * x[batch].T, axis=1)
            return w - rate * factor * (gradient + PENALTY * w), None

        return jax.lax.scan(step, jnp.zeros(SIZE), (factors, chosen))[0]

    found = {}
    least = loss(minimum())
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


def frame(rows: Rows) -> Frame:
    """Returns a line for each reported run, schedule and number of workers.

    ``above`` is the loss above the minimum at the rate tuned with eight workers, ``rate`` the one tuned anew, and
    ``lost`` the logarithm of the factor between the two losses.
    """
    keys = {key(name, n): (label, n) for name, label in LABELS.items() for n in WORKERS}
    lines = frames.frame(rows).melt(["seed", "scale"], [*keys], "key", "losses")
    lines[["steps", "workers"]] = lines["key"].map(keys).tolist()
    anew = frames.picked(lines, ["key"], "losses", seed=PICKED_WITH)
    once = lines["steps"].map(anew[lines["workers"] == TUNED_WITH].groupby(lines["steps"]).first())
    above = frames.at(lines["losses"], once)
    with np.errstate(invalid="ignore", divide="ignore"):
        lost = np.log(above / frames.at(lines["losses"], anew))
    rate = frames.at([RATES] * len(lines), anew)
    lines = lines.assign(rate=rate, above=above, thousandfold=1e3 * above, lost=lost)
    return lines[(lines["seed"] != PICKED_WITH) & anew.notna()]


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    if df["seed"].nunique() < 2:
        return untested("The rule needs two seeds besides the one that rates are picked with.")
    found = []
    ours, *others = LABELS.values()
    for n in WORKERS:
        if n == TUNED_WITH:
            continue
        at = counted(n, "worker")
        lost = frames.by_seed(df[df["workers"] == n], "steps", "lost")
        for other in others:
            found.append(paired(f"{ours} steps", lost[ours], "below", f"{other} steps", lost[other], digits=3, at=at))
    return decide_both_ways(found)


def _facts(df: Frame) -> Facts:
    means = df[df["workers"] != TUNED_WITH].groupby(["steps", "seed"])["lost"].mean()
    quantity = "logarithm of what {} steps lose, mean over the other numbers of workers"
    return {quantity.format(label): frames.text(means[label], 3) for label in LABELS.values()}


def _draw(df: Frame, figure: Figure) -> None:
    y = {"lost": "lost to a rate tuned anew (log)", "above": "loss above the minimum"}
    _, right = figures.values(figure, df, x="workers", y=y, by="steps", order=[*LABELS.values()], xscale="log")
    figures.finish(right, yscale="log")


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.03, "laptop": 0.1},
    runs=repeated(lambda scale: [{"steps": STEPS[scale], "trials": TRIALS[scale]}], seeds={"smoke": 2, "laptop": 6}),
    measure=_measure,
    data="drawn examples",
    model="logistic regression",
    frame=frame,
    labels=["workers", "steps"],
    values={
        "own best rate": Value("rate", None, is_fixed=True),
        "1,000 x loss above the minimum, rate tuned with 8 workers": Value("thousandfold", 3),
        "lost (logarithm)": Value("lost", 2),
    },
    facts=_facts,
    draw=_draw,
    inches=(7.0, 3.2),
)
