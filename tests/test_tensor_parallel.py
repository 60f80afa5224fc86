"""Products and layers whose matrices no device holds whole: values, gradients, bytes, memory, against dense ones."""

import functools

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import tensor_parallel as tp
from compilers import program
from models.layers import attention
from tensor_parallel import product
from tests.grid import grid
from tests.refused import refused
from tests.started import python

MESHES = ((1, 1), (1, 2), (2, 1), (2, 2))  # (q, d)
SHAPES = (((8, 12), (12, 20)), ((4, 3, 4), (4, 8)), ((8, 3, 5, 8), (3, 8, 4)))  # of X and A; the last has batches
EMPTY = tuple(((m, k), (k, n)) for m, k, n in ((0, 4, 4), (4, 0, 4), (4, 4, 0)))
EMPTY += (((4, 0, 4), (4, 8)), ((4, 0, 2, 4), (0, 4, 2)))  # no examples of a device, no batches
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 3e-2}


def drawn(shape, *, dtype="float32", seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape), dtype)


def spec_of(a):
    return P(*[None] * (a.ndim - 2), *tp.param_spec(a))


def near(found, expected, *, tolerance):
    """Compares arrays, each relative to its largest element, or to 1 / 500 of the largest of all: some are zero."""
    largest = max(np.abs(np.asarray(b, np.float64)).max(initial=0) for b in jax.tree.leaves(expected))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        a, b = (np.asarray(x, np.float64) for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(np.abs(b).max(initial=0), 2e-3 * largest))


def with_gradients(multiply, x, a, slope):
    y, pull = jax.vjp(multiply, x, a)
    return y, *pull(slope)


def over_mesh(function, mesh, specs, *, check_vma=True):
    """Maps a function of two arguments, with its gradients, over a mesh; ``specs`` are of both and of the result."""
    where = {"mesh": tp.make_mesh(q=mesh[0], d=mesh[1]), "in_specs": specs, "out_specs": (specs[2], *specs[:2])}
    return jax.jit(jax.shard_map(functools.partial(with_gradients, function), check_vma=check_vma, **where))


def product_over(mesh, x, a, *, multiply=tp.matmul, **options):
    of_x = tp.activation_spec(x.ndim)
    return over_mesh(multiply, mesh, (of_x, spec_of(a), of_x), **options)


def cut_product(mesh, x, a, slope, **options):
    return product_over(mesh, x, a, **options)(x, a, slope)


def inputs(shapes, *, dtype="float32"):
    x, a = (drawn(shape, dtype=dtype) for shape in shapes)
    return x, a, drawn((*x.shape[:-1], a.shape[-1]), dtype=dtype)


# ---- the product ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mesh", "shapes", "dtype", "check_vma"),
    grid(
        MESHES,
        SHAPES,
        TOLERANCE,
        (True, False),
        quick={
            ((2, 2), SHAPES[0], "float32", True),
            ((2, 2), SHAPES[2], "float64", False),
            ((2, 1), SHAPES[1], "bfloat16", True),
            ((1, 2), SHAPES[1], "float32", False),
        },
    )
    + [pytest.param((2, 2), shapes, "float32", i % 2 == 0) for i, shapes in enumerate(EMPTY)],
)
def test_values_and_gradients_are_those_of_the_dense_product(mesh, shapes, dtype, check_vma):
    with jax.enable_x64(dtype == "float64"):
        given = inputs(shapes, dtype=dtype)
        found = cut_product(mesh, *given, check_vma=check_vma)
        near(found, with_gradients(jnp.matmul, *given), tolerance=TOLERANCE[dtype])


ON_MORE_DEVICES = """
import jax
jax.config.update("jax_num_cpu_devices", {d} * {q} ** 2)
from jax import numpy as jnp
from tests.test_tensor_parallel import *
given = inputs((({d} * {q} * 2, {q} * 4), ({q} * 4, {q} * 3)))
near(cut_product(({q}, {d}), *given), with_gradients(jnp.matmul, *given), tolerance=1e-5)
shapes = ({d} * {q} * 24, {q} * 40), ({q} * 40, {q} * 56)
sent = program.read(compiled(({q}, {d}), shapes).as_text()).traffic().bytes_per_worker
print(sent / tp.cost([(*shapes[0], shapes[1][1])], {q}, {d})["2.5-D"].bytes)
"""


