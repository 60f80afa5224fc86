"""A reducer to which workers send encoded updates; they keep the error for the next update."""

from typing import Any, NamedTuple

import jax
import optax
from jax import numpy as jnp

from reducers.collectives import AxisName, agreed, as_own, axes_of, num_workers
from reducers.encodings.encoding import Encoding, Kept, Leaves, Reduction, Sent, corrected, residuals_of
from reducers.gram.scales import common_scale, nonzero, norm_over
from reducers.leaves import leaf_names
from reducers.mesh import ShardedOver, needs_whole_leaves
from reducers.reducer import Reducer, as_inner
from reducers.report import Report, report, who_counts


class EncodedState(NamedTuple):
    """State of ``encoded``; residuals are each worker's own.

    Attributes:
      num_updates: [] int32, so far.
      kept: residuals and the encoding's state.
      combine: state of the reducer.
      report: that of the reducer, with "bits" per number that a worker encodes; "compression_error", \\|e\\| / \\|p\\|;
        and "bytes_per_worker" where the bytes differ from update to update.
    """

    num_updates: jax.Array
    kept: Kept
    combine: Any
    report: Report


def encoded(
    reducer: optax.GradientTransformation,
    encoding: Encoding,
    *,
    axis_name: AxisName,
    sharded_over: ShardedOver = None,
) -> Reducer:
    r"""Sends encoded updates to a reducer; with error feedback, the error of an update is added to the next one.

    .. math:: p_i = g_i + e_i, \quad c_i = C(p_i), \quad e_i \leftarrow p_i - D(c_i), \quad R(D(c_1), \dots, D(c_n))

    where C encodes and D decodes. Learning rate, momentum and weight decay come after it, and the residual e has the
    unit of gradients. To the mean workers send the payload c, in words of 32 bits; to any other rule they send D(c),
    and no bytes are saved.

    Args:
      reducer: along ``axis_name``.
      encoding: such as ``encodings.quantised(bits=4)``.
      axis_name: the worker axis or axes.
      sharded_over: () says that leaves are whole along all other manual axes of the mesh. None leaves it open; updates
        that may be cut over such an axis are then refused. Axes that cut leaves are refused, too: blocks, norms, the
        largest numbers and low ranks would be those of a part.

    Returns:
      A reducer with ``EncodedState``, part of which is each worker's own: map it over the worker axis. Its update takes
      the arguments that ``reducer`` takes. A worker that is left out, by ``contributes`` or by the reducer's own rule,
      keeps the residual that it had, as all workers do after an update that ``overflowed``. Dtypes are kept, arithmetic
      is in float32 at least; leaves of integers and of complex numbers are sent as they are. NaN or Inf of a worker
      that counts makes its leaf NaN, or a part of it, and no other; it does not reach later updates.

    Raises:
      ValueError: if the encoding is for the mean alone, and the reducer is another one.

    >>> from reducers.encodings import quantised
    >>> from reducers.sums.mean import mean
    >>> reducer = encoded(mean("worker"), quantised(bits=8, min_elements=1), axis_name="worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([[1.0, -1.0], [3.0, 0.0]]))[0]
    Array([ 2. , -0.5], dtype=float32)

    Reference: error feedback as in the code of Vogels, Karimireddy, Jaggi (epfml/powersgd, read): without the learning
    rate, before momentum and weight decay.
    """
    axes = axes_of(axis_name)
    must_be_whole = needs_whole_leaves(sharded_over, sums_parts=False)
    reducer = as_inner(reducer, key="reducer")
    if not reducer.is_mean and encoding.own is None:
        raise ValueError("reducer: must be the mean, or one around it; such updates can be averaged alone")

    def measured(bits, error, sent):
        found = {"bits": bits, "compression_error": error}
        if encoding.varies and reducer.is_mean:
            found["bytes_per_worker"] = sent
        return {name: jnp.asarray(value, jnp.float32) for name, value in found.items()}

    def init_fn(params):
        kept = encoding.init(named_leaves(params))
        kept = kept._replace(residuals=as_own(kept.residuals, axes))
        combine = reducer.init(params)
        own = report(combine).with_metrics(measured(0, as_own(jnp.zeros(()), axes), 0))
        return EncodedState(jnp.zeros((), jnp.int32), kept, combine, own)

    def update_fn(updates, state, params=None, **extra_args):
        leaves = named_leaves(updates)
        kept = state.kept
        mask = extra_args.get("contributes") if reducer.takes_mask else None
        combine = lambda tree: reducer.update(tree, state.combine, params, **extra_args)  # noqa: E731
        count = agreed(state.num_updates, axes)  # what all workers draw must be the same on all lanes
        if reducer.is_mean:
            average = lambda arrays: combine(list(arrays))[0]  # noqa: E731
            sent = encoding.mean(leaves, kept, Reduction(axes, count, mask, average))
            results = _like(sent.leaves, updates)
            combined = state.combine
        else:
            assert encoding.own is not None
            sent = encoding.own(leaves, kept, Reduction(axes, count, mask, None))
            results, combined = combine(_like(sent.leaves, updates))
        inside = report(combined)
        counted = who_counts(contributes=mask, inside=inside)
        residuals = {name: sent.residuals[name] for name in kept.residuals}
        after = encoding.observe(sent.state, named_leaves(results))
        error = _relative_error(leaves, kept, sent, who_counts(contributes=mask))
        if inside.overflowed is not None:  # the update is zero: what was sent is not in it
            counted = ~inside.overflowed if counted is None else counted & ~inside.overflowed
            after = optax.tree.where(inside.overflowed, kept.state, after)
        if counted is not None and not reducer.is_mean:  # ``remainder`` knows the mask, not whom the reducer left out
            residuals = optax.tree.where(counted, residuals, kept.residuals)
        if counted is not None:
            error = jnp.where(counted, error.astype(jnp.float32), state.report.metrics["compression_error"])
        cost = encoding.cost(leaves, kept.state, num_workers(axes))
        bits = 8 * cost.payload / max(float(sum(leaf.size for leaf in leaves.values())), 1.0)
        own = inside.with_metrics(measured(bits, error, cost.sent))
        return results, EncodedState(state.num_updates + 1, Kept(residuals, after), combined, own)

    return reducer.like(
        init_fn,
        update_fn,
        axis_name=axes,
        takes_mask=reducer.takes_mask,
        homogeneous=reducer.homogeneous and encoding.homogeneous,
        needs_whole_leaves=must_be_whole,
    )


