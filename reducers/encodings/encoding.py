"""An encoding: how the leaves of a gradient are sent, and which error a worker keeps for its next gradient."""

import dataclasses
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import num_counted, num_workers
from reducers.dtypes import wide, wide_dtype
from reducers.encodings.random_rounding import derived, key_of
from reducers.mask import own_part

Leaves: TypeAlias = dict[str, Any]  # arrays, or their shapes, by path: "Dense_0/kernel"
OnOff: TypeAlias = Literal["on", "off"]


class Reduction(NamedTuple):
    """The setting in which an update is encoded.

    Attributes:
      axes: the worker axes, outer first.
      num_updates: [] int32, updates before this one.
      mask: whether this worker is counted, or a ``Mask``; None counts all.
      mean: the plain mean of arrays over the workers that are counted; None where the rule is another one.
    """

    axes: tuple[str, ...]
    num_updates: jax.Array
    mask: Any
    mean: Callable[[Sequence[jax.Array]], list[jax.Array]] | None

    @property
    def contributes(self) -> Any:
        """Whether this worker is counted; None counts all."""
        return own_part(self.mask)

    def num_counted(self) -> Any:
        """Returns how many workers are counted: a Python int where that is all of them, else [] float32."""
        return num_workers(self.axes) if self.mask is None else num_counted(self.mask, self.axes, dtype=jnp.float32)

    def key(self, seed: int, *, of: Literal["worker", "all"] = "worker") -> jax.Array:
        """Returns the key of this update: this worker's own, or the one of "all" workers."""
        key = jax.random.fold_in(key_of(seed), self.num_updates)
        return jax.random.fold_in(key, lax.axis_index(self.axes)) if of == "worker" else key


def keys_of_leaves(key: jax.Array, names: Iterable[str]) -> dict[str, jax.Array]:
    """Derives a key for each leaf from one key and the leaf's path."""
    names = list(names)
    numbers = jnp.array([zlib.crc32(name.encode()) for name in names], jnp.uint32)
    return dict(zip(names, jax.vmap(derived, in_axes=(None, 0))(key, numbers), strict=True)) if names else {}


class Kept(NamedTuple):
    """The state that a worker keeps from one update to the next; checkpoints hold it.

    Attributes:
      residuals: the part that it has not sent, of the leaves with error feedback, in float32 at least.
      state: the encoding's own, which is the same on all workers.
    """

    residuals: Leaves
    state: Any = ()


class Sent(NamedTuple):
    """The result of encoding and combining leaves.

    Attributes:
      leaves: the mean of what the workers sent; for a rule other than the mean, what this worker is taken to send.
      residuals: what this worker has not sent, of every leaf.
      state: the encoding's own.
    """

    leaves: Leaves
    residuals: Leaves
    state: Any = ()


class Cost(NamedTuple):
    """The bytes of an update.

    Attributes:
      payload: bytes of one worker's encoded leaves.
      sent: bytes that a worker sends for their mean, counted as ``reducers.traffic`` does.
    """

    payload: Any
    sent: Any


def total_cost(costs: Iterable[Cost]) -> Cost:
    """Returns the sum of costs.

    >>> total_cost([Cost(1, 2), Cost(3, 4)])
    Cost(payload=4, sent=6)
    """
    found = list(costs)
    return Cost(sum(cost.payload for cost in found), sum(cost.sent for cost in found))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Encoding:
    """How leaves are sent. All functions except ``init`` are called where the worker axes are bound.

    Attributes:
      init: ``leaves -> Kept``, at the start.
      mean: ``(leaves, kept, reduction) -> Sent``, the mean over workers of what they send; with all collectives.
      own: the same without a collective, for rules other than the mean; None if the encoding works with the mean alone.
      cost: ``(leaves, state, num_workers) -> Cost``.
      observe: ``(state, results) -> state``, called with the reduced leaves.
      homogeneous: whether what is sent scales as the gradients do.
      varies: whether the bytes differ from update to update.
      codec: how one array is encoded, if the encoding does no more than that; other encodings can then use it for what
        they send.
    """

    init: Callable[[Leaves], Kept]
    mean: Callable[[Leaves, Kept, Reduction], Sent]
    own: Callable[[Leaves, Kept, Reduction], Sent] | None
    cost: Callable[[Leaves, Any, int], Cost]
    observe: Callable[[Any, Leaves], Any] = lambda state, results: state
    homogeneous: bool = False
    varies: bool = False
    codec: "Codec | None" = None


