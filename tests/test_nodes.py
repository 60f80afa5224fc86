"""A worker that is a node of several devices takes the steps of a worker with one device, up to rounding."""

import functools
import re

import jax
import numpy as np
import pytest
from flax import linen as nn

from configs import flags
from data import assumed
from data.augment import as_inputs
from parallel import PART_AXIS, Layout
from runs.errors import ConfigError
from tests import ROOT
from tests.cases import adasum
from tests.grid import grid
from tests.in_process import train_digits, train_py
from tests.refused import refused
from tests.softmax_digits import RATE, Digits, vector
from tests.stepper import Stepper, records, setup_of
from training.setup import make_setup
from training.steps.gradient_wrappers import over_parts
from training.steps.train_step import value_and_grad

SHARD_MAP = "--config.mapping=shard_map"
REDUCERS = {
    "mean": (),
    "adasum": ("--config.reducer.name=adasum",),
    "adasum of updates": ("--config.reducer.name=adasum", "--config.reducer_on=updates"),
    "adasum in groups": ("--config.reducer.name=adasum", "--config.reducer.group_size=2"),
    "krum": ("--config.reducer.name=krum",),
    "geometric_median": ("--config.reducer.name=geometric_median", "--config.reducer.telemetry=on"),
    "coordinate_median": ("--config.reducer.name=coordinate_median",),
    "sign_majority": ("--config.reducer.name=sign_majority",),
    "backup_workers": (
        "--config.reducer.name=backup_workers",
        "--config.reducer.num_required=3",
        "--config.arrivals.name=lognormal",
    ),
    "quorum": (
        *("--config.reducer.name=quorum", "--config.reducer.num_required=2", "--config.reducer.grace_seconds=0.1"),
        "--config.arrivals.name=lognormal",
    ),
    "deadline": (
        *("--config.reducer.name=deadline", "--config.reducer.deadline_seconds=1.0"),
        "--config.arrivals.name=lognormal",
    ),
    "local_sgd": ("--config.reducer.name=local_sgd", "--config.reducer.every_steps=2", "--config.reducer_on=updates"),
    "diloco": (
        *("--config.reducer.name=local_sgd", "--config.reducer.every_steps=4", "--config.reducer.fragments=2"),
        *("--config.reducer_on=updates", "--config.outer.name=sgd", "--config.outer.learning_rate=0.7"),
        *("--config.outer.momentum=0.9", "--config.optimizer.name=adamw"),
    ),
    "gossip": ("--config.reducer.name=gossip", "--config.reducer_on=updates", "--config.ema_decay=None"),
    "stale": ("--config.reducer.name=stale", "--config.reducer.delay_steps=1"),
}
OPTIONS = {
    "micro-batches": ("--config.accumulation.count=2",),
    "local steps": (
        *("--config.accumulation.name=local_steps", "--config.accumulation.count=2"),
        *("--config.reducer.name=adasum", "--config.reducer_on=updates"),
    ),
    "clipping": ("--config.clip_norm=0.1",),
    "loss scaling": ("--config.loss_scaling.name=dynamic",),
    "weights": ("--config.weigh=count",),
    "lamb": ("--config.optimizer.name=lamb",),
    "lars": ("--config.optimizer.name=lars",),
    "schedule-free": ("--config.optimizer.name=schedule_free_sgd", "--config.ema_decay=None"),
    "frozen": ("--config.freeze=Dense_0",),
}
OF_WHOLE_LAYERS = {"quantised": ("--config.communication.name=quantised",)}
NODES = {"2 nodes of 4": (4, 8), "4 nodes of 2": (2, 8), "1 node of 8": (8, 8)}
PARTITIONS = ("none", "state", "parameters")
NUM_STEPS = 50


class Smooth(nn.Module):
    """Two layers without the kink of a ReLU, at which rounding could decide whether a unit learns."""

    num_classes: int

    @nn.compact
    def __call__(self, image, *, deterministic=True):
        x = nn.tanh(nn.Dense(64)(image.reshape(image.shape[0], -1)))
        return nn.Dense(self.num_classes)(x)