def named_leaves(tree: Any) -> Leaves:
    """Returns the leaves of a tree, or of a tree of shapes, by their paths.

    >>> named_leaves({"Dense_0": {"bias": jnp.zeros(1)}})
    {'Dense_0/bias': Array([0.], dtype=float32)}
    """
    found = dict(zip(leaf_names(tree), jax.tree.leaves(tree), strict=True))
    return {name: leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf) for name, leaf in found.items()}


def _like(leaves: Leaves, tree: Any) -> Any:
    """Turns leaves by path into a tree with the structure and dtypes of another one."""
    dtypes = {name: leaf.dtype for name, leaf in named_leaves(tree).items()}
    return jax.tree.unflatten(jax.tree.structure(tree), [leaves[name].astype(dtypes[name]) for name in dtypes])


def _relative_error(leaves: Leaves, kept: Kept, sent: Sent, contributes: Any) -> jax.Array:
    """Returns the norm of the error over that of the update; 0 for a zero update."""
    old = residuals_of(leaves, kept)
    whole = [corrected(leaf, old[name], contributes) for name, leaf in leaves.items()]
    scale = common_scale(whole)
    length = norm_over(scale, whole)
    kept_back = norm_over(scale, jax.tree.leaves(sent.residuals))
    return jnp.where(length > 0, kept_back / nonzero(length), 0)
