"""The networks of the claim with their data, and their training over lanes of scales."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import linen as nn
from jax import numpy as jnp

from data import sources
from data.examples import Columns, Examples
from models.fields import ScaleInvariant
from models.layers.attention import INVARIANT_LEAVES
from models.layers.normalisation import normalise
from models.layers.pooling import max_pool_2x2
from models.transformer import Transformer
from optim.frozen import matching
from optim.rules.relative_clip import relative_clip
from reducers.dtypes import mixing_dtypes
from reducers.leaves import leaf_names

BATCHES = {"transformer": 8, "CNN": 16}  # each network's examples in a step
OPTIMIZERS = {"sgd": "SGD", "sgd_decay": "SGD with decay", "relative_clip": "clipping", "adam": "Adam"}
CLIP, ADAM = "relative_clip", "adam"
DECAY = 8.0  # eta * lam * steps, of the paper: 8e-4 * 1e-2 * 1e6
LAMB_RATE, LAMB_EPSILON = 0.01, 1e-12  # for all parameters that have a scale
LENGTH, WIDTH, EVALUATED = 16, 32, 512  # characters of a sequence; the transformer's width; sequences that are tested
Batch = tuple[jax.Array, jax.Array]  # inputs and labels


class CNN(nn.Module):
    """Three convolutions of 8, 16 and 32 channels, and a dense layer of their means over pixels."""

    num_classes: int
    scale_invariant: ScaleInvariant = "on"

    @nn.compact
    def __call__(self, image: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Returns logits [B, C] for images [B, H, W, D]."""
        x, is_plain = image, self.scale_invariant == "off"
        for i, width in enumerate((8, 16, 32)):
            x = max_pool_2x2(x) if i else x
            x = nn.Conv(width, (3, 3), use_bias=is_plain)(x)
            if not is_plain:  # the variance of tiny kernels' outputs is far above epsilon, too
                options: dict[str, Any] = {"norm": "batch", "dtype": "float32", "epsilon": 1e-12}
                x = normalise(x, deterministic=deterministic, name=f"norm_{i}", **options)
            x = nn.relu(x)
        return nn.Dense(self.num_classes)(x.mean((1, 2)))


class Task(NamedTuple):
    """A network and its examples."""

    model: nn.Module
    kernels: str  # the pattern of the names of the parameters that are multiplied
    batch: int  # examples in a step
    num_classes: int
    train: Batch
    held_out: Batch


@functools.cache
def task(network: str, form: ScaleInvariant, *, split: str) -> Task:
    """Returns a network with its examples; the split says which are held out."""
    if network == "CNN":
        found = sources.make(name="digits", evaluate_on=split).load(0)
        mean, std = (found.constants[name] for name in ("mean", "std"))
        train, held_out = (
            (jnp.asarray((part["image"] - mean) / std, jnp.float32), jnp.asarray(part["label"]))
            for part in map(_whole, (found.train, found.test))
        )
        return Task(CNN(10, form), "Conv_.*kernel", BATCHES[network], 10, train, held_out)
    text = {"source": "pydoc", "tokenizer": "bytes", "sequence_length": LENGTH}
    found = sources.make(name="text", evaluate_on=split, **text).load(0)
    parts = [_whole(part)["tokens"] for part in (found.train, found.test)]
    known = np.unique(np.concatenate([part.ravel() for part in parts]))  # a uniform guess is one of these
    tokens, tested = (jnp.asarray(np.searchsorted(known, part), jnp.int32) for part in parts)
    tested = tested[:: max(1, len(tested) // EVALUATED)]
    train, held_out = ((part[:, :-1], part[:, 1:]) for part in (tokens, tested))
    model = Transformer(
        len(known), num_layers=2, num_heads=2, width=WIDTH, max_length=LENGTH, dropout_rate=0.0, scale_invariant=form
    )
    return Task(model, INVARIANT_LEAVES, BATCHES[network], len(known), train, held_out)


def _whole(part: Examples) -> Columns:
    everything = part.gather(np.arange(part.num_examples)[None], np.zeros(1, np.int64))
    return {name: column[0] for name, column in everything.items()}


def _optimizers(kernels: Any, *, rate: jax.Array, steps: int) -> list[optax.GradientTransformationExtraArgs]:
    """Returns the optimizers in order, for parameters with True in ``kernels``; LAMB updates all others."""
    fall = optax.piecewise_constant_schedule(1.0, {int(0.6 * steps): 0.1, int(0.9 * steps): 0.1})

    def falling(step):
        return rate * fall(step)

    decay: Any = DECAY / steps / rate  # traced
    of_kernels = {
        "sgd": optax.sgd(falling),
        "sgd_decay": relative_clip(falling, weight_decay=decay, sqrt_c=math.inf),
        CLIP: relative_clip(falling, weight_decay=decay),
        ADAM: optax.adam(falling),
    }
    others = optax.lamb(lambda step: LAMB_RATE * fall(step), eps=LAMB_EPSILON)
    return [optax.partition({True: of_kernels[name], False: others}, kernels) for name in OPTIMIZERS]


def end_losses(of: Task, lanes: Sequence[Sequence[float]], *, steps: int, seed: int) -> list[float]:
    """Trains once for each lane, one after another, and returns the held-out losses.

    A lane is the optimizer's place, the rate, the scale of the kernels at the start, and that of the loss.
    """

    def loss(params, statistics, examples, *, is_training):
        inputs, labels = examples
        deterministic = not (is_training and statistics)
        options: dict[str, Any] = {"deterministic": deterministic, "mutable": list(statistics)}
        logits, statistics = of.model.apply({"params": params, **statistics}, inputs, **options)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), dict(statistics)

    @jax.jit
    def losses(lanes, key, train, held_out):
        statistics = dict(of.model.init(key, train[0][:1]))
        first = statistics.pop("params")
        kernels = jax.tree.unflatten(jax.tree.structure(first), matching(leaf_names(first), of.kernels))

        def lane(given):
            which, rate, of_kernels, of_loss = given
            optimizers = _optimizers(kernels, rate=rate, steps=steps)

            def branch(i, gradient, states, params):
                updates, state = optimizers[i].update(gradient, states[i], params)
                return updates, [*states[:i], state, *states[i + 1 :]]

            branches = [functools.partial(branch, i) for i in range(len(optimizers))]

            def step(carried, key):
                params, statistics, states = carried
                chosen = jax.random.randint(key, (of.batch,), 0, len(train[0]))

                def scaled(params):
                    examples = train[0][chosen], train[1][chosen]
                    value, new = loss(params, statistics, examples, is_training=True)
                    return of_loss * value, new

                gradient, statistics = jax.grad(scaled, has_aux=True)(params)
                updates, states = jax.lax.switch(which.astype(int), branches, gradient, states, params)
                return (optax.apply_updates(params, updates), statistics, states), None

            params = jax.tree.map(lambda x, is_kernel: x * of_kernels if is_kernel else x, first, kernels)
            keys = jax.random.split(jax.random.fold_in(key, 1), steps)
            begin = (params, statistics, [one.init(params) for one in optimizers])
            (params, at_end, _), _ = jax.lax.scan(step, begin, keys)
            return loss(params, at_end, held_out, is_training=False)[0]

        return jax.lax.map(lane, lanes)

    with jax.numpy_rank_promotion("allow"):
        made = mixing_dtypes(losses)(jnp.array(lanes, jnp.float32), jax.random.key(seed), of.train, of.held_out)
    return made.tolist()
