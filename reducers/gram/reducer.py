"""Reducers made of a rule: a function from the workers' dot products to the weights of their gradients."""

import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers.collectives import (
    AxisName,
    Combined,
    Devices,
    as_own,
    axes_of,
    gather_workers,
    in_buckets,
    num_workers,
    split_axes,
    weigh,
    whole_mask,
)
from reducers.dtypes import common_dtype, real_dtype, wide_dtype
from reducers.gram import groups
from reducers.gram.engine import exchange_slices
from reducers.gram.parts import Parts
from reducers.gram.products import Rule, Weighed
from reducers.gram.telemetry import initial_metrics, metrics_of
from reducers.mask import own_part
from reducers.mesh import ShardedOver, axes_that_cut, cuts_of, needs_whole_leaves, with_copies_alike
from reducers.options import check_options
from reducers.reducer import Reducer
from reducers.report import Report

Telemetry: TypeAlias = Literal["off", "on"]
Constructor = TypeVar("Constructor", bound=Callable[..., Reducer])


class GramOptions(TypedDict, total=False):
    """Options that reducers of this kind pass on to ``from_gram``."""

    granularity: str
    telemetry: Telemetry
    sharded_over: ShardedOver


class GramState(NamedTuple):
    """State of a reducer that weighs gradients by their dot products.

    Attributes:
      rule: this worker's part of the rule's state, with a leading axis of groups.
      report: telemetry, and whether the update used this worker's gradient; ``adasum`` leaves that out, since it uses
        the gradients of all workers that are counted.
    """

    rule: Any
    report: Report


class Weighing(NamedTuple):
    """How a reducer weighs the gradients of a model, each as one vector.

    Attributes:
      rule: ``(Products, (state, weights of the workers)) -> (weights of the units, state)``, see ``from_gram``.
      init: dtype -> the state of one worker.
      sharded_over: the reducer's option.
    """

    rule: Rule
    init: Callable[[Any], Any]
    sharded_over: ShardedOver


