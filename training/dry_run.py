"""A dry run: describes the steps and needs of a run, for any number of devices, without running it."""

import functools
import json
import sys
from collections import Counter
from typing import Any, Literal

import jax
import optax
from jax import numpy as jnp

from parallel import DEVICE_AXIS, LANE_AXIS, Layout
from runs.reporting.progress import counted
from training.device_memory import resolve_lanes_at_once, step_bytes
from training.setup import TrainSetup
from training.steps.async_train_step import make_step
from training.steps.worker_mapping import worker_mapping
from training.train_state import map_per_worker

LARGE_DEVICE = 80 * 10**9  # memory of an H100; a dry run compares with it if no device reports its memory


def describe(
    setup: TrainSetup,
    *,
    num_devices: int | None = None,
    steps_per_call: int = 1,
    compiled: Literal["if present", "never"] = "if present",
) -> str:
    """Describes a setup as text: config, parameters, workers, traffic, memory; and the compiled step where possible.

    The whole step of all workers is traced for ``num_devices`` devices, which may exceed those present: a step that
    cannot be traced, or that leaves workers with different parameters, fails here. Standard error gets a line before
    each part that may take long.

    Args:
      setup: the run's setup.
      num_devices: D; None for the most of this machine's devices that divide the workers.
      steps_per_call: the most steps that one call of the devices takes.
      compiled: whether the step is compiled if the devices are present, which takes minutes for a large model.

    Raises:
      ValueError: if the devices do not divide the workers, or the step does not reduce.
    """
    available = jax.devices()
    num_workers = setup.config.num_workers
    devices = available if num_devices is None else num_workers * available[:1]  # assumed: as many as can be of use
    layout = Layout.of(num_workers, num_devices=num_devices, devices=devices)
    inputs = step_inputs(setup, layout)
    size = f"{layout.num_workers} workers on {layout.num_devices} x {layout.lanes} lanes"
    _say(f"tracing the step of {size}")
    _trace(setup, layout, inputs)
    sections = [
        "config " + json.dumps(setup.config.to_dict(), indent=2, sort_keys=True),
        _parameters(inputs["state"].params, inputs["state"].frozen),
        _workers(setup, layout, steps_per_call=steps_per_call),
        _memory(setup, layout),
    ]
    if compiled == "never":
        sections.append("not compiled: --nodry_run_compile")
    elif layout.num_devices > len(available):
        sections.append(f"not compiled: this machine has {len(available)} devices")
    else:
        present = Layout(layout.num_workers, tuple(available[: layout.num_devices]))
        sections.append(_compiled(setup, present, inputs, steps_per_call=steps_per_call))
    return "\n\n".join(sections)


def step_inputs(setup: TrainSetup, layout: Layout) -> dict[str, Any]:
    """Returns one device's share of the step's arguments, as shapes: per-worker parts have a leading lane axis."""
    info = setup.source.info
    lanes = layout.lanes
    batch_size = setup.config.batch_size_per_worker

    def of_lanes(tree: Any) -> Any:
        return _stack(tree, lanes)

    shape = jax.ShapeDtypeStruct
    batch: dict[str, Any] = {"batch_index": shape((lanes,), jnp.uint32)}
    resident: dict[str, Any] = {}
    if setup.source.placement == "device":
        batch["index"] = shape((lanes, batch_size), jnp.int32)
        resident = info.batch(info.num_train)
    else:
        batch["batch"] = info.batch(lanes, batch_size)
    return {
        "state": map_per_worker(of_lanes, setup.worker_shapes),
        "batch": batch,
        "resident": {"train": resident, "constants": info.constants},
        "inputs": of_lanes(setup.mode.inputs),
    }


def call_shapes(inputs: dict[str, Any], *, num_devices: int, steps_per_call: int = 1) -> list[Any]:
    """Returns the shapes of the arguments of one call of all devices, from ``step_inputs``."""
    steps = {"batch": (steps_per_call,), "inputs": (steps_per_call,)}
    return [_stack(tree, num_devices, *steps.get(name, ())) for name, tree in inputs.items()]


def _stack(tree: Any, *counts: int) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*counts, *x.shape), x.dtype), tree)


