"""Workers that are processes: the server against scripts worked out by hand, and whole runs against their replay."""

import itertools
import signal

import numpy as np
import pytest

from experiments import plot
from live import ray_engine
from live.engine import Task
from live.server import Missing, Server, Stopped
from reducers.arrivals.order import deadline_arrivals, first_arrivals
from runs.errors import ConfigError
from tests.in_process import keys, train_py
from tests.live_script import Script, scripted
from tests.stepper import largest_difference, records
from training.checkpoints import restore_params

# ---- the server, by hand -----------------------------------------------------------------------------------------


def first(count):
    return lambda seconds: first_arrivals(np.asarray(seconds), count).step_seconds


def steps_of(engine, rule, *, num_steps, num_processes=3, patience=60.0, **options):
    """Returns of each step when gradients came, whose work came with the number of its step, and when they began."""
    server = Server(engine, num_processes=num_processes, patience=patience, **options)
    server.wait_until_ready()
    found = [
        server.gather(number, lambda process, n=number: Task(n, None, None, None, np.array([process])), rule)
        for number in range(num_steps)
    ]
    seconds, began = ([getattr(each, name).tolist() for each in found] for name in ("seconds", "began"))
    return seconds, [each.work for each in found], began


def table(rows):
    """Seconds of each process's tasks; the last one goes on."""
    return lambda process, count: rows[process][min(count, len(rows[process]) - 1)]


INF = float("inf")


def test_the_first_two_of_three_by_hand():
    """Worker 2 is late with step 0, in time for step 1, and then hands in step 2 in step 6."""
    engine = Script(table([[1.0], [1.0, 2.0], [2.5, 0.25, 9.0, 1.0]]), lambda task: task.number)
    seconds, came, began = steps_of(engine, first(2), num_steps=7)
    assert seconds == [
        [1, 1, INF],  # a tie, of two that are both needed
        [1, INF, 1.75],  # worker 2 begins 1.5 s late, worker 1 takes 2 s
        [1, 2.25, INF],  # worker 1 begins a quarter of a second late
        [1, 2, INF],
        [1, 2, INF],
        [1, 2, INF],
        [1, INF, 1.75],  # worker 2 drops step 2 at 11.75 s, and takes a second
    ]
    assert began == [[0, 0, 0], [0, 0, 1.5], [0, 0.25, 0], [0, 0, INF], [0, 0, INF], [0, 0, INF], [0, 0, 0.75]]
    assert [sorted(work.items()) for work in came] == [
        [(p, n) for p in range(3) if np.isfinite(row[p])] for n, row in enumerate(seconds)
    ]


def deadline(seconds):
    return deadline_arrivals(np.asarray(seconds), 2.0).step_seconds


