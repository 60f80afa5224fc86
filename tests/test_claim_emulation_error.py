"""Emulation error: the measurement against quadratics, where all is known; and each verdict."""

import math

import numpy as np
import pytest
from jax import numpy as jnp

from experiments import emulation, report
from experiments.claims import emulation_error as claim
from reducers.adasum.pairs import pair
from tests.claim_rows import ORIGIN

# ---- the measurement -----------------------------------------------------------------------------------------------


def quadratics(n: int, *, dimension: int = 3):
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
def test_measured_rows(setting, data):
    row = emulation.measure(setting=setting, data=data, num_workers=2, steps=3, tuples=1, seed=0)
    sizes = row["step_sizes"]
    assert all(len(row[name]) == len(sizes) for name in emulation.METHODS)
    assert row["second_order"][0] < row["sum"][0] < row["adasum"][0] < row["mean"][0]  # where steps are small
    assert row["sum"][:3] == sorted(row["sum"][:3])
    assert row["sum"][1] / row["sum"][0] == pytest.approx(sizes[1] / sizes[0], rel=0.3)  # first order
    assert row["second_order"][1] / row["second_order"][0] > 1.5 * row["sum"][1] / row["sum"][0]


# ---- the verdict ---------------------------------------------------------------------------------------------------


def rows(*, at_rate: float = 0.5, setting: str = "lenet5", workers=(2, 4), seeds: int = 3):
    """Adasum's error is constant; the sum's goes with the step size: at the rate 0.5 / at_rate times Adasum's."""
    sizes = emulation.STEP_SIZES[setting]
    return [
        {
            "setting": setting,
            "data": "digits",
            "num_workers": n,
            "seed": seed,
            "step_sizes": sizes,
            "sum": [0.2 * size / emulation.RATE + seed / 1000 for size in sizes],
            "mean": [0.5 for _ in sizes],
            "adasum": [0.4 * at_rate for _ in sizes],
            "second_order": [0.01 * (size / emulation.RATE) ** 2 for size in sizes],
            "origin": ORIGIN,
        }
        for n in workers
        for seed in range(seeds)
    ]


def test_verdicts():
    assert claim._judge(rows(at_rate=0.4)).word == "supported"
    assert claim._judge(rows(at_rate=0.6)).word == "not supported"
    assert claim._judge(rows(at_rate=0.505)).word == "not supported"  # one seed of the sum is nearer
    near = rows(at_rate=0.4)
    near[-1]["mean"] = [0.01 for _ in near[-1]["mean"]]
    assert claim._judge(near).word == "not supported"
    assert claim._judge(rows(workers=(2,))).word == claim._judge(rows(seeds=2)).word == "not tested at this scale"


def test_crossovers():
    assert claim.crossover([1, 2], [0.5, 0.5], [0.6, 0.7]) == 1  # from the first
    assert math.isinf(claim.crossover([1, 2], [0.5, 0.5], [0.6, 0.4]))
    assert claim.crossover([1, 10, 100], [0.5] * 3, [0.6, 0.4, 0.6]) == pytest.approx(10**1.5)  # the last one
    assert "in 3 of 3 seeds" in claim._crossovers(rows(at_rate=100), setting="lenet5", num_workers=2)


def test_all_is_told():
    some = rows() + rows(setting="toy")
    told = report.section(claim.EXPERIMENT, some)
    assert told.count("| LeNet-5 |") == 22 and told.count("DERIVED, another toy") == 7
    assert len(report.draw(claim.EXPERIMENT, some).axes) == 4
    assert len(report.draw(claim.EXPERIMENT, rows(workers=(2,), seeds=1)).axes) == 2


@pytest.mark.parametrize("scale", claim.EXPERIMENT.hours)
def test_runs(scale, monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    runs = claim._runs(scale, [])
    assert len({run.name for run in runs}) == len(runs) == 6 * (1 if scale == "smoke" else 3)
    assert {run.labels["data"] for run in runs} == {"digits", "synthetic"}
