"""Averages that come late: configs, the verdict for each outcome, and the arithmetic of what is hidden."""

import math
import random

from experiments.claims.delayed_averaging import claim as delayed_averaging
from experiments.study import report
from tests.claim_rows import complete, whole_report

CLAIM, TUNED = delayed_averaging.CLAIM, delayed_averaging.TUNED


def rows(ends=None, *, none=0.97, spread=0.002):
    """Rows in which each delay ends as no delay does, but for those in ``ends``."""

    def measured(labels):
        noise = random.Random(str(sorted(labels.items()))).gauss(0, spread)
        end = {0: none, **(ends or {})}.get(labels["delay"], none) + noise
        end -= 0.02 * abs(math.log(labels["rate"] / 0.03))
        end -= 0.1 * (labels["split"] == "validation")  # which no verdict may see
        return {
            "step": [500, 1000],
            "epoch": [1.2, 2.4],
            "simulated_seconds": [510.0 - 2 * labels["delay"], 1020.0 - 4 * labels["delay"]],
            "accuracy": [end - 0.1, end],
            "sent_bytes": [0.5e8, 1e8],
            "bytes_per_worker": 350_000.0,
            "gradient_seconds": 0.0004 if labels["seed"] else 0.4,  # one run was disturbed
        }

    return complete(CLAIM, measured)


def test_it_is_reported():
    found = [{**row, "data": "mnist"} for row in rows()]
    text = whole_report(CLAIM, found)
    # 350,000 bytes over 1 Gb/s take 2.8 ms; a step of 0.4 ms hides them from a delay of 7 on.
    assert "| 2.80 ms |" in text and "| 0.40 ms |" in text and "7 steps, more than a round's 4" in text
    df = CLAIM.frame(found)
    assert CLAIM.summary(df)["exposed ms of a step"].tolist() == ["0.70", "0.60", "0.50", "0.30"]
    assert CLAIM.basis(df) == "mnist, MLP of 64 hidden units, 8 workers, n = 40"
    accuracy, waits = report.draw(CLAIM, found).axes
    assert accuracy.lines[0].get_xdata().tolist() == [0, 1, 2, 4]
    assert [line.get_ydata()[0] for line in waits.lines] == [0.25, 0.5, 1.0, 2.0]
    assert waits.lines[0].get_ydata()[4] == 0  # a communication of one step is hidden from a delay of one on


def test_a_gradient_takes_what_it_took_in_the_fastest_lap():
    train = [{"kind": "train", "step": step, "examples_per_second": 1e4 * step} for step in (1, 4, 2)]
    last = {"kind": "eval", "step": 4, "epoch": 1.0, "simulated_seconds": 4.0, "accuracy": 0.9, "sent_bytes": 8.0}
    measured = CLAIM.reduce([*train, {**last, "bytes_per_worker": 2.0}])
    assert measured["gradient_seconds"] == 16 / 4e4 and measured["bytes_per_worker"] == 2.0
    assert measured["accuracy"] == [0.9] and not set(measured) & set(CLAIM.runs("laptop", [])[0].labels)
