"""The directory of a run's checkpoints: which ones it has, which are damaged, and which stay.

A checkpoint is a folder named after its step. Its manifest.json is written last. It holds the SHA-256 of every other
file and of itself, because Orbax restores flipped bits without an error.

    checkpoints/120/            the checkpoint of step 120: Orbax's files and manifest.json
    checkpoints/100.damaged/    a damaged checkpoint, moved aside; it is never deleted and never used
    checkpoints/.scratch/       checkpoints that are being written or deleted; emptied when a run starts

A checkpoint is damaged if a file is missing or has wrong content. An unreadable file (a file server is away, say) does
not make it damaged: the error names the checkpoint, and nothing is moved.
"""

import contextlib
import dataclasses
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from reducers.arrivals import foreign_files
from runs import files

MANIFEST = "manifest.json"
FORMAT = 4  # version of the names in a state; raise it when a change makes older checkpoints unreadable
_STEP = re.compile("0|[1-9][0-9]{,18}")  # the name of a checkpoint's folder
_ASIDE = re.compile(rf"({_STEP.pattern})[.]damaged(-[0-9]+)?")  # the name of a damaged one's folder


class DamageError(ValueError):
    """A checkpoint is not as it was written."""


@dataclasses.dataclass(eq=False)
class CheckpointDirectory:
    """A folder of checkpoints; a single rename adds or removes a checkpoint.

    Attributes:
      path: the folder.
      keep_last: number of newest checkpoints that stay, at least 1. The best one stays too.
      best_metric: key into the metrics of a checkpoint; a checkpoint without this metric is never the best.
      best_mode: whether the best checkpoint has the highest or the lowest metric; of equals, the earlier one.
      access: "read" changes nothing on disk, so that a running run can be read.
      report: called with one line per damaged checkpoint.
    """

    path: Path
    _: dataclasses.KW_ONLY
    keep_last: int = 3
    best_metric: str = "accuracy"
    best_mode: Literal["max", "min"] = "max"
    access: Literal["write", "read"] = "write"
    report: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)

    @property
    def scratch(self) -> Path:
        """A folder on the same file system, in which checkpoints are written and deleted."""
        return self.path / ".scratch"

    def name(self, step: int) -> str:
        """Returns the name of a checkpoint in messages."""
        return f"checkpoint {step} in {str(self.path)!r}"

    def steps(self) -> list[int]:
        """Returns the steps that have a complete checkpoint, oldest first."""
        return sorted(int(name) for name in self._names(_STEP))

    def damaged(self) -> list[str]:
        """Returns the names of the folders of damaged checkpoints that were moved aside."""
        return sorted(self._names(_ASIDE))

    def best_first(self) -> list[int]:
        """Returns the steps whose checkpoints have the metric, best first; of equals, the earlier one first.

        Raises:
          ValueError: in one line, if a manifest cannot be read.
        """
        ranked = []
        for step in self.steps():
            with contextlib.suppress(DamageError, KeyError):  # a damaged one is reported when it is restored
                value = self.manifest(step)["metrics"][self.best_metric]
                ranked.append((-value if self.best_mode == "max" else value, step))
        return [step for _, step in sorted(ranked)]

    def manifest(self, step: int) -> dict[str, Any]:
        """Returns the content of a checkpoint's manifest.

        Raises:
          DamageError: in a few words, if it is missing or damaged.
          ValueError: in one line, if it cannot be read.
        """
        with self._reading(step, MANIFEST):
            content = foreign_files.content(self.path / str(step) / MANIFEST)
        try:
            body = files.from_json(content)
        except ValueError:
            raise DamageError(f"{MANIFEST} is not readable") from None
        if not files.is_sealed(body):
            raise DamageError(f"{MANIFEST} was changed")
        if not {"metrics", "leaves", "files"} <= body.keys():
            raise DamageError(f"{MANIFEST} is not a checkpoint manifest")
        if body.get("step", step) != step:
            raise DamageError(f"{MANIFEST} is that of step {body['step']}; the folder was renamed or copied")
        return body

    def find_damage(self, step: int) -> str | None:
        """Returns a few words that name the first damaged file, or None if every bit is as it was written.

        Raises:
          ValueError: in one line, if a file cannot be read.
        """
        folder = self.path / str(step)
        try:
            for name, known in self.manifest(step)["files"].items():
                with self._reading(step, name):
                    found = os.stat(folder / name)
                    if not stat.S_ISREG(found.st_mode):
                        return f"{name} is not a file"
                    if found.st_size != known["bytes"]:
                        return f"{name} has {found.st_size} bytes instead of {known['bytes']}"
                    if foreign_files.sha256(folder / name) != known["sha256"]:
                        return f"the content of {name} was changed"
        except DamageError as error:
            return str(error)
        return None

    def is_whole(self, step: int) -> bool:
        """Returns whether every bit of a checkpoint is as it was written.

        A damaged checkpoint is reported and, with access "write", moved aside. A checkpoint that the run has removed
        meanwhile is not whole, and is not reported.

        Raises:
          ValueError: in one line, if a file cannot be read.
        """
        damage = self.find_damage(step)
        if damage is not None and os.path.lexists(self.path / str(step)):
            line = f"{self.name(step)} is damaged and not used: {damage}"
            if self.access == "write":
                number, aside = 1, f"{step}.damaged"
                while (self.path / aside).exists():
                    number += 1
                    aside = f"{step}.damaged-{number}"
                os.rename(self.path / str(step), self.path / aside)
                line += f"; moved to {aside}"
            self.report(line)
        return damage is None

    def _names(self, pattern: re.Pattern[str]) -> list[str]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return [path.name for path in self.path.iterdir() if pattern.fullmatch(path.name)]
        return []

    @contextlib.contextmanager
    def _reading(self, step: int, name: str) -> Iterator[None]:
        """Turns an OSError into a DamageError if the file is not there, and else into a ValueError of one line."""
        try:
            yield
        except FileNotFoundError:
            raise DamageError(f"{name} is missing") from None
        except (NotADirectoryError, IsADirectoryError, foreign_files.UnusableFile, ValueError):  # or a bad name
            raise DamageError(f"{name} is not readable") from None
        except OSError as error:
            raise ValueError(f"{self.name(step)} cannot be read: {name}: {error.strerror or error}") from error

    def prune(self) -> None:
        """Removes all checkpoints except the best and the last ``keep_last``."""
        steps = self.steps()
        for step in {*steps} - {*steps[-self.keep_last :], *self.best_first()[:1]}:
            # The rename comes first: a kill while files are being deleted must not leave half a checkpoint.
            doomed = self.scratch / f"deleted-{step}"
            os.rename(self.path / str(step), doomed)
            shutil.rmtree(doomed, ignore_errors=True)  # the next start clears the scratch folder