@pytest.mark.parametrize(("q", "d"), [(4, 1), (3, 2)])
def test_sixteen_devices_and_a_side_that_is_no_power_of_two(q, d):
    done = python("-c", ON_MORE_DEVICES.format(q=q, d=d), JAX_PLATFORMS="cpu")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(1, rel=0.01)


def test_precision_and_the_dtype_of_the_result_go_to_the_product():
    x, a, slope = inputs(SHAPES[0], dtype="bfloat16")
    slope = slope.astype(jnp.float32)
    wide = functools.partial(tp.matmul, precision="highest", preferred_element_type=jnp.float32)
    found = cut_product((2, 1), x, a, slope, multiply=wide)
    assert [str(part.dtype) for part in found] == ["float32", "bfloat16", "bfloat16"]
    near(found[0], jnp.matmul(x, a, preferred_element_type=jnp.float32), tolerance=1e-6)
    text = str(jax.make_jaxpr(product_over((2, 1), x, a, multiply=wide))(x, a, slope))
    assert text.count("HIGHEST") >= 6  # of three products in each of two steps


def wrong_owner(x, axis, root, *, right=product.broadcast):
    return right(x, axis, (root + (axis == tp.COLUMN)) % 2)


WRONG = {
    "broadcast": wrong_owner,
    "summed": lambda cotangent, axes, *, like: cotangent,  # no sum over depth
    "reduce": lambda x, axis, root, *, dtype: x,
}


@pytest.mark.parametrize("part", WRONG)
def test_a_wrong_product_is_found(monkeypatch, part):
    given = inputs(((8, 12), (12, 20)))
    expected = with_gradients(jnp.matmul, *given)
    near(cut_product((2, 2), *given, check_vma=False), expected, tolerance=1e-5)
    monkeypatch.setattr(product, part, WRONG[part])
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        near(cut_product((2, 2), *given, check_vma=False), expected, tolerance=1e-5)


def compiled(mesh, shapes, **options):
    given = inputs(shapes)
    return product_over(mesh, *given[:2], **options).lower(*given).compile()


@pytest.mark.parametrize(
    ("mesh", "check_vma"), grid(MESHES[1:], (True, False), quick={((2, 2), True), ((1, 2), False)})
)
def test_a_compiled_program_sends_what_the_formula_says(mesh, check_vma):
    q, d = mesh
    m, k, n = 24 * d * q, 40 * q, 56 * q
    sent = program.read(compiled(mesh, ((m, k), (k, n)), check_vma=check_vma).as_text()).traffic()
    expected = tp.cost([(m, k, n)], q, d)["2.5-D"]
    assert sent.bytes_per_worker == pytest.approx(expected.bytes, rel=0.01)
    assert sent.collectives.get("collective-permute", 0) == expected.rounds - 2 * (d > 1)


