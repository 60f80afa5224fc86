"""Convolutions of lanes: equal to JAX's own in every mode of differentiation, on CPU and as lowered for a GPU."""

import functools

import jax
import numpy as np
import pytest
from jax import export, lax
from jax import numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from models.layers import lane_convolution
from models.layers.lane_convolution import conv_general_dilated
from tests.grid import grid
from tests.stepper import dtypes_of

LANES, BATCH = 3, 2
# name -> (size of the input, kernel, strides, padding, channels)
SHAPES = {
    "1 x 1": ((6, 6), (1, 1), (1, 1), "SAME", (9, 4)),
    "1 x 1, strided": ((6, 6), (1, 1), (2, 2), "VALID", (9, 4)),
    "3 x 3": ((6, 6), (3, 3), (1, 1), [(1, 1), (1, 1)], (9, 4)),
    "3 x 3, strided, uneven": ((6, 7), (3, 3), (2, 2), "SAME", (8, 5)),
    "7 x 7 of colours": ((9, 9), (7, 7), (2, 2), [(3, 3), (3, 3)], (3, 4)),
    "1 x 7": ((6, 8), (1, 7), (1, 1), "SAME", (8, 4)),
    "padded on one side": ((6, 6), (2, 3), (1, 1), [(1, 0), (2, 0)], (8, 4)),
    "cropped": ((8, 8), (3, 3), (1, 1), [(-1, 0), (0, -1)], (8, 4)),
    "one axis of one channel": ((12,), (5,), (2,), "SAME", (1, 4)),
    "three axes": ((4, 4, 4), (2, 2, 2), (1, 1, 1), "SAME", (8, 3)),
}
WIDE = {
    "many channels": ((3, 3), (3, 3), (1, 1), "SAME", (300, 300)),
    "more channels": ((3, 3), (3, 3), (1, 1), "SAME", (400, 400)),
}
LETTERS = {1: "W", 2: "HW", 3: "DHW"}


def arguments(name, dtype=np.float32):
    """Returns images of lanes [L, B, ..., C], kernels [L, ..., C, K], and the arguments of a convolution."""
    size, kernel, strides, padding, (inputs, outputs) = {**SHAPES, **WIDE}[name]
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((LANES, BATCH, *size, inputs)), dtype)
    w = jnp.asarray(rng.standard_normal((LANES, *kernel, inputs, outputs)), dtype)
    letters = LETTERS[len(size)]
    return x, w, (strides, padding), {"dimension_numbers": (f"N{letters}C", f"{letters}IO", f"N{letters}C")}


def loss_by(convolve, name):
    _, _, given, options = arguments(name)

    def loss(w, x):
        return jnp.sum(jnp.sin(convolve(x, w, *given, **options).astype(jnp.float32)))

    return loss


# name -> (loss of one worker, kernels of lanes, images of lanes) -> arrays to compare
MODES = {
    "value": lambda loss, w, x: jax.vmap(loss, (None, 0))(w[0], x),
    "gradient": lambda loss, w, x: jax.vmap(jax.grad(loss, (0, 1)), (None, 0))(w[0], x),
    "own kernels": lambda loss, w, x: jax.vmap(jax.grad(loss, (0, 1)))(w, x),
    "shared images": lambda loss, w, x: jax.vmap(jax.grad(loss, (0, 1)), (0, None))(w, x[0]),
    "nested": lambda loss, w, x: jax.vmap(jax.vmap(jax.grad(loss), (None, 0)), (None, 0))(w[0], jnp.stack([x, x + 1])),
    "nested, own kernels": lambda loss, w, x: jax.vmap(jax.vmap(jax.grad(loss), (0, None)), (None, 0))(w, x),
    "recomputed": lambda loss, w, x: jax.vmap(jax.grad(jax.checkpoint(loss)), (None, 0))(w[0], x),
    "forward over reverse": lambda loss, w, x: jax.jvp(lambda w: jax.grad(loss)(w, x[0]), (w[0],), (w[1],)),
    "forward over reverse, lanes": lambda loss, w, x: jax.vmap(
        lambda x: jax.jvp(lambda w: jax.grad(loss)(w, x), (w[0],), (w[1],))
    )(x),
    "reverse over reverse": lambda loss, w, x: jax.vmap(
        jax.grad(lambda w, x: jnp.sum(jax.grad(loss, 1)(w, x) ** 2), (0, 1)), (None, 0)
    )(w[0], x),
}


