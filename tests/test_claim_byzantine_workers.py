"""Rules with workers that send garbage: which must fail, which must stand, and rates that all learn nothing."""

import random

from experiments.claims.byzantine_workers import claim as byzantine_workers
from tests.claim_rows import complete

CLAIM, TUNED = byzantine_workers.CLAIM, byzantine_workers.RACE.tuned
BROKEN = ("mean", "adasum", "pcgrad")


def rows(*, spread=0.001, rest=0.98, **ends):
    """Rows in which each method ends at its accuracy, by default the broken ones near guessing, whatever their rate."""

    def measured(labels):
        around = ((labels["seed"] % 5) - 2) * spread - 0.01 * (labels["rate"] != 0.08)
        method = labels["method"].replace(" ", "_")
        if method in BROKEN and method not in ends:
            end = random.Random(str(sorted(labels.items()))).uniform(0.05, 0.15)
        else:
            end = ends.get(method, rest) + around
        return {"step": [1, 2], "epoch": [0.5, 1.0], "simulated_seconds": [0.0, 0.0], "accuracy": [0.5, end]}

    return complete(CLAIM, measured)


def test_rates_that_all_learn_nothing_are_not_picked_for_their_luck():
    found = rows()
    rates = {method: {row["rate"] for row in TUNED.tried(found, method=method)} for method in BROKEN}
    assert set(map(frozenset, rates.values())) == {frozenset(byzantine_workers.RACE.rates["laptop"])}
    assert {TUNED.picked(found, method=method) for method in BROKEN} == {0.04}
    table = TUNED.table("laptop", found)
    assert set(table[table["In its grid"] == "none learns"]["Tuned"]) == set(BROKEN)
