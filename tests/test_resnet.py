"""Residual networks: sizes, options, and what lanes share of them."""

import functools
import itertools

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax import lax
from jax import numpy as jnp

from models import resnet, tasks
from models.layers import pooling
from parallel import AXES, Layout, dispatch_lanes, map_workers
from tests import inputs
from tests.grid import each
from tests.stepper import dtypes_of, largest_difference
from tests.vision_variables import variables_of


class Tiny(resnet.ResNet20):
    """One block of 4 filters: what there is to compile takes most of the time."""

    num_filters: int = 4
    stages = (1,)


class TinyBottleneck(resnet.ResNet50):
    """Two bottlenecks, the first of which changes the shape, after the large stem."""

    num_filters: int = 4
    stages = (2,)


def images(count=4, *, size=8):
    return np.random.default_rng(1).standard_normal((count, size, size, 3)).astype(np.float32)


def test_projections_have_parameters():
    def count(**kwargs):
        variables = jax.eval_shape(resnet.ResNet20(num_classes=10, **kwargs).init, jax.random.key(0), images())
        return sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))

    assert count(shortcut="projection") - count() == 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64


def test_stride_is_in_the_bottleneck_s_3x3():
    block = resnet.Block(4, resnet.BOTTLENECK, 2, "projection", nn.initializers.ones, lambda x, **_: x, "float32")
    run = functools.partial(block.init_with_output, capture_intermediates=True, mutable=True)
    _, seen = jax.eval_shape(run, jax.random.key(0), jnp.zeros((1, 8, 8, 16)))
    sizes = {name: seen["intermediates"][name]["__call__"][0].shape[1] for name in ("conv1", "conv2", "conv3")}
    assert sizes == {"conv1": 8, "conv2": 4, "conv3": 4}


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_bfloat16_computes_and_float32_keeps(norm):
    model = TinyBottleneck(num_classes=3, norm=norm, dtype="bfloat16")
    variables = jax.eval_shape(model.init, jax.random.key(0), images())
    assert dtypes_of(variables) == {"float32"}
    run = functools.partial(model.apply, deterministic=False, capture_intermediates=True, mutable=True)
    logits, seen = jax.eval_shape(run, variables, images())
    assert dtypes_of((logits, seen["intermediates"])) == {"bfloat16"}
    if norm == "batch":
        assert dtypes_of(seen["batch_stats"]) == {"float32"}


def test_statistics_change_in_training_alone():
    model, x = Tiny(num_classes=3), images()
    variables = variables_of(model)
    run = functools.partial(model.apply, capture_intermediates=True, mutable=True)
    _, changed = jax.jit(functools.partial(run, deterministic=False))(variables, x)
    old, new = (v["batch_stats"]["stem_norm"]["mean"] for v in (variables, changed))
    pixels = changed["intermediates"]["stem_conv"]["__call__"][0]
    np.testing.assert_allclose(new, 0.9 * old + 0.1 * pixels.mean((0, 1, 2)), rtol=1e-4, atol=1e-6)
    _, kept = jax.jit(run)(variables, x)
    assert largest_difference(kept["batch_stats"], variables["batch_stats"]) == 0


def test_group_norm_has_no_statistics_and_looks_at_one_image():
    def difference(norm):
        model, x = Tiny(num_classes=3, norm=norm), images(6)
        variables = variables_of(model)
        assert set(variables) == {"params", *(["batch_stats"] if norm == "batch" else [])}
        run = jax.jit(functools.partial(model.apply, deterministic=False, mutable=["batch_stats"]))
        one, _ = run(variables, x[[0, 1, 2]])
        other, _ = run(variables, x[[0, 4, 5]])
        return np.abs(one[0] - other[0]).max()

    assert difference("group") < 1e-4 < 1e-2 < difference("batch")


def test_remat_gives_the_same():
    variables, x = variables_of(Tiny(num_classes=3)), images()

    def run(remat):
        model = Tiny(num_classes=3, remat=remat)

        def loss(params):
            logits, changed = model.apply({**variables, "params": params}, x, deterministic=False, mutable=True)
            return jnp.square(logits).mean(), changed["batch_stats"]

        assert ("remat" in str(jax.make_jaxpr(loss)(variables["params"]))) == (remat == "blocks")
        return jax.jit(jax.value_and_grad(loss, has_aux=True))(variables["params"])

    one, other = run("none"), run("blocks")
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(a).max()))


