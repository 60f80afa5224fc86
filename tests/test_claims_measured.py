"""Claims that measure: measurements whose truth is known, and the verdict for each outcome of each part of a rule."""

import math

import numpy as np
import pytest
from jax import numpy as jnp

from experiments import emulation, report
from experiments.claims import (
    adasum_cost,
    emulation_error,
)
from reducers.adasum.pairs import pair
from tests.claim_rows import FAILS, HOLDS, UNTESTED, whole_report

# ---- cost of Adasum ----------------------------------------------------------------------------------------------


def benchmark(*, refused=""):
    def row(reducer, size, seconds, sent):
        more = {"baseline_seconds": [1.0] * len(seconds), "refused": refused}
        traffic = {"bytes_per_worker": sent, "collectives": {}}
        return {"reducer": reducer, "num_floats": size, "seconds": seconds, "traffic": traffic, **more}

    rows = [
        row("adasum", 10, [4.0, 6.0, 9.0], 101.0),
        row("sum", 10, [2.0, 2.0, 9.0], 100.0),
        row("adasum", 20, [3.0, 3.0, 3.0], 200.0),
        row("sum", 20, [2.0, 2.0, 1.0], 200.0),
    ]
    return {"rows": rows, "num_devices": 8, "cpu_count": 2, "device_kind": "cpu"}


def test_digest_pairs_the_calls_of_a_round():
    row = adasum_cost.digest(benchmark())
    assert row["num_floats"] == [10, 20]
    assert row["time_ratio"] == [2.0, 1.5]  # medians of 2, 3, 1 and of 1.5, 1.5, 3
    assert row["bytes_ratio"] == [1.01, 1.0]
    assert row["sum_seconds"] == [2.0, 2.0]
    assert row["mean_ratio"] == [6.0, 3.0]


def test_digest_refuses_what_was_not_measured():
    with pytest.raises(ValueError, match="adasum, 10 floats: too slow"):
        adasum_cost.digest(benchmark(refused="too slow"))


@pytest.mark.slow
def test_cost_is_measured_in_a_process_of_its_own():
    row = adasum_cost.EXPERIMENT.measure(sizes=[10_000], repeats=1, seed=0)
    assert row["num_devices"] == 8
    assert row["time_ratio"][0] > 0
    assert 0.9 < row["bytes_ratio"][0] < 8  # small leaves are gathered


def test_a_cost_that_cannot_be_measured_is_one_line():
    with pytest.raises(ValueError, match=r"resnet50_like has .* floats at least"):
        adasum_cost.EXPERIMENT.measure(sizes=[10], repeats=1, seed=0)


@pytest.mark.parametrize(("time", "sent", "word"), [(1.5, 1.0, HOLDS), (2.5, 1.0, FAILS), (1.5, 1.2, FAILS)])
def test_cost(time, sent, word):
    claim, row = adasum_cost.EXPERIMENT, adasum_cost.digest(benchmark())
    rows = [{**row, "time_ratio": [9.0, time], "bytes_ratio": [9.0, sent], "seed": seed} for seed in range(3)]
    assert claim.judge(rows).word == word  # by the largest size alone
    assert claim.findings(rows)[0].ours.n == 3
    assert [cells[0] for cells in claim.table(rows).cells] == ["10", "20"]


# ---- error of the emulation --------------------------------------------------------------------------------------


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


def emulation_rows(*, at_rate=0.5, setting="lenet5", workers=(2, 4), seeds=3):
    """Adasum's error is constant; the sum's goes with the step size: at the rate 0.5 / at_rate times Adasum's."""
    sizes = emulation.STEP_SIZES[setting]
    errors = {
        "mean": [0.5 for _ in sizes],
        "adasum": [0.4 * at_rate for _ in sizes],
        "second_order": [0.01 * (size / emulation.RATE) ** 2 for size in sizes],
    }
    return [
        {"setting": setting, "data": "digits", "num_workers": n, "seed": seed, "step_sizes": sizes}
        | {**errors, "sum": [0.2 * size / emulation.RATE + seed / 1000 for size in sizes]}
        for n in workers
        for seed in range(seeds)
    ]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"at_rate": 0.4}, HOLDS),
        ({"at_rate": 0.6}, FAILS),
        ({"at_rate": 0.505}, FAILS),  # one seed of the sum is nearer
        ({"workers": (2,)}, UNTESTED),
        ({"seeds": 2}, UNTESTED),
    ],
)
def test_emulation(changes, word):
    rows = emulation_rows(**changes)
    assert emulation_error.EXPERIMENT.judge(rows).word == word
    rows[-1]["mean"] = [0.01 for _ in rows[-1]["mean"]]
    assert emulation_error.EXPERIMENT.judge(rows).word == (UNTESTED if word == UNTESTED else FAILS)


def test_crossovers():
    assert emulation_error.crossover([1, 2], [0.5, 0.5], [0.6, 0.7]) == 1  # from the first
    assert math.isinf(emulation_error.crossover([1, 2], [0.5, 0.5], [0.6, 0.4]))
    last_of_two = emulation_error.crossover([1, 10, 100], [0.5] * 3, [0.6, 0.4, 0.6])
    assert last_of_two == pytest.approx(10**1.5)
    assert "in 3 of 3 seeds" in emulation_error.EXPERIMENT.judge(emulation_rows(at_rate=100)).because


def test_emulation_is_reported():
    rows = emulation_rows() + emulation_rows(setting="toy")
    text = whole_report(emulation_error.EXPERIMENT, rows)
    assert text.count("| LeNet-5 |") == 22 and text.count("DERIVED, another toy") == 7
    assert len(report.draw(emulation_error.EXPERIMENT, rows).axes) == 4
    assert len(report.draw(emulation_error.EXPERIMENT, emulation_rows(workers=(2,), seeds=1)).axes) == 2
