"""The claim about the error of the emulation: measurements whose truth is known, its window, its rule, its report."""

import math

import numpy as np
import pytest
from jax import numpy as jnp

from experiments.claims.emulation_error import claim as emulation_error
from experiments.claims.emulation_error import emulation
from experiments.study.datasets import LENET_RATE as RATE
from reducers.adasum import pair

CLAIM = emulation_error.CLAIM


def quadratics(n, *, dimension=3):
    """Hessians and minima of n losses, and their gradient."""
    random = np.random.default_rng(0)
    roots = random.normal(size=(n, dimension, dimension))
    batches = [(root @ root.T, random.normal(size=dimension)) for root in roots]
    return batches, lambda w, batch: jnp.asarray(batch[0], jnp.float32) @ (w - jnp.asarray(batch[1], jnp.float32))


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("step", [1e-3, 0.05])
def test_errors_of_quadratics(n, step):
    batches, gradient = quadratics(n)
    combine = emulation.combiners(lambda flat: flat)
    (found,) = emulation.errors(gradient, combine, jnp.zeros(3), batches, step_sizes=[step])

    ends = []
    for order in emulation.orders(n):
        w = np.zeros(3)
        for i in order:
            w = w - step * batches[i][0] @ (w - batches[i][1])
        ends.append(-w / step)
    exact = np.mean(ends, axis=0)
    gradients = np.stack([-hessian @ minimum for hessian, minimum in batches])
    curved = [hessian @ (gradients.sum(0) - own) for (hessian, _), own in zip(batches, gradients, strict=True)]
    updates = {"sum": gradients.sum(0), "mean": gradients.mean(0)}
    updates["second_order"] = gradients.sum(0) - step / 2 * np.sum(curved, axis=0)
    if n == 2:
        updates["adasum"] = np.asarray(pair(*map(jnp.asarray, gradients)))
    for name, update in updates.items():
        error = np.linalg.norm(update - exact) / np.linalg.norm(exact)
        assert found[name] == pytest.approx(error, rel=1e-3, abs=1e-6), name
    assert found["second_order"] < found["sum"] and (n > 2 or found["second_order"] < 1e-6)


def test_orders_have_any_two_either_way_equally_often():
    for n in (2, 3, 4, 5):
        orders = emulation.orders(n)
        assert len(set(orders)) == len(orders) == (2 if n == 2 else 2 * n)
        for i in range(n):
            for j in range(i):
                assert 2 * sum(order.index(i) < order.index(j) for order in orders) == len(orders)


def test_reducers_see_layers():
    combine = emulation.combiners(lambda flat: {"a": flat[:2], "b": flat[2:]})
    gradients = jnp.array([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0]])  # orthogonal in one layer, equal in the other
    np.testing.assert_allclose(combine["adasum"](gradients), [1, 1, 1, 0], atol=1e-6)
    np.testing.assert_allclose(combine["sum"](gradients), [1, 1, 2, 0])
    np.testing.assert_allclose(combine["mean"](gradients), [0.5, 0.5, 1, 0])


@pytest.mark.parametrize(("setting", "data"), [("toy", "synthetic"), ("softmax", "digits")])
def test_errors_by_step_size(setting, data):
    row = emulation.measure(setting=setting, data=data, num_workers=2, steps=3, tuples=1, seed=0)
    sizes = row["step_sizes"]
    assert all(len(row[name]) == len(sizes) for name in emulation.METHODS)
    assert row["second_order"][0] < row["sum"][0] < row["adasum"][0] < row["mean"][0]  # where steps are small
    assert row["sum"][:3] == sorted(row["sum"][:3])
    assert row["sum"][1] / row["sum"][0] == pytest.approx(sizes[1] / sizes[0], rel=0.3)  # first order
    assert row["second_order"][1] / row["second_order"][0] > 1.5 * row["sum"][1] / row["sum"][0]


def rows_of(*, setting="lenet5", workers=(2, 4), seeds=10, upper=1.4, lower=1 / 6, noise=0.05):
    """Adasum's error is constant; the sum's crosses it at a lower step size, the mean's at an upper one."""

    def row(n, seed):
        sizes = emulation.STEP_SIZES[setting]
        factor = 1 + noise * (-1) ** seed * (1 + seed) / 10
        return {
            "sum": [0.4 * size / (lower * RATE) * factor for size in sizes],
            "mean": [0.4 * upper * RATE / size * factor for size in sizes],
            "adasum": [0.4 for _ in sizes],
            "second_order": [0.01 * (size / RATE) ** 2 for size in sizes],
            **{"setting": setting, "data": "mnist", "num_workers": n, "seed": seed, "step_sizes": sizes},
        }

    return [row(n, seed) for n in workers for seed in range(seeds)]


def test_windows():
    (row,) = rows_of(workers=(2,), seeds=1, noise=0)
    low, high = emulation_error.window({**row, "step_size": row["step_sizes"]})
    assert low == pytest.approx(RATE / 6, rel=0.1) and high == pytest.approx(1.4 * RATE, rel=0.1)
    sizes = {"step_size": [1.0, 4.0]}
    assert emulation_error.window({**sizes, "adasum": [0.1] * 2, "sum": [0.2] * 2, "mean": [0.3] * 2}) == (0, math.inf)
    assert emulation_error.window({**sizes, "adasum": [0.3] * 2, "sum": [0.2] * 2, "mean": [0.4] * 2}) is None


def window_of(**edges):
    """The windows of both numbers of workers in words, as the report has them."""
    return list(CLAIM.facts(CLAIM.frame(rows_of(**edges))).values())


def test_the_window_of_seeds_has_an_interval():
    two, four = window_of()
    assert two == four and two.startswith("from 0.005") and "] to 0.04" in two and two.endswith("(n=10)")
    assert window_of(lower=1e-9, upper=1e-9)[0] == "nearest at no step size in 10 of 10 seeds"
    assert "to beyond the greatest step size in 10 of 10 seeds" in window_of(upper=1e3)[0]
