"""Adaptive consensus over several steps, against the authors' rule by hand, and where that rule has no answer."""

import dataclasses

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import reducers
from parallel import AXES, Layout, map_devices
from reducers.gram.weights.adacons import Average
from tests.cases import CASES
from tests.test_reducers import WORKER, check_oracle, made, over_steps, reduce

(ROW,) = (case for case in CASES if case.name == "adacons")


def by_hand(grads, *, momentum, ranked=np.argsort, start=None):
    """The authors' aggregate(), in float64: [T, W, size] -> [T, size]."""
    average, results = start, []
    for g in grads.astype(np.float64):
        norm = np.linalg.norm(g, axis=1)
        weights = g @ g.sum(0) / norm / len(g)
        order = ranked(weights)
        average = weights[order] if average is None else momentum * average + (1 - momentum) * weights[order]
        share = np.empty_like(weights)
        share[order] = average
        results.append(share / share.sum() / norm @ g)
    return np.stack(results)


def gradients(num_workers, num_steps=6, size=50):
    """A common direction, and noise that differs by worker and step, so that ranks change hands."""
    rng = np.random.default_rng(num_workers)
    noise = rng.uniform(0.2, 5, (num_workers, num_steps, 1)) * rng.standard_normal((num_workers, num_steps, size))
    return np.swapaxes(1 + noise, 0, 1).astype(np.float32)


@pytest.mark.parametrize("num_workers", [1, 2, 5, 8])
@pytest.mark.parametrize("momentum", [0, 0.5, 0.99])
def test_several_steps(num_workers, momentum):
    grads = gradients(num_workers)
    result, _ = over_steps(reducers.adacons(WORKER, momentum=momentum), grads)
    np.testing.assert_array_equal(result, np.broadcast_to(result[:, :1], result.shape))
    np.testing.assert_allclose(result[:, 0], by_hand(grads, momentum=momentum), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"momentum": 0.9, "ranked": lambda weights: np.arange(len(weights))},  # averaged worker by worker
        {
            "momentum": 0.9,
            "ranked": lambda weights: weights.argsort().argsort(),
        },  # rank of a worker, not worker of a rank
        {"momentum": 0.9, "start": np.ones(8)},  # not from the first step
        {"momentum": 0},  # no average at all
    ],
    ids=["workers", "inverse", "start", "none"],
)
def test_several_steps_reject(wrong):
    grads = gradients(8)
    result, _ = over_steps(reducers.adacons(WORKER, momentum=0.9), grads)
    assert np.abs(result[:, 0] - by_hand(grads, **wrong)).max() > 1e-4


def test_the_average_of_a_rank_starts_with_the_first_worker_of_that_rank():
    reducer = reducers.deadline("worker", deadline_seconds=2.0, combine=reducers.adacons("worker"))
    gradients = jnp.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, 1, 1, 3]])

    def last_of(*seconds):
        count = len(seconds)
        times = np.broadcast_to(np.array(seconds)[:, None], (count, 4, 4))
        _, states = over_steps(reducer, np.stack([gradients] * count), arrival_seconds=times)
        return states.combine.rule.average[-1].ravel()

    on_time, late = [1.0] * 4, [1.0, 1.0, 1.0, 9.0]
    highest = last_of(on_time)[-1]
    assert highest > 1 and last_of(late)[-1] == 0 and last_of(late, on_time)[-1] == highest


def test_the_whole_model_is_one_vector():
    layer_by_layer = dataclasses.replace(ROW, granularity="layer")
    with pytest.raises(AssertionError):
        check_oracle(layer_by_layer, made("adacons"), 4)


@pytest.mark.parametrize("num_devices", [8, 2])
def test_the_state_is_local(num_devices):
    """The averages live on the workers in the order of ranks, wherever the workers are."""
    layout = Layout.of(8, num_devices=num_devices)
    reducer = reducers.adacons(AXES, momentum=0.9)
    grads = gradients(8, num_steps=3)
    over_lanes = jax.vmap(reducer.update, out_axes=(None, 0), axis_name=AXES[1])
    lifted = map_devices(lambda g, state: over_lanes(g, state), layout=layout)
    state = layout.put_per_worker(jax.tree.map(lambda x: np.broadcast_to(x, (8, *x.shape)), reducer.init(grads[0, 0])))
    for step, expected in enumerate(by_hand(grads, momentum=0.9)):
        result, state = lifted(layout.split(grads[step]), state)
        np.testing.assert_allclose(np.asarray(result)[0], expected, rtol=0, atol=1e-6)
    held = layout.get_per_worker(state).rule  # (W, 1) each: one group, the whole model
    assert held.started.all() and (np.diff(held.average[:, 0]) > 0).all()


def one_step(*grads):
    stacked = np.array(grads, np.float32)
    return np.asarray(reduce(made("adacons"), stacked))[0]


@pytest.mark.parametrize(
    ("grads", "expected"),
    [
        ([[0, 0], [0, 0]], [0, 0]),
        ([[3, 4], [0, 0]], [0.6, 0.8]),  # a zero gradient weighs nothing
        ([[2, 1], [-1, -0.5]], [0, 0]),  # weights add up to 0: the authors' code divides by it
        ([[10, 0], [-1, 0], [-1, 0]], [0, 0]),  # to less: there the step would be against the sum
        ([[3, 0], [1, 0], [-1, 0]], [3, 0]),  # weights 1, 1, -1: the step is longer than of any one of them
    ],
    ids=["zeros", "one_zero", "nothing", "less", "both_signs"],
)
def test_where_weights_vanish(grads, expected):
    np.testing.assert_allclose(one_step(*grads), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_poison_is_seen(poison):
    assert np.isnan(one_step([1, 2], [poison, 1], [1, 1])).all()


def test_the_state_has_the_type_of_the_parameters_and_more():
    state = jax.eval_shape(reducers.adacons(WORKER).init, jnp.zeros(3, jnp.bfloat16))
    assert state.rule == Average(jax.ShapeDtypeStruct((1,), bool), jax.ShapeDtypeStruct((1,), jnp.float32))
