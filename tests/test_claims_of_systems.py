"""Claims about times and bytes: fits and queues whose truth is known, and the verdict for each outcome of a rule."""

import numpy as np
import pytest

from experiments import claims
from experiments.claims import partitioned_state, server_saturation, tensorflow_backups
from tests.claim_rows import FAILS, HOLDS, UNTESTED, whole_report

BY_CONSTRUCTION = "by construction"


def named(name, rows, *, scale="laptop"):
    """Rows with the names that the claim's runs have, so that none of them is missing."""
    runs = claims.load(name).runs(scale, [])
    found = [next(row for row in rows if row.items() >= run.labels.items()) for run in runs]
    return [{**row, "run": run.name, "origin": {"scale": scale}} for row, run in zip(found, runs, strict=True)]


# ---- TensorFlow's backup workers -----------------------------------------------------------------------------------

AS_PUBLISHED = [2.5, 2.3, 2.15, 2.0, 1.965, 1.96]  # three backups gain most per machine, and a fifth nothing
ENDLESS = [2.5, 2.3, 2.1, 1.95, 1.8, 1.7]  # each backup helps


def backup_rows(medians=AS_PUBLISHED, *, odd=None):
    """Rows of all models and fits; only the lognormal ones have these medians, in one seed other ones."""
    rows = []
    for case in tensorflow_backups.CASES:
        for seed in range(3):
            is_ours = case["model"] == "lognormal"
            times = (odd if seed == 2 and odd else medians) if is_ours else ENDLESS
            steps = tensorflow_backups.STEPS["laptop"]
            rows.append({**case, "steps": steps, "seed": seed, "shape": 0.2, "median": times})
    return named("tensorflow_backups", rows)


@pytest.mark.parametrize(
    ("changes", "word"),
    [({}, HOLDS), ({"medians": ENDLESS}, FAILS), ({"odd": ENDLESS}, FAILS), ({"odd": [*AS_PUBLISHED[:5], 1.9]}, FAILS)],
)
def test_some_model_must_agree_in_every_seed(changes, word):
    claim, rows = tensorflow_backups.EXPERIMENT, backup_rows(**changes)
    assert claim.verdict(rows).word == word
    assert claim.verdict(rows[:-1]).word == UNTESTED
    text = whole_report(claim, rows)
    assert "READ-2nd" in text and "20.3 %" in text


def test_a_fitted_model_has_the_figure_that_it_is_fitted_to():
    fit, (backups, ratio) = next(iter(tensorflow_backups.FITS.items()))
    row = tensorflow_backups.EXPERIMENT.measure(model="lognormal", fitted_to=fit, steps=1000, seed=0)
    assert row["median"][backups] / row["median"][0] == pytest.approx(ratio, abs=0.003)
    assert row["median"] == sorted(row["median"], reverse=True)  # no further backup lengthens a step


def test_median_steps_are_those_of_order_statistics():
    times = tensorflow_backups.median_steps(
        "shifted_exponential", steps=4000, seed=0, shift_seconds=1.0, scale_seconds=0.2
    )
    assert times[0] == pytest.approx(1 - 0.2 * np.log(1 - 0.5 ** (1 / 50)), rel=0.01)


# ---- a server that saturates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "limit", "between"), [(1, 0.0, 1.0), (4, 0.0, 0.25), (1, 0.5, 1.5), (9, 0.25, 0.25)]
)
def test_an_asynchronous_server(workers, limit, between):
    tasks = np.ones((600, workers))
    assert server_saturation.asynchronous_seconds(tasks, server_seconds=limit) == pytest.approx(between, rel=0.02)


def test_a_synchronous_step_ends_with_the_last_gradient_that_is_waited_for():
    arrived = np.array([[1.0, 1.0, 1.0, 5.0], [1.0, 2.0, 9.0, 3.0]])
    of_three = server_saturation.synchronous_seconds(arrived, required=3, server_seconds=0.5)
    np.testing.assert_allclose(of_three, [2.5, 3.5])
    of_all = server_saturation.synchronous_seconds(arrived, required=4, server_seconds=0.5)
    np.testing.assert_allclose(of_all, [5.5, 9.5])


