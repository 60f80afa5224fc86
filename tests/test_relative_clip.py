"""Relative clipping: its invariances, the norm that it settles at, SGD as its limit, and its mask."""

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp

from optim.rules.relative_clip import relative_clip
from reducers.dtypes import mixing_dtypes
from tests.test_own_optimizers import SIZE, problem, rate, run


def on_the_sphere(x, noise):
    """A loss of the direction of x alone."""
    unit = x / jnp.linalg.norm(x)
    return jnp.sum(jnp.arange(1.0, 1 + x.size) * unit**2) + noise @ unit


def path(*, loss=1.0, scale=1.0, steps=60, **options):
    """The directions of x, of a loss and a start that are multiplied."""
    optimizer = relative_clip(options.pop("rate"), **options)
    noises = jax.random.normal(jax.random.key(0), (steps, SIZE)) * 5

    def step(carry, noise):
        x, state = carry
        updates, state = optimizer.update(loss * jax.grad(on_the_sphere)(x, noise), state, x)
        x = x + updates
        return (x, state), x / jnp.linalg.norm(x)

    x = scale * jnp.linspace(1.0, 2.0, SIZE)
    return jax.lax.scan(step, (x, optimizer.init(x)), noises)[1]


@pytest.mark.parametrize("c", [0.01, 1 / 3, 100.0])
def test_clipping_is_invariant_to_the_scale_of_the_loss_and_of_the_parameters(c):
    wanted = path(rate=0.3, weight_decay=0.1, sqrt_c=1.0)
    np.testing.assert_allclose(path(rate=0.3 / c, weight_decay=0.1 * c, sqrt_c=1.0, loss=c), wanted, atol=2e-5)
    of_scale = path(rate=0.3 * c**2, weight_decay=0.1 / c**2, sqrt_c=1.0, scale=c)
    np.testing.assert_allclose(of_scale, wanted, atol=2e-5)
    unclipped = path(rate=0.3, weight_decay=0.1, sqrt_c=1e30)
    assert np.abs(unclipped - wanted).max() > 0.1  # so that clipping is part of what is invariant
    assert np.abs(path(rate=0.3, weight_decay=0.1, sqrt_c=1.0, loss=c) - wanted).max() > 0.1


@pytest.mark.parametrize("sqrt_c", [1e30, float("inf")])
def test_without_a_bound_it_is_sgd_with_decay_bit_for_bit(sqrt_c):
    grads, x = map(jnp.float32, problem())
    sgd = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(rate))
    np.testing.assert_array_equal(
        run(relative_clip(rate, weight_decay=0.1, sqrt_c=sqrt_c), grads, x), run(sgd, grads, x)
    )


def test_leaves_outside_of_the_mask_have_no_say_in_the_norms():
    params = {"conv": {"kernel": jnp.array([3.0, 4.0])}, "head": jnp.array([1e6])}
    grads = {"conv": {"kernel": jnp.array([0.0, 100.0])}, "head": jnp.array([1e6])}
    optimizer = relative_clip(0.5, weight_decay=0.01, mask="^conv")
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    np.testing.assert_allclose(updates["conv"]["kernel"], [-0.015, -1.02], rtol=1e-6)
    np.testing.assert_allclose(updates["head"], [-0.5 * (1e6 + 0.01 * 1e6)], rtol=1e-6)
    by_lamb = relative_clip(0.5, weight_decay=0.01, mask="^conv", rest="lamb")
    updates, _ = mixing_dtypes(by_lamb.update)(grads, by_lamb.init(params), params)
    np.testing.assert_allclose(updates["head"], [-0.5 * 1e6], rtol=1e-5)  # the trust ratio's
    for mask, message in (
        ("dense", "mask='dense': matches no parameter"),
        ("(", r"mask='\(': is not a regular expression"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            relative_clip(0.5, mask=mask).init(params)
