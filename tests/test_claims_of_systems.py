"""Claims about times and bytes: fits, queues and splits whose truth is known."""

import numpy as np
import pytest

from experiments.claims.partitioned_state import claim as partitioned_state
from experiments.claims.server_saturation import claim as server_saturation
from experiments.claims.tensorflow_backups import claim as tensorflow_backups

# ---- TensorFlow's backup workers -----------------------------------------------------------------------------------


def test_a_fitted_model_has_the_figure_that_it_is_fitted_to():
    fit, (backups, ratio) = next(iter(tensorflow_backups.FITS.items()))
    case = {"model": "lognormal", "fitted_to": fit, "late_workers": "finish"}
    row = tensorflow_backups.CLAIM.measure(**case, steps=1000, seed=0)
    assert row["median"][backups] / row["median"][0] == pytest.approx(ratio, abs=0.003)
    assert row["median"] == sorted(row["median"], reverse=True)  # no further backup lengthens a step


def test_median_steps_are_those_of_order_statistics():
    times = tensorflow_backups.median_steps(
        "shifted_exponential", steps=4000, seed=0, shift_seconds=1.0, scale_seconds=0.2
    )
    assert times[0] == pytest.approx(1 - 0.2 * np.log(1 - 0.5 ** (1 / 50)), rel=0.01)


# ---- a server that saturates ---------------------------------------------------------------------------------------


def test_an_asynchronous_server():
    for workers, limit, between in ((1, 0.0, 1.0), (4, 0.0, 0.25), (1, 0.5, 1.5), (9, 0.25, 0.25)):
        found = server_saturation.asynchronous_seconds(np.ones((600, workers)), server_seconds=limit)
        assert found == pytest.approx(between, rel=0.02)


def test_a_synchronous_step_ends_with_the_last_gradient_that_is_waited_for():
    arrived = np.array([[1.0, 1.0, 1.0, 5.0], [1.0, 2.0, 9.0, 3.0]])
    of_three = server_saturation.synchronous_seconds(arrived, required=3, server_seconds=0.5)
    np.testing.assert_allclose(of_three, [2.5, 3.5])
    of_all = server_saturation.synchronous_seconds(arrived, required=4, server_seconds=0.5)
    np.testing.assert_allclose(of_all, [5.5, 9.5])


def test_the_server_that_is_fitted_has_its_limit():
    row = server_saturation.CLAIM.measure(num_workers=424, gradients=6000, seed=0)
    none, *limits = row["asynchronous"]
    assert limits == [pytest.approx(2850, rel=0.01), pytest.approx(2300, rel=0.01)] and none > 7000
    assert row["synchronous"][0] > row["synchronous"][1] > row["synchronous"][2]


# ---- memory of the optimizer's state -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "owners", "contiguous", "best"),
    [
        ([6, 5, 1, 1, 8], 3, 11, 8),  # 6 + 5, 1 + 1 + 8; the best has 6, 5 + 1 + 1, 8
        ([1, 1, 8], 2, 10, 8),
        ([5], 4, 5, 5),
    ],
)
def test_owners_of_neighbours(sizes, owners, contiguous, best):
    assert partitioned_state.contiguous(sizes, owners) == contiguous
    assert partitioned_state.best_contiguous(sizes, owners) == best


def test_one_worker_more_takes_its_whole_state():
    row = partitioned_state.CLAIM.measure(how="compiled", optimizer="momentum")
    assert row["measured"] == pytest.approx(row["state"], rel=1e-3)


def test_the_state_of_the_large_model_is_that_of_its_parameters():
    row = partitioned_state.CLAIM.measure(how="computed", optimizer="adam")
    assert row["state"] == pytest.approx(2 * row["parameters"], rel=1e-6)
    assert row["best contiguous"][0] == row["state"]
    assert row["best contiguous"][-1] >= row["largest"] * row["state"]


def test_even_parts_take_what_their_state_says():
    gib = partitioned_state.GIB
    of_lenet = [
        {"how": "compiled", "optimizer": name, "state": 100, "measured": 100} for name in partitioned_state.COMPILED
    ]
    rows, owners = [], list(partitioned_state.OWNERS)
    for optimizer in partitioned_state.LARGE:
        of_all = {"optimizer": optimizer, "state": 2 * gib}
        splits = {name: [2 * gib / n for n in owners] for name in partitioned_state.SPLITS}
        rows.append({"how": "computed", "owners": owners, **splits, **of_all})
        for n in owners[1:]:
            sizes = {"whole": 3 * gib, "in parts": 3 * gib - 2 * gib * (1 - 1 / n)}
            rows.append({"how": "parts", "owners": n, **sizes, **of_all})
    rows = [{**row, "run": str(i)} for i, row in enumerate([*of_lenet, *rows])]
    frame = partitioned_state.frame(rows)
    assert partitioned_state.verdict(frame).word == "by construction"
    large = frame[frame["how"] == "computed"].set_index(["optimizer", "owners"])
    assert large.loc["adam", "held"].tolist() == pytest.approx([2, 0.5, 0.25, 0.125])
    rows[-1]["in parts"] += gib / 100
    assert partitioned_state.verdict(partitioned_state.frame(rows)).word == "not supported at this scale"
    assert partitioned_state.verdict(partitioned_state.frame(rows[:-1])).word == "not tested"


@pytest.mark.parametrize("needs", [lambda n: 3 + 2 * n, lambda n: n**1.5, lambda n: 40 * n**0.5])
@pytest.mark.parametrize("room", [80, 81, 100.5])
def test_the_search_finds_the_most_that_fit(needs, room):
    found = partitioned_state.most_that_fit(needs, room, least=1, most=512)
    assert needs(found) <= room < needs(found + 1)
