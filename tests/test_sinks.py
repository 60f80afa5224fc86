"""Sinks of one's own: they get every record, and whatever they do, no run ends and no record is lost."""

import signal
import sys
import threading
import time

import pytest
from absl.testing import flagsaver

import runs
import train
from reducers.arrivals import foreign_files
from runs.reporting import sinks
from tests import ROOT
from tests.in_process import DIGITS, keys, train_py
from tests.saved import stale_handle
from tests.stepper import act_at, ask_to_stop, crash, end_and_go_on

RUN = (
    *(f"--config={DIGITS}", "--num_devices=1"),
    *keys("model.name=softmax train_steps=30 log_every_steps=5 eval_every_steps=10 checkpoint_every_steps=10"),
)

# Ten lines for a service that keeps what it gets.
SINK = """
import time
class Kept:
    def __init__(self, folder, config):
        self.calls = open(folder / "calls.txt", "a")
        self.calls.write(f"init {config['train_steps']}\\n")
    def append(self, record):
        self.calls.write(f"{record['kind']} {record['step']} {record['loss']!r}\\n")
    def flush(self):
        self.calls.flush()
    def end(self, ending):
        self.calls.write(f"end {ending}\\n")
    def close(self):
        self.calls.write("close\\n")
        self.calls.close()
class Broken(Kept):
    def append(self, record):
        raise ConnectionError("no route to host")
class Rude(Kept):
    def flush(self):
        raise SystemExit(3)
class Closed:
    def __init__(self, folder, config):
        raise ConnectionError("no key")
class Half:
    def __init__(self, folder, config):
        self.append = print
class Sleeps:
    def __init__(self, folder, config):
        pass
    def append(self, record):
        time.sleep(20)
    flush = close = append
class SleepsAtFirst(Sleeps):
    def __init__(self, folder, config):
        time.sleep(20)
def Needs(folder, config):
    import no_such_tracker
not_callable = 3
"""


@pytest.fixture
def my_sinks(tmp_path, monkeypatch):
    (tmp_path / "my_sinks.py").write_text(SINK)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_sinks", None)


def command(*flags):
    return train_py(*RUN, *flags)


def lines_of(folder):
    return [f"{r['kind']} {r['step']} {r['loss']!r}" for r in runs.read(folder / "metrics.jsonl")]


def test_a_sink_gets_every_record_and_from_a_resumed_run_what_came_after_the_checkpoint_again(my_sinks, tmp_path):
    end_and_go_on(18, lambda: command(f"--workdir={tmp_path}/run", "--sink=my_sinks:Kept"), crash)
    calls = (tmp_path / "run" / "calls.txt").read_text().splitlines()
    first = calls[: calls.index("close") + 1]
    second = calls[calls.index("close") + 1 :]
    later = [line for line in lines_of(tmp_path / "run") if int(line.split()[1]) > 10]
    assert second == ["init 30", *later, "end finished", "close"]
    assert {line for line in first if "train" in line or "eval" in line} <= set(lines_of(tmp_path / "run"))


