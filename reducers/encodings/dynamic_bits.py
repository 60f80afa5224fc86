"""Few bits per number, whose width follows the norm of the gradient from update to update."""

import functools
from typing import Annotated, Any, NamedTuple

import jax
from jax import numpy as jnp

from reducers.collectives import agreed
from reducers.encodings.encoding import Cost, Encoding, Kept, OnOff, Width
from reducers.encodings.exchange import Exchange, exchanged
from reducers.encodings.quantised import Norm, quantiser
from reducers.gram.scales import common_scale, norm_over, quotient
from reducers.options import Count, Seed, check_options, check_static

# A width is rounded up to the next one of these, each of which is a branch in which codes are packed and sent.
WIDTHS = (2, 3, 4, 5, 6, 8, 12, 16)


class BitsState(NamedTuple):
    """State of ``dynamic_bits``, the same on all workers.

    Attributes:
      num_updates: [] int32, so far.
      factor: [] float32, k; 0 until a norm is known that is not 0.
      norm: [] float32, of the last reduced gradient that is finite.
    """

    num_updates: jax.Array
    factor: jax.Array
    norm: jax.Array


def dynamic_bits(
    *,
    start_bits: Annotated[int, "[2, 16]"] = 4,
    decay: Annotated[float, "(0, 1]"] = 1.0,
    norm: Norm = "inf",
    bucket: Count | None = None,
    error_feedback: OnOff = "off",
    exchange: Exchange = "auto",
    min_elements: Count = 1024,
    seed: Seed = 0,
) -> Encoding:
    r"""Rounds numbers at random as ``quantised`` does, to a width that follows the norm of the gradient.

    .. math:: b_t = \lceil \log_2 ( k \, a^{-t / 2} G_t + 1 ) \rceil + 1

    rounded up to 2, 3, 4, 5, 6, 8, 12 or 16, and cut to 16. G_t is the Euclidean norm of the last reduced gradient,
    which all workers know, so that no one has to tell the width. With a = 1, the rule for losses that are not convex,
    the width falls with the norm; with a < 1 it also rises towards the end of the run. The program is compiled once;
    it rounds to a number of levels that is known at run time, and has a branch for each width that packs and sends.

    Args:
      start_bits: b of the first two updates. k follows from it and from the first norm, so that the width is one less
        where the norm has fallen to about 0.7 of it, and one more where it has risen to 1.4.
      decay: a; 1 - 2 mu eta + L mu eta^2 for a mu-strongly convex, L-smooth loss and the rate eta.
      norm: the norm of the numbers; this option and the following are those of ``quantised``.
      bucket: how many numbers share a norm.
      error_feedback: whether a worker keeps the error and adds it to its next gradient.
      exchange: "gather", "scatter" or "auto".
      min_elements: leaves with fewer numbers are sent as they are.
      seed: the seed of the rounding.

    Returns:
      An ``Encoding``; its metric "bytes_per_worker" is of the width of each update, where ``traffic`` counts 16 bits.

    Raises:
      ValueError: for a value outside its range.

    >>> state = BitsState(jnp.array(5), factor=jnp.array(5.0), norm=jnp.array(1.0))
    >>> [int(width_at(state._replace(norm=n), start_bits=4, decay=1.0)) for n in (2.0, 1.0, 0.5, 0.1)]
    [5, 4, 3, 2]

    Reference: Yan et al., "DQ-SGD", arXiv 2107.14575. The rule is that of the version submitted to ICLR 2021 (read),
    which minimises the error for a budget of bits; the form of 2021, which minimises the bits for an error, is known by
    its abstract alone. Differs from the paper in: k follows from ``start_bits``, where the paper's follows from the
    budget, and with it from the length N of the run: its exponent is (N - t) / 2; G_t is the norm of the last reduced
    gradient, where theirs is that of a worker's own; widths are rounded up.
    """
    check_options(dynamic_bits, start_bits=start_bits, decay=decay, norm=norm, bucket=bucket, seed=seed)
    check_static(start_bits=start_bits)
    widest = quantiser(bits=WIDTHS[-1], norm=norm, bucket=bucket)

    def of_bits(bits):
        return exchanged(
            quantiser(bits=bits, norm=norm, bucket=bucket),
            exchange=exchange,
            error_feedback=error_feedback,
            min_elements=min_elements,
            seed=seed,
            sized_as=widest,
        )

    choices = [of_bits(bits) for bits in WIDTHS]

    def choice(state):
        width = width_at(state, start_bits=start_bits, decay=decay)
        return jnp.searchsorted(jnp.array(WIDTHS, jnp.int32), width)

    def init(leaves):
        first = choices[0].init(leaves)
        state = BitsState(jnp.zeros((), jnp.int32), *[jnp.zeros((), jnp.float32)] * 2)
        return Kept(first.residuals, (state, first.state))

    def send(leaves, kept, reduction, *, by):
        state, of_choice = kept.state
        encoding = of_bits(Width(WIDTHS, agreed(choice(state), reduction.axes)))
        return by(encoding)(leaves, Kept(kept.residuals, of_choice), reduction)._replace(state=kept.state)

    def cost(leaves, state, n):
        state, of_choice = state
        costs = [encoding.cost(leaves, of_choice, n) for encoding in choices]
        payloads, sent = (jnp.array(bytes_of_all, jnp.float32) for bytes_of_all in zip(*costs, strict=True))
        return Cost(payloads[choice(state)], sent[choice(state)])

    def observe(state, results):
        (count, factor, before), of_choice = state
        scale = common_scale(jax.tree.leaves(results))
        size = (scale * norm_over(scale, jax.tree.leaves(results))).astype(jnp.float32)
        size = jnp.where(jnp.isfinite(size), size, before)
        is_known = size > 0
        growth = factor_at(count + 1, decay=decay) * jnp.where(is_known, size, 1)
        first = quotient(jnp.float32(2 ** (start_bits - 1.5) - 1), growth)  # in the middle of the norms with this width
        return BitsState(count + 1, jnp.where((factor == 0) & is_known, first, factor), size), of_choice

    return Encoding(
        init=init,
        mean=functools.partial(send, by=lambda encoding: encoding.mean),
        own=functools.partial(send, by=lambda encoding: encoding.own),
        cost=cost,
        observe=observe,
        varies=True,
    )


def width_at(state: BitsState, *, start_bits: int, decay: float) -> jax.Array:
    """Returns the width of the next update, [] int32, before it is rounded up to one of ``WIDTHS``."""
    growth = state.factor * factor_at(state.num_updates, decay=decay) * state.norm
    width = jnp.ceil(jnp.log2(growth + 1)) + 1
    width = jnp.clip(jnp.nan_to_num(width, nan=WIDTHS[-1]), WIDTHS[0], WIDTHS[-1])
    return jnp.where(state.factor == 0, start_bits, width).astype(jnp.int32)


def factor_at(count: jax.Array, *, decay: float) -> Any:
    """Returns a^(-t / 2); 1 for a = 1."""
    return 1.0 if decay == 1 else jnp.float32(decay) ** (-count / 2)
