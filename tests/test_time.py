"""Time in the step and in a run: the simulated clock, what is counted, and that nothing of a dropped worker leaks."""

import functools
import json

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import runs
from parallel import Layout, WorkerTimes, dispatch_lanes
from reducers.arrivals import first_arrivals
from tests.in_process import keys
from tests.refused import refused
from tests.stepper import DATASET, Stepper, end_and_go_on, setup_of
from tests.test_train import command, digits, without_clock
from training.steps import train_step

# All begin each step together, so that arrival times are those of the model alone.
TOGETHER = "late_workers=interrupt"
LOGNORMAL = keys(f"arrivals.name=lognormal arrivals.sigma=0.5 {TOGETHER}")
BACKUP = (*keys("reducer.name=backup_workers reducer.num_required=6"), *LOGNORMAL)
STALE = keys("reducer.name=stale reducer.delay_steps=1 reducer.combine={'name':'backup_workers','num_required':6}")
# (worker, step, seconds), all else 1 s.
SOFTMAX = "--config.model.name=softmax"  # where the network does not matter
NORMALISED = "--config.model.name=tests.stepper:Normalised"  # a network with statistics
EVENTS = ((0, 0, 5.0), (1, 1, 0.5), (7, 1, 4.0), (6, 1, 3.0), (5, 1, 2.0))
SCRIPTED = (*keys(f"arrivals.name=scripted {TOGETHER}"), f"--config.arrivals.events={EVENTS}")


# ---- the clock of a step -------------------------------------------------------------------------------------------

IN_A_SECOND = "{'name':'deadline','deadline_seconds':1}"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("mean", [(5.0, 8), (4.0, 8)]),  # the slowest
        ("adasum", [(5.0, 8), (4.0, 8)]),
        ("backup_workers reducer.num_required=7", [(1.0, 7), (3.0, 7)]),
        ("backup_workers reducer.num_required=6 reducer.combine=adasum", [(1.0, 6), (2.0, 6)]),
        ("deadline reducer.deadline_seconds=2.5", [(2.5, 7), (2.5, 6)]),
        ("dynamic_backup_workers", [(5.0, 8), (4.0, 8)]),  # warms up
        (f"stale reducer.delay_steps=1 reducer.combine={IN_A_SECOND}", [(1.0, 7), (1.0, 5)]),
    ],
)
def test_a_step_takes_as_long_as_its_rule_says(rule, expected):
    run = Stepper(setup_of(SOFTMAX, *SCRIPTED, *keys(f"reducer.name={rule}")), num_devices=2)
    found = [run.steps(step, step + 1).metrics for step in range(2)]
    assert [(metrics["step_seconds"], metrics["contributors"]) for metrics in found] == expected


def test_no_time_passes_where_none_is_modelled():
    metrics = Stepper(setup_of(SOFTMAX)).steps(0, 1).metrics
    assert metrics["step_seconds"] == 0 and metrics["contributors"] == 8


@pytest.mark.parametrize(("num_workers", "num_devices"), [(8, 2), (8, 8), (6, 2), (5, 1)])
def test_the_clock_knows_no_layout(num_workers, num_devices):
    """The N-th of the very seconds that the model gives on the host; workers in any number, on any layout."""
    overrides = keys(f"num_workers={num_workers} reducer.num_required=4")
    run = Stepper(setup_of(SOFTMAX, *BACKUP, *overrides), num_devices=num_devices)
    for step in range(3):
        seconds = np.asarray(run.setup.arrival_seconds(step))
        run.steps(step, step + 1)
        assert run.metrics["step_seconds"] == np.sort(seconds)[3] and seconds.shape == (num_workers,)
        assert run.metrics["contributors"] == 4


def test_seeds_have_times_of_their_own():
    one, same, other = (setup_of(*BACKUP, f"--config.seed={seed}").arrival_seconds(3) for seed in (0, 0, 1))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


# ---- nothing of a dropped worker leaks -----------------------------------------------------------------------------


def spoiled(setup):
    """Wraps ``compute``: what a late worker computes becomes ``resident["value"]``, with one program for all values."""

    def wrap(compute):
        def spoiling(state, batch, resident):
            late = ~first_arrivals(setup.arrival_seconds(state.step), 6).contributes[batch["batch_index"] % 8]

            def spoil(x):
                floating = jnp.issubdtype(x.dtype, jnp.floating)
                return jnp.where(late, resident["value"].astype(x.dtype), x) if floating else x

            return jax.tree.map(spoil, compute(state, batch, resident))

        return spoiling

    return wrap


