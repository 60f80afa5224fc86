"""Programs for accelerators, lowered where there is none: whole steps, and the convolutions of lanes."""

import functools
import re

import jax
import pytest
from flax import linen as nn
from jax import numpy as jnp

import models
import reducers
from configs import flags
from data.assumed import make_or_assume
from parallel import AXES, Layout, map_devices, map_workers
from tests import ROOT
from tests.test_reducers import every_case
from training import dry_run
from training.setup import make_setup
from training.steps.async_train_step import make_step

PLATFORMS = ("cuda", "rocm", "tpu")
SIZES = ("--config.num_workers=8", "--config.batch_size_per_worker=4")


def setup_of(config, *overrides):
    return make_setup(flags.load(f"{ROOT}/configs/{config}", [*SIZES, *overrides]), open_data=make_or_assume)


# ---- whole steps -------------------------------------------------------------------------------------------------


def whole_steps(setup):
    """Returns the text of the step of 8 workers on 2 devices for each platform; it is traced once."""
    layout = Layout.of(8, num_devices=2)
    mapping = functools.partial(map_workers, mapping="shard_map")
    step = make_step(setup, layout, map_workers=mapping)
    shapes = dry_run.call_shapes(dry_run.step_inputs(setup, layout), num_devices=layout.num_devices)
    return [step.lower(*shapes, platforms=(platform,))["step"][0].as_text() for platform in PLATFORMS]


def assert_lowered(setup):
    for text in whole_steps(setup):
        assert "stablehlo.all_reduce" in text


@every_case
def test_every_reducer_s_step(case):
    assert_lowered(setup_of("digits.py", "--config.model.name=softmax", *case.flags))


STEPS = {
    "LeNet-5": ("mnist_adasum.py",),
    "BERT": ("bert_lamb.py:smoke", "--config.model.scan_blocks=on"),
    "asynchronous": ("digits.py", "--config.server.name=asynchronous", "--config.arrivals.name=lognormal"),
}


@pytest.mark.parametrize("name", STEPS)
def test_the_step_of(name):
    assert_lowered(setup_of(*STEPS[name]))


@pytest.mark.parametrize(("num_devices", "joins"), [(1, False), (2, True)])
def test_arrays_are_joined_only_where_something_is_sent(num_devices, joins):
    layout = Layout.of(8, num_devices=num_devices)
    reducer = reducers.mean(AXES)

    def update(gradients):
        return reducer.update(gradients, reducer.init(gradients))[0]

    lanes = jax.vmap(update, out_axes=None, axis_name=AXES[1], axis_size=layout.lanes)
    shape = jax.ShapeDtypeStruct((num_devices, layout.lanes, 3), jnp.float32)
    lowered = map_devices(lanes, layout=layout, mapping="shard_map").lower(dict.fromkeys("abc", shape))
    assert ("stablehlo.concatenate" in lowered.as_text()) == joins


def eigenvalues(axis_name):
    """A reducer with an operation that only CPUs and NVIDIA's GPUs have."""
    inner = reducers.mean(axis_name)

    def update(updates, state, params=None, **extra):
        updates, state = inner.update(updates, state, params, **extra)
        return jax.tree.map(lambda x: x + jnp.linalg.eigvals(jnp.eye(2) * x.sum()).real.sum(), updates), state

    return inner.like(inner.init, update)


def test_the_check_finds_what_a_platform_lacks(monkeypatch):
    monkeypatch.setitem(reducers.REDUCERS, "mean", eigenvalues)
    with pytest.raises(NotImplementedError, match="eig"):
        whole_steps(setup_of("digits.py", "--config.model.name=softmax", "--config.reducer.name=mean"))


# ---- the local part: one device with 8 lanes ---------------------------------------------------------------------


def local_part(setup):
    """Returns the text of what 8 lanes compute before the reduction, for an NVIDIA GPU."""
    layout = Layout.of(8, num_devices=1)

    def lanes(compute, update, *, state_axes, **_):
        del update
        return jax.jit(jax.vmap(compute, in_axes=(state_axes, 0, None)))

    shapes = dry_run.step_inputs(setup, layout)
    compute = make_step(setup, layout, map_workers=lanes)
    traced = compute.trace(*(shapes[name] for name in ("state", "batch", "resident")))
    return traced.lower(lowering_platforms=("cuda",)).as_text()


def groups(text):
    """Returns the numbers of feature and batch groups that convolutions of a program have."""
    return {int(count) for count in re.findall(r"(?:feature|batch)_group_count = (\d+)", text)}


# The structure depends neither on the size of the images nor on the batch.
CONFIGS = {
    "ResNet-50": ("imagenet_resnet50.py", "--config.data.image_size=32"),
    "LeNet-5": ("mnist_adasum.py",),
    "Inception-v3": ("imagenet_inception.py", "--config.data.image_size=75", "--config.reducer.num_required=7"),
    "PixelCNN": ("cifar10_pixelcnn.py",),
    "MNIST CNN": ("mnist_cnn.py",),
    "ResNet-20": ("cifar10.py",),
}
SNAPSHOTS = ("imagenet_inception_async.py", "--config.data.image_size=75")  # kernels of each lane's own


@pytest.mark.parametrize(
    "overrides",
    [
        *(pytest.param(given, id=name) for name, given in CONFIGS.items()),
        pytest.param(SNAPSHOTS, id="asynchronous"),
    ],
)
def test_no_convolution_has_a_group_for_each_lane(overrides, monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))  # the sizes of the data are assumed
    assert groups(local_part(setup_of(*overrides))) == {1}


class Plain(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, image, *, deterministic=True):
        del deterministic
        x = nn.Conv(16, (3, 3))(nn.Conv(8, (3, 3))(image))
        return nn.Dense(self.num_classes)(x.mean((1, 2)))


def test_that_check_finds_flax_s_own_convolution(monkeypatch):
    monkeypatch.setitem(models.MODELS, "softmax", Plain)
    assert groups(local_part(setup_of("digits.py", "--config.model.name=softmax"))) > {1}
