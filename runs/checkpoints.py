"""Checkpoints: written by Orbax in the background, sealed by a manifest, whole or not there.

A save goes through a scratch folder: Orbax writes, then every file is hashed, then one rename puts the checkpoint in
its place with its manifest inside. So what a kill leaves half done is never among the checkpoints, and a checkpoint
without a manifest is a damaged one.

    checkpoints/120/            the checkpoint of step 120: Orbax's files and manifest.json
    checkpoints/100.damaged/    was found damaged and moved aside; never deleted, never used
    checkpoints/.scratch/       being written or deleted; emptied at the next start
"""

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from runs import arrays, files, manifest

Restored = tuple[int, Any]  # step, tree
_STEP = re.compile("0|[1-9][0-9]{,18}")  # the name of a checkpoint's folder


class Checkpoints:
    """The checkpoints of one run: the last few and the best.

    Attributes:
        directory: where they lie, one folder a step.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep_last: int = 3,
        keep_best: int = 1,
        best_metric: str = "accuracy",
        best_mode: Literal["max", "min"] = "max",
        access: Literal["write", "read"] = "write",
        report: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ):
        """Opens a folder of checkpoints.

        Args:
            directory: made if missing (access "write").
            keep_last: number of newest checkpoints that stay, at least 1.
            keep_best: number of best ones that stay besides; only checkpoints saved with `best_metric` count.
            best_metric: key into the metrics given to `save`.
            best_mode: whether more or less of it is better; of equals the earlier one is the better.
            access: "read" changes nothing on disk: for looking at a run that may be going on.
            report: is given one line for each damaged checkpoint.
        """
        if keep_last < 1 or keep_best < 0:
            raise ValueError(f"keep_last={keep_last}, keep_best={keep_best}: must be at least 1 and 0")
        self.directory = Path(os.path.abspath(directory))  # Orbax takes no relative paths
        self._keep_last, self._keep_best = keep_last, keep_best
        self._best_metric, self._best_mode = best_metric, best_mode
        self._access, self._report = access, report
        self._scratch = self.directory / ".scratch"
        self._files = arrays.OrbaxFiles()
        self._sealer: ThreadPoolExecutor | None = None
        self._saving: tuple[int, Future[None]] | None = None
        if access == "write":
            with files.saving(self._scratch):
                shutil.rmtree(self._scratch, ignore_errors=True)
                self._scratch.mkdir(parents=True)

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first; one still being saved is not among them."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return sorted(int(path.name) for path in self.directory.iterdir() if _STEP.fullmatch(path.name))
        return []

    def latest_step(self) -> int | None:
        """The newest step that has a checkpoint, not looked at for damage; None without any."""
        return max(self.steps(), default=None)

    def holds(self, part: str, *, step: int) -> bool:
        """Tells whether a checkpoint has anything under this name, such as "shared/ema"; reads its manifest alone."""
        with contextlib.suppress(ValueError, OSError):  # damaged: whoever restores it will say so
            return any(name.startswith(f"{part}/") for name in manifest.read(self.directory / str(step))["leaves"])
        return False

    def best_step(self) -> int | None:
        """The step of the best checkpoint, not looked at for damage; None if none was saved with the metric."""
        return next(iter(self._best_first()), None)

    def save(self, step: int, tree: Any, *, metrics: Mapping[str, float] | None = None) -> None:
        """Saves a state in the background; waits only for the save before and for a copy of the state.

        Args:
            step: the number of steps done. If it has a checkpoint already, that one stays, and takes the metrics if
                it had none.
            tree: a pytree of numpy and JAX arrays and numbers. It is copied before this returns, so that buffers may
                be donated afterwards.
            metrics: what is known of the state's quality; non-finite values do not count.

        Raises:
            SaveError: in one line, if the save before failed.
        """
        if self._access == "read":
            raise ValueError(f"checkpoints in {str(self.directory)!r} were opened for reading")
        self.wait()
        if step in self.steps() and self._holds(step, metrics):
            return
        flat = {name: np.asarray(leaf) for name, leaf in jax.device_get(manifest.flatten(tree)).items()}
        leaves = {name: manifest.describe(leaf) for name, leaf in flat.items()}
        if self._sealer is None:
            self._sealer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="seal-checkpoint")
        try:
            self._files.start_write(self._scratch / str(step), flat)
        except Exception as error:
            raise files.SaveError(f"checkpoint {step} could not be saved: {files.reason(error)}") from error
        self._saving = (step, self._sealer.submit(self._seal, step, leaves, metrics))

    def wait(self) -> None:
        """Waits for the save under way.

        Raises:
            SaveError: in one line, if it failed.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            step, sealed = saving
            try:
                sealed.result()
            except Exception as error:
                raise files.SaveError(f"checkpoint {step} could not be saved: {files.reason(error)}") from error

    def close(self) -> None:
        """Waits for the save under way and ends the threads; a second call does nothing."""
        try:
            self.wait()
        finally:
            if self._sealer is not None:
                self._sealer.shutdown()
                self._sealer = None
            self._files.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def restore(
        self, abstract_tree: Any, *, which: Literal["latest", "best"] | int = "latest", part: str = ""
    ) -> Restored | None:
        """Reads back a checkpoint, every bit of it checked.

        Args:
            abstract_tree: a pytree like the saved one, of anything with shape and dtype, or of numbers.
            which: "latest" and "best" pass over damaged ones to the next latest or best, after reporting them and
                (access "write") moving them aside; a step means that one alone.
            part: where in the saved tree `abstract_tree` lies, as "shared/params"; "" is all of it.

        Returns:
            The step, and the tree with numpy arrays as leaves; None if there is no (whole) checkpoint.

        Raises:
            ValueError: in one line, if it does not fit `abstract_tree`, or the step asked for is missing or damaged.
        """
        self.wait()
        prefix = part and f"{part}/"
        here = {prefix + name: leaf for name, leaf in manifest.flatten(abstract_tree).items()}
        if isinstance(which, int):
            self._check(which)
            return which, self._load(which, here, abstract_tree, prefix=prefix)
        for step in self.steps()[::-1] if which == "latest" else self._best_first():
            damage = manifest.find_damage(self.directory / str(step))
            if damage is None:
                return step, self._load(step, here, abstract_tree, prefix=prefix)
            self._set_aside(step, damage)
        return None

    def _holds(self, step: int, metrics: Mapping[str, float] | None) -> bool:
        """Whether a step saved before is whole; a damaged one is moved aside, to be saved again."""
        folder = self.directory / str(step)
        if (damage := manifest.find_damage(folder)) is not None:
            self._set_aside(step, damage)
            return False
        if metrics and not self._metrics(step):
            manifest.rewrite_metrics(folder, metrics)
            self._prune()
        return True

    def _check(self, step: int) -> None:
        where = f"checkpoint {step} in {str(self.directory)!r}"
        if step not in self.steps():
            raise ValueError(f"{where}: is not there; there are {self.steps()}")
        if (damage := manifest.find_damage(self.directory / str(step))) is not None:
            raise ValueError(f"{where}: is damaged: {damage}")

    def _load(self, step: int, here: Mapping[str, Any], abstract_tree: Any, *, prefix: str) -> Any:
        folder = self.directory / str(step)
        saved = manifest.read(folder)["leaves"]
        there = {name: leaf for name, leaf in saved.items() if name.startswith(prefix)}
        wanted = {name: manifest.describe(leaf) for name, leaf in here.items()}
        manifest.check_fits(there, wanted, what=(where := f"checkpoint {step} in {str(self.directory)!r}"))
        try:
            read = self._files.read(folder, manifest.zeros(saved))
        except Exception as error:  # every file is as it was written, and yet: made by hand, or by another Orbax
            raise ValueError(f"{where} cannot be read: {files.reason(error)}") from error
        return jax.tree.unflatten(jax.tree.structure(abstract_tree), [read[name] for name in here])

    def _seal(self, step: int, leaves: Mapping[str, Any], metrics: Mapping[str, float] | None) -> None:
        """In the background: from Orbax's files to a checkpoint in its place, and older ones away."""
        self._files.wait()
        manifest.write(self._scratch / str(step), step=step, leaves=leaves, metrics=metrics)
        os.rename(self._scratch / str(step), self.directory / str(step))
        files.sync(self.directory)
        self._prune()

    def _prune(self) -> None:
        steps = self.steps()
        kept = {*steps[-self._keep_last :], *self._best_first()[: self._keep_best]}
        for step in steps:
            if step not in kept:
                # Out of sight in one piece first: a kill while deleting must not leave half a checkpoint.
                doomed = self._scratch / f"deleted-{step}"
                os.rename(self.directory / str(step), doomed)
                shutil.rmtree(doomed)

    def _best_first(self) -> list[int]:
        known = [(self._metrics(step).get(self._best_metric), step) for step in self.steps()]
        sign = -1 if self._best_mode == "max" else 1
        return [step for _, step in sorted((sign * value, step) for value, step in known if value is not None)]

    def _metrics(self, step: int) -> Mapping[str, float]:
        try:
            return manifest.read(self.directory / str(step))["metrics"]
        except ValueError:
            return {}  # damaged: whoever restores it will say so

    def _set_aside(self, step: int, damage: str) -> None:
        line = f"checkpoint {step} in {str(self.directory)!r} is damaged and not used: {damage}"
        if self._access == "write":
            names = (f"{step}.damaged{suffix}" for suffix in ("", *(f"-{number}" for number in range(2, 1000))))
            aside = next(name for name in names if not (self.directory / name).exists())
            os.rename(self.directory / str(step), self.directory / aside)
            line += f"; moved to {aside}"
        self._report(line)
