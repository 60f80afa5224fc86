"""From one device to all: the only place that knows of ``pmap`` and ``shard_map``."""

from collections.abc import Callable
from typing import Literal

import jax
from jax import numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from parallel import processes
from parallel.layout import DEVICE_AXIS, Layout

Lift = Literal["pmap", "shard_map"]


def on_devices(
    function: Callable,
    *,
    layout: Layout,
    lift: Lift = "pmap",
    donate_argnums: tuple[int, ...] = (),
    run_by: Literal["all", "this"] = "all",
):
    """Runs ``function`` once per device, over the leading axis of every argument and result.

    Args:
      function: sees one device's slice of each argument, with ``DEVICE_AXIS`` bound.
      layout: the devices.
      lift: ``"pmap"``, or ``"shard_map"`` inside ``jit``; the same arrays go in and come out.
      donate_argnums: arguments whose buffers the result may take over.
      run_by: "all" processes call it, each with its own part; "this" one alone does, on its own devices.

    Returns:
      A compiled function of arrays with a leading axis [D, ...].
    """
    alone = run_by == "this"
    devices, mesh = (layout.own_devices, layout.own_mesh) if alone else (layout.devices, layout.mesh)
    if lift == "pmap":
        return jax.pmap(function, axis_name=DEVICE_AXIS, devices=devices, donate_argnums=donate_argnums)

    def one_slice(*args):
        result = function(*jax.tree.map(lambda x: jnp.squeeze(x, 0), args))
        return jax.tree.map(lambda x: jnp.expand_dims(x, 0), result)

    spec = PartitionSpec(DEVICE_AXIS)
    # Replication is held by the law tests, for every reducer; the type system of check_vma cannot follow lanes.
    mapped = jax.shard_map(one_slice, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    compiled = jax.jit(mapped, donate_argnums=donate_argnums)
    return _of_own_part(compiled, mesh=mesh, spec=spec) if processes.several() and not alone else compiled


def _of_own_part(compiled: Callable, *, mesh: Mesh, spec: PartitionSpec) -> Callable:
    """Makes a function of the arrays of all processes one of this process's part of them, as ``pmap``'s are."""
    from jax.experimental import multihost_utils

    def call(*args):
        result = compiled(*multihost_utils.host_local_array_to_global_array(args, mesh, spec))
        return multihost_utils.global_array_to_host_local_array(result, mesh, spec)

    return call
