"""Whole runs of local workers: layouts, exact resume, evaluation, records, refusals."""

import jax
import numpy as np
import pytest

import live
import reducers
import runs
import train
from tests.in_process import keys, train_digits
from tests.softmax_digits import stepper_of
from tests.stepper import (
    Stepper,
    ask_to_stop,
    checkpoint_of,
    crash,
    digits_setup,
    end_and_go_on,
    largest_difference,
    records,
    same_bits,
    setup_of,
)
from training import dry_run
from training.checkpoints import initial_of, restore_params

COMMON = keys(
    "reducer_on=updates ema_decay=None arrivals.name=lognormal model.hidden_sizes=(16,) batch_size_per_worker=4 "
    "train_steps=42 log_every_steps=1 eval_every_steps=14 checkpoint_every_steps=7"
)


def reducer(name, **options):
    return (f"--config.reducer.name={name}", *(f"--config.reducer.{key}={value}" for key, value in options.items()))


RUN = (*COMMON, *reducer("local_sgd", every_steps=5, delay_steps=2))


def run(workdir, *more):
    """Trains; returns the exit code."""
    return train_digits(workdir, *(more or RUN))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("apart")
    assert run(workdir) == 0
    return workdir


# ---- layouts -----------------------------------------------------------------------------------------------------

REDUCERS = {
    "local_sgd": reducer("local_sgd", every_steps=3),
    "delayed": reducer("local_sgd", every_steps=3, delay_steps=2, from_step=2),
    "elastic_averaging": reducer("elastic_averaging", every_steps=2, strength=0.1),
    "gossip": reducer("gossip", topology="exponential"),
}
NETWORK = keys("reducer_on=updates model.hidden_sizes=(16,) ema_decay=None")


@pytest.mark.parametrize("name", REDUCERS)
def test_several_steps_of_one_call(name):
    setup = setup_of(*NETWORK, *REDUCERS[name], *keys("eval_every_steps=20 eval_every_epochs=None"))
    one, several = (Stepper(setup, num_devices=2, lanes="vmap", steps_per_call=k) for k in (1, 4))
    of_one = [float(step["communications"]) for _ in range(8) for step in one.calls(1)]
    of_several = [float(step["communications"]) for _ in range(2) for step in several.calls(1)]
    assert of_one == of_several
    assert largest_difference(one.host().params, several.host().params) < 1e-6


def test_a_dry_run_traces_the_step_and_counts_the_drift():
    text = dry_run.describe(digits_setup(*RUN), num_devices=4, compiled="never")
    params = sum(4 * x.size for x in jax.tree.leaves(digits_setup(*RUN).worker_shapes.params))
    line = next(line for line in text.splitlines() if "state of the reducer" in line)
    copies = int(line.replace(",", "").split()[-1]) / params
    assert copies == pytest.approx(2 * 2, abs=0.05)  # two lanes, two copies


# ---- resume ------------------------------------------------------------------------------------------------------


# Steps 10 to 12 are within a delay, 13 and 14 within a round.
@pytest.mark.parametrize(("after", "end"), [(11, ask_to_stop), (24, crash), (13, ask_to_stop)])
def test_ended_and_gone_on_is_bit_for_bit_the_same(after, end, finished, tmp_path):
    end_and_go_on(after, lambda: run(tmp_path), end)
    assert same_bits(*(checkpoint_of(workdir, digits_setup(*RUN))[1] for workdir in (tmp_path, finished)))
    assert records(tmp_path) == records(finished)
    assert records(tmp_path, "eval") == records(finished, "eval")


# ---- evaluation --------------------------------------------------------------------------------------------------


def mean_of_workers(state):
    drift = reducers.report(state.reducer_state).drift
    return jax.tree.map(lambda p, u: p + u.mean(0), state.params, drift)


def test_a_run_is_evaluated_at_the_mean_of_the_workers(finished, capsys):
    """Step 42 is the merge of what was launched at step 40: the workers are apart by two steps."""
    found = checkpoint_of(finished, digits_setup(*RUN))[1]
    last = records(finished, "eval")[-1]
    mean = mean_of_workers(found["state"])
    assert largest_difference(found["mean_params"], mean) < 1e-7
    assert largest_difference(found["state"].params, mean) > 1e-4
    apart = Stepper(setup_of(*RUN), num_devices=2)
    apart.state = apart.state._replace(params=apart.layout.put_shared(mean))
    quality = apart.evaluate()
    assert quality["loss"] == pytest.approx(last["loss"], rel=1e-5)
    assert quality["accuracy"] == last["accuracy"]
    drift = jax.tree.leaves(reducers.report(found["state"].reducer_state).drift)
    distance = sum(np.square(u - u.mean(0)).sum() / 8 for u in drift)
    assert last["consensus_distance"] == pytest.approx(distance, rel=1e-4) and distance > 1e-8
    assert run(finished, *RUN, "--evaluate_only") == 0
    assert f"{last['accuracy']:.2%}" in capsys.readouterr().out


