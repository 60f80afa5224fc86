"""Submits the shards of a command as a SLURM array by submitit: https://github.com/facebookincubator/submitit."""

import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.children import with_repository


def submit(
    arguments: Sequence[str], *, shards: int, folder: Path, options: Mapping[str, Any], cluster: str = "slurm"
) -> str:
    """Submits an array of jobs, each of which executes one shard of a command.

    Args:
      arguments: the arguments of ``python -m experiments``; the jobs get them without --slurm and its options.
      shards: the number of jobs.
      folder: the folder of submitit's scripts and logs. It and the runs' folder must be on a disk that all machines
        share.
      options: parameters of submitit's executor, such as slurm_partition, timeout_min, gpus_per_node.
      cluster: "slurm", or "local" for processes on this machine.

    Returns:
      A line that names the jobs.

    Raises:
      ValueError: one line, if submitit is not installed, or refuses.
    """
    try:
        import submitit
    except ModuleNotFoundError:
        raise ValueError("slurm: needs submitit; .venv/bin/python -m pip install submitit==1.5.4") from None
    kept = _without(arguments, ("--slurm", "--slurm_option", "--shard"))
    commands = [[sys.executable, "-m", "experiments", *kept, f"--shard={i + 1}/{shards}"] for i in range(shards)]
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(**options)
        jobs = executor.map_array(functools.partial(execute_shard, folder=Path.cwd()), commands)
    except Exception as error:  # submitit has no exception class of its own for what it or SLURM refuses
        raise ValueError(f"slurm: {error}".partition("\n")[0]) from None
    return f"{len(jobs)} jobs: {', '.join(job.job_id for job in jobs)}; logs in {folder}"


def execute_shard(command: Sequence[str], *, folder: Path) -> None:
    """Executes the command of one shard in a folder; submitit calls it within a job."""
    subprocess.run(command, cwd=folder, env=with_repository(os.environ), check=True)


def _without(arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    """Removes options in both forms, --key=value and --key value.

    >>> _without(["run", "--slurm", "4", "x", "--shard=1/2"], ("--slurm", "--shard"))
    ['run', 'x']
    """
    rest = iter(arguments)
    kept = []
    for text in rest:
        key, _, value = text.partition("=")
        if key not in options:
            kept.append(text)
        elif not value:
            next(rest, None)
    return kept