BY_HAND = {  # seconds of each process's tasks, the rule, more of the server -> seconds of each step
    "a tie, which the rule breaks by index, and nobody missing": (
        [[1.0]] * 3,
        (first(2), {"patience": 0.0}),
        [[1, 1, 1]] * 2,
    ),
    "all late at the deadline": (
        [[3.0, 1.0], [4.0, 4.0], [5.0, 5.0]],
        (deadline, {}),
        # The first who comes; workers 1 and 2 drop step 0 at 4 and 5 s, and are given step 1.
        [[3, INF, INF], [1, INF, INF], [1, INF, INF]],
    ),
    "workers of one process": (
        [[1.0], [2.0]],
        (first(3), {"num_processes": 2, "workers_per_process": 2}),
        [[1, 1, 2, 2]],
    ),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_seconds_by_hand(case):
    rows, (rule, more), expected = BY_HAND[case]
    engine = Script(table(rows), lambda task: task.number)
    assert steps_of(engine, rule, num_steps=len(expected), **more)[0] == expected


def test_a_worker_that_dies_begins_again_and_one_that_hangs_is_late():
    lines = []
    engine = Script(table([[1.0], [1.0], [1.0, INF]]), lambda task: task.number, dies=[(1, 1)])
    seconds, *_ = steps_of(engine, first(2), num_steps=3, report=lines.append)
    assert seconds[0] == [1, 1, 1]
    assert seconds[1] == [1, 3, INF]  # dead after a second, there again after two, done after three
    assert seconds[2] == [1, 1, INF]
    assert len(lines) == 2 and all("worker 1" in line for line in lines) and "killed" in lines[0]


def test_patience_ends_where_too_few_are_left():
    def dies_once():
        return Script(table([[1.0]] * 3), lambda task: 0, dies=[(1, 1)], never_starts=lambda p, starts: starts > 0)

    engine = dies_once()
    with pytest.raises(Missing, match=r"^worker 1: not there for 7 s \(no memory\)"):
        steps_of(engine, first(3), num_steps=3, patience=7.0)
    assert 10 <= engine.clock() < 11  # it died at second 3, after a second of starting and one of step 0
    seconds, *_ = steps_of(dies_once(), first(2), num_steps=30, patience=7.0)  # two are enough
    assert seconds[5:] == [[1, INF, 1]] * 25


TRACEBACK = "Traceback (most recent call last):\n" + 20 * "  File 'site-packages/jax/core.py', line 1, in bind\n"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (f"INTERNAL: failed\n{TRACEBACK}\x1b[31mMine\x1b[0m: no room\n", "MemoryError: INTERNAL: failed Mine: no room"),
        (f"{TRACEBACK}KeyError: 3", "KeyError: 3"),
        ("\x1b[36mray::_Process.compute()\x1b[39m (pid=5)\n\nred", "ray::_Process.compute() (pid=5) red"),
        ("y" * 3000, "y ... y"),
    ],
)
def test_what_a_worker_raised_is_a_line(message, reason):
    lines = []
    engine = Script(table([[1.0]] * 3), lambda task: 0, raises=lambda process, count: process == 1)
    engine.message = message
    with pytest.raises(Missing) as caught:
        steps_of(engine, first(3), num_steps=99, patience=7.0, report=lines.append)
    for line in (*lines, str(caught.value)):
        assert len(line) < 500 and line.isprintable() and "\\x1b" not in line and "File" not in line
    assert reason in lines[0] and reason in str(caught.value)


