"""Floats of fewer bits: 16, or 8 with a scale for each block of numbers."""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
from jax import lax
from jax import numpy as jnp

from reducers.encodings.encoding import Codec, Encoding, OnOff
from reducers.encodings.exchange import Exchange, exchanged
from reducers.encodings.quantised import buckets
from reducers.encodings.random_rounding import round_at_random
from reducers.gram.scales import power_of_two, unit
from reducers.options import Count, Seed, check_options

_FORMATS = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


def half(
    *,
    dtype: Literal["float16", "bfloat16"] = "float16",
    error_feedback: OnOff = "off",
    exchange: Exchange = "auto",
    min_elements: Count = 1,
) -> Encoding:
    r"""Rounds each number to 16 bits.

    .. math:: C(x) = (s, \mathrm{half}(x / s)), \qquad s \approx \max_j |x_j|

    with a power of two for s, so that nothing overflows. A rule of ``by_pattern`` or another encoding's ``then`` names
    it "half". ``config.communication.name="half"`` is ``in_half_precision``, which has one scale for all leaves and
    workers, and saves bytes with every homogeneous reducer.

    Args:
      dtype: the dtype of the numbers that are sent; "bfloat16" has the range of float32, and no scale.
      error_feedback: whether a worker keeps the error and adds it to its next gradient.
      exchange: see ``quantised``.
      min_elements: leaves with fewer numbers are sent as they are.

    Returns:
      An ``Encoding``.

    Raises:
      ValueError: for a value outside its range.

    >>> from jax import numpy as jnp
    >>> import jax
    >>> jax.eval_shape(half(dtype="bfloat16").codec.encode, jax.random.key(0), jnp.ones(3))
    ShapeDtypeStruct(shape=(3,), dtype=bfloat16)
    """
    check_options(half, dtype=dtype)

    def encode(key, x):
        del key
        if dtype == "bfloat16":
            return x.astype(dtype)
        scale, units = unit(x)
        return {"scale": scale[None], "units": units.astype(dtype)}

    def decode(payload, like):
        if dtype == "bfloat16":
            return payload.astype(like.dtype)
        return payload["scale"] * payload["units"].astype(like.dtype)

    codec = Codec(encode=encode, decode=decode, elementwise=True)
    return exchanged(codec, exchange=exchange, error_feedback=error_feedback, min_elements=min_elements)


def float8(
    *,
    format: Literal["e4m3", "e5m2"] = "e4m3",
    bucket: Count | None = 128,
    rounding: Literal["nearest", "random"] = "nearest",
    error_feedback: OnOff = "off",
    exchange: Exchange = "auto",
    min_elements: Count = 1024,
    seed: Seed = 0,
) -> Encoding:
    r"""Rounds each number to a float of 8 bits, with a scale for each block of numbers.

    .. math:: C(x) = (s, \mathrm{float8}(x / s)), \qquad D(C(x)) = s \, \mathrm{float8}(x / s)

    where s, a power of two, brings the largest number of the block to the last power of two of the format, or close to
    it: nothing overflows. The error is relative to each number, up to 1/16 of it ("e4m3") or 1/8 ("e5m2"), where that
    of ``quantised`` is relative to the largest number; below about 2^-14 or 2^-29 of the largest, steps are equal.
    Rounded at random, a number goes up with the probability of the fraction, so that its mean is the number.

    Args:
      format: "e4m3" has 3 bits after the point, "e5m2" has 2 and a larger range.
      bucket: how many numbers share a scale; None for all of a leaf, or of the slice of it that is sent.
      rounding: to the "nearest", ties to even, which is biased; or at "random", with up to twice the error.
      error_feedback: whether a worker keeps the error and adds it to its next gradient.
      exchange: see ``quantised``. In a scatter the mean is rounded once more.
      min_elements: leaves with fewer numbers are sent as they are.
      seed: the rounding at random is a function of the seed, the count of updates, and the worker.

    Returns:
      An ``Encoding``. A NaN makes its block NaN; an Inf is sent as NaN.

    Raises:
      ValueError: for a value outside its range.

    >>> codec = float8().codec
    >>> x = jnp.array([100.0, 1.0, 0.3])
    >>> codec.decode(codec.encode(jax.random.key(0), x), x)
    Array([96.    ,  1.    ,  0.3125], dtype=float32)

    Reference: Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433, for the formats (from memory).
    Differs from torchft's quantized collectives, known through their code, which send "e4m3" on an H100: a block of
    numbers shares a scale, not a row of a tensor, and it is a power of two, not the largest number over 448, so that
    numbers of the format are sent as they are.
    """
    check_options(float8, format=format, bucket=bucket, rounding=rounding, seed=seed)
    dtype = jnp.dtype(_FORMATS[format])

    def encode(key, x):
        scales, units = jax.vmap(unit)(buckets(x, bucket))  # (B,), (B, b)
        numbers = (units * _last_power(scales, dtype)[:, None]).ravel()[: x.size]
        round_ = jnp.round if rounding == "nearest" else lambda x: round_at_random(key, x)
        return {"numbers": _in_steps(round_, numbers, dtype).astype(dtype), "scales": scales}

    def decode(payload, like):
        rows = buckets(payload["numbers"].astype(like.dtype), bucket)
        scales = payload["scales"]
        found = (rows / _last_power(scales, dtype)[:, None] * scales[:, None]).ravel()[: like.size]
        most = jnp.finfo(like.dtype).max  # the largest numbers may have been rounded up beyond it
        return jnp.clip(found, -most, most)

    codec = Codec(encode=encode, decode=decode, elementwise=True)
    return exchanged(codec, exchange=exchange, error_feedback=error_feedback, min_elements=min_elements, seed=seed)


def _last_power(scales: jax.Array, dtype: Any) -> jax.Array:
    """Returns the power of two that the scale of each block stands for in a dtype: its last one, or an eighth of it."""
    last = jnp.asarray(2.0 ** (jnp.finfo(dtype).maxexp - 1), scales.dtype)
    most = power_of_two(jnp.full_like(scales, jnp.inf))  # the largest scale: a number may be 8 times it, not 1.5 times
    return jnp.where(scales < most, last, last / 8)


def _in_steps(round_: Callable[[jax.Array], jax.Array], x: jax.Array, dtype: Any) -> jax.Array:
    """Rounds numbers to those of a dtype in which they do not overflow.

    Args:
      round_: rounds to whole numbers.
      x: the numbers, in steps of which it is given them.
      dtype: a float that is narrower than x; a step is the distance between two of its numbers around each x.
    """
    bits_of = functools.partial(lax.bitcast_convert_type, new_dtype=f"uint{8 * x.dtype.itemsize}")
    of_exponent = bits_of(jnp.asarray(jnp.inf, x.dtype))
    power = lax.bitcast_convert_type(bits_of(x) & of_exponent, x.dtype)  # the one of two below |x|
    info = jnp.finfo(dtype)
    step = jnp.maximum(power, float(info.tiny)) * float(info.eps)
    return round_(x / step) * step
