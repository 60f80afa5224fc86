"""The first and last words of a run: where it lies, and what it came to."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runs import identity, progress


def default_workdir(spec: str, config: Mapping[str, Any]) -> str:
    """Returns a folder for each config, so that the same command goes on and another one starts anew.

    >>> default_workdir("configs/digits.py:smoke", {"seed": 0})
    'out/digits-smoke/...'
    """
    path, _, variant = spec.partition(":")
    name = "-".join(filter(None, (Path(path).stem, variant)))
    return str(Path("out", name, identity.fingerprint(config)[:8]))


def summarise(
    summary: Mapping[str, Any],
    *,
    metric: str,
    config: Mapping[str, Any],
    path: Path,
    spec: str,
    overrides: Sequence[str],
) -> str:
    """Returns what a finished run shows.

    Args:
      summary: what ``train.train`` returned.
      metric: the task's own, first to be shown.
      config: the run's config, as nested dicts.
      path: the run's folder.
      spec: the config file that it came from.
      overrides: the ``--config.key=value`` flags that changed it.

    Raises:
      ValueError: in one line, if the summary, which a file may hold, is none.
    """
    try:
        names = {block: config[block]["name"] for block in ("data", "model", "reducer", "server")}
        where = f"{config['num_workers']} workers = {summary['num_devices']} devices x {summary['lanes']}"
        name, value = next(iter(progress.quantities(summary, names=[metric])), ("", ""))
        speed = "not measured: too few steps"
        if summary["steps_per_second"]:
            speed = f"{summary['steps_per_second']:,.1f} steps/s, {summary['examples_per_second']:,.0f} examples/s"
        return f"""
{names["data"]}, {names["model"]}: {where}, {names["server"]}, reducer {names["reducer"]}, {summary["step"]} steps
{f"{config['data']['evaluate_on']} {name}":<14} {value}  (loss {summary["loss"]:.4f}, epoch {summary["epoch"]:.1f})
speed          {speed}
time           {summary["wall_seconds"]:.1f} s, simulated {summary["simulated_seconds"]:.1f} s
results        {path}  (metrics.jsonl, tensorboard/, checkpoints/)
next           {_to_compare_with(names, spec=spec, overrides=overrides)}
               .venv/bin/python -m experiments.plot {shlex.quote(str(path))}"""
    except (LookupError, TypeError, ValueError) as error:
        told = f"{type(error).__name__} {error}"
        raise ValueError(f"workdir={str(path)!r}: DONE is damaged ({told}); remove it") from error


def _to_compare_with(names: Mapping[str, str], *, spec: str, overrides: Sequence[str]) -> str:
    """The same run but for the reducer, or for waiting for each other where there is no reducer."""
    block, other = "reducer", "sum" if names["reducer"] == "mean" else "mean"
    if names["server"] != "synchronous":
        block, other = "server", "synchronous"
    kept = [flag for flag in overrides if not flag.lstrip("-").startswith(f"config.{block}.")]
    flags = [f"--config={spec}", *kept, f"--config.{block}.name={other}"]
    return f'make train ARGS="{shlex.join(flags)}"'
