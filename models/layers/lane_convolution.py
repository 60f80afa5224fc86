r"""Convolutions for lanes: under ``vmap`` a shared kernel's gradient is no grouped convolution.

The lanes of a device share the parameters and not the images. JAX's ``vmap`` turns a convolution's weight gradient into
one convolution with a group for each lane, which is slow on every backend: a step of ResNet-50 with 8 lanes on an H100
took 3.5 times as long, one of LeNet-5 on 2 CPU cores 3 times. ``Conv`` is flax's ``nn.Conv``, with the same parameters
and, to rounding, the same results; only the weight gradients of lanes are computed in another way.

A convolution y = x * w is linear in x and in w. With a cotangent z of y, the number

.. math:: t(x, w, z) = \langle x * w, z \rangle

is linear in each of the three, and its gradients are the convolution itself (by z), the gradient of the input (by x)
and the gradient of the kernel (by w). ``convolution_p`` is the one primitive for the three: it takes two of x, w, z and
returns the gradient by the third. So its transposes are itself again, and it can be differentiated in any mode and as
often as needed.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from flax import linen as nn
from jax import lax
from jax import numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

# result of the primitive -> the two operands that it takes, in order; "output" is z, or the convolution itself
OPERANDS = {"output": ("input", "kernel"), "input": ("output", "kernel"), "kernel": ("input", "output")}

_HANDLED = ("dimension_numbers", "precision")  # options of lax.conv_general_dilated; the others must be the default

Result = Literal["output", "input", "kernel"]


class Window(NamedTuple):
    """How a kernel moves over the input. Channels are last; there are neither groups nor dilation."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    precision: Any = None


def conv_general_dilated(
    lhs: jax.Array, rhs: jax.Array, window_strides: Sequence[int], padding: Any, **options: Any
) -> jax.Array:
    """Equals ``lax.conv_general_dilated``, but for the way in which gradients of kernels are computed under ``vmap``.

    Convolutions with groups or dilation, and those whose channels are not last, are left as they are.

    Args:
      lhs: [B, ..., C], the input.
      rhs: [..., C, K], the kernel.
      window_strides: the stride along each spatial axis.
      padding: "SAME", "VALID", or (low, high) for each spatial axis.
      **options: further arguments of ``lax.conv_general_dilated``.

    >>> image, kernel = jnp.ones((2, 5, 5, 3)), jnp.ones((3, 3, 3, 4))
    >>> numbers = lax.conv_dimension_numbers(image.shape, kernel.shape, ("NHWC", "HWIO", "NHWC"))
    >>> conv_general_dilated(image, kernel, (1, 1), "VALID", dimension_numbers=numbers)[0, 0, 0, 0]
    Array(27., dtype=float32)
    """
    numbers = functools.partial(lax.conv_dimension_numbers, lhs.shape, rhs.shape)
    changed = [name for name, value in options.items() if name not in _HANDLED and not _is_default(value)]
    if changed or lhs.dtype != rhs.dtype or numbers(options.get("dimension_numbers")) != numbers(_layout(lhs.ndim)):
        return lax.conv_general_dilated(lhs, rhs, window_strides, padding, **options)
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(lhs.shape[1:-1], rhs.shape[:-2], window_strides, padding)
    pads = tuple((int(low), int(high)) for low, high in padding)
    window = Window(tuple(window_strides), pads, options.get("precision"))
    shape = jax.eval_shape(functools.partial(_convolve, window=window), lhs, rhs).shape
    return _bind("output", *_vary_alike(lhs, rhs), shape=shape, window=window)


def _is_default(value: Any) -> bool:
    return value is None or bool(np.all(np.equal(value, 1)))


def _vary_alike(*arrays: jax.Array) -> list[jax.Array]:
    """Marks arrays as varying over the same axes of a mesh, as JAX does before its own operations (``check_vma``)."""
    varying: list[frozenset[str]] = [jax.typeof(x).manual_axis_type.varying for x in arrays]
    union = frozenset[str]().union(*varying)
    return [
        x if axes == union else lax.pcast(x, tuple(sorted(union - axes)), to="varying")
        for x, axes in zip(arrays, varying, strict=True)
    ]


Conv = functools.partial(nn.Conv, conv_general_dilated_cls=lambda: conv_general_dilated)


# ---- the primitive -----------------------------------------------------------------------------------------------


def _bind(result: str, a: Any, b: Any, *, shape: Sequence[int], window: Window) -> jax.Array:
    return convolution_p.bind(a, b, result=result, shape=tuple(shape), window=window)


def _has_lanes(shape: tuple[int, ...], window: Window) -> bool:
    """Whether the result, and then both operands, have a leading axis of lanes."""
    return len(shape) > len(window.strides) + 2


