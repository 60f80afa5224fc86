"""Workers that finish what they began: against an event loop, over stops and layouts, and in a chart."""

import functools
import itertools

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import reducers
import runs
from experiments.plots import timelines
from planning import backups as planner
from planning import step_times, steps_to_target
from reducers import arrivals
from runs.errors import ConfigError
from tests.cases import FIRST
from tests.event_loop import GRACE, LIMIT, event_loop
from tests.grid import grid
from tests.in_process import keys
from tests.stepper import Stepper, checkpoint_of, digits_setup, end_at, records, setup_of
from tests.test_train import command, digits
from training.steps import late_workers

NUM_STEPS = 1000
SOFTMAX = "--config.model.name=softmax"
REQUIRED = 6
REDUCERS = {
    "backup_workers": keys(f"reducer.num_required={REQUIRED}"),
    "deadline": keys(f"reducer.deadline_seconds={LIMIT}"),
    "quorum": keys(f"reducer.num_required={REQUIRED} reducer.grace_seconds={GRACE}"),
    "dynamic_backup_workers": (),
}
MODELS = {
    "lognormal": keys("arrivals.sigma=0.4"),
    "shifted_exponential": keys("arrivals.shift_seconds=1.0 arrivals.scale_seconds=0.5"),
    "pareto": keys("arrivals.least_seconds=1.0 arrivals.alpha=2.0"),
    "markov": keys("arrivals.base=lognormal arrivals.factor=4.0"),
    "paper_cluster": (),
}
BACKUP = keys("model.name=softmax reducer.name=backup_workers reducer.num_required=6")


def measured(reducer, model):
    """Durations [T, W], and each step's contributors, seconds and busy workers, of the train step itself."""
    names = keys(f"model.name=softmax reducer.name={reducer} arrivals.name={model}")
    once = keys(f"eval_every_epochs=None eval_every_steps={NUM_STEPS}")
    setup = setup_of(*names, *REDUCERS[reducer], *MODELS[model], *once, train_steps=NUM_STEPS)
    waves = Stepper(setup, num_devices=2, lanes="vmap", steps_per_call=50).calls(NUM_STEPS)
    names = ("contributors", "step_seconds", "busy_workers")
    durations = np.asarray(jax.jit(jax.vmap(setup.arrival_seconds))(np.arange(NUM_STEPS)), np.float64)
    return durations, *(np.array([float(wave[name]) for wave in waves]) for name in names)


def check_against_the_event_loop(reducer, model):
    durations, contributors, seconds, busy = measured(reducer, model)
    needed = contributors if reducer == "dynamic_backup_workers" else np.full(NUM_STEPS, REQUIRED)
    counted, expected, were_busy = zip(*event_loop(durations, reducer, needed=needed), strict=True)
    np.testing.assert_array_equal(contributors, [*map(len, counted)])
    np.testing.assert_array_equal(busy, were_busy)
    np.testing.assert_allclose(seconds, expected, rtol=1e-3)
    assert max(were_busy) > 1


QUICK = {("backup_workers", "markov"), ("deadline", "lognormal"), ("quorum", "pareto")}
QUICK |= {("dynamic_backup_workers", "shifted_exponential")}


@pytest.mark.parametrize(("reducer", "model"), grid(REDUCERS, MODELS, quick=QUICK))
def test_a_thousand_steps_are_those_of_an_event_loop(reducer, model):
    check_against_the_event_loop(reducer, model)


