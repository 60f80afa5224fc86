"""Real processes that wait for the first gradients: which runs are live, the rule, and the clock."""

import json

from experiments.claims.real_backup import claim as real_backup
from tests.claim_rows import complete, reaching

CLAIM = real_backup.CLAIM
METHODS = {"backup": (100, 0.2), "all": (90, 0.4), "async": (600, 0.05)}


def rows(**changes):
    """Method -> steps to the target, seconds of a step; the middle rate of the grid is the fastest."""

    def measured(labels):
        steps, seconds = (METHODS | changes)[labels["method"]]
        later = 0 if labels["rate"] == 0.1 else 60
        found = reaching(steps + later + 10 * (labels["seed"] % 3), seconds=seconds, num_steps=900)
        return {**found, "wall_seconds": [1.1 * time for time in found["simulated_seconds"]]}

    return complete(CLAIM, measured)


def test_rates_are_picked_by_simulated_runs_and_the_reported_ones_are_live():
    found = rows()
    for run in CLAIM.runs("laptop", found):
        delays, arrivals = run.flags.get("delays"), run.config["arrivals"]
        if run.labels["stage"] == "tuning":
            assert run.flags == {"num_devices": 1}
        else:
            assert run.flags["live"] is True and run.labels["rate"] == 0.1
            assert {key: arrivals[key] for key in json.loads(delays)} == json.loads(delays)
    assert sum("live" in run.flags for run in CLAIM.runs("laptop", found)) == 15


def test_the_clock_begins_when_the_first_step_has_ended():
    def record(kind, step, wall):
        return {
            "kind": kind,
            "step": step,
            "epoch": 0.1,
            "simulated_seconds": 1.0,
            "accuracy": 0.5,
            "wall_seconds": wall,
        }

    row = CLAIM.reduce([record("train", 1, 7.0), record("train", 2, 8.0), record("eval", 2, 9.0)])
    assert row["wall_seconds"] == [2.0] and row["step"] == [2]
