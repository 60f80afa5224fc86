"""A dry run: describes the steps and needs of a run, for any number of devices, without running it."""

import functools
import json
import pathlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import optax
from jax import numpy as jnp

from compilers.estimate import Estimate, RejectedError, compile_for, largest_array
from parallel import DEVICE_AXIS, LANE_AXIS, PART_AXIS, Cut, Layout
from reducers import targets
from reducers.targets import Target
from runs.reporting.progress import counted
from training.device_memory import device_bytes, resolve_lanes_at_once, step_bytes
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
    target: Target | None = None,
    described: Sequence[Any] = (),
    program: pathlib.Path | None = None,
    numbers: pathlib.Path | None = None,
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
      target: devices that are not here, for which the step is compiled; the caller is inside of its ``compiling()``.
      described: the target's devices.
      program: file for the optimized program of the target; of several programs, each has its name before the suffix.
      numbers: file for the target's numbers, as JSON.

    Raises:
      ValueError: if the devices do not divide the workers, the step does not reduce, or the compiler rejects it.
    """
    available = described or jax.devices()
    num_workers = setup.config.num_workers
    each = setup.config.devices_per_worker
    of_use = num_workers * each
    devices = available if num_devices is None or target else of_use * available[:1]  # assumed: as many as of use
    layout = Layout.of(num_workers, num_devices=num_devices, devices=devices, devices_per_worker=each)
    inputs = step_inputs(setup, layout)
    size = f"{layout.num_workers} workers on {layout.num_devices // each} x {layout.lanes} lanes"
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
    elif target is not None:
        options: dict[str, Any] = {"steps_per_call": steps_per_call, "program": program, "numbers": numbers}
        sections.append(_compiled_for(target, setup, layout, **options))
    elif layout.num_devices > len(available):
        sections.append(f"not compiled: this machine has {len(available)} devices")
    else:
        present = Layout(layout.num_workers, tuple(available[: layout.num_devices]), each)
        sections.append(_compiled(setup, present, steps_per_call=steps_per_call))
    return "\n\n".join(sections)


def find_target(name: str, *, num_workers: int, devices_per_worker: int = 1) -> Target:
    """Returns the target that a name describes.

    Raises:
      ValueError: one line, if there is no such target, its compiler is not installed, or its devices do not divide the
        workers.
    """
    try:
        target = targets.find(name)
        target.check_compiler()
        if num_workers * devices_per_worker % target.num_devices or target.num_devices % devices_per_worker:
            times = f" times config.devices_per_worker={devices_per_worker}" if devices_per_worker > 1 else ""
            raise ValueError(
                f"{name!r}: has {target.num_devices} devices, which must divide config.num_workers={num_workers}{times}"
            )
    except ValueError as error:
        raise ValueError(f"dry_run_target={error}") from None
    return target


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
    if setup.config.weigh == "share":
        batch["share"] = shape((lanes,), jnp.float32)
    return {
        "state": map_per_worker(of_lanes, setup.device_shapes),
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
        nodes = over(over(worker, axis_name=LANE_AXIS), axis_name=DEVICE_AXIS)
        size = layout.devices_per_worker
        # The devices of a node end with the same, but for what lies in parts.
        of_parts = jax.tree.map(lambda axis: 0 if isinstance(axis, Cut) else None, setup.state_axes, is_leaf=_is_none)
        out_axes = of_parts, None
        return jax.vmap(nodes, None, out_axes, axis_name=PART_AXIS, axis_size=size) if size > 1 else nodes

    def of_all(tree: Any) -> Any:
        return _stack(tree, layout.num_devices // layout.devices_per_worker)

    all_workers: Any = make_step(setup, layout, map_workers=trace_workers)
    state = map_per_worker(of_all, inputs["state"])
    jax.eval_shape(all_workers, state, of_all(inputs["batch"]), inputs["resident"], of_all(inputs["inputs"]))


def _is_none(axis: Any) -> bool:
    return axis is None


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
    each = layout.devices_per_worker
    devices = counted(layout.num_devices, "device")
    if each > 1:
        devices = f"{counted(layout.num_devices // each, 'node')} of {each} devices"
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
    limit = device_bytes(layout)
    whose = f"this {layout.own_devices[0].device_kind}"
    if not limit:
        limit, whose = LARGE_DEVICE, "an H100"
    if total > limit:
        fewer = f"; {layout.num_workers} devices have one worker each" if layout.lanes > 1 else ""
        lines.append(f"  does not fit into the {limit:,} of {whose}{fewer}")
    return "\n".join(["bytes per device", *lines])


def _lower(setup: TrainSetup, layout: Layout, *, steps_per_call: int) -> Mapping[str, tuple[Any, int]]:
    """Returns the programs of a step for the layout's devices, each with how often one call of the step runs it."""
    mapping = worker_mapping(setup, layout, steps_per_call=steps_per_call)
    step = make_step(setup, layout, map_workers=mapping)
    inputs = step_inputs(setup, layout)
    shapes = call_shapes(inputs, num_devices=layout.num_devices, steps_per_call=steps_per_call)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout.sharding), shapes)
    return step.lower(*shapes)


def _compiled(setup: TrainSetup, layout: Layout, *, steps_per_call: int) -> str:
    """Compiles the programs of a step; returns the lines about their memory and FLOP."""
    what = "step" if steps_per_call == 1 else f"call of up to {steps_per_call} steps"
    target = f"{layout.num_devices} x {layout.devices[0].device_kind}"
    lines = [f"compiled for {target}, per device and {what}"]
    _say(f"tracing it once more for {target}")
    for name, (lowered, calls) in _lower(setup, layout, steps_per_call=steps_per_call).items():
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