@pytest.mark.parametrize("mesh", [(2, 1), (2, 2)])
def test_temporaries_are_two_blocks_and_no_more_than_both_operands(mesh):
    q, d = mesh
    given = inputs(((64 * d * q, 96 * q), (96 * q, 128 * q)))
    operands = 4 * (64 * 96 + 96 * 128)
    both = product_over(mesh, *given[:2])
    forward = jax.jit(lambda *given: both(*given)[0])
    for jitted, most in ((forward, 2), (both, 3)):
        used = jitted.lower(*given).compile().memory_analysis()
        assert used.temp_size_in_bytes <= most * operands


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (((4, 6), (8, 2)), r"shapes=\(4, 3\) and \(4, 2\): .*so that a has 6 rows in all"),
        (((4,), (4, 2)), r"shapes=\(4,\)"),
        (((3, 2, 8), (3, 8, 2)), "a must have fewer dimensions than x"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(shapes, says):
    x, a = (jnp.ones(shape) for shape in shapes)
    of_x = P(*[None] * (x.ndim - 1), tp.COLUMN) if x.ndim > 1 else P()
    specs = {"in_specs": (of_x, P(*[None] * (a.ndim - 2), tp.ROW)), "out_specs": P()}
    with refused(ValueError, says):
        jax.eval_shape(jax.shard_map(tp.matmul, mesh=tp.make_mesh(q=2), **specs), x, a)


def test_meshes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="q=3, d=1: need 9 devices, and 8 are there"):
        tp.make_mesh(q=3)
    flat = jax.make_mesh((1, 1, 2), tp.AXES, devices=jax.devices()[:2])
    with pytest.raises(ValueError, match="1 rows and 2 columns"):
        jax.eval_shape(jax.shard_map(tp.matmul, mesh=flat, in_specs=P(), out_specs=P()), jnp.ones((2, 2)), jnp.eye(2))


# ---- layers ----------------------------------------------------------------------------------------------------------


def layer_of(function, mesh, params, x, slope, **options):
    """Returns a layer's result and its gradients by parameters and x, for a loss that is the sum of slope * y."""
    of_x = tp.activation_spec(x.ndim)
    specs = (jax.tree.map(tp.param_spec, params), of_x, of_x)
    return over_mesh(function, mesh, specs, **options)(params, x, slope)


BLOCK = attention.Block(
    norms="before",
    epsilon=1e-5,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
    attention_kernel="xla",
    num_heads=2,
    gelu="tanh",
    dtype="float32",
    kernel_init=nn.initializers.normal(0.02),
    output_init=nn.initializers.normal(0.1),
)
MASK = jnp.tril(jnp.ones((5, 5), bool))


class Affine(nn.Module):
    """A layer that this package has not: one scale for all features, and a shift of each."""

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, ())
        return scale * x + self.param("bias", nn.initializers.ones, x.shape[-1:])[None, None]


LAYERS = {
    "own_dense": (lambda p, x: tp.matmul(x, p["kernel"]) + tp.copied(p["bias"])[None, None], nn.Dense(12)),
    "own_affine": (lambda p, x: tp.copied(p["scale"], tp.AXES) * x + tp.copied(p["bias"])[None, None], Affine()),
    "dense": (lambda p, x: tp.dense(x, p), nn.Dense(12)),
    "dense_without_bias": (lambda p, x: tp.dense(x, p), nn.Dense(12, use_bias=False)),
    "layer_norm": (lambda p, x: tp.layer_norm(x, p), nn.LayerNorm(epsilon=1e-5, use_fast_variance=False)),
    "block": (lambda p, x: tp.block(x, p, num_heads=2, mask=MASK), BLOCK),
}


def of_layer(name, *, batch=8):
    function, twin = LAYERS[name]
    x = drawn((batch, 5, 8))
    more = ({"deterministic": True}, (MASK[None, None],)) if name == "block" else ({}, ())
    apply = lambda p, x: twin.apply({"params": p}, x, *more[1], **more[0])  # noqa: E731
    params = jax.jit(functools.partial(twin.init, **more[0]))(jax.random.key(0), x, *more[1])["params"]
    params = jax.tree.map(lambda p: p + 0.1 * drawn(p.shape, seed=1), params)  # no bias is zero, no scale one
    return function, apply, params, x, drawn(jax.eval_shape(apply, params, x).shape, seed=2)


@pytest.mark.parametrize(
    ("name", "mesh", "check_vma"),
    grid(
        LAYERS,
        MESHES[1:],
        (True, False),
        quick={
            *(("dense", (2, 2), False), ("layer_norm", (2, 2), True), ("block", (2, 2), True)),
            *(("own_dense", (2, 2), False), ("own_affine", (2, 2), True), ("own_affine", (2, 1), False)),
        },
    ),
)
def test_layers_are_those_of_the_project_with_the_same_weights(name, mesh, check_vma):
    function, apply, params, x, slope = of_layer(name)
    found = layer_of(function, mesh, params, x, slope, check_vma=check_vma)
    near(found, jax.jit(functools.partial(with_gradients, apply))(params, x, slope), tolerance=1e-5)