def largest_error(found, expected):
    """Relative to the largest element."""
    pairs = zip(*(map(np.asarray, jax.tree.leaves(tree)) for tree in (found, expected)), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


@pytest.mark.parametrize(
    ("name", "mode"),
    grid(SHAPES, MODES, quick={*zip(SHAPES, MODES, strict=True), *zip(SHAPES, list(MODES)[::-1], strict=True)}),
)
def test_equals_jax(name, mode):
    x, w, _, _ = arguments(name)
    found, expected = (jax.jit(lambda w, x, c=c: MODES[mode](loss_by(c, name), w, x))(w, x) for c in CONVOLUTIONS)
    assert largest_error(found, expected) < 5e-6


CONVOLUTIONS = (conv_general_dilated, lax.conv_general_dilated)


def for_an_accelerator(function, *arguments):
    """Returns the program that is lowered for a GPU; a CPU computes the same with it."""
    checks = [export.DisabledSafetyCheck.platform()]
    return export.export(jax.jit(function), platforms=("cuda",), disabled_checks=checks)(*arguments)


@pytest.mark.parametrize(
    ("name", "mode"), [*((name, "gradient") for name in [*SHAPES, *WIDE]), ("3 x 3", "own kernels")]
)
def test_the_program_for_an_accelerator_equals_jax(name, mode):
    x, w, _, _ = arguments(name)
    ours, theirs = (functools.partial(MODES[mode], loss_by(c, name)) for c in CONVOLUTIONS)
    program = for_an_accelerator(ours, w, x)
    assert ("dot_general" in program.mlir_module()) == name.startswith("1 x 1")
    assert largest_error(program.call(w, x), jax.jit(theirs)(w, x)) < 5e-6


@pytest.mark.parametrize(
    ("name", "convolutions"), [("1 x 1", 0), ("3 x 3", 1), ("many channels", 2), ("more channels", LANES)]
)
def test_lanes_share_convolutions_while_launches_are_dearer(name, convolutions):
    """The gradients of kernels are one product, or convolutions of all three lanes, of two and one, or of each."""
    x, w, given, options = arguments(name)

    def gradient(convolve, x, z):
        return jax.vmap(lambda x, z: jax.vjp(lambda w: convolve(x, w, *given, **options), w[0])[1](z))(x, z)

    ours, theirs = (functools.partial(gradient, c) for c in CONVOLUTIONS)
    z = jnp.stack([conv_general_dilated(images, w[0], *given, **options) for images in x])
    program = for_an_accelerator(ours, x, z)
    assert program.mlir_module().count("stablehlo.convolution(") == convolutions
    assert largest_error(program.call(x, z), jax.jit(theirs)(x, z)) < 5e-6


@pytest.mark.parametrize("flops_of_a_launch", [0, 1e7], ids=["one at a time", "some at a time"])
def test_an_accelerator_computes_many_lanes_in_a_loop(flops_of_a_launch, monkeypatch):
    """The program for 120 lanes with kernels of their own is no larger than that for 100."""
    monkeypatch.setattr(lane_convolution, "_FLOPS_OF_A_LAUNCH", flops_of_a_launch)
    x, w, _, _ = arguments("7 x 7 of colours")
    x, w = (jnp.concatenate([part + i / 1000 for i in range(40)]) for part in (x, w))
    ours, theirs = (functools.partial(MODES["own kernels"], loss_by(c, "7 x 7 of colours")) for c in CONVOLUTIONS)
    programs = [for_an_accelerator(ours, w[:lanes], x[:lanes]) for lanes in (100, 120)]
    sizes = [program.mlir_module().count("\n") for program in programs]
    assert sizes[0] == sizes[1]
    assert largest_error(programs[1].call(w, x), jax.jit(theirs)(w, x)) < 5e-6


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_to_its_rounding(dtype):
    x, w, _, _ = arguments("3 x 3", dtype)
    gradient = lambda c: MODES["gradient"](loss_by(c, "3 x 3"), w, x)  # noqa: E731
    found = gradient(conv_general_dilated)
    expected = gradient(lax.conv_general_dilated)
    assert dtypes_of(found) == {dtype}
    assert largest_error(found, expected) < 2 * float(jnp.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ((3, 3, 4, 6), {"feature_group_count": 2}),
        ((3, 3, 8, 6), {"rhs_dilation": (2, 2)}),
        ((3, 3, 8, 6), {"lhs_dilation": (2, 2)}),
        ((6, 8, 3, 3), {"dimension_numbers": ("NHWC", "OIHW", "NHWC")}),
    ],
)
def test_other_convolutions_are_left_as_they_are(kernel, options):
    options = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), **options}
    x, w = jnp.ones((2, 9, 9, 8)), jnp.ones(kernel)
    programs = [
        str(jax.make_jaxpr(lambda x, w, c=c: c(x, w, (1, 1), [(1, 1), (1, 1)], **options))(x, w)) for c in CONVOLUTIONS
    ]
    assert programs[0] == programs[1] and "lane_convolution" not in programs[0]


def test_gradients_of_replicated_kernels_under_shard_map():
    """With ``check_vma`` JAX sums the gradients by a replicated kernel over the devices, and so must this one."""
    x, w, _, _ = arguments("3 x 3")
    mesh = Mesh(np.array(jax.devices()[:LANES]), ("device",))
    spec = PartitionSpec("device")

    def gradient(convolve):
        of_device = jax.grad(lambda w, x: loss_by(convolve, "3 x 3")(w, x[0]))
        mapped = jax.shard_map(of_device, mesh=mesh, in_specs=(PartitionSpec(), spec), out_specs=PartitionSpec())
        return jax.jit(mapped)(w[0], x)

    assert largest_error(gradient(conv_general_dilated), gradient(lax.conv_general_dilated)) < 2e-6
