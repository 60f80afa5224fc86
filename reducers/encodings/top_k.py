"""The largest numbers of each leaf, with their places."""

from typing import Annotated

import jax
from jax import lax
from jax import numpy as jnp

from reducers.encodings.encoding import Codec, Encoding, OnOff, with_places
from reducers.encodings.exchange import Exchange, exchanged
from reducers.encodings.packing import Codes
from reducers.encodings.then import Then, following
from reducers.options import Count, Seed, check_options, check_static


def top_k(
    *,
    ratio: Annotated[float, "(0, 1]"] = 0.01,
    then: Then = None,
    error_feedback: OnOff = "on",
    exchange: Exchange = "gather",
    min_elements: Count = 1024,
    seed: Seed = 0,
) -> Encoding:
    r"""Sends the k numbers of a leaf that are largest in absolute value; the others count as zero.

    .. math:: D(C(x))_j = \begin{cases} x_j & |x_j| \text{ among the } k \text{ largest} \\ 0 & \text{else} \end{cases}

    Args:
      ratio: k over the numbers of a leaf; k is at least 1.
      then: how the k values are encoded: "full", or an encoding of single numbers, such as
        {"name": "quantised", "bits": 4}. Its own error feedback, exchange and min_elements have no
        effect.
      error_feedback: whether a worker keeps the error and adds it to its next gradient.
      exchange: "gather", as in the papers; "scatter" and "auto" as in ``quantised``, where the mean of a slice is cut
        down to its largest numbers once more.
      min_elements: leaves with fewer numbers are sent as they are.
      seed: the seed of the rounding in ``then``.

    Returns:
      An ``Encoding``. Places are packed in as many bits as the largest one takes.

    Raises:
      ValueError: for a value outside its range.

    >>> codec = top_k(ratio=0.5).codec
    >>> x = jnp.array([1.0, -4.0, 3.0, 2.0])
    >>> codec.decode(codec.encode(jax.random.key(0), x), x)
    Array([ 0., -4.,  3.,  0.], dtype=float32)

    Reference: Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", arXiv 1809.07599 (from memory), as epfml/powersgd
    (read) has it: leaf by leaf, gathered, without the learning rate in the residual. Differs from that code in: k is
    not halved to pay for the places, which are packed.
    """
    check_options(top_k, ratio=ratio, seed=seed)
    check_static(ratio=ratio)
    follows, values = following(then)

    def encode(key, x):
        _, places = lax.top_k(jnp.abs(x), num_kept(x.size, ratio))
        codes = Codes(places.astype(jnp.uint32), max((x.size - 1).bit_length(), 1))
        return {"places": codes, "values": values.encode(key, x[places])}

    def add_to(total, payload):
        places = payload["places"].values.astype(jnp.int32)
        sent = values.decode(payload["values"], jax.ShapeDtypeStruct(places.shape, total.dtype))
        return total.at[places].add(sent, unique_indices=True, mode="promise_in_bounds")

    codec = Codec(
        encode=encode,
        decode=lambda payload, like: add_to(jnp.zeros((like.size,), like.dtype), payload),
        add_to=add_to,
    )
    made = exchanged(
        codec,
        exchange=exchange,
        error_feedback=error_feedback,
        min_elements=min_elements,
        seed=seed,
        homogeneous=follows.homogeneous,
    )
    return with_places(made, "top_k")


def num_kept(num_elements: int, ratio: float) -> int:
    """Returns k, the number of elements that are sent.

    >>> num_kept(1000, 0.01), num_kept(10, 0.01)
    (10, 1)
    """
    return min(max(round(ratio * num_elements), 1), num_elements)
