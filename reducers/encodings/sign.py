"""One bit per number: its sign."""

from jax import numpy as jnp

from reducers.encodings.encoding import Codec, Encoding, OnOff
from reducers.encodings.exchange import Exchange, exchanged
from reducers.encodings.packing import Codes
from reducers.gram.scales import unit
from reducers.options import Count


def sign(
    *,
    error_feedback: OnOff = "on",
    exchange: Exchange = "auto",
    min_elements: Count = 1024,
) -> Encoding:
    r"""Sends the sign of each number, and the mean of the absolute values.

    .. math:: D(C(x))_j = \Big( \frac{1}{m} \sum_k |x_k| \Big) \operatorname{sign}(x_j)

    Zero has the sign +1. The workers' results are averaged, each with its own mean. For a majority vote see
    ``sign_majority``.

    Args:
      error_feedback: whether a worker keeps the error and adds it to its next gradient.
      exchange: see ``quantised``. In a scatter the mean of a slice is encoded once more; its owner keeps the error.
        The zeros that fill up the last slices count in their means.
      min_elements: leaves with fewer numbers are sent as they are.

    Returns:
      An ``Encoding``.

    Raises:
      ValueError: for a value outside its range.

    >>> import jax
    >>> codec = sign().codec
    >>> x = jnp.array([1.0, -2.0, 0.0])
    >>> codec.decode(codec.encode(jax.random.key(0), x), x)
    Array([ 1., -1.,  1.], dtype=float32)

    Reference: EF-signSGD: Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD and other Gradient
    Compression Schemes", arXiv 1901.09847 (from memory), as the sign-and-norm reducer in epfml/powersgd (read) has it.
    Differs from that code in: slices go to their owners, where it gathers; zero counts as positive.
    """

    def encode(key, x):
        del key
        scale, units = unit(x)
        mean = scale * jnp.sum(jnp.abs(units) / float(x.size), keepdims=True)  # of terms that leave no dtype's range
        return {"mean": mean, "signs": Codes((x >= 0).astype(jnp.uint32), 1)}

    def decode(payload, like):
        del like
        return jnp.where(payload["signs"].values == 1, payload["mean"], -payload["mean"])

    codec = Codec(encode=encode, decode=decode, elementwise=True)
    return exchanged(
        codec, exchange=exchange, error_feedback=error_feedback, min_elements=min_elements, homogeneous=True
    )
