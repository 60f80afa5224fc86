"""Maps a run's workers to devices and lanes, by the config, the flags and the memory of a device."""

import functools
from collections.abc import Callable

import jax

import parallel
from parallel import Layout
from training.device_memory import resolve_lanes_at_once
from training.setup import TrainSetup


def worker_mapping(
    setup: TrainSetup,
    layout: Layout,
    *,
    steps_per_call: int = 1,
    lanes_at_once: int | None = None,
    worker_times: parallel.WorkerTimes | None = None,
) -> Callable[..., parallel.Step]:
    """Returns the ``map_workers`` of a run: how the config and the flags map workers to devices and lanes.

    Args:
      setup: the run's setup.
      layout: where the workers are.
      steps_per_call: the most steps that one call of the devices takes.
      lanes_at_once: the value that an earlier start of the run resolved; None resolves it.
      worker_times: if given, lanes are dispatched one by one, and it receives each worker's seconds.
    """
    has_images = any(x.ndim > 3 for x in jax.tree.leaves(setup.worker_shapes.all_params))
    lanes = parallel.resolve_lanes(
        setup.config.lanes if worker_times is None else "dispatched",
        layout=layout,
        work="all" if setup.mode.is_synchronous else "some",
        kernels="images" if has_images else "matrices",
        steps_per_call=steps_per_call,
        lanes_at_once=setup.config.lanes_at_once,
    )
    options = {"mapping": setup.config.mapping, "steps_per_call": steps_per_call}
    if lanes == "dispatched":
        return functools.partial(parallel.dispatch_lanes, **options, worker_times=worker_times)
    if lanes_at_once is None:
        lanes_at_once = resolve_lanes_at_once(setup, layout)
    return functools.partial(parallel.map_workers, **options, lanes_at_once=lanes_at_once)
