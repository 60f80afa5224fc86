"""Outer optimizers: they take the workers' combined progress, and make the step of the shared parameters.

The progress R of one round is a gradient for them, with its sign turned: :math:`z <- z + outer(-R)`. Plain SGD with
rate 1 changes nothing. With momentum it is SlowMo or BMUF, with Nesterov's momentum DiLoCo.
"""

from collections.abc import Mapping
from typing import Any

import optax
from jax import lax

from optim.optimizers import OPTIMIZERS, UNFIT, Optimizers
from reducers.leaves import joined
from reducers.local.fragments import Fragments

OUTERS = Optimizers({**OPTIMIZERS, "none": optax.identity}, refused=UNFIT, makes=optax.GradientTransformation)
"""The names of a config's ``outer`` block: those of its ``optimizer``, whose ``learning_rate`` is constant here."""


def make(block: Mapping[str, Any], *, fragments: Fragments | None = None) -> optax.GradientTransformationExtraArgs:
    """Builds the outer optimizer of a config block, as a transformation of the combined progress.

    Args:
      block: `name`, and the optimizer's own keys, its constant `learning_rate` among them.
      fragments: the fragments of the reducer; each gets an outer optimizer of its own.

    Raises:
      ValueError: one line: key, value, what is allowed.

    >>> outer = make({"name": "sgd", "learning_rate": 0.5})
    >>> float(outer.update(2.0, outer.init(0.0))[0])
    1.0
    """
    outer = OUTERS.make(**block)
    if block["name"] == "none":
        return outer
    return by_fragment(optax.chain(optax.scale(-1.0), outer), fragments)


def by_fragment(
    outer: optax.GradientTransformation, fragments: Fragments | None
) -> optax.GradientTransformationExtraArgs:
    """Gives each fragment of the model an outer optimizer of its own, which takes a step where it is emitted.

    Args:
      outer: the optimizer of one fragment.
      fragments: ``Reducer.fragments``; None returns ``outer`` itself.

    Returns:
      A transformation whose ``update`` takes ``emitted``, [P] bool, from the reducer's report.

    >>> import jax
    >>> from jax import numpy as jnp
    >>> momentum = by_fragment(optax.trace(0.5), Fragments(2))
    >>> state = momentum.init([jnp.zeros(1), jnp.zeros(1)])
    >>> for emitted in ([True, False], [False, True]):
    ...   updates = [jnp.float32(is_emitted)[None] for is_emitted in emitted]
    ...   updates, state = momentum.update(updates, state, emitted=jnp.array(emitted))
    ...   print(updates, jax.tree.leaves(state))
    [Array([1.], dtype=float32), Array([0.], dtype=float32)] [Array([1.], dtype=float32), Array([0.], dtype=float32)]
    [Array([0.], dtype=float32), Array([1.], dtype=float32)] [Array([1.], dtype=float32), Array([1.], dtype=float32)]
    """
    outer = optax.with_extra_args_support(outer)
    if fragments is None:
        return outer

    def init_fn(params):
        return tuple(outer.init(part) for part in fragments.split(params))

    def update_fn(updates, state, params=None, *, emitted, **extra_args):
        def step(given, inner, part):
            return outer.update(given, inner, part, **extra_args)

        parts = zip(emitted, fragments.split(updates), state, fragments.split(params), strict=True)
        made = [
            lax.cond(is_emitted, step, lambda given, inner, _: (given, inner), *part) for is_emitted, *part in parts
        ]
        return joined(*(given for given, _ in made)), tuple(inner for _, inner in made)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)