WRONG = {
    "nobody_is_late": lambda numpy, busy, durations, seconds: numpy.zeros_like(busy),
    "it_stays_as_busy": lambda numpy, busy, durations, seconds: numpy.maximum(busy, busy + durations - seconds),
    "two_at_once": lambda numpy, busy, durations, seconds: numpy.maximum(numpy.maximum(busy, durations) - seconds, 0),
    "begins_what_is_over": lambda numpy, busy, durations, seconds: numpy.maximum(busy + durations - seconds, 0),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_event_loop_rejects(wrong, monkeypatch):
    monkeypatch.setattr(late_workers, "free_after", functools.partial(WRONG[wrong], jnp))
    with pytest.raises(AssertionError):
        check_against_the_event_loop("backup_workers", "pareto")


def drawn(num_machines, *, num_steps=200):
    model = arrivals.make("pareto", least_seconds=1.0, alpha=2.0)
    return np.float64(arrivals.sample(model, jax.random.key(0), num_workers=num_machines, num_steps=num_steps))


def check_the_planner(durations, rule, name, chosen):
    took = step_times.simulate(durations, rule, late_workers="finish")
    for n in chosen:
        counted, seconds, _ = zip(*event_loop(durations, name, needed=np.full(len(durations), n)), strict=True)
        i = n - 1 if name != "deadline" else 0
        np.testing.assert_allclose(took.seconds[:, i], seconds, rtol=1e-9)
        np.testing.assert_array_equal(took.counted[:, i], [*map(len, counted)])


@pytest.mark.parametrize("num_machines", [8, 50, 100])
def test_the_planner_simulates_it_for_every_number_that_is_waited_for(num_machines):
    chosen = range(1, num_machines + 1) if num_machines < 100 else (1, 50, 96, 100)
    check_the_planner(drawn(num_machines), step_times.first(num_machines), "backup_workers", chosen)


def test_the_planner_simulates_a_time_of_grace_and_a_deadline():
    check_the_planner(drawn(8), step_times.first(8, grace_seconds=GRACE), "quorum", range(1, 9))
    check_the_planner(drawn(8), step_times.by_deadline(np.array([LIMIT])), "deadline", [8])


@pytest.mark.parametrize("wrong", WRONG)
def test_the_event_loop_rejects_a_planner(wrong, monkeypatch):
    monkeypatch.setattr(step_times, "free_after", functools.partial(WRONG[wrong], np))
    with pytest.raises(AssertionError):
        check_the_planner(drawn(8), step_times.first(8), "backup_workers", [4])


def test_a_planner_that_counts_a_worker_twice_is_rejected():
    rule = step_times.first(8, grace_seconds=GRACE)
    twice = rule._replace(ends=lambda order: rule.ends(order)._replace(counted=rule.ends(order).counted + 1))
    with pytest.raises(AssertionError):
        check_the_planner(drawn(8), twice, "quorum", [4])


def test_the_planner_waits_longer_for_those_who_finish():
    law = steps_to_target.power_law(0.85)
    options = {"base": {"name": "lognormal", "sigma": 0.4}}
    finish, interrupt = (
        planner.plan("scripted", num_machines=8, steps_to_target=law, late_workers=how, num_steps=4000, **options)
        for how in ("finish", "interrupt")
    )
    assert (finish.step_seconds[:-1] > interrupt.step_seconds[:-1]).all()
    assert finish.best > interrupt.best
    assert finish.step_seconds[-1] == interrupt.step_seconds[-1]


def test_nobody_is_busy_where_all_are_waited_for_or_late_workers_are_interrupted():
    exponential = "--config.arrivals.name=shifted_exponential"
    for overrides in ((SOFTMAX,), (*BACKUP, "--config.late_workers=interrupt")):
        setup = setup_of(*overrides, exponential)
        assert setup.worker_shapes.free_at is None
        assert "busy_workers" not in Stepper(setup).steps(0, 1).metrics
    assert setup_of(*BACKUP, exponential).worker_shapes.free_at.shape == (8,)


# ---- whole runs ----------------------------------------------------------------------------------------------------

RUN = keys("reducer.num_required=5 log_every_steps=1 log_every_epochs=None arrivals.name=pareto")
RUN = (*BACKUP, *RUN, *MODELS["pareto"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finished")
    assert command(*digits(workdir, *RUN, "--num_devices=2")) == 0
    return workdir


def test_a_stopped_run_goes_on_with_those_who_are_busy_on_another_layout(finished, tmp_path):
    end_at(33, lambda: command(*digits(tmp_path, *RUN, "--num_devices=2")))
    busy = checkpoint_of(tmp_path, digits_setup(*RUN))[1]["state"].free_at
    assert busy.shape == (8,) and (busy > 0).sum() > 1
    assert command(*digits(tmp_path, *RUN, "--num_devices=4")) == 0
    columns = ("step", "step_seconds", "contributors", "busy_workers", "simulated_seconds")
    found, expected = ([[record[key] for key in columns] for record in records(at)] for at in (tmp_path, finished))
    assert found == expected and max(row[3] for row in found) > 1


@pytest.mark.parametrize("inside", ["mean", "backup_workers"])
def test_they_finish_by_default_where_a_step_leaves_workers_out(inside):
    for name, case in FIRST.items():
        block = {"name": name, **case.kwargs}
        fits = name != "bucketing" or FIRST[inside].takes_mask  # bucketing has fewer means than there are workers
        if not case.needs_arrivals and "combine" in reducers.REDUCERS.held(name) and fits:
            block["combine"] = {"name": inside, **FIRST[inside].kwargs}
        made = reducers.make(axis_name="worker", **block)
        leaves_out = made.needs_arrivals and made.local_workers == "never"
        assert (late_workers.by_default(block) == "finish") == leaves_out, name


def test_fingerprints_are_those_of_published_rows():
    """Their configs lacked keys that came later, and called one otherwise."""
    config = digits_setup("--config.late_workers=interrupt").config.to_dict()
    later = {"outer", "late_workers", "weigh", "split"}
    earlier = {"lift" if key == "mapping" else key: value for key, value in config.items() if key not in later}
    assert runs.fingerprint(earlier) == runs.fingerprint(config)
    assert runs.fingerprint({**config, "late_workers": "finish"}) != runs.fingerprint(config)


def test_a_chart_has_what_a_late_worker_finishes_across_the_end_of_the_step(finished):
    config = digits_setup(*RUN).config.to_dict()
    lines = list(runs.stream(finished / "metrics.jsonl"))
    spans = timelines.of_run(lines, config, first_step=1, last_step=40)
    ends = np.cumsum([record["step_seconds"] for record in records(finished)[:40]])
    model = digits_setup(*RUN).arrival_seconds
    for worker in range(8):
        own = sorted((span for span in spans if span.worker == worker), key=lambda span: (span.start, span.stop))
        bars = [span for span in own if span.kind != "applied"]
        assert bars[0].start == 0 and bars[-1].stop == pytest.approx(ends[-1], rel=1e-5)
        for one, following in itertools.pairwise(bars):  # it is never idle without waiting, and never does two things
            assert following.start == pytest.approx(one.stop, rel=1e-5)
        applied = [span.stop for span in own if span.kind == "applied"]
        for span in bars:
            if span.kind == "computing":
                step = int(np.searchsorted(ends, span.stop * (1 - 1e-6)))
                assert span.stop - span.start == pytest.approx(float(model(step)[worker]), abs=1e-3)
        assert len(applied) == sum(span.kind == "computing" for span in bars)
    assert sum(span.kind == "dropped" for span in spans) > 40
    with pytest.raises(ValueError, match="step 2: has no train record; log_every_steps=1 records them all"):
        timelines.of_run([record for record in lines if record["step"] != 2], config, first_step=5, last_step=9)


# ---- recorded times ------------------------------------------------------------------------------------------------


def trace(path, seconds, **more):
    np.savez(path, seconds=np.float32(seconds), **more)
    return ("--config.arrivals.name=trace", f"--config.arrivals.path={path}")


def test_recorded_durations_are_subject_to_it_and_recorded_arrivals_are_not(tmp_path):
    seconds = np.random.default_rng(0).uniform(1, 3, (9, 8))
    durations = trace(tmp_path / "durations.npz", seconds)
    arrived = trace(tmp_path / "arrivals.npz", seconds, began=np.zeros((9, 8), np.float32))
    assert setup_of(*BACKUP, *durations).late_workers_finish
    assert not setup_of(*BACKUP, *arrived).late_workers_finish


def test_who_never_ends_what_it_begins_is_refused(tmp_path):
    seconds = np.ones((4, 8))
    seconds[2, 5] = np.inf
    given = trace(tmp_path / "never.npz", seconds)
    setup_of(*BACKUP, *given, "--config.late_workers=interrupt")
    with pytest.raises(ConfigError, match=r"worker 5 never ends what it begins at step 2; allowed: .*'interrupt'"):
        setup_of(*BACKUP, *given)
