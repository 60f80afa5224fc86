"""From one worker to all: how one worker's step becomes that of all lanes of all devices."""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from parallel.devices import Lift, on_devices
from parallel.lanes import Lanes, resolve_lanes
from parallel.layout import LANE_AXIS, Layout
from parallel.steps_in_flight import MAX_IN_FLIGHT, Window
from parallel.worker_times import WorkerTimes


class Halves(NamedTuple):
    """One worker's step in two halves, as pure functions.

    Attributes:
      local: ``(shared, local, feed, resident) -> work``: what a worker does by itself; no collective in it, so lanes
        may run in any way. It does not see ``feed["plan"]``.
      reduce: ``(shared, local, work, plan) -> (shared, local, metrics)``; under the named axes ``AXES``, with the
        worker's part of ``feed["plan"]``, or {} where a feed has none. What it returns as shared must be the same on
        all workers, and ``metrics`` too.
      idle: ``plan -> [D, L]`` bool, on the host: whose work the reduce half will not look at, whatever it is; None
        where all work counts.
    """

    local: Callable[..., Any]
    reduce: Callable[..., Any]
    idle: Callable[[Any], np.ndarray] | None = None


class Step:
    """All workers' step: ``step(shared, local, feed, resident) -> (shared, local, metrics)``.

    On arrays placed by the layout: shared and resident [D, ...], local and feed [D, L, ...], metrics [D]; of k steps
    to a dispatch feed [D, k, L, ...] and metrics [D, k]. The buffers of shared and local are donated: use what comes
    back.

    Attributes:
      lower: takes the arguments' shapes; returns, by name, each program lowered for compilation, and how often one call
        of the step calls it.
    """

    def __init__(self, call: Callable[..., Any], *, lower: Callable[..., dict[str, tuple[Any, int]]]):
        self._call = call
        self.lower = lower

    def __call__(self, shared: Any, local: Any, feed: Any, resident: Any) -> tuple[Any, Any, dict[str, jax.Array]]:
        return self._call(shared, local, feed, resident)


def over_workers(
    halves: Halves,
    *,
    layout: Layout,
    lift: Lift = "pmap",
    lanes: Lanes = "auto",
    times: WorkerTimes | None = None,
    steps_per_dispatch: int = 1,
) -> Step:
    """Lifts one worker's step to all workers: devices by ``lift``, lanes by ``lanes``.

    Shared state is not batched over lanes: 32 lanes hold one copy of the parameters. The result depends on neither
    the layout nor the lift nor the way over lanes, up to the rounding of sums.

    Args:
      halves: the step of one worker.
      layout: W workers as D devices x L lanes.
      lift: how devices are mapped.
      lanes: how the local half goes over the lanes of a device: ``"vmap"`` as one batched program, ``"unrolled"``
        lane after lane in one program, ``"dispatched"`` as one call per lane of a program compiled once; none for a
        lane in which nobody has work. ``"auto"`` is settled when the step first sees its state.
      times: is told how long each worker's local half took, which needs lanes to be "dispatched".
      steps_per_dispatch: k, the steps of one call, one after another by ``lax.scan``: the host is asked once for all.

    Returns:
      A ``Step``.

    Raises:
      ValueError: if times are wanted of lanes that are not dispatched, or several steps of lanes that are.
    """
    if times is not None and lanes != "dispatched":
        raise ValueError(f"lanes={lanes!r}: workers are timed where they are dispatched one by one")
    if steps_per_dispatch > 1 and lanes == "dispatched":
        raise ValueError(f"steps_per_dispatch={steps_per_dispatch}: must be 1 where lanes are dispatched")
    if lanes == "auto":
        settled: list[Step] = []  # one, from the first state on: a step of a small model is half a millisecond

        def step_for(shared: Any) -> Step:
            if not settled:
                num_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shared)) // len(layout.own_devices)
                work: Literal["all", "some"] = "all" if halves.idle is None else "some"
                k = steps_per_dispatch
                way = resolve_lanes("auto", layout=layout, work=work, num_bytes=num_bytes, steps_per_dispatch=k)
                settled.append(over_workers(halves, layout=layout, lift=lift, lanes=way, steps_per_dispatch=k))
            return settled[0]

        return Step(
            lambda shared, *rest: step_for(shared)(shared, *rest),
            lower=lambda shared, *rest: step_for(shared).lower(shared, *rest),
        )

    def reduce_lanes(shared, local, work, plan):
        over_lanes = jax.vmap(
            halves.reduce,
            in_axes=(None, 0, 0, 0),
            out_axes=(None, 0, None),
            axis_name=LANE_AXIS,
            axis_size=layout.lanes,
        )
        return over_lanes(shared, local, work, plan)

    if lanes == "dispatched":
        return _dispatched(halves, reduce_lanes, layout=layout, lift=lift, times=times)

    def local_lanes(shared, local, feed, resident):
        if lanes == "vmap":
            return jax.vmap(halves.local, in_axes=(None, 0, 0, None))(shared, local, feed, resident)
        return _stack([halves.local(shared, *_lane((local, feed), lane), resident) for lane in range(layout.lanes)])

    def step(shared, local, feed, resident):
        feed, plan = _split(feed)
        return reduce_lanes(shared, local, local_lanes(shared, local, feed, resident), plan)

    def steps(shared, local, feed, resident):
        def one(state, feed):
            shared, local, metrics = step(state[0], state[1], feed, resident)
            return (shared, local), metrics

        state, metrics = lax.scan(one, (shared, local), feed)
        return *state, metrics

    function = step if steps_per_dispatch == 1 else steps
    compiled = on_devices(function, layout=layout, lift=lift, donate_argnums=(0, 1))
    return Step(compiled, lower=lambda *shapes: {"step": (compiled.lower(*shapes), 1)})


