"""Averages that come late: configs, the verdict for each outcome, and the arithmetic of what is hidden."""

from experiments.claims.delayed_averaging import claim as delayed_averaging
from experiments.study import report
from tests.claim_rows import anything, complete, whole_report

CLAIM = delayed_averaging.CLAIM


def measured(labels):
    gradient_seconds = 0.0004 if labels["seed"] else 0.4  # one run was disturbed
    return {**anything(), "bytes_per_worker": 350_000.0, "gradient_seconds": gradient_seconds}


def test_it_is_reported():
    found = complete(CLAIM, measured)
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