def from_gram(
    axis_name: AxisName,
    rule: Callable[..., Any],
    *,
    init: Callable[[Any], Any] | None = None,
    granularity: str = "model",
    telemetry: Telemetry = "off",
    homogeneous: bool = True,
    sharded_over: ShardedOver = None,
    takes_weights: bool = False,
) -> Reducer:
    r"""Makes a reducer of a rule that finds the workers' weights from the dot products of their gradients.

    .. math:: R(g_1, \dots, g_n) = \sum_i w_i \frac{g_i}{s_i}, \qquad w = \mathrm{rule}(G, s), \qquad
        G_{ij} = \frac{g_i}{s_i} \cdot \frac{g_j}{s_j}

    The devices exchange slices of the gradients, add up the Gram matrices of their slices, apply the rule to the same
    n x n numbers, and gather the weighted sums of their slices. As an all-reduce of the mean, it sends 2 (n - 1) / n of
    a gradient, whoever is absent, and as much of n (n + 1) / 2 numbers a group.

    Args:
      axis_name: the worker axis or axes, lanes last.
      rule: ``Products -> weights [n] of the units g_i / s_i``, for each group of leaves by itself. It is pure, and
        communicates nothing. ``Products.of_units`` makes them from weights of the gradients. The weight of a worker
        that is not counted is taken for 0. With ``init`` it is ``(Products, state) -> (weights, state)``, where the
        state has a leading axis of workers, [n, ...].
      init: dtype -> the rule's state at the start, of one worker; the dtype is that in which a group is computed. None
        for a rule that keeps nothing.
      granularity: what counts as one vector: the whole "model", each "layer" (leaf), or a regular expression, and then
        the leaves in whose path, such as "Block_3/Conv_0/kernel", it matches the same text.
      telemetry: "on" keeps ``metrics`` of each group and of the whole model in the state, see ``gram.Telemetry``.
      homogeneous: whether the rule's result scales as the gradients do.
      sharded_over: the other manual axes of the mesh over which leaves are cut: dot products are summed over them, so
        that a layer that no device holds whole is combined as the whole layer would be. A tuple of axes, over which all
        leaves are cut, or those that JAX knows to differ over an axis where it keeps track of that (``check_vma``); or
        pattern of a leaf's path -> its axes, such as {"kernel": ("row", "column"), "": ("column",)}; the first that
        matches counts. A leaf has copies along the axes that do not cut it; one of them counts. () says that all leaves
        are whole. None leaves it open; updates that may be cut over such an axis are then refused.
      takes_weights: whether the update takes ``weights``, and the rule a last argument, the workers' weights over the
        mean of those that are counted, [n], in the dtype of the products; all 1 without weights, and all NaN where one
        is negative, NaN or infinite.

    Returns:
      A reducer with ``GramState``, part of which is each worker's own: map it over the worker axis. Its update takes
      ``contributes``, optional: a bool of each worker, whether it is counted. A worker whose weight is 0 in all groups
      in which its gradient is not zero is left out, whatever its values, NaN included: its report says so. A
      worker whose whole gradient is zero counts. Dtypes are kept, arithmetic is in float32 at least.

    Raises:
      ValueError: for a granularity that is not a regular expression; when traced, for a pattern that matches no leaf.

    >>> def longest(products):  # the gradient that is longest, alone
    ...     return products.of_units(jax.nn.one_hot(products.norms.argmax(), len(products.norms)))
    >>> reducer = from_gram("worker", longest)
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([[1.0, 0.0], [0.0, 2.0]]))[0]
    Array([0., 2.], dtype=float32)

    Priors: TorchJD weighs several losses on one machine by rules on their Gram matrix. New in this project: the weights
    of Adasum's whole tree follow from it, too, and one exchange of slices suffices.
    """
    check_options(from_gram, granularity=granularity, telemetry=telemetry)

    initial = init or (lambda dtype: ())

    # Hashable, as a static argument has to be, which a rule with options need not be.
    def weights_of(products, given):
        state, shares = given
        found = rule(products, *([state] if init else []), *([shares] if takes_weights else []))
        return found if init else (found, state)

    def combine(vectors, state, counted, shares, parts):
        devices, lanes = split_axes(axis_name)
        of_all = jax.tree.map(lambda x: jnp.moveaxis(gather_workers(x, axis_name), 0, 1), state)  # [groups, n, ...]

        def reduce(places, bucket):
            of_bucket = jax.tree.map(lambda x: x[np.array(places)], of_all)
            of_products = shares.astype(wide_dtype(bucket[0][0]))
            given = of_bucket, jnp.broadcast_to(of_products, (len(places), len(shares)))
            given_parts = {"devices": Devices(devices), "counted": counted[None], "parts": parts.at(places)}
            return exchange_slices(bucket, given, rule=weights_of, **given_parts)

        whole = jax.tree.map(lambda x: gather_workers(x, lanes)[None], vectors)
        return in_buckets(reduce, whole, axis_name=devices, together=True)

    return combining(
        axis_name,
        combine,
        init=initial,
        granularity=granularity,
        telemetry=telemetry,
        homogeneous=homogeneous,
        sharded_over=sharded_over,
        takes_weights=takes_weights,
        weighs=Weighing(weights_of, initial, sharded_over) if granularity == "model" and telemetry == "off" else None,
    )


def takes_gram_options(constructor: Constructor) -> Constructor:
    """Shows the shared options in the signature of a constructor that takes them as ``**options``.

    >>> @takes_gram_options
    ... def longest(axis_name, *, seed=0, **options):
    ...     return from_gram(axis_name, lambda products: products.counted, **options)
    >>> list(inspect.signature(longest).parameters)
    ['axis_name', 'seed', 'granularity', 'telemetry', 'sharded_over']
    """
    signature = inspect.signature(constructor)
    shared = inspect.signature(from_gram).parameters
    own = [p for p in signature.parameters.values() if p.kind != p.VAR_KEYWORD]
    named = [shared[key] for key in GramOptions.__annotations__]
    constructor.__signature__ = signature.replace(parameters=own + named)  # type: ignore[attr-defined]
    return constructor


