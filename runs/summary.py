"""The default folder of a run, and the summary that it shows at the end."""

import contextlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runs import identity, outcome, progress
from runs.errors import ROOT

_NOT_IN_MAKE = frozenset("\"'$\\`!\n")  # two shells and make would read them, where ARGS is in double quotes


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
    spec: str,
    overrides: Sequence[str],
) -> str:
    """Returns the summary of a finished run, as text.

    Args:
      summary: what ``train.train`` returned.
      metric: name of the task's own metric.
      mode: whether it is to be maximal or minimal.
      chance: its value without any knowledge, or None.
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
        cures = outcome.cures(config, epoch=summary["epoch"]) if fault else []
        remark = f"\n{'remark':<14} {name} is {fault}{'; try ' if cures else ''}{_either(cures)}" if fault else ""
        flags = cures[:1] or outcome.comparison(config)
        train, plot = _commands([f"--config={spec}", *_replaced(overrides, by=flags)], path=path)
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
next           {train}
               {plot}"""
    except (LookupError, TypeError, ValueError) as error:
        damage = f"{type(error).__name__} {error}"
        raise ValueError(f"workdir={str(path)!r}: DONE is damaged ({damage}); remove it") from error


def _either(flags: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(flags[:-1]), *flags[-1:])))


def _replaced(overrides: Sequence[str], *, by: Sequence[str]) -> list[str]:
    """Returns flags of a config, with further ones that replace those of the same key or block."""
    keys = {flag.partition("=")[0].lstrip("-") for flag in by}
    blocks = tuple(key.removesuffix("name") for key in keys if key.endswith(".name"))

    def is_kept(flag: str) -> bool:
        key = flag.partition("=")[0].lstrip("-")
        return key not in keys and not key.startswith(blocks)

    return [*filter(is_kept, overrides), *by]


def _commands(arguments: Sequence[str], *, path: Path) -> tuple[str, str]:
    """Returns the commands that train with these arguments and plot a run, as they work in the folder of this process.

    They are short in the root of this repository, with the interpreter of its ``.venv``, where no argument has
    characters that only the long command keeps.
    """
    plot = ["-m", "experiments.plot", str(path)]
    with contextlib.suppress(OSError):  # the folder of this process may be gone
        is_short = _NOT_IN_MAKE.isdisjoint("".join(arguments))
        if is_short and Path.cwd() == ROOT and Path(sys.prefix) == ROOT / ".venv":
            return f'make train ARGS="{shlex.join(arguments)}"', shlex.join([".venv/bin/python", *plot])
    train = [sys.executable, str(ROOT / "train.py"), *arguments]
    return shlex.join(train), f"PYTHONPATH={shlex.quote(str(ROOT))} {shlex.join([sys.executable, *plot])}"