class Width(NamedTuple):
    """A number of bits that is chosen at run time.

    Attributes:
      choices: in ascending order.
      which: [] int32, the place of the chosen one; the same on all workers.
    """

    choices: tuple[int, ...]
    which: jax.Array

    @property
    def most(self) -> int:
        """The largest choice."""
        return self.choices[-1]

    @property
    def bits(self) -> jax.Array:
        """The chosen one, [] int32."""
        return jnp.array(self.choices, jnp.int32)[self.which]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Codec:
    """How one array becomes a payload, and the payload an array again.

    Attributes:
      encode: ``(key, x [m]) -> payload``: a tree of arrays and ``packing.Codes``, of shapes that follow from m.
      decode: ``(payload, like [m]) -> [m]``, of the dtype of ``like``.
      add_to: ``(total [m], payload) -> [m]``, the total with what is decoded added to it; None decodes and adds.
      elementwise: whether each number is encoded alone, except for a scale: such a codec can follow another one.
      width: where a payload begins with one code a number, of ``width.most`` bits, the bits in which codes are sent.
    """

    encode: Callable[[jax.Array, jax.Array], Any]
    decode: Callable[[Any, Any], jax.Array]
    add_to: Callable[[jax.Array, Any], jax.Array] | None = None
    elementwise: bool = False
    width: Width | None = None

    def add(self, total: jax.Array, payload: Any) -> jax.Array:
        """Returns the total with what is decoded added to it."""
        return total + self.decode(payload, total) if self.add_to is None else self.add_to(total, payload)


def with_places(encoding: Encoding, name: str) -> Encoding:
    """Makes the encoding of this name refuse leaves with more numbers than an int32 can count."""

    def init(leaves):
        most = int(jnp.iinfo(jnp.int32).max)
        for path, leaf in leaves.items():
            if (size := math.prod(leaf.shape)) > most:
                raise ValueError(
                    f"name={name!r}: cannot send {path!r} of {size} numbers, must be at most {most} of a leaf"
                )
        return encoding.init(leaves)

    return dataclasses.replace(encoding, init=init)


# ---- error feedback ------------------------------------------------------------------------------------------------


def corrected(x: jax.Array, residual: jax.Array, contributes: Any) -> jax.Array:
    """Returns p = g + e, in float32 at least; zeros for a worker that is left out."""
    p = wide(x) + residual
    return p if contributes is None else jnp.where(contributes, p, 0)


def remainder(p: jax.Array, sent: jax.Array, residual: jax.Array, contributes: Any) -> jax.Array:
    """Returns e = p - what was sent; a worker that is left out keeps the residual that it had.

    So does each number that is not finite: a rule may outvote it, and later updates must not suffer from it.
    """
    rest = p - sent
    kept = jnp.isfinite(rest) if contributes is None else jnp.asarray(contributes, bool) & jnp.isfinite(rest)
    return jnp.where(kept, rest, residual)


def with_feedback(
    leaves: Leaves, kept: Kept, contributes: Any, send: Callable[[Leaves], tuple[Leaves, Leaves, Any]]
) -> Sent:
    """Adds the residuals to leaves, sends them, and keeps what was not sent.

    Args:
      leaves: this worker's.
      kept: the state before.
      contributes: whether this worker is counted; None counts all.
      send: the corrected leaves -> the results, what a receiver makes of this worker's own, and the encoding's state.
    """
    old = residuals_of(leaves, kept)
    whole = {name: corrected(leaf, old[name], contributes) for name, leaf in leaves.items()}
    results, sent, state = send(whole)
    return Sent(results, {name: remainder(whole[name], sent[name], old[name], contributes) for name in leaves}, state)


def initially(leaves: Leaves, *, error_feedback: OnOff) -> Kept:
    """Returns the initial ``Kept`` of an encoding without a state."""
    return Kept(zero_residuals(leaves) if error_feedback == "on" else {})


def nothing_kept(encoding: Encoding) -> Kept:
    """Returns the ``Kept`` of an encoding without a state and without error feedback."""
    return Kept({}, encoding.init({}).state)


def zero_residuals(leaves: Leaves) -> Leaves:
    """Returns the residuals at the start, in float32 at least."""
    return {name: jnp.zeros_like(leaf, dtype=wide_dtype(leaf)) for name, leaf in leaves.items()}


def residuals_of(leaves: Leaves, kept: Kept) -> Leaves:
    """Returns the residuals of leaves; zeros for those that keep none."""
    return zero_residuals(leaves) | {name: x for name, x in kept.residuals.items() if name in leaves}
