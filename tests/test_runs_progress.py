"""Progress: a bar for people who look, few lines for a log; and the clock that its rates are from."""

import io
import time
from contextlib import closing

import pytest
import tqdm.std

from runs.reporting import progress as reporting_progress
from runs.reporting.clock import Clock
from runs.reporting.progress import Progress


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def _lines(stream):
    return stream.getvalue().splitlines()


def test_plain_lines_are_few_and_the_last_is_shown():
    stream = io.StringIO()
    seconds = iter([0.0, 1.0, 4.9, 5.0, 6.0, 7.0])
    with closing(Progress(100, stream=stream, clock=lambda: next(seconds))) as progress:
        for step in range(1, 7):
            progress.update(step, {"loss": 0.5, "accuracy": 0.9712, "examples_per_second": 12345.6})
    assert [line.split("  ")[0] for line in _lines(stream)] == ["step 1/100", "step 4/100", "step 6/100"]
    assert _lines(stream)[-1] == "step 6/100  loss 0.5000  accuracy 97.12%  12,346 ex/s"
    assert "ex/s" not in _lines(stream)[0]  # the time in which programs are compiled


@pytest.mark.parametrize("is_quick", [False, True])
def test_a_long_wait_for_the_first_step_is_explained(is_quick, monkeypatch):
    monkeypatch.setattr(reporting_progress, "COMPILING_SECONDS", 0.1)
    stream = io.StringIO()
    with closing(Progress(3, stream=stream)) as progress:
        if is_quick:
            progress.update(1, {"loss": 1.0})
        time.sleep(0.5)
        progress.update(3, {"loss": 1.0})
    waits = ["waiting for the first step, before which programs are compiled"]
    assert _lines(stream)[:1] == (["step 1/3  loss 1.0000"] if is_quick else waits)
    assert len(_lines(stream)) == 2


def test_nobody_waits_for_a_progress_that_was_dropped(monkeypatch):
    monkeypatch.setattr(reporting_progress, "COMPILING_SECONDS", 0.1)
    stream = io.StringIO()
    Progress(3, stream=stream)
    time.sleep(0.3)
    assert _lines(stream) == []


def test_final_step_is_shown_at_once_and_once():
    stream = io.StringIO()
    progress = Progress(3, stream=stream, clock=lambda: 0.0)
    for step in (1, 2, 3):
        progress.update(step, {"loss": None})
    assert _lines(stream) == ["step 1/3", "step 3/3"]
    progress.close()
    progress.close()
    assert _lines(stream) == ["step 1/3", "step 3/3"]


def test_evaluations_are_lines_at_a_readable_pace_and_the_last_is_shown():
    stream = io.StringIO()
    seconds = iter([0.0, 0.1, 1.0, 2.1, 2.2, 3.0])
    with closing(Progress(60, stream=stream, clock=lambda: next(seconds))) as progress:
        progress.update(1, {"loss": 2.0})
        for step in (10, 20, 30):
            progress.evaluation(step, {"loss": 1.0, "accuracy": 0.5}, split="test")
        progress.update(31, {"loss": 0.5})
        progress.evaluation(60, {"loss": 0.25, "accuracy": 0.75}, split="test")
    assert [line.split("  ")[0] for line in _lines(stream)] == ["step 1/60", "step 10/60", "step 30/60", "step 60/60"]
    assert _lines(stream)[-1] == "step 60/60  test loss 0.2500  accuracy 75.00%"


def test_a_bar_reckons_without_the_time_in_which_programs_are_compiled(monkeypatch):
    seconds = [0.0]
    monkeypatch.setattr(tqdm.std, "time", lambda: seconds[0])
    stream = _Terminal()
    with closing(Progress(103, stream=stream)) as progress:
        for step, now in ((1, 100.0), (2, 101.0), (3, 102.0)):
            seconds[0] = now
            progress.update(step, {"loss": 1.0})
    assert "2/103 [00:01<01:41,  1.00step/s" in stream.getvalue()


def test_messages_between_plain_lines():
    stream = io.StringIO()
    Progress(3, stream=stream).message("saved")
    assert _lines(stream) == ["saved"]


def test_bar_on_a_terminal():
    stream = _Terminal()
    progress = Progress(10, start_step=4, stream=stream)
    progress.update(6, {"loss": 0.25, "accuracy": 1.0})
    progress.message("saved")
    progress.evaluation(8, {"accuracy": 0.5}, split="validation")
    progress.update(10, {"loss": float("nan")})
    progress.close()
    progress.close()
    text = stream.getvalue()
    assert "4/10" in text and "10/10" in text and "loss nan" in text
    assert "step 8/10  validation accuracy 50.00%\n" in text
    assert "saved\n" in text.replace("\r", "\n"), "the message stands on a line of its own"


def test_stderr_is_the_default(capsys):
    with closing(Progress(1)) as progress:
        progress.update(1, {"loss": 1.0})
    captured = capsys.readouterr()
    assert captured.out == "" and "step 1/1  loss 1.0000" in captured.err


def test_laps_of_steps_that_come_out_together_count_with_the_one_before():
    seconds = iter([0.0, 1.0, 1.001, 1.002, 1.003, 2.003]).__next__
    clock = Clock(now=seconds)

    def rate(step):
        return clock.lap(step, num_examples=1, waited_seconds=0.0)["steps_per_second"]

    assert [rate(step) for step in (10, 11, 12, 13)] == pytest.approx([10 / 1, 11 / 1.001, 12 / 1.002, 13 / 1.003])
    assert clock.steps_per_second() is None, "the run has no two laps that are apart"
    assert rate(14) == pytest.approx(1 / 1.0)
    assert clock.steps_per_second() == pytest.approx(4 / 1.003)