def test_a_signal_closes_the_sinks_also_beside_one_that_waits(my_sinks, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(sinks, "SECONDS_TO_CLOSE", 1.0)
        act_at(patch, 7, ask_to_stop)
        more = ("--sink=my_sinks:Sleeps", "--sink=my_sinks:Kept")
        began = time.monotonic()
        assert command(f"--workdir={tmp_path}/run", *more) == 128 + signal.SIGTERM
        assert time.monotonic() - began < 20
    assert (tmp_path / "run" / "calls.txt").read_text().splitlines()[-2:] == ["end stopped", "close"]
    assert (tmp_path / "run" / "checkpoints" / "7").exists()
    said = "sink Sleeps: did not end within 1 s, 1 records did not reach it; metrics.jsonl has every record"
    assert said in capsys.readouterr().err.splitlines()


class Server:
    """A sink for a server that can be away, or silent."""

    def __init__(self, *, how="well", at="append"):
        self.how = how
        self.at = at
        self.steps = []
        self.tried = 0

    def append(self, record):
        self.tried += 1
        self.answer("append")
        self.steps.append(record["step"])

    def flush(self):
        self.answer("flush")

    def end(self, ending):
        self.answer("end")

    def close(self):
        self.answer("close")

    def answer(self, method):
        if method == self.at and self.how == "away":
            raise TimeoutError("no answer")
        if method == self.at and self.how == "silent":
            time.sleep(10)


def serve(server, steps=3, *, between=lambda: None):
    """Gives a sink records; returns what was said, and the seconds that it took."""
    said, began = [], time.monotonic()
    guarded = sinks.guard(server, report=said.append)
    for step in range(steps):
        guarded.append({"kind": "train", "step": step})
        between()
    guarded.flush()
    guarded.close()
    guarded.close()
    return said, time.monotonic() - began


@pytest.mark.parametrize("at", ["append", "flush", "end", "close"])
def test_whatever_a_sink_waits_for_nobody_waits_for_it(at, monkeypatch):
    monkeypatch.setattr(sinks, "SECONDS_TO_CLOSE", 0.2)
    server = Server(how="silent", at=at)
    said, seconds = serve(server)
    assert seconds < 5 and sinks.any_waits()
    lost = ", 3 records did not reach it" if at == "append" else ""
    assert said == [f"sink Server: did not end within 0.2 s{lost}; metrics.jsonl has every record"]
    assert server.steps == ([] if at == "append" else [0, 1, 2])


def test_a_slow_sink_is_named_once_while_the_run_goes_on(monkeypatch):
    monkeypatch.setattr(sinks, "SECONDS_TO_CLOSE", 0.1)
    monkeypatch.setattr(sinks, "MOST_WAITING", 3)
    first, last = serve(Server(how="silent"), 6)[0]
    assert first.startswith("sink Server: takes too long; 3 calls wait for it")
    assert "records did not reach it" in last


def test_a_sink_that_failed_is_tried_seldom_and_has_all_it_can_have_when_it_is_back(monkeypatch):
    monkeypatch.setattr(sinks, "SHORTEST_PAUSE", 0.05)
    server = Server(how="away")
    tried = []

    def between():
        time.sleep(0.05)
        tried.append(server.tried)
        if len(tried) == 12:
            server.how = "well"

    said, _ = serve(server, 20, between=between)
    assert tried[11] <= 5, "a server that is away is asked after 0.05, 0.1, 0.2 and 0.4 s"
    assert server.steps == list(range(20 - len(server.steps), 20)) and len(server.steps) >= 15
    assert said[0] == (
        "sink Server: append failed (TimeoutError: no answer); the run goes on, and metrics.jsonl has every record"
    )
    assert said[1:] == [f"sink Server: {20 - len(server.steps)} calls failed; metrics.jsonl has every record"]


def test_a_sink_is_made_and_called_in_one_thread(tmp_path, monkeypatch):
    """As a connection of sqlite3 needs it."""
    threads = set()

    class Database(Server):
        def __init__(self, folder, config):
            super().__init__()
            threads.add(threading.current_thread())

        def answer(self, method):
            threads.add(threading.current_thread())

    monkeypatch.setattr(sinks, "find", lambda name: Database)
    sink = sinks.make("my_sinks:Database", tmp_path, {})
    sink.append({"kind": "train", "step": 1})
    sink.close()
    assert len(threads) == 1 and threads != {threading.current_thread()}


@pytest.mark.parametrize("refused", ["checkpoint", "sink"])
def test_a_run_that_is_refused_closes_its_sinks_once(refused, my_sinks, tmp_path, monkeypatch, capsys):
    run = (f"--workdir={tmp_path}/run", "--config.train_steps=10")
    assert command(*run) == 0
    (tmp_path / "run" / "DONE").unlink()
    if refused == "checkpoint":
        monkeypatch.setattr(foreign_files, "sha256", stale_handle)
    more = ["--sink=my_sinks:Closed"] if refused == "sink" else []
    assert command(*run, "--sink=my_sinks:Kept", *more) == 2
    assert {"checkpoint": "Stale file handle", "sink": "no key"}[refused] in capsys.readouterr().err
    assert (tmp_path / "run" / "calls.txt").read_text().splitlines() == ["init 10", "end failed", "close"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("Broken", "append failed (ConnectionError: no route to host)"), ("Rude", "flush failed (SystemExit: 3)")],
)
def test_a_sink_that_raises_ends_no_run(name, reason, my_sinks, tmp_path, capsys):
    assert command(f"--workdir={tmp_path}/run", f"--sink=my_sinks:{name}", "--sink=my_sinks:Kept") == 0
    said = capsys.readouterr().err.splitlines()
    (line,) = (line for line in said if reason in line)
    assert line == f"sink {name}: {reason}; the run goes on, and metrics.jsonl has every record"
    (count,) = (line for line in said if "calls failed" in line)
    assert count.startswith(f"sink {name}: ") and len(runs.read(tmp_path / "run" / "metrics.jsonl")) == 9
    assert "train 30" in (tmp_path / "run" / "calls.txt").read_text()  # the other sink has all of them


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ("my_sinks", "sink='my_sinks': must be mlflow, wandb or module:attribute"),
        ("my_sinks:Needs", "sink='my_sinks:Needs': needs the package no_such_tracker, which is not installed"),
        ("no_such_module:Sink", "sink='no_such_module:Sink': no module 'no_such_module'"),
        ("my_sinks:Keppt", "sink='my_sinks:Keppt': my_sinks has no 'Keppt'; did you mean 'Kept'?"),
        ("my_sinks:not_callable", "sink='my_sinks:not_callable': must be a function or a class, not int"),
        ("my_sinks:Closed", "sink='my_sinks:Closed': ConnectionError: no key"),
        ("my_sinks:Half", "sink='my_sinks:Half': Half has no method flush"),
        ("my_sinks:SleepsAtFirst", "sink='my_sinks:SleepsAtFirst': TimeoutError: it is not made after 1 s"),
    ],
)
def test_a_sink_that_cannot_be_made_is_refused_in_one_line(
    sink, message, my_sinks, tmp_path, capsys, compilations, monkeypatch
):
    compilations.clear()
    monkeypatch.setattr(sinks, "SECONDS_TO_MAKE", 1.0)
    assert command(f"--workdir={tmp_path}/run", f"--sink={sink}") == 2
    *before, line = capsys.readouterr().err.splitlines()
    assert before == [note for note in before if note.startswith("config.")]  # what replaces what
    assert line.startswith(message)
    assert {path.name for path in tmp_path.glob("run/*")} <= {"lock"}


def test_no_flag_stays_for_the_next_call_in_the_process(my_sinks, tmp_path, capsys):
    with flagsaver.flagsaver():  # one for both
        assert train.main(["train.py", *RUN, "--sink=my_sinks:Kept", "--dry_run", "--nodry_run_compile"]) == 0
        assert train.main(["train.py", *RUN, f"--workdir={tmp_path}/run"]) == 0
    assert (tmp_path / "run" / "DONE").exists() and not (tmp_path / "run" / "calls.txt").exists()


def test_the_sink_of_the_docs(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "use_from_python.md").read_text()
    (tmp_path / "my_sinks.py").write_text(text.split("```python\n# my_sinks.py\n")[1].split("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert command(f"--workdir={tmp_path}/run", "--sink=my_sinks:Scores") == 0
    finally:
        sys.modules.pop("my_sinks", None)
    evaluated = [record for record in runs.read(tmp_path / "run" / "metrics.jsonl") if record["kind"] == "eval"]
    expected = [f"{record['step']},{record['accuracy']}" for record in evaluated]
    assert (tmp_path / "run" / "scores.csv").read_text().splitlines() == expected and len(expected) == 3
