"""The claim about the orthogonality of the workers' deltas: its configs, its rule, its report."""

from experiments.claims.orthogonality import claim as orthogonality
from tests.claim_rows import ORIGIN

CLAIM = orthogonality.CLAIM


def row_of(*, first=1):
    """A run whose two layers, and whose model, are more orthogonal from step 100 on."""

    def record(step):
        whole = 0.7 if step < 100 else 0.9
        layers = {"orthogonality/Conv_0/kernel": whole - 0.1, "orthogonality/Dense_0/bias": whole + 0.1}
        return {"kind": "train", "step": step, "learning_rate": 0.01, "orthogonality": whole, **layers, "cosine": 0.2}

    records = [record(step) for step in range(first, 301)] + [{"kind": "eval", "step": 300, "accuracy": 0.9}]
    return {**CLAIM.reduce(records), "num_workers": 8, "seed": 0, "origin": ORIGIN}


def test_records_of_training_become_a_row_of_layers():
    row = row_of()
    assert list(row["layers"]) == ["Conv_0/kernel", "Dense_0/bias"] and row["accuracy"] == [0.9]
    assert len(row["step"]) == len(row["whole"]) == len(row["layers"]["Conv_0/kernel"]) == 300
    assert CLAIM.reduce([])["layers"] == {}


def test_early_is_at_least_the_first_record():
    summary = CLAIM.summary(CLAIM.frame([row_of(first=21)])).set_index("layer")
    assert "0.70" in summary["first 2% of the steps"]["mean over layers"]