def test_zero_initialised_blocks_are_the_identity():
    def change(zero_init_residual):
        model = TinyBottleneck(num_classes=3, zero_init_residual=zero_init_residual)

        def scales(key):  # alone, so that no random number is compiled
            leaves = jax.tree_util.tree_leaves_with_path(model.init(key, images(1)))
            return {str(path): leaf for path, leaf in leaves if path[-1].key == "scale"}

        start = jax.jit(scales)(jax.random.key(0))
        variables = jax.tree_util.tree_map_with_path(lambda path, leaf: start.get(str(path), leaf), variables_of(model))
        _, seen = run(variables, images(size=16))
        first, second = (seen["intermediates"][f"stage1_block{i}"]["__call__"][0] for i in (1, 2))
        assert np.abs(first).max() > 0
        return np.abs(first - second).max()

    model = TinyBottleneck(num_classes=3)
    run = jax.jit(functools.partial(model.apply, deterministic=False, capture_intermediates=True, mutable=True))
    assert change("on") == 0 < change("off")


def test_max_pool_3x3():
    def both(pool, x):
        values, pull = jax.vjp(pool, x)
        return values, pull(values)[0]

    @jax.jit
    def all_of(xs):
        found = []
        for x, padding in itertools.product(xs, (0, 1)):
            theirs = functools.partial(
                nn.max_pool, window_shape=(3, 3), strides=(2, 2), padding=[(padding, padding)] * 2
            )
            found.append((both(functools.partial(pooling.max_pool_3x3, padding=padding), x), both(theirs, x)))
        return found

    for ours, theirs in all_of((images(1, size=6), images(1, size=7))):
        np.testing.assert_array_equal(ours[0], theirs[0])
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6)


# ---- lanes ----


BUILT = {"tiny": (Tiny(num_classes=3), 8), "resnet20": (resnet.ResNet20(num_classes=10), 32)}  # model, size of images
WAYS = {"vmap": (map_workers, "step"), "dispatched": (dispatch_lanes, "compute")}  # mapping, program


@pytest.mark.parametrize(("model", "lanes"), each(BUILT, WAYS, quick={("tiny", "dispatched")}))
def test_sixteen_lanes_hold_one_copy_of_the_parameters(model, lanes):
    """The SGD step of sixteen workers on one device, each of which has statistics of its own."""
    model, size = BUILT[model]
    mapping, program = WAYS[lanes]
    data = inputs.images((size, size, 3), num_classes=model.num_classes)
    task = tasks.make("classification", model=model, **data)

    def compute(state, batch, resident):
        del resident
        gradient, (_, changed) = jax.grad(task.loss, has_aux=True)(*state, batch, jax.random.key(0))
        return gradient, changed

    def update(state, mine, inputs):
        del inputs
        gradient, changed = mine
        return (jax.tree.map(lambda p, g: p - 0.1 * lax.pmean(g, AXES), state[0], gradient), changed), {}

    layout, axes = Layout.of(16, num_devices=1), (None, 0)
    variables = variables_of(model, size=size)
    params = variables.pop("params")
    local = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], 16, 0), variables)
    batch = {"image": np.zeros((1, 16, 2, size, size, 3), np.float32), "label": np.zeros((1, 16, 2), np.int32)}
    arguments = layout.put((params, local), axes), jax.tree.map(layout.split_steps, batch), {}, {}
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
    lowered, calls = mapping(compute, update, layout=layout, state_axes=axes).lower(*shapes)[program]
    given = lowered.compile().memory_analysis().argument_size_in_bytes
    nbytes = lambda tree: sum(leaf.nbytes for leaf in jax.tree.leaves(tree))  # noqa: E731
    once = nbytes(params) + nbytes(local) + nbytes(batch) // calls
    assert once <= given <= once + 64  # the number of the lane, where dispatched
