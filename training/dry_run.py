"""A dry run: what a run would do and need, for any number of devices, without running it."""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import jax
from jax import numpy as jnp

from parallel import DEVICE_AXIS, LANE_AXIS, Layout
from runs.reporting.progress import counted
from training.device_memory import resolve_lanes_at_once, step_bytes
from training.setup import TrainSetup
from training.steps.async_train_step import make_step
from training.steps.worker_mapping import worker_mapping
from training.train_state import map_per_worker

LARGE_DEVICE = 80 * 10**9  # bytes of an H100, with which a dry run compares where no device says what it has


def describe(
    setup: TrainSetup,
    *,
    num_devices: int | None = None,
    steps_per_call: int = 1,
    compiled: Literal["if present", "never"] = "if present",
    report: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> str:
    """Describes a setup as text: config, parameters, workers, traffic, memory; and the compiled step where possible.

    The whole step of all workers is traced for ``num_devices`` devices, which may exceed those present: a step that
    cannot be traced, or that leaves workers with different parameters, fails here.

    Args:
      setup: what would be trained.
      num_devices: D; None for the most of this machine's devices that divide the workers.
      steps_per_call: the most steps that one call of the devices takes.
      compiled: whether the step is compiled if the devices are present, which takes minutes for a large model.
      report: receives one line before each part that may take long; none of them is part of the text.

    Raises:
      ValueError: if the devices do not divide the workers, or the step does not reduce.
    """
    available = jax.devices()
    assumed = available if num_devices is None else range(num_devices)
    layout = Layout.of(setup.config.num_workers, num_devices=num_devices, devices=assumed)
    inputs = step_inputs(setup, layout)
    size = f"{layout.num_workers} workers on {layout.num_devices} x {layout.lanes} lanes"
    report(f"dry run: tracing the step of {size} ...")
    _trace(setup, layout, inputs)
    sections = [
        _config(setup),
        _parameters(inputs["state"].params, inputs["state"].frozen),
        _workers(setup, layout, device=available[0], steps_per_call=steps_per_call),
        _memory(setup, layout, device=available[0]),
    ]
    if compiled == "never":
        sections.append("not compiled: --nodry_run_compile")
    elif layout.num_devices > len(available):
        sections.append(f"not compiled: this machine has {len(available)} devices")
    else:
        present = Layout(layout.num_workers, tuple(available[: layout.num_devices]))
        sections.append(_compiled(setup, present, inputs, steps_per_call=steps_per_call, report=report))
    return "\n\n".join(sections)


def step_inputs(setup: TrainSetup, layout: Layout) -> dict[str, Any]:
    """Returns one device's share of the step's arguments, as shapes: per-worker parts have a leading lane axis."""
    state = setup.worker_shapes
    info, lanes, batch_size = setup.source.info, layout.lanes, setup.config.batch_size_per_worker
    shape = jax.ShapeDtypeStruct

    def many(*counts: int) -> dict[str, Any]:
        return {name: shape((*counts, *part.shape), part.dtype) for name, part in info.example.items()}

    batch: dict[str, Any] = {"batch_index": shape((lanes,), jnp.uint32)}
    resident = {}
    if setup.source.placement == "device":
        batch["index"], resident = shape((lanes, batch_size), jnp.int32), many(info.num_train)
    else:
        batch["batch"] = many(lanes, batch_size)
    return {
        "state": map_per_worker(lambda x: shape((lanes, *x.shape), x.dtype), state),
        "batch": batch,
        "resident": {"train": resident, "constants": info.constants},
        "inputs": {name: shape((lanes, *x.shape), x.dtype) for name, x in setup.mode.inputs.items()},
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

        def over(function, axis_name):
            return jax.vmap(
                function, in_axes=(state_axes, 0, None, 0), out_axes=(state_axes, None), axis_name=axis_name
            )

        return over(over(worker, LANE_AXIS), DEVICE_AXIS)

    all_workers: Any = make_step(setup, layout, map_workers=trace_workers)

    def of_devices(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((layout.num_devices, *x.shape), x.dtype)

    state = map_per_worker(of_devices, inputs["state"])
    per_device = {name: _stack(inputs[name], layout.num_devices) for name in ("batch", "inputs")}
    jax.eval_shape(all_workers, state, per_device["batch"], inputs["resident"], per_device["inputs"])


def _config(setup: TrainSetup) -> str:
    return "config " + json.dumps(setup.config.to_dict(), indent=2, sort_keys=True)


def _parameters(params: Any, frozen: Any) -> str:
    groups: Counter[str] = Counter()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        groups[jax.tree_util.keystr(path[:1], simple=True)] += leaf.size
    lines = [f"  {name:<24}{groups[name]:>16,}" for name in sorted(groups, key=_natural)]
    lines.append(f"  {'in all':<24}{groups.total():>16,}")
    if frozen is not None:
        kept = sum(leaf.size for leaf in jax.tree.leaves(frozen))
        lines.append(f"  {'frozen, beside these':<24}{kept:>16,}")
    return "\n".join(["parameters", *lines])


def _natural(name: str) -> list[tuple[str, int]]:
    """Returns a key that sorts the numbers in names by their size.

    >>> sorted(["['Block_10']", "['Block_9']", "['Stem']"], key=_natural)
    ["['Block_9']", "['Block_10']", "['Stem']"]
    """
    return [("", int(part)) if part.isdecimal() else (part, 0) for part in re.split(r"(\d+)", name)]


def _workers(setup: TrainSetup, layout: Layout, *, device: Any, steps_per_call: int) -> str:
    moved = setup.traffic
    at_once = resolve_lanes_at_once(setup, lanes=layout.lanes, device=device)
    unit = "step" if setup.sends_alike else "communication"
    kinds = ", ".join(f"{count} {kind}" for kind, count in moved.collectives.items())
    return "\n".join(
        [
            *([setup.source.note] if setup.source.note else []),
            f"{counted(layout.num_workers, 'worker')} = {counted(layout.num_devices, 'device')} x "
            f"{counted(layout.lanes, 'lane')}",
            *([f"  {'lanes at once, at most':<24}{at_once:>16,}"] if at_once else []),
            f"  {'steps':<24}{setup.num_steps:>16,}",
            *([f"  {'steps per call':<24}{steps_per_call:>16,}"] if steps_per_call > 1 else []),
            f"  {'examples per step':<24}{setup.examples_per_step:>16,}",
            f"  {'bytes a worker sends':<24}{moved.bytes_per_worker:>16,.0f}  and receives, per {unit} ({kinds})",
        ]
    )


def _memory(setup: TrainSetup, layout: Layout, *, device: Any) -> str:
    rows = step_bytes(setup, lanes=layout.lanes)
    lines = [f"  {name:<24}{count:>16,}" for name, count in rows.items()]
    total = sum(rows.values())
    lines.append(f"  {'in all':<24}{total:>16,}  without activations")
    limit = (device.memory_stats() or {}).get("bytes_limit")
    of_what = f"the {limit:,} of this {device.device_kind}" if limit else f"the {LARGE_DEVICE:,} of an H100"
    if total > (limit or LARGE_DEVICE):
        fewer = f"; {layout.num_workers} devices have one worker each" if layout.lanes > 1 else ""
        lines.append(f"  does not fit into {of_what}{fewer}")
    return "\n".join(["bytes per device", *lines])


def _compiled(
    setup: TrainSetup,
    layout: Layout,
    inputs: dict[str, Any],
    *,
    steps_per_call: int,
    report: Callable[[str], None],
) -> str:
    mapping = worker_mapping(setup, layout, steps_per_call=steps_per_call)
    step = make_step(setup, layout, map_workers=mapping)
    shapes = call_shapes(inputs, num_devices=layout.num_devices, steps_per_call=steps_per_call)
    what = "step" if steps_per_call == 1 else f"call of up to {steps_per_call} steps"
    target = f"{layout.num_devices} x {layout.devices[0].device_kind}"
    lines = [f"compiled for {target}, per device and {what}"]
    report(f"dry run: tracing it once more for {target} ...")
    for name, (lowered, calls) in step.lower(*shapes).items():
        report(f"dry run: compiling the program {name!r} for {target}; --nodry_run_compile leaves it out ...")
        compiled = lowered.compile()
        memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
        cost = cost[0] if isinstance(cost, list) else cost
        lines.append(f"  {name}" + (f", {calls} calls" if calls > 1 else ""))
        lines += [
            f"    {'arguments, bytes':<22}{memory.argument_size_in_bytes:>16,}",
            f"    {'of them reused':<22}{memory.alias_size_in_bytes:>16,}",
            f"    {'results, bytes':<22}{memory.output_size_in_bytes:>16,}",
            f"    {'temporaries, bytes':<22}{memory.temp_size_in_bytes:>16,}",
            f"    {'floating point, FLOP':<22}{cost.get('flops', float('nan')):>16,.0f}",
        ]
    return "\n".join(lines)