def check_no_leak(*overrides, values=(0.0, np.nan, np.inf)):
    """Six steps in which other workers are late each time: state and metrics to the bit, and an evaluation."""
    setup = setup_of(NORMALISED, *LOGNORMAL, *overrides)
    late = [np.argsort(setup.arrival_seconds(step))[6:].tolist() for step in range(6)]
    assert len({worker for workers in late for worker in workers}) > 3
    seen = []
    step = Stepper(setup, num_devices=4, wrap=spoiled(setup)).step
    for value in values:
        run = Stepper(setup, num_devices=4)
        run.step, run.resident["value"] = step, run.layout.put_shared(np.float32(value))
        run.steps(0, 6)
        seen.append((jax.tree.leaves(run.state), run.metrics, run.evaluate()))
    for leaves, metrics, quality in seen:
        assert all(np.isfinite(value) for value in (*metrics.values(), *quality.values()))
        assert (metrics, quality) == seen[0][1:]
        jax.tree.map(np.testing.assert_array_equal, leaves, seen[0][0])


@pytest.mark.parametrize(
    "overrides",
    [
        BACKUP,
        (*BACKUP, *keys("reducer.combine=adasum reducer_on=updates")),
        (*BACKUP, *keys("loss_scaling.name=dynamic communication.name=half")),
        STALE,
    ],
    ids=["mean", "adasum of updates", "half precision", "stale"],
)
def test_a_dropped_workers_nan_is_nowhere(overrides):
    check_no_leak(*overrides)


@pytest.mark.parametrize("name", ["multi_krum", "geometric_median"])
def test_the_nan_of_a_worker_that_a_rule_leaves_out_is_nowhere(name):
    """It weighs nothing, so it does not stop the run, and its statistics and loss are as if it were late."""
    check_no_leak(f"--config.reducer.name={name}", values=(np.nan, np.inf, -np.inf))


def test_the_check_of_leaks_rejects(monkeypatch):
    with pytest.raises(AssertionError):
        check_no_leak("--config.reducer.name=mean", values=(np.nan,))
    monkeypatch.setattr(train_step, "leave_out", lambda mine, before, counted: mine)
    with pytest.raises(AssertionError):  # parameters are right, but statistics and metrics are not
        check_no_leak(*BACKUP, values=(np.nan,))


def test_a_dropped_worker_keeps_its_statistics():
    """As if it had not begun the step; the others' are those of their own batches."""
    means = lambda run: run.host().worker.model_state["batch_stats"]["BatchNorm_0"]["mean"]  # noqa: E731
    run = Stepper(setup_of(NORMALISED, *BACKUP))
    before = means(run)
    plain = means(Stepper(setup_of(NORMALISED)).steps(0, 1))
    counts = np.asarray(first_arrivals(run.setup.arrival_seconds(0), 6).contributes)
    after = means(run.steps(0, 1))
    np.testing.assert_array_equal(after[~counts], before[~counts])
    np.testing.assert_allclose(after[counts], plain[counts], atol=1e-6)
    assert not np.array_equal(before[counts], plain[counts])


def test_losses_are_of_those_that_count():
    """The loss of three workers of four is that of a run with these three alone."""
    late = keys("""
        arrivals.name=scripted arrivals.events=((3,0,9.0),)
        reducer.name=backup_workers reducer.num_required=3
    """)

    def metrics(num_workers, *more):
        setup = setup_of(f"--config.num_workers={num_workers}", *more)
        return Stepper(setup, num_devices=num_workers).steps(0, 1).metrics

    found = metrics(4, *late)
    expected = metrics(3)  # batches 0 to 2, as the first three of four
    for name in ("loss", "accuracy", "gradient_norm", "reduced_norm"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5), name
    assert found["loss"] != pytest.approx(metrics(4)["loss"])


# ---- epochs and rates count what is used ---------------------------------------------------------------------------