# ---- devices that are not here -----------------------------------------------------------------------------------


class CompiledProgram(NamedTuple):
    """A program of a step, compiled for a target.

    Attributes:
      needs: what it needs of a device.
      text: the optimized program.
      calls: how often one call of the step runs it.
    """

    needs: Estimate
    text: str
    calls: int


def compile_programs(
    setup: TrainSetup, layout: Layout, target: Target, *, steps_per_call: int = 1, say: Callable[[str], Any]
) -> dict[str, CompiledProgram]:
    """Compiles the programs of a step with the compiler of devices that are not here.

    Args:
      setup: the run's setup.
      layout: the workers on the target's devices.
      target: the devices; the caller is inside of its ``compiling()``.
      steps_per_call: the most steps that one call of the devices takes.
      say: called with a line before each part that may take long.

    Returns:
      The programs by name.

    Raises:
      RejectedError: one line, if the compiler rejects a program.
    """
    say(f"tracing the step for {target.name}")
    found = {}
    for name, (lowered, calls) in _lower(setup, layout, steps_per_call=steps_per_call).items():
        say(f"compiling the program {name!r} for {target.name}")
        found[name] = CompiledProgram(*compile_for(target, lowered), calls)
    return found


def _compiled_for(
    target: Target,
    setup: TrainSetup,
    layout: Layout,
    *,
    steps_per_call: int,
    program: pathlib.Path | None,
    numbers: pathlib.Path | None,
) -> str:
    """Compiles the programs of a step with the target's compiler; returns the lines about them, and writes the files.

    Raises:
      ValueError: one line, if the compiler rejects a program.
    """
    lines = [f"compiled for {target.name}, per device and {'step' if steps_per_call == 1 else 'step of a call'}"]
    found: dict[str, Any] = {}
    try:
        compiled = compile_programs(
            setup,
            layout,
            target,
            steps_per_call=steps_per_call,
            say=lambda text: _say(f"{text}; --nodry_run_compile leaves it out"),
        )
    except RejectedError as error:
        raise ValueError(f"dry_run_target={error}") from None
    for name, (needs, text, calls) in compiled.items():
        if program is not None:
            path = program if len(compiled) == 1 else program.with_stem(f"{program.stem}-{name}")
            path.write_text(text)
        found[name] = {"calls": calls, **needs.to_dict()}
        lines += [f"  {name}, {calls} calls" if calls > 1 else f"  {name}", *_estimated(needs, target)]
        if needs.total_bytes > target.kind.memory:
            lines.append(f"  does not fit; its largest array is {largest_array(text)}")
    if numbers is not None:
        numbers.write_text(
            json.dumps({"target": target.name, "devices": layout.num_devices, "programs": found}, indent=2)
        )
    lines += [
        "  The least time is what bytes, products and launches allow. It leaves out the latency of collectives, the",
        "  choice of kernels that needs the device (autotuning), and the host.",
        f"  Speeds: {target.kind.sources}.",
    ]
    if target.kind.measured:
        lines.append(f"  Steps that were measured took this many times their least time: {target.kind.measured}.")
    return "\n".join(lines)


def _estimated(needs: Estimate, target: Target) -> list[str]:
    memory = int(target.kind.memory)
    fits = "fits into" if needs.total_bytes <= memory else "more than"
    lines = [
        _line("  arguments, bytes", needs.arguments),
        _line("  of them reused", needs.reused),
        _line("  results, bytes", needs.results),
        _line("  temporaries, bytes", needs.temporaries),
        _line("  in all, bytes", needs.total_bytes, f"  {fits} the {memory:,} of a device that JAX uses"),
        _line("  program, bytes", needs.program_bytes, f"  compiled in {needs.compile_seconds:.1f} s"),
    ]
    lines += [
        _line(f"  {kind}", count, f"  sends {num_bytes:,.0f} bytes")
        for kind, (count, num_bytes) in needs.collectives.items()
    ]
    if needs.collectives:
        lines.append(
            _line("  one after another", needs.longest_chain, "  collectives, each of which waits for the one before")
        )
    bounds = ", ".join(f"{name} {1e3 * seconds:.3g}" for name, seconds in needs.bounds.items())
    lines += [
        _line("  kernels", needs.kernels),
        _line("  bytes through memory", needs.memory_bytes),
        _line("  FLOP of products", needs.flops),
        f"    least time, ms        {1e3 * needs.least_seconds:>16.3g}  ({bounds}): bound by {needs.bound}",
        f"    reduction             {needs.reduction:>16.1%}  of it",
    ]
    if needs.collectives:
        lines.append(f"    links, ms             {1e3 * needs.link_seconds:>16.3g}  for what is sent, beside it")
    if needs.unknown_loops:
        lines.append(_line("  loops, counted once", needs.unknown_loops, "  whose number of iterations is not known"))
    lines.append("    dearest kernels:   ms  times        MB     GFLOP")
    lines += [
        f"    {1e3 * c.seconds:>19.3g} {c.times:>6} {c.bytes / 1e6:>9,.1f} {c.flops / 1e9:>9,.1f}  {c.name}: {c.source}"
        for c in needs.dearest
    ]
    return lines
