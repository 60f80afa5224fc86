"""What a run would be, without running it: sizes for any number of devices, costs where the devices are here."""

import contextlib
import gc
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from parallel import AXES, Layout, over_workers


def describe(program: Any, *, num_devices: int | None = None, devices: list[Any] | None = None) -> str:
    """Describes a program as text: config, parameters, workers, traffic, memory.

    The whole step of all workers is traced for ``num_devices`` devices, which need not be here: what cannot be traced,
    or does not leave all workers with the same parameters, fails here.

    Args:
      program: as ``train.build`` returns it.
      num_devices: D; by default the most of this machine's that divide the workers.
      devices: this machine's, by default all.

    Raises:
      ValueError: if the devices do not divide the workers.
    """
    available = jax.devices() if devices is None else devices
    assumed = available if num_devices is None else range(num_devices)
    layout = Layout.of(program.config.num_workers, num_devices=num_devices, devices=assumed)
    inputs = _inputs(program, layout)
    _trace(program, layout, inputs)
    here = layout.num_devices <= len(available)
    sections = [
        _config(program),
        _parameters(inputs["shared"].params),
        _workers(program, layout),
        _memory(program, inputs, layout),
        _compiled(program, Layout(layout.num_workers, tuple(available[: layout.num_devices])), inputs)
        if here
        else f"compiled: not here, this machine has {len(available)} devices",
    ]
    return "\n\n".join(sections)


def _inputs(program: Any, layout: Layout) -> dict[str, Any]:
    """One device's share of the step's arguments, as shapes: local and feed with a leading lane axis."""
    shared, local = jax.eval_shape(program.init)
    info, config = program.source.info, program.config
    lanes, batch = layout.lanes, config.batch_size_per_worker
    shape = jax.ShapeDtypeStruct

    def many(*counts: int) -> dict[str, Any]:
        return {name: shape((*counts, *part.shape), part.dtype) for name, part in info.example.items()}

    feed: dict[str, Any] = {"batch_index": shape((lanes,), jnp.uint32)}
    resident = {}
    if program.source.placement == "device":
        feed["index"], resident = shape((lanes, batch), jnp.int32), many(info.num_train)
    else:
        feed["batch"] = many(lanes, batch)
    feed["plan"] = {name: shape((lanes,), dtype) for name, dtype in program.timetable.plan.items()}
    return {
        "shared": shared,
        "local": jax.tree.map(lambda x: shape((lanes, *x.shape), x.dtype), local),
        "feed": feed,
        "resident": {"train": resident, "constants": info.constants},
    }


def _stack(tree: Any, layout: Layout) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((layout.num_devices, *x.shape), x.dtype), tree)


def _trace(program: Any, layout: Layout, inputs: dict[str, Any]) -> None:
    def worker(shared, local, feed, resident):
        return program.halves.reduce(shared, local, program.halves.local(shared, local, feed, resident), feed["plan"])

    def over(function, axis_name):
        return jax.vmap(function, in_axes=(None, 0, 0, None), out_axes=(None, 0, None), axis_name=axis_name)

    all_workers = over(over(worker, AXES[1]), AXES[0])
    arguments = inputs["shared"], _stack(inputs["local"], layout), _stack(inputs["feed"], layout), inputs["resident"]
    with _keeping_garbage():
        jax.eval_shape(all_workers, *arguments)


@contextlib.contextmanager
def _keeping_garbage() -> Iterator[None]:
    """Tracing makes millions of objects that live on: looking for garbage among them takes a third of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _config(program: Any) -> str:
    return "config " + json.dumps(program.config.to_dict(), indent=2, sort_keys=True)


def _parameters(params: Any) -> str:
    groups: Counter[str] = Counter()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        groups[jax.tree_util.keystr(path[:1], simple=True)] += leaf.size
    lines = [f"  {name:<24}{count:>16,}" for name, count in groups.items()]
    return "\n".join(["parameters", *lines, f"  {'in all':<24}{groups.total():>16,}"])


def _workers(program: Any, layout: Layout) -> str:
    moved = program.traffic
    kinds = ", ".join(f"{count} {kind}" for kind, count in moved.collectives.items())
    return "\n".join(
        [
            *([program.source.note] if program.source.note else []),
            f"{layout.num_workers} workers = {layout.num_devices} devices x {layout.lanes} lanes",
            f"  {'steps':<24}{program.num_steps:>16,}",
            f"  {'examples per step':<24}{program.examples_per_step:>16,}",
            f"  {'bytes a worker sends':<24}{moved.bytes_per_worker:>16,.0f}  and receives, per step ({kinds})",
        ]
    )


def _memory(program: Any, inputs: dict[str, Any], layout: Layout) -> str:
    shared, local = inputs["shared"], inputs["local"]
    examples = layout.lanes * program.config.batch_size_per_worker
    rows = {
        "parameters": _bytes(shared.params),
        "moving average": _bytes(shared.ema),
        "shared optimizer state": _bytes(shared.opt_state),
        "state of the workers": _bytes(local),
        "gradients": layout.lanes * _bytes(shared.params),
        "batch": examples * program.source.info.example_bytes,  # as it is stored
        "resident data": _bytes(inputs["resident"]),
    }
    lines = [f"  {name:<24}{count:>16,}" for name, count in rows.items()]
    total = f"  {'in all':<24}{sum(rows.values()):>16,}  without activations"
    return "\n".join(["bytes per device", *lines, total])


def _bytes(tree: Any) -> int:
    return sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def _compiled(program: Any, layout: Layout, inputs: dict[str, Any]) -> str:
    config = program.config
    step = over_workers(program.halves, layout=layout, lift=config.lift, lanes=config.lanes)
    lines = [f"compiled for {layout.num_devices} x {layout.devices[0].device_kind}, a device and step"]
    for name, (lowered, calls) in step.lower(*(_stack(tree, layout) for tree in inputs.values())).items():
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