@pytest.mark.parametrize("address", [".foo:6379", "a..b:6379", f"{'x' * 64}:6379", "127.0.0.1:1"])
def test_a_cluster_that_does_not_answer_is_refused(address, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    with pytest.raises(ConfigError, match=r"^ray_address=.*no Ray cluster answers"):
        ray_engine.check(address)


def test_a_worker_for_whom_all_wait_in_vain_is_named_once():
    lines = []
    engine = Script(table([[1.0], [10.0], [1.0, 1.0, INF]]), lambda task: task.number)
    with pytest.raises(Stopped):
        steps_of(engine, first(3), num_steps=9, report=lines.append, is_to_stop=lambda: engine.clock() > 300)
    assert len(lines) == 1 and lines[0].startswith("worker 2: at work")


# ---- whole runs ----------------------------------------------------------------------------------------------------

DIGITS = (
    "--config=configs/digits.py",
    *keys("num_workers=4 train_steps=12 log_every_steps=1 eval_every_steps=6 checkpoint_every_steps=4"),
    "--config.arrivals.name=constant",  # a rule that waits asks for some; they are measured
    "--config.ema_decay=None",  # an average of parameters would hide in what they differ
)
# Without hidden units: a ReLU whose input rounds to the other side of 0 parts two runs by far more than rounding.
HUNDRED = keys("train_steps=100 model.hidden_sizes=()")
BACKUP = keys("reducer.name=backup_workers reducer.num_required=3")
ASYNC = keys("server.name=asynchronous optimizer.learning_rate=0.02")
REDUCERS = {
    "mean": (),
    "backup_workers": BACKUP,
    "its Adasum": (*BACKUP, "--config.reducer.combine=adasum"),
    "deadline": keys("reducer.name=deadline reducer.deadline_seconds=1.25"),
    "local optimizers": (*BACKUP, *keys("reducer_on=updates optimizer.momentum=0.9")),
}


def uneven(process, count):
    """Some of everything: ties, and gradients that come one, two and three steps late."""
    return float([[1.0], [1.0, 1.5], [0.5, 3.5, 0.75], [1.25, 0.5, 1.0, 5.0]][process][count % (process + 1)])


@pytest.fixture
def live(monkeypatch, tmp_path):
    """Makes a live run in a folder, of a script in the place of Ray; returns the exit code."""
    monkeypatch.setattr(ray_engine, "check", lambda address: None)

    def train(*flags, folder="live", seconds=uneven, **script):
        monkeypatch.setattr(ray_engine, "RayEngine", scripted(seconds, **script))
        return train_py("--live", *DIGITS, *flags, f"--workdir={tmp_path / folder}")

    return train


def replay(live_folder, workdir, *flags):
    """Trains by the recorded times of a live run, or by its recorded order where that was asynchronous."""
    own = [flag for flag in DIGITS if "arrivals" not in flag]
    recorded = ["--config.arrivals.name=trace", f"--config.arrivals.path={live_folder / 'worker_seconds-1.npz'}"]
    if "--config.server.name=asynchronous" in flags:
        recorded = [f"--config.server.order={live_folder / 'events.npz'}"]
    return train_py(*own, *flags, *recorded, "--num_devices=1", f"--workdir={workdir}")


def differs(one, other, *, trusted=()):
    return largest_difference(*(restore_params(run, checkpoint="latest", trusted=trusted) for run in (one, other)))


SAME = ("step", "contributors", "step_seconds", "dropped_examples", "simulated_seconds")
SAME_OF_SERVED = ("step", "staleness", "simulated_seconds")


def assert_replayed(folder, *flags, same=None, tolerance=1e-6, trusted=()):
    """A replay of the live run in ``folder / "live"`` has the same records and parameters."""
    there, here = folder / "live", folder / "replayed"
    assert replay(there, here, *flags) == 0
    same = same or (SAME_OF_SERVED if "--config.server.name=asynchronous" in flags else SAME)
    for ours, theirs in zip(records(there), records(here), strict=True):
        assert [ours[name] for name in same] == [theirs[name] for name in same]
    assert differs(there, here, trusted=trusted) < tolerance


@pytest.mark.parametrize(("reducer", "length"), [("its Adasum", ()), *((name, HUNDRED) for name in REDUCERS)])
def test_a_live_run_equals_its_replay(reducer, length, live, tmp_path):
    flags = (*REDUCERS[reducer], *length)
    some_are_late = reducer != "mean"

    def spoilt(task):
        """What is not finite is in gradients that come late alone."""
        return some_are_late and task.number == 1 and task.batch_index[0] % 4 == 2

    assert live(*flags, spoilt=spoilt) == 0
    seconds = np.load(tmp_path / "live" / "worker_seconds-1.npz")["seconds"]
    assert len(seconds) == len(records(tmp_path / "live")) and np.isinf(seconds).any() == some_are_late
    assert_replayed(tmp_path, *flags)


def test_a_process_of_several_devices_computes_as_many_workers(live, tmp_path):
    """Two processes with two devices of two lanes each; the first four gradients come together."""
    flags = ("--config.num_workers=8", *BACKUP, "--config.reducer.num_required=4")
    each = ("--workers_per_process=4", "--devices_per_process=2")
    assert live(*flags, *each) == 0
    seconds = np.load(tmp_path / "live" / "worker_seconds-1.npz")["seconds"]
    assert set(np.isinf(seconds).sum(axis=1)) == {0, 4} and (seconds[:, ::4] == seconds[:, 3::4]).all()
    assert_replayed(tmp_path, *flags)


def stop_at_wait(number):
    """Returns what a run calls when it waits; the call of this number, from 0, asks it to stop."""
    waits = itertools.count()
    return lambda: signal.raise_signal(signal.SIGTERM) if next(waits) == number else None


def test_it_goes_on_where_it_was_saved(live, tmp_path, capsys):
    """Patience that ends, and a signal while a step waits: both save, and the same command goes on to the same end."""
    whole, parts = tmp_path / "whole", tmp_path / "live"
    assert live(folder="whole") == 0
    capsys.readouterr()
    gone = {"dies": [(2, 5)], "never_starts": lambda process, starts: process == 2 and starts > 0}
    assert live("--patience=20", **gone) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "worker 2" in last and "step 5" in last
    hangs = lambda process, count: INF if (process, count) == (1, 4) else 1.0  # noqa: E731
    assert live(seconds=hangs, on_wait=stop_at_wait(40)) == 128 + signal.SIGTERM
    assert live() == 0
    assert differs(whole, parts) == 0
    assert [r["loss"] for r in records(whole)] == [r["loss"] for r in records(parts)]
    assert len(np.load(parts / "worker_seconds-1.npz")["seconds"]) == 12


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ((*ASYNC, "--config.server.name=decentralised"), "config.server.name='decentralised'"),
        ((*ASYNC, "--workers_per_process=2"), "workers_per_process=2"),
        (("--workers_per_process=3",), "workers_per_process=3"),
        (("--devices_per_process=2",), "devices_per_process=2"),
        (("--num_devices=2",), "num_devices=2"),
        *(((f"--patience={value}",), "patience=") for value in ("0", "nan", "inf", "-inf", "-1")),
        (("--record_times",), "record_times=True"),
        (("--config.devices_per_worker=2", "--config.mapping=shard_map"), "config.devices_per_worker=2: must be 1"),
        (("--delays=nobody",), "delays.name='nobody': unknown name"),
        (('--delays={"seconds": 1}',), "delays.name: missing"),
        (("--delays={}",), "delays.name: missing"),
        (('--delays={"name": "constant", "self": 1}',), "delays.self: unknown key"),
        (('--delays={"name": ["constant"]}',), "delays.name=['constant']: unknown name"),
        (('--delays={"name": "constant", "seconds": NaN}',), "is no JSON: NaN is not JSON"),
        ((f'--delays={{"name": {"[" * 100_000}',), "is no JSON: nested too deeply"),
        (("--delays=none.csv",), "none.csv"),
    ],
)
def test_what_real_workers_cannot_do_is_refused(flags, named, live, tmp_path, capsys):
    assert live(*flags) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert named in line and "config.delays" not in line and not (tmp_path / "live").exists()