def _dispatched(
    halves: Halves, reduce_lanes: Callable, *, layout: Layout, lift: Lift, times: WorkerTimes | None
) -> Step:
    def one_lane(shared, local, feed, resident, lane):
        return halves.local(shared, _lane(local, lane), feed, resident)

    def reduce_list(shared, local, work, plan):
        return reduce_lanes(shared, local, _stack(work), plan)

    # A process may pass over lanes that others do not; there is no collective in it.
    alone = on_devices(one_lane, layout=layout, lift=lift, run_by="this")
    reduce = on_devices(reduce_list, layout=layout, lift=lift, donate_argnums=(0, 1))
    num_devices = len(layout.own_devices)
    nothing: list[Any] = []  # stands in for the work of lanes without any; made when first needed, and kept

    def work_of(lane, shared, local, feed, resident):
        feed = jax.tree.map(lambda x: x[:, lane], feed)  # host arrays: a view
        call = functools.partial(alone, shared, local, feed, resident, np.full(num_devices, lane, np.int32))
        return call() if times is None else times.measure(lane, call, after=shared)

    def run(shared, local, feed, resident):
        feed, plan = _split(feed)
        nobody = np.zeros((num_devices, layout.lanes), bool)
        idle = np.all(nobody if halves.idle is None else halves.idle(plan), axis=0)  # (L,)
        # Calls of several devices are limited as steps are: 16 lanes on 2 devices deadlocked.
        in_flight = Window(limit=layout.lanes if layout.num_devices == 1 else MAX_IN_FLIGHT)
        work: list[Any] = []
        for lane in range(layout.lanes):
            work.append(None if idle[lane] else work_of(lane, shared, local, feed, resident))
            in_flight.push(lane, work[-1])
        if layout.num_devices > 1:
            in_flight.drain()
        if idle.any() and not nothing:
            some = next(w for w in work if w is not None)  # nobody plans a step without work
            nothing.append(jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), layout.sharding), some))
        return reduce(shared, local, [nothing[0] if w is None else w for w in work], plan)

    def lower(shared, local, feed, resident):
        lane = jax.ShapeDtypeStruct((num_devices,), np.int32)
        feed, plan = _split(feed)
        feed = jax.tree.map(lambda x: jax.ShapeDtypeStruct((x.shape[0], *x.shape[2:]), x.dtype), feed)
        work = [jax.eval_shape(alone, shared, local, feed, resident, lane)] * layout.lanes
        return {
            "local": (alone.lower(shared, local, feed, resident, lane), layout.lanes),
            "reduce": (reduce.lower(shared, local, work, plan), 1),
        }

    return Step(run, lower=lower)


def _split(feed: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    return {key: value for key, value in feed.items() if key != "plan"}, feed.get("plan", {})


def _lane(tree: Any, lane) -> Any:
    return jax.tree.map(lambda x: x[lane], tree)


def _stack(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
