"""The noise scale in a run's records: against the gradients of all examples, after a stop, and where it is left out."""

import math

import numpy as np
import pytest

from tests.in_process import train_py
from tests.stepper import DATASET, end_and_go_on, setup_of, without_clock
from training import noise_scale
from training.checkpoints import restore_params

STEPS, BATCH = 120, 8
RUN = (
    "--config=configs/digits.py",
    *("--config.model.hidden_sizes=()", "--config.model.dropout_rate=0.0", "--config.task.label_smoothing=0.0"),
    *(
        "--config.optimizer.learning_rate=1e-30",
        "--config.reducer.name=radial_directional",
        "--config.reducer.telemetry=on",
    ),
    *(f"--config.batch_size_per_worker={BATCH}", "--config.log_every_steps=1"),
    *(f"--config.train_steps={STEPS}", "--config.eval_every_steps=60", "--config.checkpoint_every_steps=1000"),
    "--num_devices=1",
)


def start(workdir):
    return train_py(*RUN, f"--workdir={workdir}")


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    """A linear classifier on 8 workers, whose parameters stay where they are."""
    workdir = tmp_path_factory.mktemp("still")
    assert start(workdir) == 0
    return workdir


def gradients_of_examples(params):
    """Returns the gradient of every training example in closed form: bias [N, 10] and kernel [N, 64, 10]."""
    columns = DATASET.train.columns
    constants = DATASET.constants
    images = (columns["image"] - constants["mean"]) / constants["std"]
    x = images.reshape(len(images), -1).astype(np.float64)
    (layer,) = params.values()
    logits = x @ layer["kernel"].astype(np.float64) + layer["bias"]
    chances = np.exp(logits - logits.max(1, keepdims=True))
    errors = chances / chances.sum(1, keepdims=True) - np.eye(10)[columns["label"]]
    return {"bias": errors, "kernel": np.einsum("ni,nj->nij", x, errors)}


def test_it_is_that_of_the_gradients_of_all_examples(still):
    """To 10 %, since a moving average of 100 steps is a sample."""
    gradients = gradients_of_examples(restore_params(still, checkpoint="latest"))
    gradients = {f"/Dense_0/{name}": g.reshape(len(g), -1) for name, g in gradients.items()}
    gradients[""] = np.hstack(list(gradients.values()))
    last = without_clock(still)[-1]
    for place, g in gradients.items():
        trace = g.var(axis=0, ddof=1).sum()
        square = np.square(g.mean(0)).sum()
        # Batches of one step have no example in common: they differ by the trace over N more than independent draws.
        expected = trace / (square - trace / len(g))
        assert last[f"noise_scale{place}"] == pytest.approx(expected, rel=0.1), place
    assert last["noise_scale/Dense_0/bias"] != pytest.approx(last["noise_scale/Dense_0/kernel"], rel=0.1)


def test_it_is_the_ratio_of_moving_averages_over_the_steps_so_far(still):
    records = without_clock(still)
    steps = [r for r in records if r["kind"] == "train"]
    for place in ("", "/Dense_0/kernel"):
        for kept in (1, 7, STEPS):
            weights = noise_scale.DECAY ** np.arange(kept)[::-1]
            trace, square = (
                weights @ [r[f"{name}{place}"] for r in steps[:kept]]
                for name in ("covariance_trace", "squared_gradient")
            )
            assert steps[kept - 1][f"noise_scale{place}"] == pytest.approx(BATCH * trace / square, rel=1e-12)
    evaluated = [r for r in records if r["kind"] == "eval"]
    assert [r["noise_scale"] for r in evaluated] == [steps[r["step"] - 1]["noise_scale"] for r in evaluated]


def test_a_run_that_was_stopped_goes_on_with_its_averages(still, tmp_path):
    end_and_go_on(33, lambda: start(tmp_path))
    assert without_clock(tmp_path) == without_clock(still)


ON = ("--config.reducer.name=adasum", "--config.reducer.telemetry=on")

BACKUP = ("--config.reducer.name=backup_workers", "--config.reducer.num_required=6", "--config.arrivals.name=lognormal")


def behind_backup_workers(group_size):
    combine = {"name": "adasum", "telemetry": "on", "group_size": group_size}
    return (*BACKUP, f"--config.reducer.combine={combine}")


def of_batches(rule, combine="adasum"):
    block = {"name": "adaptive_batch", "rule": rule, "combine": {"name": combine, "telemetry": "on"}}
    return tuple(f"--config.reducer.{key}={value}" for key, value in block.items())


@pytest.mark.parametrize(
    ("overrides", "has_it"),
    [
        (ON, True),
        ((*ON, "--config.accumulation.count=4"), True),
        ((*ON, "--config.accumulation.count=4", "--config.accumulation.combine=sum"), True),
        ((*ON, "--config.accumulation.count=4", "--config.accumulation.combine=adasum"), False),
        ((*ON, "--config.accumulation.count=1", "--config.accumulation.combine=adasum"), True),
        ((*ON, "--config.reducer_on=updates"), False),
        ((*ON, "--config.reducer.group_size=4"), True),
        ((*ON, "--config.reducer.group_size=4", "--config.reducer.within=sum"), True),
        ((*ON, "--config.reducer.group_size=4", "--config.reducer.within=adasum"), True),
        (behind_backup_workers(1), True),
        (behind_backup_workers(2), True),
        (of_batches({"name": "fixed", "every_steps": 1}), True),
        (of_batches({"name": "fixed", "every_steps": 4}), False),
        (of_batches({"name": "norm_test"}, combine="radial_directional"), False),
        (ON[:1], False),
        ((), False),
    ],
)
def test_it_is_one_of_mean_gradients_alone(overrides, has_it):
    places = noise_scale.initial_averages(setup_of(*overrides))
    assert bool(places) == has_it
    if has_it:
        assert {"", "/Dense_0/kernel"} <= set(places)


def test_a_step_that_is_not_finite_is_left_out():
    averages = {"": (0.0, 0.0)}
    for trace, square in ((6.0, 2.0), (math.nan, 1.0), (1.0, math.inf)):
        noise_scale.add_step(averages, {"covariance_trace": trace, "squared_gradient": square})
    assert noise_scale.noise_scales(averages, batch_size=4) == {"noise_scale": pytest.approx(12.0)}
