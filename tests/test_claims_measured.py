"""Claims that measure: measurements whose truth is known, and the verdict for each outcome of each part of a rule."""

import math

import numpy as np
import pytest
from jax import numpy as jnp

from experiments import emulation, report
from experiments.claims import (
    adasum_cost,
    convergence_constants,
    emulation_error,
    kth_arrival,
    staleness,
)
from reducers import arrivals
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


# ---- constants of the convergence proof --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "word"),
    [({}, HOLDS), ({"worst_cosine": 0.94}, FAILS), ({"shortest": 0.99}, FAILS), ({"longest": 2.01}, FAILS)],
)
def test_constants(changes, word):
    row = {"dimension": 2, "num_points": 2, "worst_cosine": 0.9429, "shortest": 1.0, "longest": 1.9}
    row |= {"step": [1, 2], "cosine": [0.99, 0.9429]}
    rows = [{**row, "seed": 0}, {**row, "seed": 1, **changes}]  # one search is enough to refute
    assert convergence_constants.EXPERIMENT.judge(rows).word == word
    assert "0.1082" in whole_report(convergence_constants.EXPERIMENT, rows)


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


# ---- time to the k-th gradient -----------------------------------------------------------------------------------


def arrival_row(*, model="paper_cluster", seed=0, mean=(1.03, 1.07, 1.3, 2.4), over_median=2.0):
    """A row with these factors between the last means, and this last mean over the median."""
    means = np.full(100, 1.6)
    means[96:] = 1.6 * np.cumprod(mean)
    median = means.copy()
    median[99] /= over_median
    return {
        "model": model,
        "seed": seed,
        "mean": means.tolist(),
        "median": median.tolist(),
        "within_2_seconds": np.linspace(1, 0.3, 100).tolist(),
        "slowest": 300.0,
        "quantiles": {str(k): np.linspace(1.5, 1.5 + k / 50, 49).tolist() for k in kth_arrival.DRAWN},
    }


LIGHT = [arrival_row(model=kth_arrival.LIGHT, seed=seed, over_median=1.0) for seed in range(2)]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, HOLDS),
        ({"over_median": 1.4}, FAILS),  # medians that are not far below
        ({"mean": (1.3, 1.2, 1.1, 1.05)}, FAILS),  # slower than an exponential
    ],
)
def test_times_of_the_last_gradients(changes, word):
    claim, rows = kth_arrival.EXPERIMENT, [arrival_row(), arrival_row(seed=1, **changes), *LIGHT]
    assert claim.judge(rows).word == word  # one seed is enough to fail
    text = whole_report(claim, rows)
    assert "| 100 |" in text and "MEM hi" in text
    rows[0]["median"][50] *= 0.9  # medians below the means of early gradients refute
    assert claim.judge(rows).word == FAILS


def test_times_are_those_of_order_statistics():
    # Exponential: E T_(k) = shift + scale * (H_100 - H_(100 - k)); the median of the last is known, too.
    run = {"shift_seconds": 1.0, "scale_seconds": 0.2}
    row = kth_arrival.EXPERIMENT.measure(model="shifted_exponential", steps=4000, seed=0, **run)
    oracle = arrivals.expected_arrivals("shifted_exponential", num_workers=100, **run)
    np.testing.assert_allclose(row["mean"], oracle, rtol=0.01)
    assert row["median"][99] == pytest.approx(1 - 0.2 * np.log(1 - 0.5**0.01), rel=0.01)
    share = (1 - np.exp(-(2 - 1) / 0.2)) ** 100
    assert row["within_2_seconds"][99] == pytest.approx(share, abs=0.03)
    assert row["quantiles"]["100"][24] == pytest.approx(row["median"][99], rel=1e-3)  # SHARES[24] is the half


def test_the_fitted_facts_alone_do_not_pass_the_rule():
    light = {"model": kth_arrival.LIGHT, "seed": 0, **kth_arrival.LIGHT_OPTIONS}
    row = {**light, **kth_arrival.EXPERIMENT.measure(steps=4000, **light)}
    assert row["within_2_seconds"][99] == pytest.approx(0.3, abs=0.05)
    assert kth_arrival.EXPERIMENT.judge([{**row, "model": kth_arrival.CLUSTER}]).word == FAILS


# ---- staleness ---------------------------------------------------------------------------------------------------


def staleness_row(*, model="paper_cluster", num_workers=40, seed=0, off=1.0, swapped=False):
    """A row with a mean staleness that is off by a factor, and two layers that may be in the wrong order."""
    mean = (num_workers - 1) * off
    means = np.linspace(mean, mean / 18, 18)
    if swapped:
        means[[4, 5]] = means[[5, 4]]
    described = [
        {"min": 0, "mean": value, "median": value, "max": 99, "std": 5.0, "low": value - 1, "high": value + 3}
        for value in means.tolist()
    ]
    labels = {"model": model, "num_workers": num_workers, "seed": seed}
    return {**labels, "whole": described[0], "layers": described}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, HOLDS),
        ({"swapped": True}, FAILS),
        ({"off": 1.03}, FAILS),
        ({"off": 0.97, "num_workers": 10}, FAILS),
        ({"off": 0.97, "model": "lognormal"}, FAILS),
    ],
)
def test_staleness(changes, word):
    rows = [staleness_row(), staleness_row(num_workers=10), staleness_row(seed=1, **changes)]
    assert staleness.EXPERIMENT.judge(rows).word == word
    text = whole_report(staleness.EXPERIMENT, [*rows, staleness_row(model="shifted_exponential")])
    assert "| 17 |" in text and "14.54 [MEM med]" in text


def test_staleness_is_that_of_rounds():
    # Equal times: in each round worker w reads after w + 1 arrivals, and is followed by the 39 others.
    row = staleness.EXPERIMENT.measure(model="constant", num_workers=40, num_gradients=400, seed=0)
    assert (row["whole"]["min"], row["whole"]["max"]) == (39, 39)
    assert row["layers"][0]["mean"] == 39
    assert row["layers"][17]["max"] <= 39


def test_staleness_of_random_times_averages_to_the_other_workers():
    row = staleness.EXPERIMENT.measure(model="shifted_exponential", num_workers=10, num_gradients=4000, seed=1)
    assert row["whole"]["mean"] == pytest.approx(9, rel=0.01)
    assert row["whole"]["std"] > 0
    assert row["layers"][0] == row["whole"]


@pytest.mark.parametrize(("scale", "tasks"), [("smoke", 100), ("laptop", 2500)])
def test_each_worker_does_as_many_tasks(scale, tasks):
    labels = [run.labels for run in staleness.EXPERIMENT.runs(scale, [])]
    assert {of["num_gradients"] / of["num_workers"] for of in labels} == {tasks}
