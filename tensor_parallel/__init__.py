"""Tensor-parallel layers: matrices are cut into blocks over d x q x q devices, under ``jax.shard_map``.

A mesh has the axes "depth", "row" and "column" (``make_mesh``). If each worker is a mesh of its own, a worker axis
comes before them. Activations are cut over depth and row along their first dimension, and over column along their last
one (``activation_spec``). Matrices are cut over row and column, and each depth has a copy; biases and scales are cut
over column (``param_spec``). With q = 1 this is data parallelism over depth; with d = 1 it is SUMMA.

Take gradients inside the mapped function, of a loss whose sum over the devices of a worker is the worker's loss. The
gradient of a parameter is then cut as the parameter is, and equal on all devices that have a copy, with and without
``check_vma``: the layers of this package sum it over the copies. In your own layers, pass parameters that are not
factors of ``matmul`` through ``copied``, which does the same. Reducers that need dot products of whole layers take
``sharded_over``, as ``reducers.from_gram`` does.

This package imports only jax.
"""

from tensor_parallel.cost import Cost, cost, published_bandwidth
from tensor_parallel.layers import attention, block, dense, layer_norm
from tensor_parallel.mesh import AXES, COLUMN, DEPTH, ROW, activation_spec, copied, make_mesh, param_spec
from tensor_parallel.product import matmul
