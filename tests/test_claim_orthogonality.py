"""The claim about the orthogonality of the workers' deltas: its configs, its rule, its report."""

import pytest

from experiments.claims.orthogonality import claim as orthogonality
from tests.claim_rows import ORIGIN

CLAIM = orthogonality.CLAIM


@pytest.fixture(autouse=True)
def digits(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))


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


def test_records_of_training_become_a_row_of_layers():
    row = row_of()
    assert list(row["layers"]) == ["Conv_0/kernel", "Dense_0/bias"] and row["accuracy"] == [0.9]
    assert len(row["step"]) == len(row["whole"]) == len(row["layers"]["Conv_0/kernel"]) == 300
    assert CLAIM.reduce([])["layers"] == {}


def test_early_is_at_least_the_first_record():
    summary = CLAIM.summary(CLAIM.frame([row_of(first=20)])).set_index("layer")
    assert "0.70" in summary["first 2% of the steps"]["mean over layers"]
