"""The whole checkpoints of a run on disk: which there are, which are damaged, which stay."""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from runs import files, manifest

_STEP = re.compile("0|[1-9][0-9]{,18}")  # the name of a checkpoint's folder


class Shelf:
    """A folder of checkpoints, each a folder of its step; a new one comes with one rename.

    Attributes:
        directory: the folder, absolute.
        scratch: where checkpoints are made, and deleted; on the same file system.
        access: "read" changes nothing on disk.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep_last: int,
        keep_best: int,
        best_metric: str,
        best_mode: Literal["max", "min"],
        access: Literal["write", "read"],
        report: Callable[[str], None],
    ):
        """Looks at nothing yet; arguments are those of ``Checkpoints``."""
        if keep_last < 1 or keep_best < 0:
            raise ValueError(f"keep_last={keep_last}, keep_best={keep_best}: must be at least 1 and 0")
        self.directory = Path(os.path.abspath(directory))  # Orbax takes no relative paths
        self.scratch = self.directory / ".scratch"
        self.access = access
        self._keep_last, self._keep_best = keep_last, keep_best
        self._best_metric, self._best_mode = best_metric, best_mode
        self._report = report

    def clear_scratch(self) -> None:
        """Empties the scratch folder; makes it, and the shelf, where they are missing."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True)

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return sorted(int(path.name) for path in self.directory.iterdir() if _STEP.fullmatch(path.name))
        return []

    def path(self, step: int) -> Path:
        """The folder of a checkpoint."""
        return self.directory / str(step)

    def add(self, step: int) -> None:
        """Puts a checkpoint that is complete in the scratch folder in its place, and takes older ones away."""
        os.rename(self.scratch / str(step), self.path(step))
        files.sync(self.directory)
        self.prune()

    def check(self, step: int) -> None:
        """Refuses a step that has no checkpoint, or a damaged one: ValueError, one line."""
        where = f"checkpoint {step} in {str(self.directory)!r}"
        if step not in self.steps():
            raise ValueError(f"{where}: is not there; there are {self.steps()}")
        if (damage := manifest.find_damage(self.path(step))) is not None:
            raise ValueError(f"{where}: is damaged: {damage}")

    def is_whole(self, step: int) -> bool:
        """Whether every bit of a checkpoint is as it was written; a damaged one is reported and moved aside."""
        if (damage := manifest.find_damage(self.path(step))) is not None:
            self._set_aside(step, damage)
        return damage is None

    def prune(self) -> None:
        """Takes away those that are neither among the last nor among the best."""
        steps = self.steps()
        kept = {*steps[-self._keep_last :], *self.best_first()[: self._keep_best]}
        for step in steps:
            if step not in kept:
                # Out of sight in one piece first: a kill while deleting must not leave half a checkpoint.
                doomed = self.scratch / f"deleted-{step}"
                os.rename(self.path(step), doomed)
                shutil.rmtree(doomed)

    def best_first(self) -> list[int]:
        """The steps whose checkpoints have the metric, the best first; of equals the earlier one."""
        known = [(self.metrics(step).get(self._best_metric), step) for step in self.steps()]
        sign = -1 if self._best_mode == "max" else 1
        return [step for _, step in sorted((sign * value, step) for value, step in known if value is not None)]

    def metrics(self, step: int) -> Mapping[str, float]:
        """What is known of the quality of a checkpoint; {} of a damaged one."""
        try:
            return manifest.read(self.path(step))["metrics"]
        except ValueError:
            return {}  # damaged: whoever restores it will say so

    def _set_aside(self, step: int, damage: str) -> None:
        line = f"checkpoint {step} in {str(self.directory)!r} is damaged and not used: {damage}"
        if self.access == "write":
            names = (f"{step}.damaged{suffix}" for suffix in ("", *(f"-{number}" for number in range(2, 1000))))
            aside = next(name for name in names if not (self.directory / name).exists())
            os.rename(self.path(step), self.directory / aside)
            line += f"; moved to {aside}"
        self._report(line)