def test_an_epoch_is_of_used_examples():
    steps = lambda *more: setup_of(*keys("train_epochs=2 train_steps=None"), *more).num_steps  # noqa: E731
    num_train = DATASET.train.num_examples
    assert steps() == -(-2 * num_train // 32)
    assert steps(*BACKUP) == -(-2 * num_train // 24)
    assert steps(*LOGNORMAL, *STALE) == steps(*BACKUP)


def test_the_rate_follows_those_who_are_waited_for():
    def rate(*more):
        setup = setup_of(*keys("learning_rate_scaling=linear schedule.name=constant"), *more)
        return float(setup.learning_rate(0))

    assert rate(*BACKUP) == pytest.approx(0.02 * 6) and rate(*LOGNORMAL) == pytest.approx(0.02 * 8)
    server = ("--config.server.name=asynchronous", *LOGNORMAL)  # its updates are of single gradients, or of so many
    assert rate(*server) == pytest.approx(0.02)
    assert rate(*server, "--config.server.gradients_per_update=3") == pytest.approx(0.02 * 3)


# ---- a run ---------------------------------------------------------------------------------------------------------

STOP_AT = 33


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Runs that were never stopped, by the flags of their reducer."""

    @functools.cache
    def run(*flags):
        workdir = tmp_path_factory.mktemp("finished")
        assert command(*digits(workdir, SOFTMAX, *flags)) == 0
        return workdir

    return run


def test_records_of_a_run(finished):
    records = without_clock(finished(*BACKUP))
    seconds = np.sort(jax.vmap(setup_of(*BACKUP).arrival_seconds)(np.arange(120)), axis=1)[:, 5]
    for record in records:
        step = record["step"]
        assert record["examples"] == step * 6 * 16 and record["dropped_examples"] == step * 2 * 16
        assert record["epoch"] == step * 96 / 1437 and record["contributors"] == 6
        assert record["step_seconds"] == seconds[step - 1]
        assert record["simulated_seconds"] == pytest.approx(seconds[:step].sum(dtype=np.float64), rel=1e-12)
    for record in runs.read(finished(*BACKUP) / "metrics.jsonl"):
        steps_per_second = record.get("steps_per_second", 0)
        assert record.get("examples_per_second", 0) == pytest.approx(6 * 16 * steps_per_second)
    summary = json.loads((finished(*BACKUP) / "DONE").read_text())
    rate = summary["steps_per_second"]  # None where all steps ended together
    assert summary["examples_per_second"] == (rate and pytest.approx(6 * 16 * rate))
    for key in ("simulated_seconds", "dropped_examples", "epoch"):
        assert summary[key] == records[-1][key] > 0


DYNAMIC = ("--config.reducer.name=dynamic_backup_workers", *LOGNORMAL)


@pytest.mark.parametrize("flags", [BACKUP, DYNAMIC], ids=["backup", "dynamic"])
def test_a_stopped_run_goes_on_with_its_clock(flags, finished, tmp_path):
    end_and_go_on(STOP_AT, lambda: command(*digits(tmp_path, SOFTMAX, *flags)))
    reference = finished(*flags)
    assert without_clock(tmp_path) == without_clock(reference)
    dropped = [record["dropped_examples"] for record in without_clock(reference)]
    assert dropped[-1] > dropped[0] or flags is not DYNAMIC


def test_a_run_records_its_own_times_and_another_replays_them(tmp_path):
    short = keys("model.name=softmax train_steps=5 eval_every_steps=5 checkpoint_every_steps=5")
    assert command(*digits(tmp_path / "timed", *short, "--record_times", "--num_devices=2")) == 0
    assert command(*digits(tmp_path / "free", *short, "--config.lanes=dispatched", "--num_devices=2")) == 0
    assert without_clock(tmp_path / "timed") == without_clock(tmp_path / "free")  # measuring changes nothing else
    path = tmp_path / "timed" / "worker_seconds-2.npz"  # the first step, in which programs are compiled, is left out
    recorded = np.load(path)["seconds"]
    assert recorded.shape == (4, 8)
    assert (recorded > 0).all()
    assert not list((tmp_path / "free").glob("*.npz"))
    setup = setup_of("--config.arrivals.name=trace", f"--config.arrivals.path={path}")
    np.testing.assert_array_equal([setup.arrival_seconds(step) for step in range(4)], recorded)


def test_each_worker_is_timed_by_itself():
    """A worker with far more to do than the others takes longest, wherever it sits."""

    def compute(state, batch, resident):
        del resident
        rounds = jnp.where(batch["batch_index"] == 5, 20_000_000, 300)
        return jax.lax.fori_loop(0, rounds, lambda _, x: jnp.sin(x), jnp.float32(1.0)) + state[0]

    def update(state, mine, inputs):
        del mine, inputs
        return state, {}

    axes = (None, 0)
    for num_devices in (1, 2, 8):
        layout = Layout.of(8, num_devices=num_devices)
        times = WorkerTimes(layout)
        step = dispatch_lanes(compute, update, layout=layout, state_axes=axes, worker_times=times)
        for _ in range(2):
            batch = {"batch_index": layout.split_steps(np.arange(8, dtype=np.uint32)[None])}
            step(layout.put((np.float32(0), np.zeros(8)), axes), batch, {}, {})
        assert times.seconds.argmax() == 5 and (times.seconds > 0).all()


def test_times_of_a_run_that_is_killed_are_recorded_once(tmp_path, monkeypatch):
    """It is killed after the trace reaches step 8, and before the checkpoint of step 8 is there."""
    arguments = keys("model.name=softmax train_steps=12 checkpoint_every_steps=4 keep_checkpoints=9")
    timed = digits(tmp_path, *arguments, "--record_times", "--num_devices=2")
    save = runs.Checkpoints.save

    def killed(self, step, *rest, **options):
        if step == 8:
            raise KeyboardInterrupt
        save(self, step, *rest, **options)

    monkeypatch.setattr(runs.Checkpoints, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        command(*timed)
    monkeypatch.undo()
    assert {path.name: len(np.load(path)["seconds"]) for path in tmp_path.glob("*.npz")} == {"worker_seconds-2.npz": 7}
    assert command(*timed) == 0
    recorded = {path.name: len(np.load(path)["seconds"]) for path in tmp_path.glob("*.npz")}
    assert recorded == {"worker_seconds-2.npz": 3, "worker_seconds-6.npz": 7}  # steps 2 to 4 and 6 to 12


ODD_SECONDS = {
    "flat": {"seconds": np.ones(3, np.float32)},
    "whole numbers": {"seconds": np.ones((3, 2), np.int64)},
    "nan": {"seconds": np.array([[1.0, np.nan]], np.float32)},
    "zero": {"seconds": np.array([[1.0, 0.0]], np.float32)},
    "began elsewhere": {"seconds": np.ones((3, 2), np.float32), "began": np.zeros((3, 1), np.float32)},
    "began never": {"seconds": np.ones((3, 2), np.float32), "began": np.full((3, 2), np.nan, np.float32)},
    "more workers": {"seconds": np.ones((4, 3), np.float32)},
}


@pytest.mark.parametrize("name", ODD_SECONDS)
def test_a_run_does_not_go_on_with_seconds_that_it_did_not_write(name, tmp_path):
    """Those of three workers were read as another number of steps of two."""
    path = runs.trace_path(tmp_path, first_step=1)
    np.savez(path, **ODD_SECONDS[name])
    with refused(ValueError, r"worker_seconds-1\.npz': .*; move it away$"):
        runs.TraceRecorder(num_workers=2).go_on(path, num_steps=len(ODD_SECONDS[name]["seconds"]))


def test_traces_are_cut_where_the_run_goes_on(tmp_path):
    for first, count in ((2, 10), (13, 8), (30, 5)):
        recorder = runs.TraceRecorder(num_workers=2)
        for step in range(first, first + count):
            recorder.add([step, step], began=np.array([0.0, step / 2]) if first == 13 else None)
        recorder.write(runs.trace_path(tmp_path, first_step=first))
    (tmp_path / "worker_seconds-mine.npz").write_text("not a run's")
    whole = runs.trace_path(tmp_path, first_step=2).read_bytes()
    runs.cut_traces(tmp_path, last_step=15)
    assert runs.trace_path(tmp_path, first_step=2).read_bytes() == whole
    cut = runs.trace_path(tmp_path, first_step=13)
    assert runs.read_times(cut)["seconds"][:, 0].tolist() == [13, 14, 15]
    assert runs.read_times(cut)["began"][:, 1].tolist() == [6.5, 7, 7.5]
    recorder = runs.TraceRecorder(num_workers=2)
    assert not recorder.go_on(cut, num_steps=4) and recorder.num_steps == 0
    assert recorder.go_on(cut, num_steps=3)
    before = cut.read_bytes()
    recorder.write(cut)
    assert cut.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"worker_seconds-{name}.npz" for name in ("13", "2", "mine")
    ]
    runs.trace_path(tmp_path, first_step=2).write_bytes(whole[:-40])
    with refused(ValueError, r"worker_seconds-2\.npz': is no trace of seconds"):
        runs.cut_traces(tmp_path, last_step=15)
