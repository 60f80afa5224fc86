"""Numbers that are not finite: the step is undone and reported, and the state before it is saved."""

import functools

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import runs
import train
from configs import flags
from experiments.study.run import Run as ExperimentRun
from optim import norms
from tests.in_process import DIGITS, keys, train_digits
from tests.stepper import Stepper, checkpoint_of, records, same_bits, setup_of, wrapping
from training.setup import make_setup
from training.steps import nonfinite
from training.train_state import STATE_AXES, to_devices

BASE = keys("""
    model.hidden_sizes=(16,)
    batch_size_per_worker=4
    train_steps=24
    log_every_steps=1
    eval_every_steps=24
    checkpoint_every_steps=12
""")
BAD_STEP, BAD_WORKER = 13, 5
BAD_BATCH = (BAD_STEP - 1) * 8 + BAD_WORKER
KERNEL = "layer Dense_0/kernel"


def poisoned(*batch_indices, what="gradient"):
    """Wraps ``compute``: a NaN in one layer of the gradients of these batches; or in the parameters that they see."""

    def wrap(compute):
        def spoiling(state, batch, resident):
            is_bad = jnp.isin(batch["batch_index"], jnp.array(batch_indices, batch["batch_index"].dtype))

            def spoil(tree):
                kernel = tree["Dense_0"]["kernel"].at[0, 0].add(jnp.where(is_bad, jnp.nan, 0))
                return {**tree, "Dense_0": {**tree["Dense_0"], "kernel": kernel}}

            if what == "params":
                return compute(state._replace(params=spoil(state.params)), batch, resident)
            mine = compute(state, batch, resident)
            updates = spoil(mine.updates)
            return mine._replace(updates=updates, layers=norms.squares(updates))

        return spoiling

    return wrap


@pytest.fixture
def poison(monkeypatch):
    """Makes every step of train.py a poisoned one; returns what ends that."""
    worker_mapping = train.worker_mapping

    def begin(*batch_indices, **kwargs):
        wrap = poisoned(*batch_indices, **kwargs)
        spoiled = lambda *args, **how: wrapping(worker_mapping(*args, **how), wrap)  # noqa: E731
        monkeypatch.setattr(train, "worker_mapping", spoiled)
        return lambda: monkeypatch.setattr(train, "worker_mapping", worker_mapping)

    return begin


def command(workdir, *more):
    return train_digits(workdir, *BASE, *more)


def state_at(workdir, step, *more):
    return checkpoint_of(workdir, make_setup(flags.load(DIGITS, [*BASE, *more])), step)[1]


def of_config(more):
    return tuple(flag for flag in more if "config" in flag)


def error_line(capsys):
    """The one line of the end; the program's own messages aside."""
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "norm" in line or "loss of" in line]
    return line


