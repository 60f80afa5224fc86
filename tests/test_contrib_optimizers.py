"""Optimizers in a run, optax.contrib's and our own: it goes on bit for bit; and the average of schedule-free ones."""

import itertools

import jax
import numpy as np
import optax
import pytest

import runs
from configs import flags
from data.augment import as_inputs
from runs.errors import ConfigError
from tests.stepper import Stepper, checkpoint_of, end_and_go_on, same_bits, setup_of, train_whole_and_in_parts
from tests.test_train import command
from training.checkpoints import initial_of, restore_params
from training.setup import make_setup

FLAGS = (
    "--config.optimizer.name=schedule_free_sgd",
    "--config.optimizer.learning_rate=0.5",
    "--config.schedule.name=constant",
    "--config.ema_decay=None",
)
RUN = (
    *("--config=configs/digits.py", "--num_devices=2", *FLAGS, "--config.model.hidden_sizes=(16,)"),
    *("--config.train_steps=60", "--config.eval_every_steps=20", "--config.checkpoint_every_steps=10"),
)


def setup_of_run(flags_of_run=RUN):
    return make_setup(flags.load("configs/digits.py", [flag for flag in flags_of_run if flag.startswith("--config.")]))


@pytest.mark.parametrize("in_chain", [False, True], ids=["alone", "in a chain"])
def test_the_state_holds_the_average_that_optax_evaluates_at(in_chain):
    given = FLAGS
    if in_chain:
        parts = ({"name": "clip_by_global_norm", "max_norm": 1.0}, {"name": "schedule_free_sgd", "b1": 0.8})
        given = ("--config.optimizer.name=chain", *FLAGS[1:], f"--config.optimizer.transforms={parts}")
    run = Stepper(setup_of(*given, "--config.model.name=softmax"), num_devices=2)
    begun = run.host()
    assert same_bits(begun.ema, begun.params)
    state = run.steps(0, 10).host()
    (inner,) = (
        node
        for node in jax.tree.leaves(state.opt_state, is_leaf=lambda x: hasattr(x, "z"))
        if isinstance(node, optax.contrib.ScheduleFreeState)
    )
    expected = optax.contrib.schedule_free_eval_params(inner, state.params)
    for found, wanted, at in zip(*map(jax.tree.leaves, (state.ema, expected, state.params)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        assert not np.allclose(found, at, rtol=1e-3, atol=0)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("schedule_free")
    assert command(*RUN, f"--workdir={workdir}") == 0
    return workdir


def test_a_killed_run_goes_on_bit_for_bit(uninterrupted, tmp_path):
    end_and_go_on(33, lambda: command(*RUN, f"--workdir={tmp_path}"))
    setup = setup_of_run()
    assert same_bits(checkpoint_of(tmp_path, setup), checkpoint_of(uninterrupted, setup))


SLOW_AT_FIRST = ("prodigy", "dadapt_adamw", "dog", "relative_clip")  # whose first steps are tiny
OTHERS = [
    *("muon", "prodigy", "dadapt_adamw", "galore", "dog", "madgrad"),
    *("madam", "lamadam", "diffgrad", "dgrad", "adam_plain", "adagrad_plain", "relative_clip"),
    "accelerated_exponential",
]


@pytest.mark.parametrize(("name", "reducer_on"), [*zip(OTHERS, itertools.cycle(["gradients", "updates"]))])
def test_other_optimizers_train_and_go_on_bit_for_bit(name, reducer_on, tmp_path):
    changed = ("optimizer.", "ema_decay", "train_steps")
    flags_of_run = (
        *(flag for flag in RUN if not flag.removeprefix("--config.").startswith(changed)),
        *(f"--config.optimizer.name={name}", "--config.optimizer.learning_rate=0.01", "--config.train_steps=20"),
        f"--config.reducer_on={reducer_on}",
    )
    train_whole_and_in_parts(flags_of_run, tmp_path, stop_after=13)
    setup = setup_of_run(flags_of_run)
    (step, killed), (_, whole) = (checkpoint_of(tmp_path / part, setup) for part in ("parts", "whole"))
    assert step == 20 and same_bits(killed, whole)
    losses = [record["loss"] for record in runs.read(tmp_path / "whole" / "metrics.jsonl") if record["kind"] == "train"]
    assert losses[-1] < losses[0] or name in SLOW_AT_FIRST


def test_evaluation_the_best_checkpoint_and_exports_are_at_the_average(uninterrupted, capsys):
    setup = setup_of_run()
    step, saved = checkpoint_of(uninterrupted, setup, which="best")
    state = saved["state"]
    assert same_bits(restore_params(uninterrupted), state.ema) and not same_bits(state.ema, state.params)
    latest = checkpoint_of(uninterrupted, setup)[1]["state"]
    assert same_bits(restore_params(uninterrupted, checkpoint="latest"), latest.ema)
    assert same_bits(initial_of(setup, str(uninterrupted)).params, latest.ema)  # what config.init_from takes

    dataset = setup.source.load(0)
    recorded = {r["step"]: r for r in runs.read(uninterrupted / "metrics.jsonl") if r["kind"] == "eval"}
    assert recorded[step]["accuracy"] == pytest.approx(accuracy(setup, state.ema, dataset), abs=1e-6)
    assert command(*RUN, f"--workdir={uninterrupted}", "--evaluate_only", "--checkpoint=best") == 0
    assert f"step {step}: test accuracy {recorded[step]['accuracy']:.2%}" in capsys.readouterr().out


def accuracy(setup, params, dataset):
    index = np.arange(dataset.test.num_examples)[None]
    batch = {name: column[0] for name, column in dataset.test.gather(index, np.array([-1])).items()}
    inputs = as_inputs(batch, dataset.constants)
    sums = setup.task.evaluate(params, {}, inputs, np.ones(index.size, np.float32))
    return float(setup.task.metrics(sums)["accuracy"])


SERVED = ("--config.server.name=asynchronous", "--config.arrivals.name=lognormal")
THRESHOLD = "--config.server.rule={'name': 'threshold', 'max_staleness': 4}"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--config.ema_decay=0.9",), "config.ema_decay=0.9: .*'schedule_free_sgd' needs None"),
        (("--config.reducer_on=updates",), "config.reducer_on='updates': .*'schedule_free_sgd' needs 'gradients'"),
        (
            (*SERVED, "--config.server.rule=inverse"),
            "config.server.rule='inverse': .*'schedule_free_sgd' needs a rule",
        ),
        (
            (*SERVED, THRESHOLD, "--config.server.gradients_per_update=2"),
            "config.server.gradients_per_update=2: .*'schedule_free_sgd' needs 1 where config.server.rule='threshold'",
        ),
    ],
)
def test_what_would_have_no_one_average_is_refused(more, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        setup_of(*FLAGS, *more)
