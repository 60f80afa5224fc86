"""Real processes that wait for the first gradients: which runs are live, the rule, and the clock."""

import json

from experiments.claims.real_backup import claim as real_backup
from tests.claim_rows import complete, reaching

CLAIM = real_backup.CLAIM


def measured(labels):
    """A run that is the sooner at the target, the nearer its rate is to the middle of the grid."""
    found = reaching(100 if labels["rate"] == 0.1 else 160, seconds=0.2)
    return {**found, "wall_seconds": found["simulated_seconds"]}


def test_rates_are_picked_by_simulated_runs_and_the_reported_ones_are_live():
    runs = CLAIM.runs("laptop", complete(CLAIM, measured))
    for run in runs:
        delays = run.flags.get("delays")
        arrivals = run.config["arrivals"]
        if run.labels["stage"] == "tuning":
            assert run.flags == {"num_devices": 1}
        else:
            assert run.flags["live"] is True and run.labels["rate"] == 0.1
            assert {key: arrivals[key] for key in json.loads(delays)} == json.loads(delays)
    assert sum("live" in run.flags for run in runs) == 15


def test_the_clock_begins_when_the_first_step_has_ended():
    times = {"epoch": 0.1, "simulated_seconds": 1.0, "accuracy": 0.5}
    records = [
        {"kind": kind, "step": step, "wall_seconds": wall, **times}
        for kind, step, wall in (("train", 1, 7.0), ("train", 2, 8.0), ("eval", 2, 9.0))
    ]
    row = CLAIM.reduce(records)
    assert row["wall_seconds"] == [2.0] and row["step"] == [2]
