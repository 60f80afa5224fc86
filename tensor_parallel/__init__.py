"""Layers that no device holds whole: products of matrices over d x q x q devices, under ``jax.shard_map``.

A mesh has the axes "depth", "row" and "column" (``make_mesh``), and a worker axis before them where workers are meshes.
Activations are cut over depth and row along their first dimension, and over column along their last one
(``activation_spec``); matrices over row and column, with a copy on each depth, biases and scales over column
(``param_spec``). With q = 1 this is data parallelism whose gradients are summed over depth, with d = 1 SUMMA.

Take gradients inside the mapped function, of a loss whose sum over the devices of a worker is the worker's loss.
Parameters then have gradients cut as they are, and the same on all devices that have a copy, with and without
``check_vma``: the layers here sum them over the copies, and so does ``copied``, through which a layer of one's own
takes a parameter that is no factor of ``matmul``. Reducers that need dot products of whole layers take
``sharded_over``, as in ``reducers.from_gram``.

This package imports jax alone.
"""

from tensor_parallel.cost import Cost, cost, published_bandwidth
from tensor_parallel.layers import attention, block, dense, layer_norm
from tensor_parallel.mesh import AXES, COLUMN, DEPTH, ROW, activation_spec, copied, make_mesh, param_spec
from tensor_parallel.product import matmul

__all__ = [
    "AXES",
    "COLUMN",
    "DEPTH",
    "ROW",
    "Cost",
    "activation_spec",
    "attention",
    "block",
    "copied",
    "cost",
    "dense",
    "layer_norm",
    "make_mesh",
    "matmul",
    "param_spec",
    "published_bandwidth",
]