def _layout(ndim: int) -> tuple[str, str, str]:
    spatial = "".join(chr(ord("a") + axis) for axis in range(ndim - 2))
    return f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"


def _convolve(x: jax.Array, w: jax.Array, *, window: Window) -> jax.Array:
    return lax.conv_general_dilated(
        x, w, window.strides, window.padding, dimension_numbers=_layout(x.ndim), precision=window.precision
    )


def _compute(a: jax.Array, b: jax.Array, *, result: Result, shape: tuple[int, ...], window: Window) -> jax.Array:
    """Returns the result without lanes, as JAX's own convolution has it."""
    if result == "output":
        return _convolve(a, b, window=window)
    unknown = jax.typeof(a).update(shape=shape)  # varies over the axes of a mesh that the operands vary over
    if result == "input":
        return jax.linear_transpose(lambda x: _convolve(x, b, window=window), unknown)(a)[0]
    return jax.linear_transpose(lambda w: _convolve(a, w, window=window), unknown)(b)[0]


def _transpose(which: Literal[0, 1], cotangent: Any, *operands: Any, result: Result, shape: Any, window: Window) -> Any:
    """The cotangent stands for the result, and the operand that is sought is the new result."""
    del shape
    sought = OPERANDS[result][which]
    known = {**dict(zip(OPERANDS[result], operands, strict=True)), result: cotangent}
    a, b = (known[name] for name in OPERANDS[sought])
    return _bind(sought, a, b, shape=operands[which].aval.shape, window=window)


def _batch(operands: Any, axes: Any, *, result: Result, shape: tuple[int, ...], window: Window) -> tuple[Any, int]:
    """Adds the axis of a ``vmap``: to the images of a batch if the kernel is shared, to the lanes otherwise.

    Only the number of lanes grows with a nested ``vmap``, so that tracing costs the same for any number of them.
    """
    has_lanes, is_batched = _has_lanes(shape, window), tuple(axis is not None for axis in axes)
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    a, b = operands

    def merge(axis: int, *arrays: Any) -> list[Any]:
        return [x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :]) for x in arrays]

    if result != "kernel" and is_batched == (True, False):
        at = int(has_lanes)
        (images,) = merge(at, jnp.moveaxis(a, axes[0], at))
        whole = _bind(result, images, b, shape=(*shape[:at], size * shape[at], *shape[at + 1 :]), window=window)
        return whole.reshape(*shape[:at], size, *shape[at:]), at
    if is_batched == (True, True) or has_lanes:
        a, b = (batching.bdim_at_front(x, axis, size) for x, axis in zip(operands, axes, strict=True))
        if not has_lanes:
            return _bind(result, a, b, shape=(size, *shape), window=window), 0
        whole = _bind(result, *merge(0, a, b), shape=(size * shape[0], *shape[1:]), window=window)
        return whole.reshape(size, *shape), 0
    compute = functools.partial(_compute, result=result, shape=shape, window=window)
    return jax.vmap(compute, axes)(a, b), 0


def _abstract(a: Any, b: Any, *, result: Result, shape: tuple[int, ...], window: Window) -> Any:
    del b, result, window
    return a.update(shape=shape)


# ---- lanes -------------------------------------------------------------------------------------------------------

# An accelerator computes more convolutions than these in a loop, since a program grows with every one of them.
_MAX_UNROLLED = 32

# What an accelerator computes while it launches a convolution and what belongs to it, in floating point operations;
# and while it writes and reads an element of the result.
_FLOPS_OF_A_LAUNCH, _FLOPS_OF_AN_ELEMENT = 6e9, 2e3


def _on_cpu(a: jax.Array, b: jax.Array, *, result: Result, shape: tuple[int, ...], window: Window) -> jax.Array:
    """Goes lane after lane: LeNet-5's step takes 1.2 times as long by products, and 3 times by grouped convolutions."""
    compute = _lane_by_lane if _has_lanes(shape, window) else _compute
    return compute(a, b, result=result, shape=shape, window=window)


def _on_accelerator(a: jax.Array, b: jax.Array, *, result: Result, shape: tuple[int, ...], window: Window) -> jax.Array:
    """Computes the gradients of kernels by one product of matrices, or for several lanes at once; else lane after lane.

    Lanes with kernels of their own would need a grouped convolution in the forward pass too.
    """
    if not _has_lanes(shape, window):
        return _compute(a, b, result=result, shape=shape, window=window)
    if result == "kernel" and math.prod(shape[1:-2]) == 1:
        return _as_product(a, b, shape=shape, window=window)
    size = _lanes_at_once(b, shape) if result == "kernel" else 1
    if len(a) > size * _MAX_UNROLLED:
        one = functools.partial(_bind, result, shape=shape[1:], window=window)
        return lax.map(lambda lane: one(*lane), (a, b), batch_size=size)
    if size == 1:
        return _lane_by_lane(a, b, result=result, shape=shape, window=window)
    if rest := len(a) % size:
        parts = (a[:-rest], b[:-rest]), (a[-rest:], b[-rest:])
        return jnp.concatenate([_bind(result, *x, shape=(len(x[0]), *shape[1:]), window=window) for x in parts])
    return _jointly(a, b, size=size, shape=shape, window=window)


