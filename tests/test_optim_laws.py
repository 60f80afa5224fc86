"""The laws of ``optim.testing`` for each optimizer of this project, and for wrong ones."""

import functools

import jax
import optax
import pytest
from jax import numpy as jnp

from optim import optimizers, testing
from optim.rules.differences import dgrad, diffgrad
from optim.rules.global_norm import clip_by_global_norm
from optim.rules.maximal_variance import lamadam, madam, scale_by_madam
from optim.rules.noise_adaptive import accelerated_exponential, armijo_conservative
from optim.rules.plain import adagrad_plain, adam_plain
from optim.rules.relative_clip import relative_clip
from optim.rules.trust_ratio import lamb, lars, scale_by_trust_ratio

NEAR_1 = 1 - 1e-4
NEARER_1 = 1 - 1e-8  # 1 in float32
TINY = {"scales": (1e-30, 1e10)}
SQUARED = {"scales": (1e-15, 1e10)}  # whose squares float32 holds
ANY = {"scales": (1e-30, 1e30)}
ROWS = {
    "accelerated_exponential": (functools.partial(accelerated_exponential, 0.1), ANY),
    "adagrad_norm": (functools.partial(optimizers.adagrad_norm, 0.1), TINY),
    "adagrad_plain": (functools.partial(adagrad_plain, 0.1, b1=0.9), TINY),
    "adam_plain": (functools.partial(adam_plain, 0.1), TINY),
    "adam_plain, b2 near 1": (functools.partial(adam_plain, 0.1, b2=NEARER_1), TINY),
    "adam_plain, b2 = 0": (functools.partial(adam_plain, 0.1, b2=0.0), TINY),
    "armijo_conservative": (
        functools.partial(armijo_conservative, max_tries=2),
        {"extra_args": {"value_fn": lambda x: jnp.zeros(())}, "scales": (1e-10, 1e30)},
    ),
    "clip_by_global_norm": (functools.partial(clip_by_global_norm, 1.0), SQUARED),
    "dgrad": (functools.partial(dgrad, 0.1, b1=NEAR_1, b2=NEARER_1), TINY),
    "diffgrad": (functools.partial(diffgrad, 0.1, b1=NEAR_1, b2=NEARER_1), TINY),
    "lamadam": (functools.partial(lamadam, 0.1, weight_decay=0.1), TINY),
    "lamadam, near 1": (functools.partial(lamadam, 0.1, b1=NEARER_1, high=NEARER_1), TINY),
    "lamb": (functools.partial(lamb, 0.1, weight_decay=0.1), TINY),
    "lars": (functools.partial(lars, 0.1, weight_decay=0.1), SQUARED),
    "madam": (functools.partial(madam, 0.1, weight_decay=0.1), TINY),
    "madam, near 1": (functools.partial(madam, 0.1, b1=NEAR_1, high=NEARER_1), TINY),
    "relative_clip": (functools.partial(relative_clip, 0.1), ANY),
    "relative_clip, some leaves": (functools.partial(relative_clip, 0.1, mask="matrix|vectors"), ANY),
    "scale_by_madam": (scale_by_madam, TINY),
    "scale_by_trust_ratio": (scale_by_trust_ratio, SQUARED),
    "sm3": (
        functools.partial(optimizers.sm3, 0.1),  # optax's takes no scalars
        {"params": {"w": jax.ShapeDtypeStruct((3, 2), jnp.float32)}},
    ),
    "tf_rmsprop": (functools.partial(optimizers.tf_rmsprop, 0.1, momentum=0.9), TINY),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_laws(row):
    make, given = row
    testing.check(make, **given)


def test_every_optimizer_of_this_project_has_a_row():
    assert {name.partition(",")[0] for name in ROWS} == {*(f.__name__ for f in optimizers.OWN), "armijo_conservative"}


# ---- wrong optimizers ----------------------------------------------------------------------------------------------


def plain(update, init=lambda params: ()):
    return lambda: optax.GradientTransformation(init, update)


def each(change):
    return plain(lambda g, state, params=None, **more: (jax.tree.map(change, g), state))


def by_norm(g, state, params=None, **more):
    return jax.tree.map(lambda x: (x / (1 + optax.tree.norm(g))).astype(x.dtype), g), state


def summed(g, state, params=None, **more):
    return g, state + optax.tree.norm(g)


def by_leaves(g, state, params=None, **more):
    return jax.tree.map(lambda x: x / len(jax.tree.leaves(g, is_leaf=lambda x: x is None)), g), state


def late_adam():
    """Adam's first step, again and again, with a correction in float32."""
    corrected = 1 - jnp.float32(NEARER_1) ** 1
    return each(lambda g: (1e-8 * g / jnp.maximum(corrected, 1e-12).astype(g.dtype)).astype(g.dtype))()


ZERO = jnp.zeros(7)
SMALL = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in (("b", (2,)), ("w", (3, 2)))}
WRONG = {
    "dtypes": each(lambda g: g.astype(jnp.float32)),
    "state_can_be_donated": plain(lambda g, state, params=None, **more: (g, state), init=lambda params: ZERO),
    "abstract_init": plain(lambda g, state, params=None, **more: (g, state), init=lambda p: jax.tree.map(abs, p)),
    "scan": plain(summed, init=lambda params: jnp.zeros((), jnp.float32)),
    "freeze": plain(by_leaves),
    "precision: of float16 .*is not finite": each(lambda g: g / (jnp.abs(g) + jnp.asarray(1e-8, g.dtype))),
    "precision: .* 1e[+]20, .*off": plain(by_norm),
    "precision: .*off": late_adam,
    "strict_promotion": each(lambda g: (g * jnp.ones((), jnp.float32)).astype(g.dtype)),
}


@pytest.mark.parametrize("law", WRONG)
def test_check_names_the_law_that_a_wrong_optimizer_breaks(law):
    with jax.numpy_dtype_promotion("standard"), pytest.raises(AssertionError, match=f"^{law}") as refusal:
        testing.check(WRONG[law], params=SMALL, **ANY)
    assert "\n" not in str(refusal.value)


def test_a_wrong_optimizer_of_each_law():
    assert {law.partition(":")[0] for law in WRONG} == set(testing.LAWS)
