"""A worker that is a node of several devices takes the steps of a worker with one device, up to rounding."""

import functools
import re

import jax
import numpy as np
import pytest

from configs import flags
from data import assumed
from data.augment import as_inputs
from parallel import PART_AXIS, Layout
from runs.errors import ConfigError
from tests import ROOT
from tests.grid import grid
from tests.in_process import train_digits
from tests.refused import refused
from tests.stepper import Stepper, records, setup_of
from training.setup import make_setup
from training.steps.gradient_wrappers import over_parts
from training.steps.train_step import value_and_grad

SHARD_MAP = "--config.mapping=shard_map"
REDUCERS = {
    "mean": (),
    "adasum": ("--config.reducer.name=adasum",),
    "adasum of updates": ("--config.reducer.name=adasum", "--config.reducer_on=updates"),
    "krum": ("--config.reducer.name=krum",),
    "coordinate_median": ("--config.reducer.name=coordinate_median",),
    "sign_majority": ("--config.reducer.name=sign_majority",),
    "backup_workers": (
        "--config.reducer.name=backup_workers",
        "--config.reducer.num_required=3",
        "--config.arrivals.name=lognormal",
    ),
    "local_sgd": ("--config.reducer.name=local_sgd", "--config.reducer.every_steps=2", "--config.reducer_on=updates"),
    "quantised": ("--config.communication.name=quantised",),
}
NODES = {"2 nodes of 4": (4, 8), "4 nodes of 2": (2, 8), "1 node of 8": (8, 8)}
NUM_STEPS = 10


def run(options, *, each, num_devices, more=(), steps=NUM_STEPS):
    options = (SHARD_MAP, "--config.num_workers=4", "--config.batch_size_per_worker=16", *options, *more)
    setup = setup_of(*options, f"--config.devices_per_worker={each}")
    return Stepper(setup, num_devices=num_devices).steps(0, steps)


def compare(one, other, *, tolerance=2e-6):
    for path, x in jax.tree.leaves_with_path(one.host()._replace(key=None, reducer_state=None)):
        y = dict(jax.tree.leaves_with_path(other.host()._replace(key=None, reducer_state=None)))[path]
        assert x.shape == y.shape, path
        np.testing.assert_allclose(x, y, atol=tolerance * max(1.0, np.abs(y).max()), rtol=0, err_msg=str(path))
    for name, value in other.metrics.items():
        np.testing.assert_allclose(one.metrics[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


QUICK = {("mean", "2 nodes of 4"), ("adasum of updates", "4 nodes of 2"), ("local_sgd", "2 nodes of 4")}


@pytest.mark.parametrize(("reducer", "nodes"), grid(REDUCERS, NODES, quick=QUICK))
def test_a_node_takes_the_steps_of_one_device(reducer, nodes):
    each, num_devices = NODES[nodes]
    tolerance = 1e-2 if reducer in ("quantised", "sign_majority") else 2e-6
    one = run(REDUCERS[reducer], each=each, num_devices=num_devices)
    compare(one, run(REDUCERS[reducer], each=1, num_devices=1), tolerance=tolerance)


OPTIONS = {
    "micro-batches": ("--config.accumulation.count=2",),
    "clipping": ("--config.clip_norm=0.1",),
    "loss scaling": ("--config.loss_scaling.name=dynamic",),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_a_workers_gradient(option):
    more = OPTIONS[option]
    one, other = (run((), each=each, num_devices=8 if each > 1 else 1, more=more) for each in (4, 1))
    compare(one, other)


# Their layers draw numbers for a batch, or measure it: dropout of both kinds, masks of tokens, BatchNorm.
MODELS = ("digits", "cifar10:smoke", "bert_lamb:smoke", "shakespeare_lstm:smoke", "cifar10_pixelcnn:smoke")


@pytest.mark.parametrize("config", MODELS)
def test_the_mean_over_parts_is_the_gradient_of_the_whole_batch(config):
    file, _, variant = config.partition(":")
    spec = f"{ROOT}/configs/{file}.py:{variant}" if variant else f"{ROOT}/configs/{file}.py"
    setup = make_setup(flags.load(spec), open_data=assumed.make_or_assume)
    batch = drawn(setup, size=8)
    state = jax.jit(setup.init_worker)()
    gradient = functools.partial(value_and_grad, loss_fn=setup.task.loss)
    given = state, state.worker, batch, jax.random.key(1)
    expected = jax.jit(gradient)(*given)
    parts = jax.vmap(over_parts(gradient, count=4), in_axes=None, out_axes=None, axis_name=PART_AXIS, axis_size=4)
    found = jax.jit(parts)(*given)
    for path, y in jax.tree.leaves_with_path(expected):
        x = dict(jax.tree.leaves_with_path(found))[path]
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5 * max(1e-3, float(np.abs(y).max())), err_msg=str(path))


def drawn(setup, *, size):
    """A batch of the shapes of a setup's data, as the step gives it to the task."""
    rng = np.random.default_rng(0)
    shapes = setup.source.info.batch(size)
    batch = {name: rng.integers(0, 2 if x.ndim == 1 else 50, x.shape).astype(x.dtype) for name, x in shapes.items()}
    constants = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), setup.source.info.constants)
    return as_inputs(batch, constants)


