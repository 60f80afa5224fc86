"""Trains a small network on digits where some workers are Byzantine, once for each attack."""

from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp
from jax.flatten_util import ravel_pytree

import models
import reducers
from data import shares, sources
from data.augment import as_inputs
from data.examples import Dataset, Examples

WORKERS, BYZANTINE = 25, 5
HONEST = WORKERS - BYZANTINE  # the first ones; each Byzantine worker has the examples of an honest one
WRONG = tuple(range(HONEST, WORKERS))
BATCH_SIZE, MOMENTUM, HIDDEN = 16, 0.9, 32
CLASSES = 10
LABELS = {"equal": CLASSES, "unequal": 2}  # classes that each worker has examples of
NONE, FLIPPED_LABELS = "none", "labels"
ATTACKS = {  # name -> what `corrupt` makes of a Byzantine worker's momentum; "" leaves it
    NONE: "",
    "garbage": "garbage",
    FLIPPED_LABELS: "",
    "signs": "flip",
    "little": "little",
    "inner product": "inner_product",
    "mimic": "copy",
}
AS_IS, MIXING, BUCKETING = "as it is", "mixing", "bucketing"
_TOLERATED = {"num_byzantine": BYZANTINE}
RULES: dict[str, dict[str, Any]] = {
    "mean": {},
    "krum": _TOLERATED,
    "geometric_median": {"num_steps": 8},
    "coordinate_median": {},
    "trimmed_mean": {"num_trimmed": BYZANTINE},
    "meamed": _TOLERATED,
    "centred_clipping": {"radius": 10.0, "num_steps": 3},
}
_WORKER = "worker"


def measure(*, rule: str, before: str, steps: int, rate: float, seed: int) -> dict[str, Any]:
    """Returns the test accuracy at the end with each attack, in percent, where workers' data are equal and unequal.

    Args:
      rule: a key of ``RULES``.
      before: what is done to the workers' momenta before the rule.
      steps: number of steps.
      rate: the learning rate.
      seed: seed of the parameters, the shares and the batches.
    """
    source = sources.make("digits")
    dataset = source.load(seed)
    train, test = _whole(dataset, dataset.train), _whole(dataset, dataset.test)
    model = models.make("mlp", sizes=source.info.sizes, hidden_sizes=(HIDDEN,))
    start, unravel = ravel_pytree(model.init(jax.random.key(seed), train["image"][:1]))
    owned = [_owned(np.asarray(train["label"]), labels=labels, seed=seed) for labels in LABELS.values()]
    own, sizes = (jnp.stack(parts) for parts in zip(*owned, strict=True))  # [D, W, N], [D, W]
    combine = _reducer(rule, before)
    attackers = [_attacker(how) for how in ATTACKS.values()]

    def loss(w, images, labels):
        chances = jax.nn.log_softmax(jnp.asarray(model.apply(unravel(w), images)))
        return -jnp.take_along_axis(chances, labels[:, None], axis=1).mean()

    def end(given, key, own, sizes, attack):
        """Returns the accuracy of one run; the seed is in its arguments alone, so that seeds share a program."""
        start, train, test = given
        is_flipped = (jnp.arange(WORKERS) >= HONEST) & (attack == list(ATTACKS).index(FLIPPED_LABELS))

        def step(carry, key):
            w, momenta, states, state = carry
            chosen = jnp.take_along_axis(own, jax.random.randint(key, (WORKERS, BATCH_SIZE), 0, sizes[:, None]), 1)
            labels = train["label"][chosen]
            labels = jnp.where(is_flipped[:, None], CLASSES - 1 - labels, labels)
            momenta = MOMENTUM * momenta + jax.vmap(jax.grad(loss), (None, 0, 0))(w, train["image"][chosen], labels)
            sent, states = zip(*map(_update, attackers, [momenta] * len(attackers), states), strict=True)
            combined, state = _update(combine, jnp.stack(sent)[attack], state)
            return (w - rate * combined[0], momenta, states, state), None

        momenta = jnp.zeros((WORKERS, start.size))
        states = tuple(_init(attacker, momenta) for attacker in attackers)
        first = (start, momenta, states, _init(combine, momenta))
        (w, *_), _ = jax.lax.scan(step, first, jax.random.split(key, steps))
        return (jnp.asarray(model.apply(unravel(w), test["image"])).argmax(1) == test["label"]).mean()

    with jax.numpy_rank_promotion("allow"):
        of_attacks = jax.vmap(end, (None, None, None, None, 0))
        ends = jax.jit(jax.vmap(of_attacks, (None, None, 0, 0, None)))(
            (start, train, test), jax.random.key(seed), own, sizes, jnp.arange(len(ATTACKS))
        )
    return {
        key(data, attack): 100 * float(value)
        for data, of_data in zip(LABELS, ends, strict=True)
        for attack, value in zip(ATTACKS, of_data, strict=True)
    }


def _init(reducer: reducers.Reducer, momenta: jax.Array) -> Any:
    """Returns the state of each worker."""
    return jax.vmap(reducer.init, axis_name=_WORKER)(momenta)


def _update(reducer: reducers.Reducer, momenta: jax.Array, state: Any) -> tuple[jax.Array, Any]:
    """Returns the result of each worker, and its state."""
    return jax.vmap(reducer.update, axis_name=_WORKER)(momenta, state)


def key(data: str, attack: str) -> str:
    """Returns the name of a quantity in a row."""
    return f"{data}, {attack}"


def _attacker(how: str) -> reducers.Reducer:
    """Returns what gives each honest worker its own momentum, and a Byzantine one what it sends."""
    if not how:
        return optax.identity()
    return reducers.make("corrupt", axis_name=_WORKER, workers=WRONG, how=how, combine=optax.identity())


def _reducer(rule: str, before: str) -> reducers.Reducer:
    """Returns the rule behind what is done before it."""
    block: dict[str, Any] = {"name": rule, **RULES[rule]}
    if before == MIXING:
        block = {"name": "nearest_neighbour_mixing", **_TOLERATED, "combine": block}
    elif before == BUCKETING:
        block = {"name": "bucketing", "combine": block}
    return reducers.make(axis_name=_WORKER, **block)


def _owned(targets: np.ndarray, *, labels: int, seed: int) -> tuple[jax.Array, jax.Array]:
    """Returns the examples of each worker [W, S], of which the first ones count, and how many do, [W]."""
    found = shares.by_label(labels_per_worker=labels)(targets, HONEST, seed)
    found += found[:BYZANTINE]
    most = len(targets)  # the same for all shares
    own = np.stack([np.pad(share, (0, most - len(share))) for share in found])
    return jnp.asarray(own), jnp.array([len(share) for share in found])


def _whole(dataset: Dataset, examples: Examples) -> dict[str, jax.Array]:
    """Returns all examples as one batch."""
    index = np.arange(examples.num_examples)[None]
    columns = examples.gather(index, np.array([-1]))
    whole = {name: jnp.asarray(column[0]) for name, column in columns.items()}
    return as_inputs(whole, jax.tree.map(jnp.asarray, dataset.constants))
