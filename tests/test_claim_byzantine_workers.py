"""Rules with workers that send garbage: which must fail, which must stand, and rates that all learn nothing."""

import random

from experiments.claims.byzantine_workers import claim as byzantine_workers
from tests.claim_rows import anything, complete

CLAIM = byzantine_workers.CLAIM
TUNED = byzantine_workers.RACE.tuned
BROKEN = ("mean", "adasum", "pcgrad")


def test_rates_that_all_learn_nothing_are_not_picked_for_their_luck():
    def measured(labels):  # broken methods end near guessing, whatever their rate
        lucky = random.Random(str(sorted(labels.items()))).uniform(0.05, 0.15)
        return anything(end=lucky if labels["method"] in BROKEN else 0.98 - 0.01 * (labels["rate"] != 0.08))

    found = complete(CLAIM, measured)
    rates = {method: {row["rate"] for row in TUNED.tried(found, method=method)} for method in BROKEN}
    assert set(map(frozenset, rates.values())) == {frozenset(byzantine_workers.RACE.rates["laptop"])}
    assert {TUNED.picked(found, method=method) for method in BROKEN} == {0.04}
    table = TUNED.table("laptop", found)
    assert set(table[table["In its grid"] == "none learns"]["Tuned"]) == set(BROKEN)
