"""Orthogonality over training: what is taken from records, and each verdict."""

import pytest

from experiments import report
from experiments.claims import orthogonality as claim
from tests.claim_rows import ORIGIN


def records(*, early=0.5, late=0.9, spread=0.1, seed=0, steps=300):
    """Of a run with two layers, which are ``spread`` apart, and a learning rate that falls after steps 100 and 200."""
    wobble = 0.001 * seed
    for step in range(2, steps + 1, 2):
        mean = (early if step <= 6 else late if step > 200 else 0.7) - (0.05 if 100 < step <= 120 else 0) + wobble
        yield {
            "kind": "train",
            "step": step,
            "learning_rate": 0.01 * 0.1 ** ((step > 100) + (step > 200)),
            "orthogonality/Conv_0/kernel": mean - spread / 2,
            "orthogonality/Dense_0/bias": mean + spread / 2,
            "cosine/Conv_0/kernel": 0.3,
        }
    yield {"kind": "eval", "step": steps, "accuracy": 0.9, "learning_rate": 0.0001}


def rows(**changed):
    return [{**claim._reduce(list(records(seed=seed, **changed))), "seed": seed, "origin": ORIGIN} for seed in range(3)]


@pytest.mark.parametrize("scale", claim.EXPERIMENT.hours)
def test_runs_are_configs(scale, monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    runs = claim._runs(scale, [])
    assert len({run.name for run in runs}) == len(runs) == (1 if scale == "smoke" else 3)
    for run in runs:
        config = run.config
        assert config["reducer"] | {"name": "adasum", "telemetry": "on"} == config["reducer"]
        assert config["reducer_on"] == "updates" and config["num_workers"] == claim.NUM_WORKERS
        third = config["train_epochs"] / 3
        assert config["schedule"]["name"] == "steps" and config["schedule"]["at_epochs"] == (third, 2 * third)


def test_records_of_training_become_a_row():
    row = claim._reduce(list(records()))
    assert list(row["layers"]) == ["Conv_0/kernel", "Dense_0/bias"] and row["accuracy"] == [0.9]
    assert len(row["step"]) == len(row["learning_rate"]) == len(row["layers"]["Conv_0/kernel"]) == 150
    assert claim._early(row, claim._mean(row)) == pytest.approx(0.5)  # steps 2, 4 and 6 of 300
    assert claim._late(row, claim._mean(row)) == pytest.approx(0.9)
    assert claim._changes(row) == [100, 200]
    assert claim._change(row, 100) == pytest.approx(-0.05) and claim._change(row, 200) == pytest.approx(0.2)
    assert claim._reduce([])["layers"] == {}


def test_early_is_at_least_the_first_record():
    row = claim._reduce([record for record in records() if record["step"] > 20])
    assert claim._early(row, claim._mean(row)) == pytest.approx(0.7)


def test_verdicts():
    assert claim._judge(rows()).word == "supported"
    assert claim._judge(rows()).because.count("(holds)") == 3
    assert claim._judge(rows()[:2]).word == "not tested at this scale"


@pytest.mark.parametrize(
    ("changed", "fails"),
    [
        ({"early": 0.9, "late": 0.5}, 2),
        ({"early": 0.8, "late": 0.9}, 1),  # rises, from what is orthogonal already
        ({"early": 0.4, "late": 0.6}, 1),
        ({"spread": 0.0}, 1),
    ],
)
def test_not_supported_where_a_part_fails(changed, fails):
    verdict = claim._judge(rows(**changed))
    assert verdict.word == "not supported" and verdict.because.count("(fails)") == fails


def test_a_rise_within_the_noise_of_seeds_is_none():
    noisy = [
        {**row, **claim._reduce(list(records(late=late)))} for row, late in zip(rows(), (0.5, 0.7, 0.99), strict=True)
    ]
    assert "(fails)" in claim._judge(noisy).because.split(",")[0]


@pytest.mark.parametrize("kept", [1, 3])
def test_all_is_told(kept):
    told = report.section(claim.EXPERIMENT, rows()[:kept])
    assert "at step 100" in told and "at step 200" in told and "Dense_0/bias" in told
    assert len(report.draw(claim.EXPERIMENT, rows()[:kept]).axes) == 2