# ---- asynchronous ------------------------------------------------------------------------------------------------


RULES = {
    "none": (),
    "inverse, two to an update": keys("server.rule=inverse server.gradients_per_update=2"),
    "delay_compensation, bounded": keys("server.rule=delay_compensation server.staleness_bound=1"),
}


@pytest.mark.parametrize(("rule", "length"), [("none", ()), *((rule, HUNDRED) for rule in RULES)])
def test_an_asynchronous_live_run_equals_its_replay(rule, length, live, tmp_path):
    flags = (*ASYNC, *RULES[rule], *length)
    assert live(*flags) == 0
    assert_replayed(tmp_path, *flags)
    assert max(record["staleness"] for record in records(tmp_path / "live")) >= 2
    one, other = ((tmp_path / name / "staleness.csv").read_text() for name in ("live", "replayed"))
    assert one == other
    folders = [str(tmp_path / name) for name in ("live", "replayed")]
    assert plot.main([*folders, "--gantt=1:9", f"--out={tmp_path / 'gantt.png'}"]) == 0


def test_the_order_of_arrival_by_hand(live, tmp_path):
    """All start at second 1, which is second 0 of the run; worker 1 dies in its second task, and begins it again."""
    rows = [[1.0], [1.5], [4.0], [100.0]]
    seconds = lambda process, count: rows[process][0]  # noqa: E731
    assert live(*ASYNC, seconds=seconds, dies=[(1, 1)]) == 0
    with np.load(tmp_path / "live" / "events.npz") as events:
        assert events["worker"].tolist()[:9] == [0, 1, 0, 0, 2, 0, 0, 1, 0]
        assert events["seconds"].tolist()[:9] == [1, 1.5, 2, 3, 4, 4, 5, 5.5, 6]
        assert events["read_event"].tolist()[:9] == [0, 0, 1, 3, 0, 4, 6, 2, 7]
        assert len(events["worker"]) == 12


