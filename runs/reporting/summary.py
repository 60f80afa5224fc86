"""The default folder of a run, and the summary that it shows at the end."""

import math
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reducers.registry import name_of
from runs import identity
from runs.reporting import outcome, progress


def default_workdir(spec: str, config: Mapping[str, Any], *, below: str = "out") -> str:
    """Returns a different folder for each config, so that the same command resumes its run.

    >>> default_workdir("configs/digits.py:smoke", {"seed": 0})
    'out/digits-smoke/...'
    """
    path, _, variant = spec.partition(":")
    name = "-".join(filter(None, (Path(path).stem, variant)))
    return str(Path(below, name, identity.fingerprint(config)[:8]))


def summarise(
    summary: Mapping[str, Any],
    *,
    metric: str,
    mode: outcome.Mode,
    chance: float | None = None,
    config: Mapping[str, Any],
    path: Path,
    live: bool = False,
) -> str:
    """Returns the summary of a finished run, as text.

    Args:
      summary: the summary that ``train.train`` returned.
      metric: name of the task's own metric.
      mode: whether the metric should be maximal or minimal.
      chance: its value without any knowledge, or None.
      config: the run's config, as nested dicts.
      path: the run's folder.
      live: whether its workers were processes, in real time.

    Raises:
      ValueError: in one line, if the summary, which may come from a file, is not one.
    """
    try:
        processes = summary.get("num_processes", 1)
        devices = _devices(summary["num_devices"], config.get("devices_per_worker", 1))
        devices = f"{processes} processes, {devices}" if processes > 1 else devices
        where = f"{progress.counted(config['num_workers'], 'worker')} = {devices} x {summary['lanes']}"
        if live:
            where = f"{progress.counted(config['num_workers'], 'worker')} in real time"
        name, value = next(iter(progress.quantities(summary, names=[metric])), ("", ""))
        fault = outcome.fault(
            summary[metric],
            mode=mode,
            chance=chance,
            num_examples=summary.get("num_evaluated", 0),
            first=summary.get("first"),
        )
        remarks = []
        if fault:
            remarks.append(f"{name} is {fault}")
        if not math.isfinite(summary["loss"]):
            remarks.append("the loss is not finite")
        remark = f"\n{'remark':<14} {', '.join(remarks)}" if remarks else ""
        split = config["data"].get("evaluate_on", "test")
        speed = "not measured: too few steps"
        if summary["steps_per_second"]:
            rates = f"{summary['steps_per_second']:,.1f} steps/s, {summary['examples_per_second']:,.0f} examples/s"
            speed = f"{rates}, without compiling, evaluations and saving"
        simulated = summary["simulated_seconds"]  # 0 if no arrivals are simulated
        clock = f", {'in steps' if live else 'simulated'} {simulated:.1f} s" if live or simulated else ""
        return f"""
{config["data"]["name"]}, {config["model"]["name"]}: {where}, {_method(config)}, {summary["step"]} steps
{f"{split} {name}":<14} {value}  (loss {summary["loss"]:.4f}, epoch {summary["epoch"]:.1f}){remark}
speed          {speed}
time           {summary["wall_seconds"]:.1f} s with compiling, evaluations and saving{clock}{_moved(summary)}
results        {path}  (metrics.jsonl, tensorboard/, checkpoints/)
plot           {shlex.join([sys.executable, "-m", "experiments.plot", str(path)])}"""
    except (LookupError, TypeError, ValueError) as error:
        damage = f"{type(error).__name__} {error}"
        raise ValueError(f"workdir={str(path)!r}: DONE is damaged ({damage}); remove it") from error


def _method(config: Mapping[str, Any]) -> str:
    """Returns in words how the workers' gradients were combined."""
    server = config["server"]["name"]
    if server != "synchronous":  # it has no reducer
        rule = config["server"].get("rule")
        return server if rule is None else f"{server}, rule {name_of(rule)}"
    words = f"synchronous, reducer {_reducer(config['reducer'], num_workers=config['num_workers'])}"
    if config.get("weigh", "workers") != "workers":
        words += f", weighed by {config['weigh']}"
    for block, default, how in (("communication", "full", "sent as"), ("outer", "none", "outer")):
        name = config[block]["name"]
        words += "" if name == default else f", {how} {name}"
    return words


def _reducer(block: Any, *, num_workers: int) -> str:
    """Returns a reducer, what is said of it most, and the one inside it.

    >>> _reducer({"name": "backup_workers", "num_required": 6, "combine": "adasum"}, num_workers=8)
    'backup_workers (6 of 8) of adasum'
    """
    options = block if isinstance(block, Mapping) else {}
    required, how, inside = (options.get(key) for key in ("num_required", "how", "combine"))
    of_all = None if required is None else f"{required} of {num_workers}"
    more = f" ({found})" if (found := of_all or how) else ""
    return f"{name_of(block)}{more}" + (f" of {_reducer(inside, num_workers=num_workers)}" if inside else "")


def _devices(count: int, per_worker: int) -> str:
    """Returns devices in words, as nodes where a worker has several.

    >>> _devices(8, 1), _devices(8, 2)
    ('8 devices', '4 nodes of 2 devices')
    """
    if per_worker == 1:
        return progress.counted(count, "device")
    return f"{progress.counted(count // per_worker, 'node')} of {per_worker} devices"


def _moved(summary: Mapping[str, Any]) -> str:
    """Returns the lines about the bytes that a worker sent and about dropped examples; "" if there are none."""
    lines = []
    if summary.get("sent_bytes"):
        most = summary.get("peak_bytes")
        words = f", at most {_size(most)} in a step" if most else ""
        lines.append(f"{'sent':<14} {_size(summary['sent_bytes'])} a worker{words}")
    if summary.get("dropped_examples"):
        total = summary["dropped_examples"] + summary.get("examples", 0)
        lines.append(f"{'dropped':<14} {summary['dropped_examples']:,.0f} of {total:,.0f} examples")
    return "".join(f"\n{line}" for line in lines)


def _size(num_bytes: float) -> str:
    """Returns bytes in words, such as "2.5 MB".

    >>> _size(2.5e6), _size(2500)
    ('2.5 MB', '2.5 kB')
    """
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:,.1f} kB"