def combining(
    axis_name: AxisName,
    combine: Callable[[list[list[jax.Array]], Any, jax.Array, jax.Array, Parts], Combined],
    *,
    init: Callable[[Any], Any] | None = None,
    granularity: str,
    telemetry: Telemetry,
    homogeneous: bool = True,
    sharded_over: ShardedOver,
    takes_weights: bool = False,
    weighs: Weighing | None = None,
) -> Reducer:
    """Makes a reducer of a function that combines vectors: with trees of leaves, masks, state and telemetry.

    Args:
      axis_name: the worker axis or axes, lanes last.
      combine: takes this worker's vectors, parts of [m] each, zeros where it is not counted; its part of the rule's
        state; which workers are counted, [n] bool; the weights of all, [n], see ``from_gram``; and what cuts the parts.
        Returns the result of every vector, parts of [1, m], and a ``Weighed``, if there is telemetry or a state.
      init: see ``from_gram``; None also says that all workers that are counted are used.
      granularity: see ``from_gram``.
      telemetry: see ``from_gram``.
      homogeneous: see ``from_gram``.
      sharded_over: see ``from_gram``.
      takes_weights: see ``from_gram``.
      weighs: see ``Facts``.
    """
    groups.check(granularity)
    axes = axes_of(axis_name)
    cutting = axes_that_cut(sharded_over)

    def init_fn(params):
        members = groups.members(params, granularity)
        metrics = initial_metrics(members) if telemetry == "on" else {}
        if init is None:
            return GramState((), Report(metrics=metrics))
        state = init(common_dtype(jnp.float32, *map(real_dtype, jax.tree.leaves(params))))
        of_groups = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(members), *jnp.shape(x))), state)
        return GramState(as_own(of_groups, axes), Report(as_own(jnp.array(True), axes), metrics=metrics))

    def update_fn(updates, state, params=None, *, contributes=None, weights=None, **extra_args):
        del params, extra_args
        cuts = cuts_of(updates, sharded_over, axis_name=axes) if cutting else []
        vectors, of_vectors, restore = groups.split(updates, granularity, cuts=cuts)
        if not vectors:
            return updates, state
        own = list(vectors.values())
        counted = jnp.ones(num_workers(axes), bool)
        shares = jnp.ones(num_workers(axes), jnp.float32)
        if weights is not None:
            contributes, shares = weigh(weights, contributes, axes)
        if contributes is not None:
            own = jax.tree.map(lambda x: jnp.where(own_part(contributes), x, 0), own)
            counted = whole_mask(contributes, axes)
        results, weighed = combine(own, state.rule, counted, shares, Parts(cutting, of_vectors))
        result = with_copies_alike(restore(jax.tree.map(lambda x: x[0], results)), updates, cutting)
        metrics = metrics_of(vectors, weighed) if telemetry == "on" else {}
        if init is None:
            return result, GramState((), Report(metrics=metrics))
        worker = lax.axis_index(axes)
        own_state = jax.tree.map(lambda old, new: new[:, worker].astype(old.dtype), state.rule, weighed.state)
        return result, GramState(own_state, Report(_are_used(weighed, counted)[worker], metrics=metrics))

    return Reducer(
        init_fn,
        update_fn,
        axis_name=axes,
        takes_mask="whole",
        takes_weights=takes_weights,
        homogeneous=homogeneous,
        numbers="inexact",
        needs_whole_leaves=needs_whole_leaves(sharded_over),
        weighs=weighs,
    )


def _are_used(weighed: Weighed, counted: jax.Array) -> jax.Array:
    """Returns which workers count, [n] bool: those with a weight other than 0 of a nonzero gradient in any group.

    A group in which a worker's gradient is zero does not decide, since a zero adds the same with any weight; the other
    groups do. A worker whose whole gradient is zero counts: none of its groups leaves it out.
    If none counts by this, all workers with finite gradients do that the mask counts, or else all that it counts.
    """
    products, weights, _ = weighed
    used = ((weights != 0).any(0) | (products.scales == 0).all(0)) & counted
    finite = products.finite.all(0)
    return jnp.where(used.any(), used, jnp.where(finite.any(), finite, counted))
