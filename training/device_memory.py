"""Estimates the memory of a step on one device from shapes, without compiling, and the number of lanes that fit."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.core import Var

from models.layers import lane_convolution
from optim.frozen import join
from parallel import Layout
from reducers import targets
from reducers.leaves import num_bytes
from training.setup import TrainSetup
from training.task import batch_inputs

# XLA needs the rest of a device's memory, for example for the results of single operations.
_SHARE = 0.9


def resolve_lanes_at_once(setup: TrainSetup, layout: Layout) -> int | None:
    """Returns the most lanes of a device whose gradients are computed at once; None for all of them.

    It is ``config.lanes_at_once`` if that is set. Otherwise it is 1 for an asynchronous run on an accelerator with
    ``config.lanes="auto"``, because idle lanes then cost nothing; None for dispatched lanes; and as many lanes as fit
    into the memory that the device reports, if it reports any.

    Args:
      setup: the run's setup.
      layout: where the workers are.
    """
    lanes = layout.lanes
    device = layout.own_devices[0]
    if setup.config.lanes_at_once is not None or lanes == 1 or setup.config.lanes == "dispatched":
        return setup.config.lanes_at_once
    if not setup.mode.is_synchronous and setup.config.lanes == "auto" and device.platform != "cpu":
        return 1
    limit = device_bytes(layout)
    return None if limit is None else fitting_lanes(setup, lanes=lanes, limit=limit)


def device_bytes(layout: Layout) -> int | None:
    """Returns the bytes that a program may use on a device; None if the device does not report them, as CPUs do."""
    if target := targets.current():
        return int(target.kind.memory)
    return (layout.own_devices[0].memory_stats() or {}).get("bytes_limit")


def fitting_lanes(setup: TrainSetup, *, lanes: int, limit: int) -> int:
    """Returns the most lanes whose gradients can be computed at once in ``limit`` bytes; at least 1.

    ``jax.vjp`` lists more residuals than XLA keeps, because XLA recomputes elementwise operations inside their
    consumers. The result of each product and convolution stays, and so does the operand of the next: together about
    twice the results. A model that recomputes whole blocks may have fewer residuals than that.
    """
    left = _SHARE * limit - sum(step_bytes(setup, lanes=lanes).values())
    most = left // residual_bytes(setup)
    if most < lanes:
        most = max(most, left // (2 * residual_bytes(setup, save=_is_product)))
    return int(np.clip(most, 1, setup.config.num_workers))


def step_bytes(setup: TrainSetup, *, lanes: int) -> dict[str, int]:
    """Returns the bytes that a step holds on one device by name, without activations."""
    state = setup.device_shapes
    info = setup.source.info
    resident = info.num_train * info.example_bytes if setup.source.placement == "device" else 0
    return {
        "parameters": num_bytes(state.all_params),
        "moving average": num_bytes(state.ema),
        "shared optimizer state": num_bytes(state.opt_state),
        "state of the server": num_bytes(state.server),  # without a server: the updates under way
        "state of the workers": lanes * num_bytes((state.worker, state.snapshot, state.replica)),
        "state of the reducer": lanes * num_bytes(state.reducer_state),  # the drift of local workers is in it
        "gradients": lanes * num_bytes(setup.params),
        "batch": lanes * setup.config.batch_size_per_worker * info.example_bytes,  # in the stored dtype
        "resident data": resident + num_bytes(info.constants),
    }


def residual_bytes(setup: TrainSetup, *, save: Callable[..., bool] | None = None) -> int:
    """Returns the bytes that one lane's ``jax.vjp`` keeps on a device, without the parameters themselves.

    Args:
      setup: the run's setup.
      save: policy of ``jax.checkpoint``, or None to keep every residual.
    """
    parts = setup.micro_batches["count"] * setup.config.devices_per_worker
    batch_size = setup.config.batch_size_per_worker // parts
    batch = batch_inputs(setup.source.info, batch_size)

    def backward(params, frozen, model_state, batch, key):
        def loss(params):
            return setup.task.loss(join(params, frozen), model_state, batch, key)[0]

        return jax.vjp(loss if save is None else jax.checkpoint(loss, policy=save), params)[1]

    shapes = setup.worker_shapes
    key = jax.eval_shape(jax.random.key, 0)
    arguments = shapes.params, shapes.frozen, shapes.worker.model_state, batch, key
    program = jax.make_jaxpr(backward)(*arguments).jaxpr
    residuals = {x for x in program.outvars if isinstance(x, Var)}.difference(program.invars)
    return num_bytes([x.aval for x in residuals])


def _is_product(primitive: Any, *operands: Any, **parameters: Any) -> bool:
    is_dot_or_convolution = jax.checkpoint_policies.dots_saveable(primitive, *operands, **parameters)
    return is_dot_or_convolution or primitive is lane_convolution.convolution_p
