"""The default folder of a run, and the summary that it shows at the end."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runs import identity, progress


def default_workdir(spec: str, config: Mapping[str, Any]) -> str:
    """Returns a folder of its own for each config, so that the same command goes on in it.

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
    """Returns the summary of a finished run, as text.

    Args:
      summary: what ``train.train`` returned.
      metric: name of the task's own metric.
      config: the run's config, as nested dicts.
      path: the run's folder.
      spec: the config file, with its variant.
      overrides: the ``--config.key=value`` flags that changed it.

    Raises:
      ValueError: in one line, if the summary, which may come from a file, is not one.
    """
    try:
        names = {block: config[block]["name"] for block in ("data", "model", "reducer", "server")}
        method = f"synchronous, reducer {names['reducer']}"
        if names["server"] != "synchronous":  # it has no reducer
            rule = config["server"].get("rule", "none")
            method = f"{names['server']}, rule {rule if isinstance(rule, str) else rule['name']}"
        where = f"{config['num_workers']} workers = {summary['num_devices']} devices x {summary['lanes']}"
        name, value = next(iter(progress.quantities(summary, names=[metric])), ("", ""))
        split = config["data"].get("evaluate_on", "test")
        speed = "not measured: too few steps"
        if summary["steps_per_second"]:
            speed = f"{summary['steps_per_second']:,.1f} steps/s, {summary['examples_per_second']:,.0f} examples/s"
        return f"""
{names["data"]}, {names["model"]}: {where}, {method}, {summary["step"]} steps
{f"{split} {name}":<14} {value}  (loss {summary["loss"]:.4f}, epoch {summary["epoch"]:.1f})
speed          {speed}
time           {summary["wall_seconds"]:.1f} s, simulated {summary["simulated_seconds"]:.1f} s
results        {path}  (metrics.jsonl, tensorboard/, checkpoints/)
next           {_comparison(names, spec=spec, overrides=overrides)}
               .venv/bin/python -m experiments.plot {shlex.quote(str(path))}"""
    except (LookupError, TypeError, ValueError) as error:
        damage = f"{type(error).__name__} {error}"
        raise ValueError(f"workdir={str(path)!r}: DONE is damaged ({damage}); remove it") from error


def _comparison(names: Mapping[str, str], *, spec: str, overrides: Sequence[str]) -> str:
    """Returns the command of the same run with another reducer, or of a synchronous one if the run has no reducer."""
    block, other = "reducer", "sum" if names["reducer"] == "mean" else "mean"
    if names["server"] != "synchronous":
        block, other = "server", "synchronous"
    kept = [flag for flag in overrides if not flag.lstrip("-").startswith(f"config.{block}.")]
    flags = [f"--config={spec}", *kept, f"--config.{block}.name={other}"]
    return f'make train ARGS="{shlex.join(flags)}"'
