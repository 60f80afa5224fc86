"""The summary of a finished run names the method that the run used."""

import pathlib
import sys

import jax
import numpy as np
import pytest

import runs
from configs import flags
from data.augment import as_inputs
from training.setup import make_setup

SUMMARY = {
    "num_devices": 8,
    "lanes": 1,
    "step": 120,
    "loss": 0.5,
    "accuracy": 0.975,
    "epoch": 2.0,
    "wall_seconds": 3.0,
    "simulated_seconds": 4.0,
    "steps_per_second": 10.0,
    "examples_per_second": 1280.0,
}
CONFIG = {
    "num_workers": 8,
    "optimizer": {"name": "sgd", "learning_rate": 0.2},
    "train_steps": 120,
    "data": {"name": "digits", "evaluate_on": "test"},
    "model": {"name": "mlp"},
    "reducer": {"name": "mean"},
    "server": {"name": "synchronous"},
    "communication": {"name": "full"},
    "outer": {"name": "none"},
}


def _summary(config, *, path="out/run", **changes):
    task = {"metric": "accuracy", "mode": "max", "chance": 0.1}
    return runs.summarise({**SUMMARY, **changes}, config=config, path=pathlib.Path(path), **task)


BACKUP = {"name": "backup_workers", "num_required": 6, "combine": None}
MIXED = {"name": "nearest_neighbour_mixing", "combine": {"name": "trimmed_mean", "num_trimmed": 2}}
ATTACKED = {"name": "corrupt", "how": "little", "combine": MIXED}
PLOT = f"\nplot           {sys.executable} -m experiments.plot 'out/my run'"
SAYS = [  # changes of the config, numbers of the summary, what it says, what it does not say
    ({}, {}, "digits, mlp: 8 workers = 8 devices x 1, synchronous, reducer mean, 120 steps", "remark"),
    ({}, {}, "test accuracy  97.50%  (loss 0.5000, epoch 2.0)", "\nsent"),
    ({}, {}, PLOT, "in real time"),
    ({}, {}, "s, 1,280 examples/s, without compiling, evaluations and saving\n", "not measured"),
    ({}, {}, "\ntime           3.0 s with compiling, evaluations and saving, simulated 4.0 s\n", "in steps"),
    ({}, {"steps_per_second": None}, "speed          not measured: too few steps\n", "without compiling"),
    ({}, {"num_devices": 1, "lanes": 8}, "8 workers = 1 device x 8, ", "remark"),
    ({}, {"num_processes": 2}, "8 workers = 2 processes, 8 devices x 1", "remark"),
    ({"server": {"name": "asynchronous", "rule": "inverse"}}, {}, "x 1, asynchronous, rule inverse, 120", "reducer"),
    ({"server": {"name": "asynchronous", "rule": {"name": "inverse"}}}, {}, "asynchronous, rule inverse, 1", "reducer"),
    ({"reducer": {"name": "krum"}}, {}, "synchronous, reducer krum, 120 steps", "of 8"),
    ({"reducer": BACKUP}, {}, "reducer backup_workers (6 of 8), 120 steps", "adasum"),
    ({"reducer": {**BACKUP, "combine": {"name": "adasum"}}}, {}, "workers (6 of 8) of adasum, 120 steps", "None"),
    ({"reducer": ATTACKED}, {}, "reducer corrupt (little) of nearest_neighbour_mixing of trimmed_mean, 1", "of mean"),
    ({"weigh": "share"}, {}, "reducer mean, weighed by share, 120 steps", "by workers"),
    ({"devices_per_worker": 2}, {}, "8 workers = 4 nodes of 2 devices x 1, synchronous", "8 devices"),
    ({"devices_per_worker": 8}, {"lanes": 8}, "8 workers = 1 node of 8 devices x 8, synchronous", "nodes"),
    ({"communication": {"name": "top_k", "ratio": 0.1}}, {}, "reducer mean, sent as top_k, 120 steps", "outer"),
    ({"outer": {"name": "sgd"}}, {}, "reducer mean, outer sgd, 120 steps", "sent as"),
    ({}, {"sent_bytes": 2.5e6}, "\nsent           2.5 MB a worker\n", "\ndropped"),
    ({}, {"examples": 900, "dropped_examples": 100}, "\ndropped        100 of 1,000 examples\n", "\nsent"),
    ({}, {"dropped_examples": 0}, "test accuracy", "\ndropped"),
    ({}, {"loss": float("nan")}, "remark         the loss is not finite", "at chance"),
    ({}, {"accuracy": 0.12}, "test accuracy", "remark"),  # of before: it does not say how many were evaluated
    ({}, {"accuracy": 0.10}, "at chance", "finite"),
]


@pytest.mark.parametrize(("config", "numbers", "says", "says_not"), SAYS)
def test_a_summary_says_what_the_run_was_and_came_to(config, numbers, says, says_not):
    text = _summary({**CONFIG, **config}, path="out/my run", **numbers)
    assert says in text and says_not not in text


def test_a_summary_of_real_workers_names_real_time():
    text = runs.summarise(
        SUMMARY, metric="accuracy", mode="max", config=CONFIG, path=pathlib.Path("out/run"), live=True
    )
    assert "8 workers in real time, " in text and "saving, in steps 4.0 s" in text
    assert "simulated" not in text


def test_a_damaged_summary_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^workdir='out/run': DONE is damaged \(.*\); remove it$"):
        runs.summarise({}, metric="accuracy", mode="max", config=CONFIG, path=pathlib.Path("out/run"))


LONG = {"epoch": 9.0, "num_evaluated": 360, "first": 0.4}
SUM = {**CONFIG, "num_workers": 32, "reducer": {"name": "sum"}}


@pytest.mark.parametrize(
    ("accuracy", "says"),
    [
        (0.1, "accuracy is at chance"),
        (0.13, "accuracy is at chance"),  # within the sampling error of 360 examples
        (0.34, "accuracy is worse than at its first evaluation"),
        (float("nan"), "accuracy is not finite"),
        (0.36, None),  # within the sampling error of the first evaluation's 40 %
        (0.41, None),
    ],
)
def test_a_run_that_learnt_nothing_says_so(accuracy, says):
    text = _summary(SUM, accuracy=accuracy, **LONG)
    remarks = [line for line in text.splitlines() if line.startswith("remark")]
    assert len(remarks) == (says is not None)
    assert says is None or remarks[0].endswith(says)


@pytest.mark.parametrize(
    ("config", "num_values"),
    [("shakespeare", None), ("bert_lamb", None), ("digits", 10)],
)
def test_chance_is_what_a_uniform_distribution_comes_to(config, num_values):
    """A model whose parameters are all zero gives every class or token the same logit."""
    setup = make_setup(flags.load(f"configs/{config}.py:smoke"))
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), setup.worker_shapes.params)
    dataset = setup.source.load(0)
    columns = dataset.test.gather(np.arange(4)[None], np.array([-1]))
    batch = as_inputs({name: column[0] for name, column in columns.items()}, dataset.constants)
    sums = jax.jit(setup.task.evaluate)(params, {}, batch, np.ones(4, np.float32))
    found = setup.task.metrics({name: float(value) for name, value in sums.items()})
    metric, mode = setup.task.best
    if num_values is None:
        assert found[metric] == pytest.approx(setup.task.chance, rel=1e-4) and mode == "min"
    else:
        assert found["loss"] == pytest.approx(np.log(num_values)) and setup.task.chance == 1 / num_values


def test_chance_of_pixels_is_eight_bits():
    assert make_setup(flags.load("configs/cifar10_pixelcnn.py:smoke")).task.chance == 8.0