def test_another_run_begins_with_the_mean_of_the_workers(finished):
    mean = mean_of_workers(checkpoint_of(finished, digits_setup(*RUN))[1]["state"])
    plain = digits_setup("--config.model.hidden_sizes=(16,)")
    assert largest_difference(initial_of(plain, str(finished)).params, mean) < 1e-7
    assert largest_difference(restore_params(finished, checkpoint="latest"), mean) < 1e-7


def test_a_moving_average_is_evaluated_where_there_is_one():
    stepper = stepper_of(*REDUCERS["local_sgd"], "--config.ema_decay=0.5").steps(0, 7)
    host = stepper.host()
    average = stepper.evaluate()
    stepper.state = stepper.state._replace(ema=None, params=stepper.layout.put_shared(host.ema))
    drift = jax.tree.map(np.zeros_like, reducers.report(host.reducer_state).drift)
    assert largest_difference(host.ema, host.params) > 1e-4
    report = stepper.state.reducer_state.report._replace(drift=stepper.layout.put_per_worker(drift))
    stepper.state = stepper.state._replace(reducer_state=stepper.state.reducer_state._replace(report=report))
    assert stepper.evaluate()["loss"] == pytest.approx(average["loss"], rel=1e-6)


# ---- records -----------------------------------------------------------------------------------------------------


def test_records_tell_bytes_and_communications(finished):
    found = records(finished)
    traffic = digits_setup(*RUN).traffic.bytes_per_worker
    merges = [r["step"] for r in found if r["communications"]]
    assert merges == [*range(7, 43, 5)] and found[-1]["sent_bytes"] == len(merges) * traffic
    assert [r["sent_bytes"] for r in found] == [traffic * sum(m <= r["step"] for m in merges) for r in found]
    assert checkpoint_of(finished, digits_setup(*RUN))[1]["counters"]["sent_bytes"] == len(merges) * traffic


# ---- refusals ----------------------------------------------------------------------------------------------------

LOCAL, GOSSIP = "config.reducer.name='local_sgd'", "config.reducer.name='gossip'"
OUTERMOST = "must emit every update; a reducer of local workers has to be the outermost"
DELAYED = "reducer.name=local_sgd reducer.every_steps=5 reducer.delay_steps=2"
OUTER = "outer.name=sgd outer.learning_rate=0.7"
REFUSED = {  # keys of the config -> the line
    f"{DELAYED} reducer_on=gradients": f"config.reducer_on='gradients': {LOCAL} needs 'updates'",
    f"{DELAYED} reducer.delay_steps=6": "config.reducer.delay_steps=6: exceeds every_steps=5",
    f"{DELAYED} reducer.combine={{'name':'backup_workers','num_required':6}}": (
        "config.reducer.delay_steps=2: must be 0 where combine leaves workers out"
    ),
    "reducer.name=stale reducer.delay_steps=1 reducer.combine={'name':'gossip'}": (
        f"config.reducer.combine: {OUTERMOST}"
    ),
    "reducer.name=local_sgd reducer.every_steps=2 reducer.combine={'name':'gossip'}": (
        f"config.reducer.combine: {OUTERMOST}"
    ),
    f"{DELAYED} server.name=asynchronous": (
        "config.server.name='asynchronous': needs config.reducer.name='mean', not 'local_sgd'"
    ),
    "reducer.name=gossip ema_decay=0.9": f"config.ema_decay=0.9: must be None, since {GOSSIP} shares no parameters",
    f"reducer.name=gossip {OUTER}": f"config.outer.name='sgd': must be 'none', since {GOSSIP} emits nothing to it",
    f"reducer_on=gradients {OUTER}": "config.outer.name='sgd': needs config.reducer_on='updates', not 'gradients'",
    "outer.name=sgdd": "config.outer.name='sgdd': unknown name; did you mean 'sgd'?",
    f"{OUTER} outer.learning_rate=-1": "config.outer.learning_rate=-1.0: must be float in (0, inf)",
    "reducer.name=gossip reducer.topology=star": "config.reducer.topology='star': must be one of 'complete', ",
    "reducer.name=elastic_averaging reducer.every_steps=1 reducer.strength=0.5": (
        "config.reducer.strength=0.5: must be at most 1 / num_workers, 0.125 of 8 workers"
    ),
    "reducer.name=quorum reducer.num_required=6 reducer.grace_seconds=-1.0": (
        "config.reducer.grace_seconds=-1.0: must be float in [0, inf) or None"
    ),
}


@pytest.mark.parametrize("given", REFUSED)
def test_refused_in_one_line(given, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(train, "train", lambda *_, **__: pytest.fail("training began"))
    assert run(tmp_path / "run", *COMMON, *keys(given)) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if " replaces " not in line]
    assert said[0].startswith(REFUSED[given]) and len(said) == 1 and not (tmp_path / "run").exists()


def test_real_workers_keep_nothing_from_step_to_step():
    with pytest.raises(runs.errors.ConfigError, match=f"^{LOCAL}: must emit every update, for real workers"):
        live.check(digits_setup(*RUN))