def run(options, *, each, num_devices, more=(), steps=NUM_STEPS):
    smooth = "--config.model.name=tests.test_nodes:Smooth"
    options = (SHARD_MAP, smooth, "--config.num_workers=4", "--config.batch_size_per_worker=16", *options, *more)
    setup = setup_of(*options, f"--config.devices_per_worker={each}", train_steps=50)
    return Stepper(setup, num_devices=num_devices).steps(0, steps)


@functools.cache
def on_one_device(options):
    stepper = run(options, each=1, num_devices=1)
    return stepper.host(), stepper.metrics


def compare(one, other, *, tolerance=1e-6):
    """Compares a stepper with the state and the metrics of another one."""
    host, metrics = other
    found = one.host()._replace(key=None, reducer_state=None)
    expected = dict(jax.tree.leaves_with_path(host._replace(key=None, reducer_state=None)))
    for path, x in jax.tree.leaves_with_path(found):
        y = expected[path]
        assert x.shape == y.shape, path
        np.testing.assert_allclose(x, y, atol=tolerance * max(1.0, np.abs(y).max()), rtol=0, err_msg=str(path))
    assert jax.tree.structure(one.host()) == jax.tree.structure(host)
    for name, value in metrics.items():
        # The share of a fragment counts the zeros at the end of parts, which are sent, too.
        rtol = 2e-2 if name == "communications" else 1e-4
        np.testing.assert_allclose(one.metrics[name], value, rtol=rtol, atol=1e-5, err_msg=name)


QUICK = {
    ("mean", "2 nodes of 4", "none"),
    ("adasum of updates", "4 nodes of 2", "state"),
    ("local_sgd", "2 nodes of 4", "parameters"),
}


@pytest.mark.parametrize(("reducer", "nodes", "partition"), grid(REDUCERS, NODES, PARTITIONS, quick=QUICK))
def test_a_node_takes_the_steps_of_one_device(reducer, nodes, partition):
    each, num_devices = NODES[nodes]
    found = run(REDUCERS[reducer], each=each, num_devices=num_devices, more=(f"--config.partition={partition}",))
    compare(found, on_one_device(REDUCERS[reducer]), tolerance=1e-2 if reducer == "sign_majority" else 2e-6)


def test_encodings_send_whole_layers():
    found = run(OF_WHOLE_LAYERS["quantised"], each=4, num_devices=8, steps=10)
    other = run(OF_WHOLE_LAYERS["quantised"], each=1, num_devices=1, steps=10)
    compare(found, (other.host(), other.metrics), tolerance=1e-2)


QUICK_OPTIONS = {("lamb", "state"), ("loss scaling", "parameters"), ("local steps", "state"), ("frozen", "parameters")}


@pytest.mark.parametrize(("option", "partition"), grid(OPTIONS, PARTITIONS, quick=QUICK_OPTIONS))
def test_options_of_a_workers_gradient(option, partition):
    found = run(OPTIONS[option], each=4, num_devices=8, more=(f"--config.partition={partition}",))
    compare(found, on_one_device(OPTIONS[option]), tolerance=2e-6)


@pytest.mark.parametrize("partition", PARTITIONS[1:])
def test_adasum_of_lambs_deltas_is_that_of_whole_layers(partition):
    """Against LAMB and Adasum's tree in float64, whose norms and dot products are of kernel and bias."""
    setup = setup_of(
        *(SHARD_MAP, "--config.num_workers=2", "--config.batch_size_per_worker=16"),
        *("--config.devices_per_worker=4", f"--config.partition={partition}"),
        *("--config.model.name=softmax", "--config.task.label_smoothing=0.0", "--config.ema_decay=None"),
        *(
            "--config.schedule.name=constant",
            "--config.optimizer.name=lamb",
            f"--config.optimizer.learning_rate={RATE}",
        ),
        *("--config.reducer.name=adasum", "--config.reducer_on=updates"),
        train_steps=NUM_STEPS,
    )
    stepper = Stepper(setup, num_devices=8)
    digits = Digits(stepper)
    expected = adasum_of_lamb(digits, start=digits.start)
    np.testing.assert_allclose(vector(stepper.steps(0, NUM_STEPS).params()), expected, atol=2e-6)


