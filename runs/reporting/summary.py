"""The default folder of a run, and the summary that it shows at the end."""

import contextlib
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runs import identity
from runs.errors import ROOT
from runs.reporting import outcome, progress


def default_workdir(spec: str, config: Mapping[str, Any], *, below: str = "out") -> str:
    """Returns a folder of its own for each config, so that the same command goes on in it.

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
) -> str:
    """Returns the summary of a finished run, as text.

    Args:
      summary: what ``train.train`` returned.
      metric: name of the task's own metric.
      mode: whether it is to be maximal or minimal.
      chance: its value without any knowledge, or None.
      config: the run's config, as nested dicts.
      path: the run's folder.

    Raises:
      ValueError: in one line, if the summary, which may come from a file, is not one.
    """
    try:
        names = {block: config[block]["name"] for block in ("data", "model", "reducer", "server")}
        method = f"synchronous, reducer {names['reducer']}"
        if names["server"] != "synchronous":  # it has no reducer
            rule = config["server"].get("rule")
            rule = rule if isinstance(rule, str | None) else rule["name"]
            method = names["server"] if rule is None else f"{names['server']}, rule {rule}"
        where = f"{config['num_workers']} workers = {summary['num_devices']} devices x {summary['lanes']}"
        name, value = next(iter(progress.quantities(summary, names=[metric])), ("", ""))
        fault = outcome.fault(
            summary[metric],
            mode=mode,
            chance=chance,
            num_examples=summary.get("num_evaluated", 0),
            first=summary.get("first"),
        )
        remark = f"\n{'remark':<14} {name} is {fault}" if fault else ""
        split = config["data"].get("evaluate_on", "test")
        speed = "not measured: too few steps"
        if summary["steps_per_second"]:
            speed = f"{summary['steps_per_second']:,.1f} steps/s, {summary['examples_per_second']:,.0f} examples/s"
        return f"""
{names["data"]}, {names["model"]}: {where}, {method}, {summary["step"]} steps
{f"{split} {name}":<14} {value}  (loss {summary["loss"]:.4f}, epoch {summary["epoch"]:.1f}){remark}
speed          {speed}
time           {summary["wall_seconds"]:.1f} s, simulated {summary["simulated_seconds"]:.1f} s
results        {path}  (metrics.jsonl, tensorboard/, checkpoints/)
plot           {_plot(path)}"""
    except (LookupError, TypeError, ValueError) as error:
        damage = f"{type(error).__name__} {error}"
        raise ValueError(f"workdir={str(path)!r}: DONE is damaged ({damage}); remove it") from error


def _plot(path: Path) -> str:
    """Returns the command that plots a run, as it works in the folder of this process: short in the repository's root,
    with the interpreter of its ``.venv``.
    """
    plot = ["-m", "experiments.plot", str(path)]
    with contextlib.suppress(OSError):  # the folder of this process may be gone
        if Path.cwd() == ROOT and Path(sys.prefix) == ROOT / ".venv":
            return shlex.join([".venv/bin/python", *plot])
    return f"PYTHONPATH={shlex.quote(str(ROOT))} {shlex.join([sys.executable, *plot])}"