def server_rows(*, synchronous=2300.0, at_212=2850.0):
    """Rows in which only the server of the rule matters: its limit, and images a second of both modes."""
    rows = []
    for workers, backups in server_saturation.BACKUPS.items():
        speeds = {"asynchronous": 2800.0 if workers == 106 else at_212, "synchronous": synchronous}
        speeds["synchronous_median"] = synchronous
        values = {key: [2 * speed, speed, speed] for key, speed in speeds.items()}
        labels = {"num_workers": workers, "gradients": server_saturation.GRADIENTS["laptop"]}
        own = {"server": list(server_saturation.SERVERS), "required": workers - backups}
        rows += [{**labels, "seed": seed, **own, **values} for seed in range(3)]
    return named("server_saturation", rows)


@pytest.mark.parametrize(
    ("changes", "word"),
    [({}, BY_CONSTRUCTION), ({"synchronous": 1900.0}, FAILS), ({"at_212": 3500.0}, FAILS)],
)
def test_a_server_is_checked_on_what_it_is_not_fitted_to(changes, word):
    claim, rows = server_saturation.EXPERIMENT, server_rows(**changes)
    assert claim.verdict(rows).word == word
    assert "| 212 (200 + 12) |" in whole_report(claim, rows)


def test_the_server_that_is_fitted_has_its_limit():
    row = server_saturation.EXPERIMENT.measure(num_workers=424, gradients=6000, seed=0)
    none, *limits = row["asynchronous"]
    assert limits == [pytest.approx(2850, rel=0.01), pytest.approx(2300, rel=0.01)] and none > 7000
    assert row["synchronous"][0] > row["synchronous"][1] > row["synchronous"][2]


# ---- memory of the optimizer's state -------------------------------------------------------------------------------


def memory_rows(*, measured=1000, fullest=1.2):
    rows = []
    for seed in range(3):
        for optimizer in partitioned_state.COMPILED:
            bytes_of = {"parameters": 1000, "state": 1000, "measured": measured if seed == 1 else 1000}
            rows.append({"how": "compiled", "optimizer": optimizer, "seed": seed, **bytes_of})
        for optimizer in partitioned_state.LARGE:
            owned = [1e9 * (fullest if owners > 1 else 1) / owners for owners in partitioned_state.OWNERS]
            found = {"parameters": 5e8, "state": 1e9, "largest": 0.1, "activations": 1e7}
            found |= {"owners": list(partitioned_state.OWNERS), **dict.fromkeys(partitioned_state.SPLITS, owned)}
            rows.append({"how": "computed", "optimizer": optimizer, "seed": seed, **found})
    return named("partitioned_state", rows)


@pytest.mark.parametrize(
    ("changes", "word"), [({}, BY_CONSTRUCTION), ({"measured": 1010}, FAILS), ({"fullest": 1.6}, FAILS)]
)
def test_memory(changes, word):
    claim, rows = partitioned_state.EXPERIMENT, memory_rows(**changes)
    assert claim.verdict(rows).word == word
    assert "MEM-lo" in whole_report(claim, rows)


def test_owners_of_neighbours():
    sizes = [7, 1, 1, 1, 5, 5]
    for split in (partitioned_state.contiguous, partitioned_state.best_contiguous):
        owners = split(sizes, num_owners=3)
        assert owners == sorted(owners) and set(owners) == {0, 1, 2}
    held = np.bincount(partitioned_state.best_contiguous(sizes, num_owners=3), sizes)
    assert held.max() == 8  # 7 and 1, or 7 alone; then at most 1 + 1 + 5, and 5


@pytest.mark.slow
def test_one_worker_more_takes_its_whole_state():
    row = partitioned_state.EXPERIMENT.measure(how="compiled", optimizer="momentum", seed=0)
    assert row["measured"] == pytest.approx(row["state"], rel=1e-3)


@pytest.mark.slow
def test_the_state_of_the_large_model_is_that_of_its_parameters():
    row = partitioned_state.EXPERIMENT.measure(how="computed", optimizer="adam", seed=0)
    assert row["state"] == pytest.approx(2 * row["parameters"], rel=1e-6)
    assert row["best contiguous"][0] == row["state"] and row["best contiguous"][-1] >= row["largest"] * row["state"]
