"""Gradient aggregation as optax transformations.

A *reducer* combines one update per worker into one update for all of them. It is an ordinary
``optax.GradientTransformationExtraArgs`` that uses collectives over a named axis, so it runs wherever JAX has
named axes (``pmap``, ``shard_map``, ``vmap(axis_name=...)`` and any nesting of them), and its place in
``optax.chain`` is the algorithm: before the optimizer it reduces gradients, after it, optimizer deltas. Its ``Facts``
say what a caller must know about it.

>>> import jax, jax.numpy as jnp, optax, reducers
>>> tx = optax.chain(reducers.mean("worker"), optax.sgd(1.0))
>>> def step(gradient):
...   updates, _ = tx.update(gradient, tx.init(gradient))
...   return updates
>>> jax.vmap(step, axis_name="worker")(jnp.array([1.0, 3.0]))  # two workers
Array([-2., -2.], dtype=float32)

Reducers compose: ``backup_workers(axis, num_required=6, combine=adasum(axis))``.

Many reducers share these arguments:

* ``axis_name``: the name of the worker axis, or a tuple of names, outer first: ``("device", "lane")``. Reducers that
  say "lanes last" need vmapped axes after those of devices.
* ``combine``: the reducer inside this one; None is ``mean``.
* ``granularity``, ``telemetry`` and ``sharded_over``: see ``from_gram``.
* ``contributes`` and ``weights``, which updates take by keyword: see ``Facts``.

Under ``shard_map`` take gradients by ``per_worker(params, axis)``, or pass ``check_vma=False``: otherwise JAX has
summed them over the workers before a reducer sees them. A reducer refuses such gradients. An optimizer before it can
hide the sum in its state: ``chain`` still refuses, ``optax.chain`` cannot.

This package imports jax, optax and numpy alone. The distribution ``syncsum`` (``pip install .`` in the repository)
installs this package, ``reducers``, and nothing else.
"""

from collections.abc import Callable
from typing import Any

import optax

from reducers.adasum import adasum
from reducers.aggregator import as_aggregator
from reducers.arrived.backup_workers import backup_workers
from reducers.arrived.deadline import deadline
from reducers.arrived.dynamic_backup_workers import dynamic_backup_workers
from reducers.arrived.quorum import quorum
from reducers.collectives import AxisName, num_workers, per_worker, same_on_all
from reducers.coordinatewise.coordinate_median import coordinate_median
from reducers.coordinatewise.meamed import meamed
from reducers.coordinatewise.trimmed_mean import trimmed_mean
from reducers.dynamic_scale import DynamicScale, all_finite
from reducers.encodings import encoded
from reducers.gram import from_gram
from reducers.gram.robust.centred_clipping import centred_clipping
from reducers.gram.robust.geometric_median import geometric_median
from reducers.gram.robust.krum import krum, multi_krum
from reducers.gram.weights.adacons import adacons
from reducers.gram.weights.agreement_scaled_mean import agreement_scaled_mean
from reducers.gram.weights.aligned_mtl import aligned_mtl
from reducers.gram.weights.cagrad import cagrad
from reducers.gram.weights.dualproj import dualproj
from reducers.gram.weights.fairgrad import fairgrad
from reducers.gram.weights.gradvac import gradvac
from reducers.gram.weights.imtl_g import imtl_g
from reducers.gram.weights.mgda import mgda
from reducers.gram.weights.nash_mtl import nash_mtl
from reducers.gram.weights.pcgrad import pcgrad
from reducers.gram.weights.radial_directional import radial_directional
from reducers.gram.weights.upgrad import upgrad
from reducers.local.adaptive_batch import adaptive_batch
from reducers.local.elastic_averaging import elastic_averaging
from reducers.local.gossip import gossip
from reducers.local.local_sgd import local_sgd
from reducers.mask import Mask
from reducers.mesh import ShardedOver
from reducers.reducer import Combine, Facts, Reducer, ReducerRegistry, as_reducer, chain
from reducers.report import Report, ReportError, own_params, report
from reducers.sums.mean import mean
from reducers.sums.sign_majority import sign_majority
from reducers.sums.sum import sum  # noqa: A004 - the field's name for it
from reducers.traffic import Traffic, traffic
from reducers.wrappers.apply_if_finite import apply_if_finite
from reducers.wrappers.communication import in_half_precision
from reducers.wrappers.corrupt import corrupt
from reducers.wrappers.mixing import bucketing, nearest_neighbour_mixing
from reducers.wrappers.stale import stale

__version__ = "0.2.0"