def _trace(setup: TrainSetup, layout: Layout, inputs: dict[str, Any]) -> None:
    """Traces the step of all workers under nested ``vmap``s, which need no devices.

    Their ``out_axes=None`` refuse a step whose shared state or metrics differ between workers.
    """

    def trace_workers(compute, update, *, state_axes, **options):
        del options

        def worker(state, batch, resident, inputs):
            return update(state, compute(state, batch, resident), inputs)

        over = functools.partial(jax.vmap, in_axes=(state_axes, 0, None, 0), out_axes=(state_axes, None))
        return over(over(worker, axis_name=LANE_AXIS), axis_name=DEVICE_AXIS)

    def of_all(tree: Any) -> Any:
        return _stack(tree, layout.num_devices)

    all_workers: Any = make_step(setup, layout, map_workers=trace_workers)
    state = map_per_worker(of_all, inputs["state"])
    jax.eval_shape(all_workers, state, of_all(inputs["batch"]), inputs["resident"], of_all(inputs["inputs"]))


def _say(text: str) -> None:
    print(f"dry run: {text} ...", file=sys.stderr, flush=True)


def _line(name: str, number: float, more: str = "") -> str:
    return f"  {name:<24}{number:>16,.0f}{more}"


def _parameters(params: Any, frozen: Any) -> str:
    groups: Counter[str] = Counter()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        groups[jax.tree_util.keystr(path[:1], simple=True)] += leaf.size
    groups["in all"] = groups.total()
    if frozen is not None:
        groups["frozen, beside these"] = optax.tree.size(frozen)
    return "\n".join(["parameters", *(_line(name, size) for name, size in groups.items())])


def _workers(setup: TrainSetup, layout: Layout, *, steps_per_call: int) -> str:
    """Returns the lines about workers, steps and traffic."""
    moved = setup.traffic
    at_once = resolve_lanes_at_once(setup, layout)
    unit = "step" if setup.sends_alike else "communication"
    kinds = ", ".join(f"{count} {kind}" for kind, count in moved.collectives.items())
    devices = counted(layout.num_devices, "device")
    lanes = counted(layout.lanes, "lane")
    lines = [setup.source.note] if setup.source.note else []
    lines.append(f"{counted(layout.num_workers, 'worker')} = {devices} x {lanes}")
    if at_once:
        lines.append(_line("lanes at once, at most", at_once))
    lines.append(_line("steps", setup.num_steps))
    if steps_per_call > 1:
        lines.append(_line("steps per call", steps_per_call))
    lines.append(_line("examples per step", setup.examples_per_step))
    lines.append(_line("bytes a worker sends", moved.bytes_per_worker, f"  and receives, per {unit} ({kinds})"))
    return "\n".join(lines)


def _memory(setup: TrainSetup, layout: Layout) -> str:
    """Returns the lines about bytes on each device, and one if they do not fit."""
    rows = step_bytes(setup, lanes=layout.lanes)
    total = sum(rows.values())
    lines = [_line(name, count) for name, count in rows.items()]
    lines.append(_line("in all", total, "  without activations"))
    device = layout.own_devices[0]
    limit = (device.memory_stats() or {}).get("bytes_limit")
    whose = f"this {device.device_kind}"
    if not limit:
        limit, whose = LARGE_DEVICE, "an H100"
    if total > limit:
        fewer = f"; {layout.num_workers} devices have one worker each" if layout.lanes > 1 else ""
        lines.append(f"  does not fit into the {limit:,} of {whose}{fewer}")
    return "\n".join(["bytes per device", *lines])


def _compiled(setup: TrainSetup, layout: Layout, inputs: dict[str, Any], *, steps_per_call: int) -> str:
    """Compiles the programs of a step; returns the lines about their memory and FLOP."""
    mapping = worker_mapping(setup, layout, steps_per_call=steps_per_call)
    step = make_step(setup, layout, map_workers=mapping)
    shapes = call_shapes(inputs, num_devices=layout.num_devices, steps_per_call=steps_per_call)
    what = "step" if steps_per_call == 1 else f"call of up to {steps_per_call} steps"
    target = f"{layout.num_devices} x {layout.devices[0].device_kind}"
    lines = [f"compiled for {target}, per device and {what}"]
    _say(f"tracing it once more for {target}")
    for name, (lowered, calls) in step.lower(*shapes).items():
        _say(f"compiling the program {name!r} for {target}; --nodry_run_compile leaves it out")
        compiled = lowered.compile()
        memory = compiled.memory_analysis()
        cost = compiled.cost_analysis()
        lines.append(f"  {name}, {calls} calls" if calls > 1 else f"  {name}")
        lines += [
            _line("  arguments, bytes", memory.argument_size_in_bytes),
            _line("  of them reused", memory.alias_size_in_bytes),
            _line("  results, bytes", memory.output_size_in_bytes),
            _line("  temporaries, bytes", memory.temp_size_in_bytes),
            _line("  floating point, FLOP", cost.get("flops", float("nan"))),
        ]
    return "\n".join(lines)
