"""The claim about the orthogonality of the workers' deltas: its configs, its rule, its report."""

import pytest

from experiments.claims import orthogonality
from experiments.study.significance import TooFewRuns
from tests.claim_rows import FAILS, HOLDS, ORIGIN, UNTESTED, whole_report

CLAIM = orthogonality.EXPERIMENT


@pytest.fixture(autouse=True)
def digits(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))


@pytest.mark.parametrize("scale", CLAIM.hours)
def test_runs_record_every_step_of_workers_with_large_batches(scale):
    for run in CLAIM.runs(scale, []):
        config = run.config
        assert config["reducer"] | {"name": "adasum", "telemetry": "on"} == config["reducer"]
        assert config["reducer_on"] == "updates" and config["log_every_steps"] == 1
        assert config["num_workers"] == run.labels["num_workers"] and config["seed"] == run.labels["seed"]
        assert config["batch_size_per_worker"] == run.labels["batch_size"] >= (32 if scale == "smoke" else 256)
        falls = [at / config["train_epochs"] for at in config["schedule"]["at_epochs"]]
        assert config["schedule"]["name"] == "steps" and falls == pytest.approx([1 / 3, 2 / 3, 8 / 9])
    assert len(CLAIM.runs(scale, [])) == (1 if scale == "smoke" else 5)


def row_of(*, early=0.5, late=0.9, spread=0.1, model=(0.5, 0.9), seed=0, steps=300, first=0, warmup=0):
    """A run with two layers, which are ``spread`` apart, and a learning rate that falls after steps 100 and 200."""

    def at(step, early, late):
        middle = (early + late) / 2 + 0.01 * (step // 50)
        return (early if step <= 6 else late if step > 200 else middle) + 0.003 * (-1) ** seed * (1 + seed)

    def record(step):
        mean = at(step, early, late) - (0.05 if 100 < step <= 120 else 0)
        layers = {"Conv_0/kernel": -spread / 2 - 0.002 * seed, "Dense_0/bias": spread / 2}
        return {
            "kind": "train",
            "step": step,
            "learning_rate": 0.01 * 0.1 ** ((step > 100) + (step > 200)) * min(1, step / warmup if warmup else 1),
            "orthogonality": at(step, *model),
            **{f"orthogonality/{layer}": mean + apart for layer, apart in layers.items()},
            "cosine": 0.2,
            "cosine/Conv_0/kernel": 0.3,
        }

    records = [record(step) for step in range(1, steps + 1) if step > first]
    evaluation = {"kind": "eval", "step": steps, "accuracy": 0.9, "learning_rate": 0.0001}
    labels = {"data": "mnist", "model": "LeNet-5", "num_workers": 8, "batch_size": 256, "seed": seed}
    return {**CLAIM.reduce([*records, evaluation]), **labels, "origin": ORIGIN}


def rows_of(*, seeds=5, **changed):
    return [row_of(seed=seed, **changed) for seed in range(seeds)]


def not_shown(rows):
    return [contrast.compared for contrast in CLAIM.judge(rows).contrasts if not contrast.holds]


@pytest.mark.parametrize(
    ("changed", "failing"),
    [
        ({}, []),
        ({"early": 0.9, "late": 0.5}, ["above the first", "below the middle", "above the middle", "rises"]),
        ({"early": 0.8, "late": 0.9}, ["first steps below the middle"]),  # rises, from what is orthogonal already
        ({"early": 0.4, "late": 0.6}, ["last third above the middle"]),
        ({"spread": 0.0}, ["above Conv_0/kernel"]),
    ],
)
def test_each_part_of_the_rule_can_fail(changed, failing):
    rows = rows_of(**changed)
    assert CLAIM.judge(rows).word == (FAILS if failing else HOLDS)
    for compared, part in zip(not_shown(rows), failing, strict=True):
        assert part in compared and not compared.startswith("whole model")


def test_the_whole_model_is_asked_for_itself():
    rows = rows_of(model=(0.8, 0.9))
    assert CLAIM.judge(rows).word == FAILS and not_shown(rows) == ["whole model: first steps below the middle"]


def test_too_few_or_diverged_runs_decide_nothing():
    with pytest.raises(TooFewRuns):
        CLAIM.judge(rows_of(seeds=2))
    diverged = rows_of()
    diverged[3]["layers"]["Dense_0/bias"][7] = float("nan")
    assert CLAIM.judge(diverged).word == UNTESTED


def test_a_rise_within_the_noise_of_seeds_is_none():
    noisy = [row_of(late=late, seed=seed) for seed, late in enumerate((0.2, 0.7, 0.99, 0.3, 0.8))]
    assert "mean over layers: last third above the first steps" in not_shown(noisy)


def test_rows_from_before_the_whole_model_was_measured_are_not_reported():
    old = [{key: value for key, value in row.items() if key != "whole"} for row in rows_of()]
    assert not CLAIM.enough(old) and CLAIM.verdict(old).word == UNTESTED


def test_records_of_training_become_a_row_of_layers():
    row = row_of()
    assert list(row["layers"]) == ["Conv_0/kernel", "Dense_0/bias"] and row["accuracy"] == [0.9]
    assert len(row["step"]) == len(row["whole"]) == len(row["layers"]["Conv_0/kernel"]) == 300
    assert CLAIM.reduce([])["layers"] == {}


@pytest.mark.parametrize("kept", [1, 5])
def test_the_report_has_both_measures_and_the_falls_of_the_rate(kept):
    rows = rows_of(warmup=20)[:kept]
    table = {cells[0]: cells[1:] for cells in CLAIM.paper_table(rows).cells}
    mean, model, _ = table["first 2% of the steps"]
    assert "0.50" in mean and "READ" in mean and model.startswith("? / 0.50")
    falls = [name for name in table if "fall of the rate" in name]
    assert [name.split("step ")[1].split(",")[0] for name in falls] == ["100", "200"]  # a warm-up is no fall
    assert "-0.041" in table[falls[0]][0] and "MEM-lo" in table[falls[0]][0]
    assert "Dense_0/bias" in whole_report(CLAIM, rows)


def test_early_is_at_least_the_first_record():
    (line, _, *_) = CLAIM.paper_table([row_of(first=20)]).cells
    assert "0.70" in line[1]
