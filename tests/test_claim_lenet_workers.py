"""The claim about LeNet-5 with ever more workers: configs, the grids, and the verdict for each part of its rule."""

import math

from experiments.claims.lenet_workers import claim as lenet_workers
from tests.claim_rows import complete

CLAIM = lenet_workers.CLAIM


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