def test_an_asynchronous_live_run_goes_on_where_it_was_saved(live, tmp_path, capsys):
    parts = tmp_path / "live"
    flags = (*ASYNC, "--config.server.gradients_per_update=2")
    gone = {"dies": [(w, 3) for w in range(4)], "never_starts": lambda process, starts: starts > 0}
    assert live(*flags, "--patience=5", **gone) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert all(f"worker {w}" in last for w in range(4))
    assert 0 < len(records(parts)) < 12
    assert live(*flags) == 0
    with np.load(parts / "events.npz") as events:
        assert len(events["worker"]) == 24 and (np.diff(events["seconds"]) >= 0).all()
    assert_replayed(tmp_path, *flags, same=("step", "staleness"))


@pytest.mark.parametrize("flags", [BACKUP, (*ASYNC, "--config.server.gradients_per_update=2"), ASYNC])
def test_a_worker_that_returns_is_given_its_task_again(flags, live, tmp_path, capsys):
    dies = [(0, 2), (1, 3), (2, 1)]
    assert live(*flags, dies=dies) == 0
    assert "is back" in capsys.readouterr().err
    assert_replayed(tmp_path, *flags)


@pytest.mark.parametrize(("flags", "times"), [(BACKUP, 1), (ASYNC, 1), (ASYNC, 1000), ((), 1000)])
def test_an_exception_in_a_worker_is_a_death_and_many_in_a_row_end_the_run(flags, times, live, tmp_path, capsys):
    flags = (*flags, "--config.train_steps=60")
    code = live(*flags, raises=lambda process, count: process == 1 and 0 < count <= times)
    lines = capsys.readouterr().err.strip().splitlines()
    assert any("worker 1 raised MemoryError: no room for a batch" in line for line in lines)
    assert code == (0 if times == 1 else 1)
    if times > 1:
        last = lines[-1]
        assert all(text in last for text in ("worker 1", "MemoryError", "no room for a batch"))
        assert live(*flags) == 0
    assert [record["step"] for record in records(tmp_path / "live")] == list(range(1, 61))


@pytest.mark.parametrize("where", ["{long}", "/nowhere", "/dev/null", "/proc"])
def test_a_temporary_folder_that_cannot_be_is_refused(where, monkeypatch, tmp_path):
    said = r"must have at most \d+ bytes" if where == "{long}" else "must be a folder that can be written"
    where = where.format(long=tmp_path / ("x" * 60))
    monkeypatch.setenv("RAY_TMPDIR", where)
    with pytest.raises(ConfigError, match=f"^RAY_TMPDIR={where!r}: {said}"):
        ray_engine.make_folder()


def test_a_signal_in_the_middle_of_an_update_lets_it_end(live, tmp_path, capsys):
    flags = (*ASYNC, "--config.server.gradients_per_update=4")
    for stop_at in range(20, 24):
        parts = tmp_path / str(stop_at)
        assert live(*flags, folder=parts, on_wait=stop_at_wait(stop_at)) == 128 + signal.SIGTERM
        assert "stopped by SIGTERM at step 0" not in capsys.readouterr().out
        assert (parts / "checkpoints").is_dir() and any((parts / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("recorded", "flags", "named"),
    [
        ({"worker": [0, 1], "seconds": [1.0, 2.0]}, ASYNC, "ends after 2 gradients"),
        ({"worker": [0, 7] * 6, "seconds": list(range(12))}, ASYNC, "of 4"),
        ({"worker": [0, 1], "seconds": [2.0, 1.0]}, ASYNC, "which grow"),
        ({"worker": [0, 1]}, ASYNC, "is no order of arrival"),
        ([[1.0, INF, 1.0, 1.0]], (), "at step 0 3 workers arrive"),
        ([[INF] * 4], BACKUP, "nobody arrives at step 0"),
    ],
)
def test_an_order_or_a_trace_without_sense_is_refused(recorded, flags, named, tmp_path, capsys):
    name = "events.npz" if flags is ASYNC else "worker_seconds-1.npz"
    np.savez(tmp_path / name, **(recorded if flags is ASYNC else {"seconds": np.array(recorded)}))
    assert replay(tmp_path, tmp_path / "run", *flags) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    key = "order" if flags is ASYNC else "path"
    assert ("config.server" if flags is ASYNC else "config.arrivals") in line
    assert key in line
    assert named in line
