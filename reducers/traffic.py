"""The bytes and collectives of a reducer per worker, counted in its traced program."""

import math
from collections import Counter
from typing import Any, NamedTuple

import jax
import optax
from jax import numpy as jnp
from jax.sharding import AbstractMesh, AxisType, PartitionSpec


class Traffic(NamedTuple):
    """Counts of one call of a reducer.

    Attributes:
      bytes_per_worker: bytes that a worker sends (it receives as many), with bandwidth-optimal collectives.
      collectives: how often each kind of collective is issued.
    """

    bytes_per_worker: float
    collectives: dict[str, int]


# Bytes sent by one of n workers over the bytes of the operand (for all_gather: of the worker's own part), with the
# best known algorithm of each kind: ring or halving-doubling.
SENT = {
    "psum": lambda n: 2 * (n - 1) / n,
    "pmax": lambda n: 2 * (n - 1) / n,
    "pmin": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: n - 1,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "ppermute": lambda n: 1,
}


def traffic(reducer: optax.GradientTransformationExtraArgs, updates: Any, *, axis_sizes: dict[str, int], **extra_args):
    r"""Counts what one update of ``reducer`` moves, without running or compiling it.

    An all-reduce of s bytes over n workers counts as :math:`2 s (n - 1) / n`, an all-gather of parts of s bytes as
    :math:`s (n - 1)`, a reduce-scatter or all-to-all of s bytes as :math:`s (n - 1) / n`, a permutation as s. Among the
    branches of a condition, the one that sends most counts; the body of a while loop counts once.

    Args:
      reducer: the transformation, built for the axes named in ``axis_sizes``.
      updates: one worker's updates; arrays or ``jax.ShapeDtypeStruct``.
      axis_sizes: size of each axis; that many devices need not exist.
      **extra_args: further keyword arguments of the reducer's update.

    Returns:
      A ``Traffic``.

    >>> import reducers
    >>> traffic(reducers.mean("worker"), {"w": jnp.zeros(1000)}, axis_sizes={"worker": 8})
    Traffic(bytes_per_worker=7000.0, collectives={'psum': 1})
    """

    def one_call(updates):
        return reducer.update(updates, reducer.init(updates), updates, **extra_args)[0]

    mesh = AbstractMesh(tuple(axis_sizes.values()), tuple(axis_sizes), axis_types=(AxisType.Auto,) * len(axis_sizes))
    spec = PartitionSpec()
    on_mesh = jax.shard_map(one_call, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    jaxpr = jax.make_jaxpr(on_mesh)(updates)
    collectives: Counter[str] = Counter()
    sent = _count(jaxpr.jaxpr, axis_sizes, collectives, times=1)
    return Traffic(sent, dict(collectives))


def _count(jaxpr, axis_sizes: dict[str, int], collectives: Counter, *, times: int) -> float:
    sent = 0.0
    for equation in jaxpr.eqns:
        kind = equation.primitive.name.removesuffix("_invariant").rstrip("2")
        if kind in SENT:
            axes = equation.params.get("axes", equation.params.get("axis_name"))
            axes = axes if isinstance(axes, tuple | list) else (axes,)
            groups = equation.params.get("axis_index_groups")
            n = len(groups[0]) if groups else math.prod(axis_sizes[a] for a in axes if a in axis_sizes)
            for operand in equation.invars:
                sent += times * SENT[kind](n) * operand.aval.size * jnp.dtype(operand.aval.dtype).itemsize
            collectives[kind] += times
        inner_times = times * equation.params.get("length", 1) if equation.primitive.name == "scan" else times
        if equation.primitive.name == "cond":
            sent += _count_most(equation.params["branches"], axis_sizes, collectives, times=times)
            continue
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)  # closed or not
                if hasattr(inner, "eqns"):
                    sent += _count(inner, axis_sizes, collectives, times=inner_times)
    return sent


def _count_most(branches, axis_sizes: dict[str, int], collectives: Counter, *, times: int) -> float:
    counted = []
    for branch in branches:
        own: Counter[str] = Counter()
        counted.append((_count(branch.jaxpr, axis_sizes, own, times=times), own))
    sent, own = max(counted, key=lambda each: each[0])
    collectives.update(own)
    return sent
