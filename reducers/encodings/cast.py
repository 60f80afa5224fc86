"""Half precision: numbers of 16 bits."""

from typing import Literal

from reducers.encodings.encoding import Codec, Encoding, OnOff
from reducers.encodings.exchange import Exchange, exchanged
from reducers.gram.scales import unit
from reducers.options import Count, check_options


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