__all__ = [
    "REDUCERS",
    "AxisName",
    "DynamicScale",
    "Facts",
    "Mask",
    "Reducer",
    "Report",
    "ReportError",
    "Traffic",
    "adacons",
    "adaptive_batch",
    "adasum",
    "agreement_scaled_mean",
    "aligned_mtl",
    "all_finite",
    "apply_if_finite",
    "as_aggregator",
    "as_reducer",
    "backup_workers",
    "bucketing",
    "cagrad",
    "centred_clipping",
    "chain",
    "coordinate_median",
    "corrupt",
    "deadline",
    "dualproj",
    "dynamic_backup_workers",
    "elastic_averaging",
    "encoded",
    "fairgrad",
    "from_gram",
    "geometric_median",
    "gossip",
    "gradvac",
    "imtl_g",
    "in_half_precision",
    "krum",
    "local_sgd",
    "make",
    "meamed",
    "mean",
    "mgda",
    "multi_krum",
    "nash_mtl",
    "nearest_neighbour_mixing",
    "num_workers",
    "own_params",
    "pcgrad",
    "per_worker",
    "quorum",
    "radial_directional",
    "report",
    "same_on_all",
    "sign_majority",
    "stale",
    "sum",
    "traffic",
    "trimmed_mean",
    "upgrad",
]

REDUCERS = ReducerRegistry(
    {
        "adacons": adacons,
        "adaptive_batch": adaptive_batch,
        "adasum": adasum,
        "agreement_scaled_mean": agreement_scaled_mean,
        "aligned_mtl": aligned_mtl,
        "backup_workers": backup_workers,
        "bucketing": bucketing,
        "cagrad": cagrad,
        "centred_clipping": centred_clipping,
        "coordinate_median": coordinate_median,
        "corrupt": corrupt,
        "deadline": deadline,
        "dualproj": dualproj,
        "dynamic_backup_workers": dynamic_backup_workers,
        "elastic_averaging": elastic_averaging,
        "fairgrad": fairgrad,
        "geometric_median": geometric_median,
        "gossip": gossip,
        "gradvac": gradvac,
        "imtl_g": imtl_g,
        "krum": krum,
        "local_sgd": local_sgd,
        "meamed": meamed,
        "mean": mean,
        "mgda": mgda,
        "multi_krum": multi_krum,
        "nash_mtl": nash_mtl,
        "nearest_neighbour_mixing": nearest_neighbour_mixing,
        "pcgrad": pcgrad,
        "quorum": quorum,
        "radial_directional": radial_directional,
        "sign_majority": sign_majority,
        "stale": stale,
        "sum": sum,
        "trimmed_mean": trimmed_mean,
        "upgrad": upgrad,
    },
    given={"axis_name", "sharded_over"},
    refused={"k_batch": "is backup_workers now, with num_required in the place of num_batches"},
    makes=optax.GradientTransformation,
    holds={Combine: "mean"},
)


def make(
    name: str,
    *,
    axis_name: AxisName,
    encode: Callable[[Reducer], Reducer] | None = None,
    sharded_over: ShardedOver = None,
    **options: Any,
) -> Reducer:
    """Builds the reducer called ``name``: ``make(axis_name=..., **config.reducer)``.

    Args:
      name: a key of ``REDUCERS``, or ``module:attribute`` for a reducer of another module.
      axis_name: the worker axis, or a tuple of axes, outer first: ``("device", "lane")``.
      encode: wraps the innermost reducer, to change how updates are sent; None sends them as they are.
        ``backup_workers`` of ``adasum`` becomes ``backup_workers`` of the wrapped ``adasum``.
      sharded_over: the other manual axes of the mesh over which leaves are cut, () for none; for the reducer and those
        inside it. See ``from_gram``.
      **options: the reducer's own options. A reducer inside it is given by name, as a block with options, or as an
        optax transformation.

    Returns:
      A ``Reducer`` to be used where ``axis_name`` is bound.

    Raises:
      ValueError: one line with the option's path, if a name or an option is unknown, missing, or of a wrong type or
        range.

    >>> make("mean", axis_name="worker").homogeneous
    True
    >>> make("stale", delay_steps=1, combine={"name": "trimmed_mean", "num_trimed": 2}, axis_name="worker")
    Traceback (most recent call last):
    ValueError: combine.num_trimed: unknown key; did you mean 'num_trimmed'?
    """
    block = {**options, "name": name}
    return as_reducer(REDUCERS.build(block, axis_name=axis_name, encode=encode, sharded_over=sharded_over))
