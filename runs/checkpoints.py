"""Checkpoints: written by Orbax in the background, sealed by a manifest, whole or not there.

A save goes through a scratch folder: Orbax writes, then every file is hashed, then one rename puts the checkpoint in
its place with its manifest inside. So what a kill leaves half done is never among the checkpoints, and a checkpoint
without a manifest is a damaged one.

    checkpoints/120/            the checkpoint of step 120: Orbax's files and manifest.json
    checkpoints/100.damaged/    was found damaged and moved aside; never deleted, never used
    checkpoints/.scratch/       being written or deleted; emptied at the next start

Of several processes all save and restore together, in a folder that all of them share: each writes the parts of arrays
that lie on its devices, and the first one does the rest. What is restored does not depend on how many they are.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from parallel import processes
from runs import arrays, files, manifest, shelf

Restored = tuple[int, Any]  # step, tree


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
        self._shelf = shelf.Shelf(
            directory,
            keep_last=keep_last,
            keep_best=keep_best,
            best_metric=best_metric,
            best_mode=best_mode,
            access=access,
            report=report,
        )
        self.directory = self._shelf.directory
        self._files = arrays.OrbaxFiles()
        self._sealer: ThreadPoolExecutor | None = None
        self._saving: tuple[int, Future[None]] | None = None
        if access == "write" and processes.index() == 0:
            with files.saving(self._shelf.scratch):
                self._shelf.clear_scratch()

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first; one still being saved is not among them."""
        return self._shelf.steps()

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
        return next(iter(self._shelf.best_first()), None)

    def save(self, step: int, tree: Any, *, metrics: Mapping[str, float] | None = None) -> None:
        """Saves a state in the background; waits only for the save before and for a copy of the state.

        Args:
            step: the number of steps done. If it has a checkpoint already, that one stays, and takes the metrics if
                it had none.
            tree: a pytree of numpy and JAX arrays and numbers, JAX arrays of all processes among them. It is copied
                before this returns, so that buffers may be donated afterwards.
            metrics: what is known of the state's quality; non-finite values do not count.

        Raises:
            SaveError: in one line, if the save before failed.
        """
        if self._shelf.access == "read":
            raise ValueError(f"checkpoints in {str(self.directory)!r} were opened for reading")
        self.wait()
        if processes.from_first(lambda: step in self.steps() and self._holds(step, metrics)):
            return
        flat = _fetched(manifest.flatten(tree))
        leaves = {name: manifest.describe(leaf) for name, leaf in flat.items()}
        if self._sealer is None:
            self._sealer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="seal-checkpoint")
        try:
            self._files.start_write(self._shelf.scratch / str(step), flat)
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
            abstract_tree: a pytree like the saved one, of anything with shape and dtype, or of numbers. What has a
                sharding, too, comes back as a JAX array of it, of which each process reads its own part.
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
        step = processes.from_first(lambda: self._choose(which, here, prefix=prefix))
        if step is None:
            return None
        read = self._read(step, here)
        return step, jax.tree.unflatten(jax.tree.structure(abstract_tree), [read[name] for name in here])

    def _choose(self, which: str | int, here: Mapping[str, Any], *, prefix: str) -> int | None:
        """The step of a whole checkpoint that fits, for ``restore``."""
        step: int | None
        if isinstance(which, int):
            self._shelf.check(which)
            step = which
        else:
            steps = self.steps()[::-1] if which == "latest" else self._shelf.best_first()
            step = next((step for step in steps if self._shelf.is_whole(step)), None)
        if step is not None:
            saved = manifest.read(self.directory / str(step))["leaves"]
            there = {name: leaf for name, leaf in saved.items() if name.startswith(prefix)}
            wanted = {name: manifest.describe(leaf) for name, leaf in here.items()}
            manifest.check_fits(there, wanted, what=f"checkpoint {step} in {str(self.directory)!r}")
        return step

    def _holds(self, step: int, metrics: Mapping[str, float] | None) -> bool:
        """Whether a step saved before is whole; a damaged one is moved aside, to be saved again."""
        if not self._shelf.is_whole(step):
            return False
        if metrics and not self._shelf.metrics(step):
            manifest.rewrite_metrics(self.directory / str(step), metrics)
            self._shelf.prune()
        return True

    def _read(self, step: int, here: Mapping[str, Any]) -> dict[str, Any]:
        """All leaves of a checkpoint: Orbax reads all or none."""
        folder = self.directory / str(step)
        saved = manifest.read(folder)["leaves"]
        parts = {k: x for k, x in here.items() if isinstance(x, jax.ShapeDtypeStruct) and x.sharding is not None}
        try:
            return self._files.read(folder, dict(manifest.zeros(saved), **parts))
        except Exception as error:  # every file is as it was written, and yet: made by hand, or by another Orbax
            where = f"checkpoint {step} in {str(self.directory)!r}"
            raise ValueError(f"{where} cannot be read: {files.reason(error)}") from error

    def _seal(self, step: int, leaves: Mapping[str, Any], metrics: Mapping[str, float] | None) -> None:
        """In the background: from Orbax's files to a checkpoint in its place, and older ones away."""
        self._files.wait()
        if processes.index() > 0:
            return
        manifest.write(self._shelf.scratch / str(step), step=step, leaves=leaves, metrics=metrics)
        self._shelf.add(step)


def _fetched(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves on the host, but for those of which no one process has all."""
    spread = {k: x for k, x in flat.items() if isinstance(x, jax.Array) and not x.is_fully_addressable}
    here = jax.device_get({name: leaf for name, leaf in flat.items() if name not in spread})
    return {name: spread[name] if name in spread else np.asarray(here[name]) for name in flat}
