"""Different leaves, different encodings."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax import numpy as jnp

from reducers.encodings.encoding import (
    Codec,
    Cost,
    Encoding,
    Kept,
    Leaves,
    Sent,
    total_cost,
    zero_residuals,
)
from reducers.leaves import num_bytes
from reducers.traffic import SENT


def as_it_is() -> Encoding:
    """Returns the encoding of leaves that are sent as they are."""

    def mean(leaves, kept, reduction):
        assert reduction.mean is not None
        means = reduction.mean(list(leaves.values()))
        return Sent(dict(zip(leaves, means, strict=True)), zero_residuals(leaves), kept.state)

    def cost(leaves, state, n):
        del state
        payload = num_bytes(leaves)
        return Cost(payload, SENT["psum"](n) * payload)

    return Encoding(
        init=lambda leaves: Kept({}),
        mean=mean,
        own=lambda leaves, kept, reduction: Sent(leaves, zero_residuals(leaves), kept.state),
        cost=cost,
        homogeneous=True,
        codec=Codec(encode=lambda key, x: x, decode=lambda payload, like: payload, elementwise=True),
    )


def divided(encodings: Sequence[Encoding], choose: Callable[[str, Any], int]) -> Encoding:
    """Returns the encoding that sends each leaf by one of several encodings.

    Args:
      encodings: any; the state has one of each.
      choose: ``(path, leaf) -> which of them``.
    """

    def parts(leaves):
        chosen = {name: choose(name, leaf) for name, leaf in leaves.items()}
        return [{name: leaf for name, leaf in leaves.items() if chosen[name] == i} for i in range(len(encodings))]

    def init(leaves):
        found = [encoding.init(part) for encoding, part in zip(encodings, parts(leaves), strict=True)]
        return Kept(_merged(kept.residuals for kept in found), tuple(kept.state for kept in found))

    def send(leaves, kept, reduction, *, by):
        sent = []
        for encoding, part, state in zip(encodings, parts(leaves), kept.state, strict=True):
            of_part = Kept({name: x for name, x in kept.residuals.items() if name in part}, state)
            sent.append(by(encoding)(part, of_part, reduction) if part else Sent({}, {}, state))
        return Sent(
            leaves=_merged(one.leaves for one in sent),
            residuals=_merged(one.residuals for one in sent),
            state=tuple(one.state for one in sent),
        )

    def cost(leaves, state, n):
        found = zip(encodings, parts(leaves), state, strict=True)
        return total_cost(encoding.cost(part, own, n) for encoding, part, own in found)

    def observe(state, results):
        found = zip(encodings, state, parts(results), strict=True)
        return tuple(encoding.observe(own, part) for encoding, own, part in found)

    return Encoding(
        init=init,
        mean=functools.partial(send, by=lambda encoding: encoding.mean),
        own=functools.partial(send, by=lambda encoding: encoding.own) if all(e.own for e in encodings) else None,
        cost=cost,
        observe=observe,
        homogeneous=all(encoding.homogeneous for encoding in encodings),
        varies=any(encoding.varies for encoding in encodings),
    )


def leaving_small(encoding: Encoding, *, min_elements: int) -> Encoding:
    """Returns an encoding that sends leaves with fewer elements, of integers and of complex numbers as they are."""

    def choose(name, leaf):
        del name
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        return 0 if is_float and math.prod(leaf.shape) >= min_elements else 1

    return dataclasses.replace(divided([encoding, as_it_is()], choose), codec=encoding.codec)


def _merged(parts: Iterable[Leaves]) -> Leaves:
    return {name: leaf for part in parts for name, leaf in part.items()}