LAYOUTS = {
    "8 devices": ("--num_devices=8",),
    "lanes": ("--num_devices=4",),
    "dispatched, shard_map": ("--num_devices=2", *keys("lanes=dispatched mapping=shard_map")),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_stop_names_it_and_saves_the_state_before_bit_for_bit(layout, poison, tmp_path, capsys):
    config = of_config(layout)
    cadence = "--config.checkpoint_every_steps=7"  # so that there is no checkpoint of step 12 but that of the stop
    end = poison(BAD_BATCH)
    said = []
    for _ in range(2):  # the same command, being deterministic, stops in the same way
        assert command(tmp_path / "bad", *layout, cadence) == 1
        said.append(error_line(capsys))
    line = f"step 13: gradient of worker 5 has norm nan in {KERNEL}; the state before it is saved, and the same command"
    assert said == [f"{line} tries it again"] * 2
    assert [r["step"] for r in records(tmp_path / "bad")] == list(range(1, 13))
    end()
    assert command(tmp_path / "clean", *layout) == 0
    clean = [state_at(tmp_path / "clean", step, *config) for step in (12, 24)]
    bad = state_at(tmp_path / "bad", 12, *config)
    assert same_bits(bad, clean[0]) and not same_bits(bad, clean[1])
    assert command(tmp_path / "bad", *layout, cadence) == 0  # what was wrong is mended
    assert same_bits(state_at(tmp_path / "bad", 24, *config), clean[1])
    assert records(tmp_path / "bad") == records(tmp_path / "clean")


def test_it_goes_on_with_skip_in_the_same_folder(poison, tmp_path, capsys):
    poison(BAD_BATCH, BAD_BATCH + 8, what="params")
    assert command(tmp_path, "--num_devices=4") == 1
    line = error_line(capsys)
    assert line.startswith("step 13: loss of worker 5 is nan; gradient of worker 5 has norm nan in layer")
    written = [path for path in (tmp_path / "checkpoints").glob("12/*")]
    before = [path.stat().st_mtime_ns for path in written]
    assert command(tmp_path, "--num_devices=4") == 1 and error_line(capsys) == line
    assert written and [path.stat().st_mtime_ns for path in written] == before  # not saved twice
    assert command(tmp_path, "--num_devices=4", "--config.on_nonfinite=skip") == 0
    said = capsys.readouterr().err
    assert said.count("; the step is skipped") == 2 and "2 steps were skipped since the start" in said
    found = {r["step"]: r for r in records(tmp_path)}
    assert [step for step, r in found.items() if r.get("skipped")] == [13, 14]
    assert np.isnan(found[13]["loss"])
    assert np.isfinite(found[15]["loss"])
    assert list(found) == list(range(1, 25))
    assert np.isfinite(records(tmp_path, "eval")[-1]["loss"])
    examples = [(found[step]["examples"] // 32, found[step]["dropped_examples"] // 32) for step in (12, 13, 14, 15, 24)]
    assert examples == [(12, 0), (12, 1), (12, 2), (13, 2), (22, 2)]  # in steps of 8 workers x 4


def test_a_skipped_step_at_the_end_of_a_round_decides_nothing(poison, tmp_path):
    """The round ends a step later, in which the examples of its four steps count."""
    poison(11 * 8 + 5, what="params")
    rounds = keys("""
        reducer.name=local_sgd
        reducer.every_steps=4
        reducer.combine={'name':'backup_workers','num_required':6}
        reducer_on=updates
        ema_decay=None
        arrivals.name=lognormal
        on_nonfinite=skip
    """)
    assert command(tmp_path, *rounds, "--num_devices=4") == 0
    found = {r["step"]: (r["examples"] // 4, r["dropped_examples"] // 4) for r in records(tmp_path)}
    counted = {11: (48, 16), 12: (48, 24), 13: (72, 32), 24: (120, 48)}
    assert {step: found[step] for step in counted} == counted


def test_of_the_first_step_and_of_an_update_and_ignored(tmp_path, capsys):
    huge = keys("optimizer.learning_rate=3e38 schedule.name=constant train_steps=3")
    assert command(tmp_path / "stop", *huge) == 1
    line = error_line(capsys)
    assert "step 1: the optimizer's update has norm" in line
    assert "though all that it was made of is finite" in line
    assert int(state_at(tmp_path / "stop", 0)["state"].step) == 0
    assert command(tmp_path / "stop", *huge) == 1 and error_line(capsys) == line
    assert command(tmp_path / "ignore", *huge, "--config.on_nonfinite=ignore") == 0
    assert np.isnan(records(tmp_path / "ignore")[-1]["loss"])
    assert "skipped" not in records(tmp_path / "ignore")[-1]


def test_a_full_disk_does_not_hide_it(poison, tmp_path, monkeypatch, capsys):
    poison(BAD_BATCH)

    def full(*args, **kwargs):
        raise runs.SaveError("checkpoint 12 could not be saved: no space")

    monkeypatch.setattr(runs.Checkpoints, "save", full)
    assert command(tmp_path, "--config.checkpoint_every_steps=24") == 1
    assert "worker 5" in (line := error_line(capsys)) and "could not be saved: no space" in line


# ---- by hand -----------------------------------------------------------------------------------------------------

PLAIN = keys("model.name=mlp model.hidden_sizes=(16,) schedule.name=constant")


def on_device(run):
    """The state as it is on the devices."""
    return run.layout.get(run.state, STATE_AXES)


def check_undone(on_nonfinite, *overrides, what="gradient"):
    """Three good steps, and a bad one; returns the run and the state before the bad one."""
    setup = setup_of(*PLAIN, f"--config.on_nonfinite={on_nonfinite}", *overrides)
    run = Stepper(setup, num_devices=4, wrap=poisoned(3 * 8 + 6, what=what)).steps(0, 3)
    before = on_device(run)
    run.steps(3, 4)
    after = on_device(run)
    assert (after.step, after.stopped) == {"skip": (4, False), "stop": (3, True)}[on_nonfinite]
    assert same_bits(after._replace(step=before.step, stopped=before.stopped), before)
    return run, before


REDUCED = {
    "mean": (),
    "adasum": keys("reducer.name=adasum reducer_on=updates"),
    "stale": keys("reducer.name=stale reducer.delay_steps=2"),
    "trimmed_mean": keys("reducer.name=trimmed_mean"),
}


@pytest.mark.parametrize("overrides", REDUCED.values(), ids=REDUCED)
def test_what_is_in_flight_changes_nothing_after_a_stop(overrides):
    run, before = check_undone("stop", *overrides)
    run.steps(4, 6)
    assert same_bits(run.host(), before._replace(stopped=None))


@pytest.mark.parametrize("overrides", REDUCED.values(), ids=REDUCED)
def test_a_skipped_step_is_as_if_its_batch_was_never_seen(overrides):
    run, before = check_undone("skip", *overrides)
    assert run.metrics["skipped"] == 1
    run.steps(4, 8)
    assert run.metrics["skipped"] == 0
    other = Stepper(setup_of(*PLAIN, "--config.on_nonfinite=skip", *overrides), num_devices=4)
    other.state = to_devices(before._replace(step=np.int32(4)), other.layout)
    other.steps(4, 8)
    assert same_bits(run.host(), other.host())


def test_that_check_rejects_going_on_with_it(monkeypatch):
    monkeypatch.setattr(nonfinite, "undo", lambda is_bad, before, after, then: after)
    with pytest.raises(AssertionError):
        check_undone("skip")


def test_under_a_loss_scale_a_loss_counts_and_an_overflow_does_not():
    scaled = keys("loss_scaling.name=dynamic model.dtype=float16")
    check_undone("stop", *scaled, what="params")
    run = Stepper(setup_of(*PLAIN, *scaled, "--config.loss_scaling.initial_scale=1e36")).steps(0, 2)
    assert run.metrics["skipped"] == 1 and on_device(run).step == 2


def test_a_late_workers_nan_does_not_stop():
    late = keys("""
        arrivals.name=scripted arrivals.events=((6,3,9.0),)
        reducer.name=backup_workers reducer.num_required=7
    """)
    setup = setup_of(*PLAIN, *late)
    run = Stepper(setup, num_devices=4, wrap=poisoned(3 * 8 + 6, what="params")).steps(0, 5)
    assert on_device(run).step == 5 and np.isfinite(run.metrics["loss"])
    in_time = Stepper(setup, num_devices=4, wrap=poisoned(3 * 8 + 5, what="params")).steps(0, 5)
    assert on_device(in_time).stopped and on_device(in_time).step == 3


def test_a_sum_that_overflows_is_of_no_worker():
    def wrap(compute):
        def huge(*args):
            mine = compute(*args)
            updates = jax.tree.map(lambda g: jnp.full_like(g, 1e16), mine.updates)
            updates["Dense_1"]["bias"] = jnp.full_like(updates["Dense_1"]["bias"], 1.5e18)
            return mine._replace(updates=updates, layers=norms.squares(updates))

        return huge

    run = Stepper(setup_of(*PLAIN, "--config.reducer.name=sum"), num_devices=4, wrap=wrap).steps(0, 1)
    layers = ["Dense_0/bias", "Dense_0/kernel", "Dense_1/bias", "Dense_1/kernel"]
    said = nonfinite.describe(run.report, workers=range(8), layers=layers)
    assert said.startswith("the reduced gradient has norm inf in layer Dense_1/bias, though")


@pytest.mark.parametrize(
    "overrides",
    [
        keys("reducer.name=adasum"),
        (),
        keys("communication.name=half"),
    ],
)
def test_looking_adds_no_collective(overrides):
    counts = {}
    for on_nonfinite in ("ignore", "skip", "stop"):
        run = Stepper(setup_of(*PLAIN, *overrides, f"--config.on_nonfinite={on_nonfinite}"), num_devices=4)
        text = run.step.lower(*run.shapes())["step"][0].as_text()
        kinds = ("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "collective_permute")
        counts[on_nonfinite] = [text.count(f"stablehlo.{kind}") for kind in kinds]
    assert counts["ignore"] == counts["skip"] == counts["stop"] and sum(counts["stop"]) > 1


def test_lines_name_the_first_few():
    nan = np.full(5, np.nan)
    report = nonfinite.NonfiniteReport(True, np.zeros(5), nan, nan, np.stack([nan, nan]))
    said = nonfinite.describe(report, workers=range(5), layers=list("abcde"))
    assert said == "gradient of workers 0, 1, 2 and 2 more has norm nan in layers a, b, c and 2 more"


# ---- workers that do not wait ------------------------------------------------------------------------------------

ASYNC = (
    *keys("server.name=asynchronous arrivals.name=shifted_exponential optimizer.learning_rate=0.02"),
    "--num_devices=2",
)


def test_an_asynchronous_run_stops_before_the_wave(poison, tmp_path, capsys):
    end = poison(18)
    for _ in range(2):
        assert command(tmp_path / "bad", *ASYNC) == 1
        line = error_line(capsys)
        assert "gradient of worker" in line and KERNEL in line and "the state before it is saved" in line
    end()
    step = max(int(path.name) for path in (tmp_path / "bad/checkpoints").iterdir() if path.name.isdecimal())
    first = int(line.split(":")[0].split()[1])
    assert step == first - 1 and records(tmp_path / "bad")[-1]["step"] == step
    assert command(tmp_path / "clean", *ASYNC) == 0
    assert command(tmp_path / "bad", *ASYNC) == 0
    assert same_bits(*(state_at(tmp_path / name, 24, *of_config(ASYNC)) for name in ("bad", "clean")))
    assert records(tmp_path / "bad") == records(tmp_path / "clean")


def test_a_wave_that_no_run_begins_with_leaves_the_last_checkpoint(poison, tmp_path, capsys):
    soft = (*ASYNC, *keys("server.gradients_per_update=5 checkpoint_every_steps=4"))
    setup = make_setup(flags.load(DIGITS, [*BASE, *of_config(soft)]))
    waves = [wave for plan in setup.plans(0, steps_per_call=1) for wave in plan.waves]
    wave = next(wave for wave in waves if not wave.none_was_pending and wave.steps.start > 9)
    poison(int(wave.batch_index[wave.batch_index >= 0][0]))
    assert command(tmp_path, *soft) == 1
    line = error_line(capsys)
    assert f"step{'s' if len(wave.steps) > 1 else ''} {wave.steps.start}" in line
    assert line.endswith("the same command tries it again from the last checkpoint")
    saved = max(int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdecimal())
    assert saved == (wave.steps.start - 1) // 4 * 4


def test_a_dropped_gradients_nan_is_nowhere_in_an_update_of_several():
    rule = keys("server.rule={'name':'threshold','max_staleness':2} server.gradients_per_update=3")
    setup = setup_of(*PLAIN, *of_config(ASYNC), *rule)
    (events,) = setup.mode.events()
    staleness, batch = events.staleness, events.batch_index
    for batches, is_bad in ((batch[staleness > 2], False), (batch[staleness <= 2][-1:], True)):
        run = Stepper(setup, num_devices=2, wrap=poisoned(*batches.tolist()))
        waves = run.calls(len(list(setup.plans(0, steps_per_call=1))))
        assert len(batches) and any(wave["nonfinite"].is_bad for wave in waves) == is_bad


def test_experiments_go_on_with_it():
    run = functools.partial(ExperimentRun, labels={}, spec=DIGITS)
    assert run().config["on_nonfinite"] == "ignore"
    assert run(overrides={"on_nonfinite": "stop"}).config["on_nonfinite"] == "stop"
