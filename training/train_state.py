"""The state of a run: where it begins, the form in which checkpoints have it, and how it comes back from there."""

import pathlib
from typing import Any, Literal

import jax
import numpy as np

import runs
from parallel import Layout, processes
from runs.errors import ConfigError, refusing
from training.nonfinite import step_of
from training.setup import Program
from training.train_step import Local, Shared


def place(program: Program, layout: Layout, *, params: Any = None) -> tuple[Any, Any]:
    """Returns the initial state on the devices, of the seed or of parameters at hand."""
    shared, local = jax.device_get(jax.jit(lambda params: program.init(params=params))(params))
    shared, local = processes.same_on_all((shared, local))
    local = jax.tree.map(lambda x: np.broadcast_to(x, (layout.num_workers, *x.shape)), local)
    return layout.put_shared(shared), layout.put_local(local)


def canonical(shared: Shared, local: Local, tally: runs.Tally, layout: Layout) -> dict[str, Any]:
    """Returns the state in the form that checkpoints have, which does not know the layout."""
    shared = step_of(layout.get_shared(shared))
    return {"shared": shared, "local": layout.get_local(local), "tally": tally.state()}


def abstract(program: Program, *, layout: Layout | None = None) -> dict[str, Any]:
    """Returns the shapes of ``canonical``, without a device; of several processes, with what lies where."""
    shared, local = jax.eval_shape(program.init)
    num_workers, saved = program.config.num_workers, layout.saved if layout else None
    local = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_workers, *x.shape), x.dtype, sharding=saved), local)
    return {"shared": shared, "local": local, "tally": runs.Tally.abstract()}


def open_checkpoints(
    program: Program, folder: pathlib.Path, *, access: Literal["write", "read"] = "write"
) -> runs.Checkpoints:
    """Opens a run's checkpoints; the best is the best by the task's own metric."""
    metric, mode = program.task.best
    keep = program.config.keep_checkpoints
    return runs.Checkpoints(folder / "checkpoints", keep_last=keep, best_metric=metric, best_mode=mode, access=access)


def params_of(program: Program, folder: str) -> Any:
    """Returns the parameters of another run's last checkpoint: its moving average, where it has one.

    Raises:
      ConfigError: if the folder has no checkpoint, or the last is damaged or of another model.
    """
    shapes = jax.eval_shape(program.init)[0].params
    with refusing(), open_checkpoints(program, runs.expand(folder), access="read") as checkpoints:
        found, step = None, processes.from_first(checkpoints.latest_step)
        if step is not None:
            has_ema = processes.from_first(lambda: checkpoints.holds("shared/ema", step=step))
            part = "shared/ema" if has_ema else "shared/params"
            found = checkpoints.restore(shapes, which=step, part=part)
    if found is None:
        raise ConfigError(f"config.init_from={folder!r}: must be the folder of a run with a checkpoint")
    return found[1]


def restore(
    program: Program, layout: Layout, checkpoints: runs.Checkpoints, *, which: Any = "latest"
) -> tuple[int, Any, Any, runs.Tally] | None:
    """Returns (step, shared, local, tally) of a whole checkpoint, "latest", "best" or of a step; None without any."""
    with refusing():
        restored = checkpoints.restore(abstract(program, layout=layout), which=which)
    if restored is None:
        return None
    step, state = restored
    shared, local = layout.put_shared(state["shared"]), layout.put_local(state["local"])
    return step, shared, local, runs.Tally.of(state["tally"])
