"""The claim about LeNet-5 with ever more workers: configs, the grids, and the verdict for each part of its rule."""

import math

import pytest

from experiments.claims import lenet_workers
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, some_runs, whole_report, without

CLAIM = lenet_workers.EXPERIMENT


@pytest.fixture(autouse=True)
def no_data(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))


@pytest.mark.parametrize("scale", CLAIM.hours)
def test_configs_are_what_the_labels_say(scale):
    for run in some_runs(CLAIM, scale):
        assert run.config["num_workers"] == run.labels["num_workers"] and run.config["reducer_on"] == "updates"
        assert run.config["optimizer"]["learning_rate"] == pytest.approx(run.labels["factor"] * lenet_workers.RATE)
        assert run.config["reducer"]["name"] == run.labels["reducer"]
        assert run.config["seed"] == run.labels["seed"]


def as_claimed(reducer, num_workers, factor, seed):
    best = {"mean": 1, "sum": 2.83 / num_workers, "adasum": 0.5}[reducer]  # both at the edge of their first grid
    loss = abs(math.log(factor / best)) / 500 + (0.004 if reducer == "sum" else 0) + seed / 10_000
    return 0.11 if (reducer, factor, num_workers) == ("sum", 1.0, 32) else 0.992 - loss


def rows(changed=lambda reducer, num_workers, factor: None, *, scale="laptop"):
    """Rows of the claimed accuracies, but for runs to which ``changed`` gives another."""

    def measured(labels):
        reducer, n, factor, seed = (labels[key] for key in ("reducer", "num_workers", "factor", "seed"))
        value = changed(reducer, n, factor)
        return {"accuracy": [0.5, as_claimed(reducer, n, factor, seed) if value is None else value - seed / 10_000]}

    return complete(CLAIM, measured, scale=scale)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        (lambda reducer, n, factor: None, HOLDS),
        (lambda reducer, n, factor: 0.995 if (reducer, factor) == ("sum", 1) else None, FAILS),
        (lambda reducer, n, factor: 0.975 if (reducer, n, factor) == ("adasum", 32, 1) else None, FAILS),
        (lambda reducer, n, factor: 0.9921 if (reducer, n, factor) == ("sum", 32, 0.0884) else None, FAILS),  # a tie
        (lambda reducer, n, factor: 0.995 if (reducer, n, factor) == ("sum", 32, 0.0884) else None, FAILS),
        (lambda reducer, n, factor: math.nan if (reducer, n, factor) == ("sum", 32, 1) else None, HOLDS),
    ],
)
def test_verdicts(changed, word):
    verdict = CLAIM.verdict(rows(changed))
    assert verdict.word == word and verdict.because.count("Not shown") == (word == FAILS)
    assert len(verdict.contrasts) == 3 and {contrast.corrected for contrast in verdict.contrasts} == {"Holm, 3 tests"}


def test_a_gpu_has_fewer_seeds_and_the_same_rule():
    assert CLAIM.verdict(rows(scale="gpu")).word == HOLDS
    assert CLAIM.verdict(rows(scale="smoke")).word == UNTESTED


def test_untuned_runs_come_first_and_serve_picks_of_their_rate():
    untuned, found = 5 + 4 * 2 * 5, rows()
    first = CLAIM.runs("laptop", [])
    assert [run.labels["split"] for run in first[:untuned]] == ["test"] * untuned
    assert {run.labels["factor"] for run in first[:untuned]} == {1.0}
    assert {run.labels["num_workers"] for run in first[untuned:]} == {4}  # one number of workers after the other
    tuned = [row for row in found if row["split"] == "test" and row["factor"] != 1.0]
    assert {(row["num_workers"], row["factor"]) for row in tuned if row["reducer"] == "sum"} == {
        (4, 0.707),
        (8, 0.354),
        (16, 0.177),
        (32, 0.0884),
    }
    at_one = rows(lambda reducer, n, factor: 1 - abs(factor - 1) / 10)
    assert {row["factor"] for row in at_one if row["split"] == "test" and row["reducer"] == "adasum"} == {1.0}


def test_grids_go_on_by_the_root_of_two_until_the_pick_is_inside():
    tried = lenet_workers.TUNED.tried(rows(), num_workers=32, reducer="adasum")
    assert sorted({row["factor"] for row in tried}) == [0.354, 0.5, 0.707, 1.0]
    assert {row["seed"] for row in tried} == {0, 1, 2}


def test_a_missing_run_is_named():
    verdict = CLAIM.verdict(without(rows(), num_workers=16, reducer="sum", factor=1.0, seed=4, split="test"))
    assert verdict.word == UNTESTED and "num_workers=16,reducer=sum" in verdict.because


@pytest.mark.parametrize("kept", [1, 5, 46, 60, 100])
def test_it_is_reported_as_far_as_it_has_run(kept):
    assert UNTESTED in whole_report(CLAIM, rows()[:kept])


def test_the_whole_is_reported():
    found = rows()
    assert str(CLAIM.basis(found)) == "mnist, LeNet-5, n = 5"
    one, other = CLAIM.findings(found)[0], CLAIM.findings(rows(scale="smoke"))[0]
    assert one.paper_number == 99.3 and one.difference and other.paper is None  # digits are no MNIST
    text = whole_report(CLAIM, found)
    assert "below Adasum [MEM-lo] / 98." in text and "| sum, tuned | ? / 98." in text