@pytest.mark.parametrize(
    ("num_heads", "says"),
    [(3, "num_heads=3: must be a multiple of q = 2, such as 2 or 4"), (6, "width=8: must be a multiple of num_heads")],
)
def test_heads_that_cannot_be_cut_are_refused(num_heads, says):
    _, _, params, x, _ = of_layer("block")
    heads = functools.partial(tp.block, num_heads=num_heads)
    specs = {"in_specs": (P(("depth", "row"), None, "column"), jax.tree.map(tp.param_spec, params)), "out_specs": P()}
    with pytest.raises(ValueError, match=says):
        jax.eval_shape(jax.shard_map(heads, mesh=tp.make_mesh(q=2), **specs), x, params)


def test_half_precision_goes_through_a_block():
    function, _, params, x, slope = of_layer("block")
    half, single = (
        layer_of(function, (2, 1), params, x.astype(t), slope.astype(t))[0] for t in ("bfloat16", "float32")
    )
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(np.float32), single, atol=0.15)


# ---- costs -----------------------------------------------------------------------------------------------------------


def test_costs_by_hand():
    one = tp.cost([(64, 16, 32), (64, 32, 16)], 2, 1)
    assert one["2-D"] == one["2.5-D"]
    assert one["2.5-D"].bytes == 4 * 3 * (64 * 16 + 16 * 32 + 64 * 32 + 32 * 16) / 4
    assert one["1-D"].bytes == 4 * 2 * (2 * 3 / 4 * 64 * 16)  # dX of the first layer and Y of the second
    assert {each.flops for each in one.values()} == {2 * 6 * 64 * 16 * 32 / 4}
    deep = tp.cost([(64, 16, 32)], 2, 4)["2.5-D"]
    assert deep.bytes == 4 * (3 * (64 * 16 / 16 + 16 * 32 / 4) + 2 * 3 / 4 * 16 * 32 / 4)
    assert deep.memory == 4 * (2 * (64 * 16 / 16 + 16 * 32 / 4) + 64 * 32 / 16)
    assert set(tp.cost([(64, 16, 32)], 2, 2)) == {"1-D", "2.5-D"}  # 8 devices are no square
    assert set(tp.cost([(16, 6, 4)], 2, 4)) == {"1-D", "2.5-D"}  # 4 x 4 devices cannot cut 6
    assert set(tp.cost([(16, 4, 4)], 2, 4)) == {"1-D", "2-D", "2.5-D"}
    alone = tp.cost([(64, 16, 32)], 1, 1)
    assert alone["2.5-D"].bytes == alone["1-D"].bytes == 0


@pytest.mark.parametrize(("q", "d"), [(2, 1), (2, 2), (4, 4), (8, 1)])
def test_the_published_bandwidth_is_ours_without_the_sum_over_depth(q, d):
    side = 8 * d * q
    sent = tp.cost([(side, side, side)], q, d)["2.5-D"].bytes / 4
    over_depth = 2 * (d - 1) / d * (side / q) ** 2
    assert sent - over_depth == pytest.approx(tp.published_bandwidth(q=q, d=d) * side**2 / q)


@pytest.mark.parametrize(
    ("shape", "q", "d", "says"),
    [
        ((10, 8, 8), 2, 2, r"rows=10: must be a multiple of d \* q = 4, such as 8 or 12"),
        ((8, 7, 8), 2, 2, "inner=7: must be a multiple of q = 2, such as 6 or 8"),
        ((8, 8, 1), 2, 2, "columns=1: must be a multiple of q = 2, such as 2"),
        ((8, 8, 8), 0, 2, "q=0: must be at least 1"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(shape, q, d, says):
    with pytest.raises(ValueError, match=says):
        tp.cost([shape], q, d)
