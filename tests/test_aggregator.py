"""Reducers as aggregators of optax: what a vmap over workers gives, in ``optax.experimental.aggregating.process``."""

import functools

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp
from optax.experimental import aggregating

import reducers

N = 6
PARAMS = {"kernel": jnp.zeros((3, 2)), "bias": jnp.zeros(2)}
GRADIENTS = {name: jax.random.normal(jax.random.key(leaf.size), (N, *leaf.shape)) for name, leaf in PARAMS.items()}
MAKE = {
    "mean": reducers.mean,
    "adasum": reducers.adasum,
    "median": reducers.coordinate_median,
    "krum": functools.partial(reducers.krum, num_byzantine=1),
    "mgda": reducers.mgda,
    "stale": functools.partial(reducers.stale, delay_steps=1),
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_it_is_the_reducer_under_vmap(make):
    aggregator = reducers.as_aggregator(make, num_gradients=N)
    reducer = make("worker")
    state = aggregator.init(PARAMS)
    states = jax.vmap(reducer.init, in_axes=None, axis_size=N)(PARAMS)
    over_workers = jax.jit(jax.vmap(reducer.update, axis_name="worker"))
    for scale in (1.0, -2.0):
        gradients = jax.tree.map(lambda leaf, scale=scale: scale * leaf, GRADIENTS)
        found, state = jax.jit(aggregator.update)(gradients, state)
        expected, states = over_workers(gradients, states)
        jax.tree.map(np.testing.assert_allclose, found, jax.tree.map(lambda leaf: leaf[0], expected))


@pytest.mark.parametrize("given", [{}, {"weights": jnp.ones(N)}, {"contributes": jnp.ones(N, bool)}], ids=",".join)
def test_the_mean_is_optax_s_own(given):
    """In a process that hands what is given to all of its parts, those that take nothing among them."""
    identity, scale = (optax.with_extra_args_support(part) for part in (optax.identity(), optax.scale(-0.1)))
    ours = aggregating.process(identity, reducers.as_aggregator(reducers.mean, num_gradients=N), scale)
    theirs = aggregating.process(identity, aggregating.average_per_element_updates(0), scale)
    found = [
        jax.jit(optimizer.update)(GRADIENTS, optimizer.init(PARAMS), PARAMS, **more)[0]
        for optimizer, more in ((ours, given), (theirs, {}))
    ]
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), *found)


def test_who_arrives_and_who_contributes_is_passed_on():
    backup = functools.partial(reducers.backup_workers, num_required=2)
    aggregator = reducers.as_aggregator(backup, num_gradients=N)
    seconds = jnp.array([3.0, 1.0, 9.0, 2.0, 9.0, 9.0])
    found, _ = jax.jit(aggregator.update)(GRADIENTS, aggregator.init(PARAMS), arrival_seconds=seconds)
    np.testing.assert_allclose(found["bias"], GRADIENTS["bias"][jnp.array([1, 3])].mean(0), rtol=1e-6)
    aggregator = reducers.as_aggregator(reducers.mean, num_gradients=N)
    found, _ = jax.jit(aggregator.update)(GRADIENTS, aggregator.init(PARAMS), contributes=seconds < 5)
    np.testing.assert_allclose(found["bias"], GRADIENTS["bias"][jnp.array([0, 1, 3])].mean(0), rtol=1e-6)
    weights = jnp.array([1.0, 0.0, 2.0, 0.0, 0.0, 1.0])
    found, _ = aggregator.update(GRADIENTS, aggregator.init(PARAMS), weights=weights)
    np.testing.assert_allclose(found["bias"], weights @ GRADIENTS["bias"] / 4, rtol=1e-6)


def test_an_empty_tree_stays_empty():
    aggregator = reducers.as_aggregator(reducers.mean, num_gradients=N)
    assert aggregator.update({}, aggregator.init({}))[0] == {}


def test_what_it_cannot_be_is_refused():
    with pytest.raises(ValueError, match="local workers"):
        reducers.as_aggregator(functools.partial(reducers.local_sgd, every_steps=2), num_gradients=N)
    aggregator = reducers.as_aggregator(reducers.mean, num_gradients=N + 1)
    with pytest.raises(ValueError, match="num_gradients=7: leaves have"):
        aggregator.update(GRADIENTS, aggregator.init(PARAMS))
    for given in ({"weights": 1.0}, {"weights": jnp.ones(N)}, {"contributes": True}):
        with pytest.raises(ValueError, match=r"of shape .*, must be one of each gradient, \(7,\)"):
            aggregator.update(jax.tree.map(lambda leaf: leaf[:1].repeat(N + 1, 0), GRADIENTS), (), **given)