def adasum_of_lamb(digits, *, start, rate=RATE, b1=0.9, b2=0.999, eps=1e-6):
    x = start
    m = v = np.zeros((digits.num_workers, x.size))
    for step in range(NUM_STEPS):
        g = np.stack([digits.gradient(x, worker, step) for worker in range(digits.num_workers)])
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        direction = (m / (1 - b1 ** (step + 1))) / (np.sqrt(v / (1 - b2 ** (step + 1))) + eps)
        for layer in (slice(0, 640), slice(640, 650)):
            of_params, of_updates = np.linalg.norm(x[layer]), np.linalg.norm(direction[:, layer], axis=1)
            ratio = np.where((of_params == 0) | (of_updates == 0), 1, of_params / np.where(of_updates, of_updates, 1))
            x = np.concatenate(
                [x[: layer.start], x[layer] + adasum(-rate * ratio[:, None] * direction[:, layer]), x[layer.stop :]]
            )
    return x


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
    compare(one, (other.host(), other.metrics), tolerance=1e-5)


@pytest.mark.parametrize(
    ("partition", "scan_blocks"), grid(PARTITIONS[1:], ("on", "off"), quick={("parameters", "on"), ("state", "off")})
)
def test_a_transformer_gathers_its_blocks(partition, scan_blocks, tmp_path):
    of_node = ("--config.devices_per_worker=4", f"--config.partition={partition}", "--num_devices=8")
    for name, more in (("one", ("--num_devices=1",)), ("parts", of_node)):
        options = (SHARD_MAP, "--config.num_workers=2", f"--config.model.scan_blocks={scan_blocks}", *more)
        spec = f"--config={ROOT}/configs/diloco.py:smoke"
        assert train_py(spec, *options, f"--workdir={tmp_path / name}") == 0
    one, other = (records(tmp_path / name, "eval")[-1]["loss"] for name in ("one", "parts"))
    np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_run_goes_on_with_other_nodes(tmp_path):
    """Four starts with other nodes and other parts end as one run with one device a worker."""
    options = (SHARD_MAP, "--config.num_workers=2", "--config.schedule.name=constant", "--config.train_epochs=None")
    for steps, each, num_devices, what in (
        (3, 2, 4, "state"),
        (6, 1, 2, "none"),
        (9, 4, 8, "parameters"),
        (12, 4, 8, "none"),
    ):
        nodes = f"--config.devices_per_worker={each}", f"--num_devices={num_devices}", f"--config.partition={what}"
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


IN_PARTS = "--config.partition=state"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--config.optimizer.name=adafactor",), "config.optimizer.name='adafactor' needs whole layers"),
        (("--config.optimizer.name=muon",), "config.optimizer.name='muon' needs whole layers"),
        (("--config.optimizer.name=noisy_sgd",), "config.optimizer.name='noisy_sgd' needs whole layers"),
        (
            ("--config.optimizer.name=sm3",),
            "the state opt_state[0].mu['Dense_0']['kernel'][0] has shape (1,) where the whole has (64,)",
        ),
        (OF_WHOLE_LAYERS["quantised"], "config.communication.name='quantised' needs whole layers"),
        (
            ("--config.reducer.name=reducers.sums.mean:mean",),
            "your reducer 'reducers.sums.mean:mean' needs a parameter sharded_over, the axes that cut leaves",
        ),
    ],
)
def test_what_needs_whole_layers_is_refused(options, message):
    with refused(ConfigError, re.escape(f"config.partition='state': {message}")):
        setup_of("--config.devices_per_worker=2", SHARD_MAP, IN_PARTS, *options)


def test_algorithms_of_whole_layers_are_refused():
    halving = ("--config.reducer.name=adasum", "--config.reducer.algorithm=halving")
    line = "config.reducer.algorithm='halving': must be 'gram' with config.partition='state'"
    with refused(ConfigError, re.escape(line)):
        setup_of("--config.devices_per_worker=2", SHARD_MAP, IN_PARTS, *halving)
    with refused(ConfigError, "config.partition='state': needs config.devices_per_worker of 2 at least"):
        setup_of(IN_PARTS)


def test_devices_that_are_not_there_are_refused():
    with refused(ValueError, "devices_per_worker=16: must be at most 8; there are 8 cpu devices"):
        Layout.of(4, devices_per_worker=16)
    with refused(ValueError, "num_devices=8: must be one of 4 for num_workers=1 and devices_per_worker=4"):
        Layout.of(1, num_devices=8, devices_per_worker=4)
