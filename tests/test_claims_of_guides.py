"""Claims of user guides on Adasum: its learning rate on MNIST, and what it combines first."""

import math

from experiments.claims.mnist_guide import claim as mnist_guide
from tests.claim_rows import complete


def rows(claim, end_of, *, spread=0.0005):
    """Rows of all runs; ``end_of(labels)`` gives the accuracy at the end, around which seeds spread."""

    def measured(labels):
        end = end_of(labels) + spread * ((labels["seed"] % 5) - 2)
        return {
            "step": [1, 2],
            "epoch": [1.0, 2.0],
            "simulated_seconds": [0.0, 0.0],
            "accuracy": [0.5, end],
        }

    return complete(claim, measured)


# ---- Horovod's MNIST -----------------------------------------------------------------------------------------------


def guide_rows(*, guide=0.99, untuned=0.98, tuned=0.985, **options):
    """Rows in which the mean's best rate is 8 times that of one worker, and Adasum's the guide's or 5 times it."""

    def end_of(labels):
        reducer, factor = labels["reducer"], labels["factor"]
        if reducer == "adasum":
            return guide if factor == 2.5 else guide - 0.01
        return tuned if factor == 8.0 else untuned - 0.0001 * abs(math.log(factor / 8))

    return rows(mnist_guide.CLAIM, end_of, **options)


def test_a_pick_that_is_untuned_is_run_once():
    names = [row["run"] for row in guide_rows()]
    assert len(names) == len(set(names))


# ---- layers and groups ---------------------------------------------------------------------------------------------