def _lane_by_lane(a: jax.Array, b: jax.Array, *, result: Result, shape: tuple[int, ...], window: Window) -> jax.Array:
    return jnp.stack([_bind(result, *lane, shape=shape[1:], window=window) for lane in zip(a, b, strict=True)])


def _as_product(x: jax.Array, z: jax.Array, *, shape: tuple[int, ...], window: Window) -> jax.Array:
    """Returns each lane's gradient of a kernel of one place, [L, ..., C, K], as one batched product of matrices.

    The product is of the cotangents and of the inputs that the kernel saw. It accumulates in float32.

    Args:
      x: [L, B, ..., C], the inputs of the lanes.
      z: [L, B, ..., K], the cotangents of their outputs.
      shape: [L, ..., C, K], of the result.
      window: how the kernel moves.
    """
    x, z = _made(x, z)
    padding = [(0, 0, 0), (0, 0, 0), *((low, high, 0) for low, high in window.padding), (0, 0, 0)]
    strided = tuple(slice(None, None, stride) for stride in window.strides)
    seen = lax.pad(x, jnp.zeros((), x.dtype), padding)[(slice(None), slice(None), *strided)]
    seen, z = (a.reshape(len(a), -1, a.shape[-1]) for a in (seen, z))
    product = jnp.einsum("lpc,lpk->lck", seen, z, preferred_element_type=jnp.float32, precision=window.precision)
    return product.reshape(shape).astype(x.dtype)


def _made(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Returns the arrays for a kernel that does not make them once more from what was before.

    XLA would apply ReLU in each kernel that reads its result, and so write and read its input as well as its result.
    """
    return lax.optimization_barrier(arrays)


def _lanes_at_once(z: jax.Array, shape: tuple[int, ...]) -> int:
    """Returns how many lanes share a convolution, which takes g times the operations of g lanes and 1 / g the launches.

    The least time has g * g = operations of a launch / operations of a lane.
    """
    flops = math.prod(shape[1:]) * (2 * math.prod(z.shape[1:-1]) + _FLOPS_OF_AN_ELEMENT)
    most = min(len(z), max(1, round(math.sqrt(_FLOPS_OF_A_LAUNCH / flops))))
    even = (size for size in range(most // 2 + 1, most + 1) if len(z) % size == 0)
    return max(even, default=most)


def _jointly(x: jax.Array, z: jax.Array, *, size: int, shape: tuple[int, ...], window: Window) -> jax.Array:
    """Returns each lane's gradient of the kernel, by convolutions whose channels are those of several lanes.

    Such a convolution multiplies each lane's inputs by each lane's cotangents; a lane's own products are kept. Matrix
    units are wider than the few channels of a small network, and a convolution for each lane costs launches.

    Args:
      x: [L, B, ..., C], the inputs of the lanes.
      z: [L, B, ..., K], the cotangents of their outputs.
      size: the lanes of a convolution; divides L.
      shape: [L, ..., C, K], of the result.
      window: how the kernel moves.
    """
    _, *places, inputs, outputs = shape

    def join(a: jax.Array) -> jax.Array:  # (L / size, B, ..., size * channels)
        a = jnp.moveaxis(a.reshape(-1, size, *a.shape[1:]), 1, -2)
        return a.reshape(*a.shape[:-2], -1)

    joined = (len(x) // size, *places, size * inputs, size * outputs)
    pairs = _lane_by_lane(*map(join, _made(x, z)), result="kernel", shape=joined, window=window)
    pairs = pairs.reshape(-1, *places, size, inputs, size, outputs)
    return jnp.einsum("n...lclk->nl...ck", pairs).reshape(shape)


def _make_primitive() -> Primitive:
    """Returns the primitive with its rules for evaluation, differentiation, batching and lowering."""
    primitive = Primitive("lane_convolution")
    primitive.def_impl(jax.jit(primitive.bind, static_argnames=("result", "shape", "window")))
    primitive.def_abstract_eval(_abstract)
    ad.defbilinear(primitive, functools.partial(_transpose, 0), functools.partial(_transpose, 1))
    batching.primitive_batchers[primitive] = _batch
    mlir.register_lowering(primitive, mlir.lower_fun(_on_accelerator, multiple_results=False))
    mlir.register_lowering(primitive, mlir.lower_fun(_on_cpu, multiple_results=False), platform="cpu")
    return primitive


convolution_p = _make_primitive()