def test_batch_norm_measures_the_workers_whole_batch():
    more = ("--config.model.name=resnet20", "--config.optimizer.name=sgd")
    one, other = (run((), each=each, num_devices=8 if each > 1 else 1, more=more, steps=3) for each in (4, 1))
    compare(one, other, tolerance=1e-5)


def test_a_run_goes_on_with_other_nodes(tmp_path):
    """Three starts with nodes of 2, 1 and 4 devices end as one run with one device a worker."""
    options = (SHARD_MAP, "--config.num_workers=2", "--config.schedule.name=constant", "--config.train_epochs=None")
    for steps, each, num_devices in ((4, 2, 4), (8, 1, 2), (12, 4, 8)):
        nodes = f"--config.devices_per_worker={each}", f"--num_devices={num_devices}"
        assert train_digits(tmp_path / "one", *options, *nodes, f"--config.train_steps={steps}") == 0
    assert train_digits(tmp_path / "other", *options, "--config.train_steps=12", "--num_devices=1") == 0
    one, other = (records(tmp_path / name, "eval")[-1] for name in ("one", "other"))
    assert one["step"] == other["step"] == 12
    np.testing.assert_allclose(one["loss"], other["loss"], rtol=1e-5)


def test_the_canonical_form_does_not_know_nodes():
    layout = Layout.of(4, num_devices=8, devices_per_worker=4)
    assert (layout.lanes, layout.own_places, layout.own_workers) == (2, (2, 2), slice(0, 4))
    workers = np.arange(12.0).reshape(4, 3)
    placed = layout.put_per_worker(workers)
    assert placed.shape == (8, 2, 3)
    np.testing.assert_array_equal(layout.get_per_worker(placed), workers)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "config.devices_per_worker=2: needs config.mapping='shard_map', not 'pmap': a pmap has one axis"),
        (
            (SHARD_MAP, "--config.lanes=dispatched"),
            "config.devices_per_worker=2: needs config.lanes='auto' or 'vmap', not 'dispatched'",
        ),
        (
            (SHARD_MAP, "--config.batch_size_per_worker=3"),
            "config.devices_per_worker=2: times config.accumulation.count=1 must divide",
        ),
        (
            (SHARD_MAP, "--config.server.name=asynchronous", "--config.arrivals.name=lognormal"),
            "config.devices_per_worker=2: needs config.server.name='synchronous'",
        ),
    ],
)
def test_refusals(options, message):
    with refused(ConfigError, re.escape(message)):
        setup_of("--config.devices_per_worker=2", *options)


def test_devices_that_are_not_there_are_refused():
    with refused(ValueError, "devices_per_worker=16: each process needs as many; there are 8 cpu devices"):
        Layout.of(4, devices_per_worker=16)
    with refused(ValueError, "num_devices=8: must be one of 4 for num_workers=1 and devices_per_worker=4"):
        Layout.of(1, num_devices=8, devices_per_worker=4)
