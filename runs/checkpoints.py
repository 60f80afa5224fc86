"""Checkpoints: written by Orbax in the background, verified when they are read.

In a run of several processes all of them save and restore together, in a folder that they share. Each process writes
and reads the parts of arrays that lie on its devices; the first one does the rest. The restored state does not depend
on the number of processes.
"""

import contextlib
import dataclasses
import logging
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax
import numpy as np

from launch import whole_files
from parallel import processes
from reducers.arrivals import foreign_files
from runs import files
from runs.checkpoint_directory import FORMAT, MANIFEST, CheckpointDirectory, DamageError

_NO_TIMEOUT_SECONDS = 10**9
_LATE_SECONDS = 0.5  # time for the other writes of a failed save to end
_MAX_SHOWN = 3  # the most misfitting leaves that an error names
_MAX_CHOICES = 20  # retries of a reader whose checkpoints the run removes meanwhile

T = TypeVar("T")


@dataclasses.dataclass(eq=False)
class Checkpoints(CheckpointDirectory, contextlib.AbstractContextManager["Checkpoints"]):
    """The checkpoints of one run: the last few and the best.

    Opening the folder creates it, if it is missing and access is "write".

    Raises:
      SaveError: in one line, if the folder cannot be created.
    """

    def __post_init__(self) -> None:
        self.path = Path(os.path.abspath(self.path))  # Orbax accepts no relative paths
        self._checkpointer: Any = None
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="save-checkpoint")
        self._saving: tuple[int, Future[None]] | None = None
        if self.access == "write" and processes.index() == 0:
            with files.saving(self.scratch):
                shutil.rmtree(self.scratch, ignore_errors=True)
                self.scratch.mkdir(parents=True, exist_ok=True)

    def latest_step(self) -> int | None:
        """Returns the newest step that has a checkpoint, damaged or not; None if there is none."""
        return max(self.steps(), default=None)

    def names(self, step: int) -> dict[str, tuple[int, ...]]:
        """Returns the names and shapes of a checkpoint's leaves, unverified; none if its manifest is damaged."""
        try:
            leaves = self.manifest(step)["leaves"]
        except DamageError:
            return {}
        return {name: tuple(leaf["shape"]) for name, leaf in leaves.items()}

    def manifest_file(self, step: int) -> dict[str, str]:
        """Returns the "path" and the "sha256" of a checkpoint's manifest, which has the hashes of its other files.

        Raises:
          ValueError: one line, if it cannot be read.
        """
        path = self.path / str(step) / MANIFEST
        try:
            return {"path": str(path), "sha256": foreign_files.sha256(path)}
        except OSError as error:
            raise ValueError(f"{self.name(step)} cannot be read ({error.strerror})") from None

    def save(self, step: int, tree: Any, *, metrics: Mapping[str, float] | None = None) -> None:
        """Saves a state in the background, after waiting for the previous save and for a copy of the state.

        Args:
          step: the number of steps done; an existing checkpoint of this step stays as it is.
          tree: a pytree of numpy arrays, JAX arrays and numbers. It is copied before this function returns, so that
            its buffers may be donated.
          metrics: the state's quality; values that are not finite do not count.

        Raises:
          SaveError: in one line, if the previous save failed.
        """
        if self.access == "read":
            raise ValueError(f"checkpoints in {str(self.path)!r} were opened for reading")
        self.wait()
        with self._naming(step):
            if processes.from_first(lambda: step in self.steps()):
                return
        import orbax.checkpoint as ocp

        flat = _fetch(flatten(tree))
        leaves = {name: _describe(leaf) for name, leaf in flat.items()}
        with self._naming(step), contextlib.ExitStack() as stack:
            stack.enter_context(_quiet_orbax())
            if processes.index() == 0:
                # Orbax would make the whole path of a folder that was moved.
                self.scratch.mkdir(exist_ok=True)
            # `force` overwrites what a failed save may have left.
            arguments = ocp.args.PyTreeSave(_without_empty(flat))
            self._open().save(self.scratch / str(step), args=arguments, force=True)
            quiet = stack.pop_all()
        self._saving = (step, self._background.submit(self._complete, step, leaves, metrics, quiet))

    def wait(self) -> None:
        """Waits for the current save.

        Raises:
          SaveError: in one line, if it failed.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            step, finished = saving
            with self._naming(step):
                finished.result()

    def close(self) -> None:
        """Waits for the current save and ends the threads; a second call does nothing."""
        try:
            self.wait()
        finally:
            self._background.shutdown()
            checkpointer = self._checkpointer
            self._checkpointer = None
            if checkpointer is not None:
                with contextlib.suppress(Exception):  # the failed save was waited for, and its reason reported
                    checkpointer.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def restore(
        self,
        abstract_tree: Any,
        *,
        which: Literal["latest", "best"] | int = "latest",
        part: str | tuple[str, ...] = "",
        whole: tuple[str, ...] = ("",),
    ) -> tuple[int, Any] | None:
        """Reads a checkpoint and verifies every bit of it.

        Args:
          abstract_tree: a pytree like the saved one, with leaves that have a shape and a dtype, or are numbers. A
            leaf with a sharding is restored as a JAX array of which each process reads its own part.
          which: "latest" and "best" skip damaged checkpoints, which are reported and, with access "write", moved
            aside. A step means that checkpoint alone.
          part: the place of `abstract_tree` in the saved tree, such as "state/params"; "" is the whole tree. Of several
            places, the first that the checkpoint has is read.
          whole: places in the part where `abstract_tree` must have every saved leaf; elsewhere it may have fewer.

        Returns:
          The step, and the tree with numpy arrays as leaves; None if there is no undamaged checkpoint.

        Raises:
          ValueError: in one line, if the checkpoint cannot be read, does not fit `abstract_tree` or was written by an
            earlier version of the program, or if the step that was asked for is missing or damaged.
        """
        self.wait()
        parts = (part,) if isinstance(part, str) else part
        leaves = flatten(abstract_tree)

        def read() -> tuple[int, Any] | None:
            chosen = processes.from_first(lambda: self._choose(which, leaves, parts=parts, whole=whole))
            if chosen is None:
                return None
            step, prefix = chosen
            restored = self._read(step, {prefix + name: leaf for name, leaf in leaves.items()})
            in_order = [restored[prefix + name] for name in leaves]
            return step, jax.tree.unflatten(jax.tree.structure(abstract_tree), in_order)

        return read() if isinstance(which, int) else self.choose_again(read)

    def choose_again(self, read: Callable[[], T | None]) -> T | None:
        """Calls ``read``, and retries if it fails while the running run removes a checkpoint.

        Args:
          read: chooses a checkpoint and reads it. Returns None, or raises ValueError, if it can read none.

        Returns:
          What ``read`` returned.

        Raises:
          ValueError: what ``read`` raised, if all checkpoints are still in the folder; in one line, if some were
            removed during each of many calls. In multi-process runs the first error is raised, because the other
            processes may have read everything.
        """
        for _ in range(_MAX_CHOICES):
            before = processes.from_first(self.steps)
            try:
                found = read()
            except ValueError:
                if processes.several() or self._has(before):
                    raise
                continue
            if found is not None or self._has(before):
                return found
        where = f"checkpoints in {str(self.path)!r}"
        raise ValueError(f"{where}: a run removes them faster than they can be read; wait until it ends")

    def _has(self, steps: list[int]) -> bool:
        return set(steps) <= set(processes.from_first(self.steps))

    def _choose(
        self, which: str | int, leaves: Mapping[str, Any], *, parts: Sequence[str], whole: tuple[str, ...]
    ) -> tuple[int, str] | None:
        """Returns the step of an undamaged checkpoint, and the prefix of its first part, where the leaves fit."""
        step: int | None
        if isinstance(which, int):
            step = which
            if step not in self.steps():
                raise ValueError(f"{self.name(step)} is missing; the steps with a checkpoint are {self.steps()}")
            if (damage := self.find_damage(step)) is not None:
                raise ValueError(f"{self.name(step)} is damaged: {damage}")
        else:
            steps = self.steps()[::-1] if which == "latest" else self.best_first()
            step = next((step for step in steps if self.is_whole(step)), None)
        if step is None:
            return None
        manifest = self.manifest(step)
        if manifest.get("format") != FORMAT:
            raise ValueError(
                f"{self.name(step)} was written by another version of this program, and cannot be read by "
                "this one; start over with --fresh, or use another --workdir"
            )
        saved = manifest["leaves"]
        for part in parts:
            prefix = part and f"{part}/"
            if any(name.startswith(prefix) for name in saved):
                break
        wanted = {prefix + name: _describe(leaf) for name, leaf in leaves.items()}
        due = tuple(prefix + place for place in whole)
        compared = {name: leaf for name, leaf in saved.items() if name in wanted or name.startswith(due)}
        _check_fits(compared, wanted, where=self.name(step))
        return step, prefix

    def _read(self, step: int, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Reads and returns the wanted leaves alone."""
        import orbax.checkpoint as ocp

        example = {name: _example(leaf) for name, leaf in wanted.items()}
        full = _without_empty(example)
        arguments = ocp.args.PyTreeRestore(
            full, restore_args=ocp.checkpoint_utils.construct_restore_args(full), partial_restore=True
        )
        try:
            with _quiet_orbax():
                return {**example, **self._open().restore(self.path / str(step), args=arguments)}
        except Exception as error:  # its files are as they were written, but another release of Orbax wrote them
            raise ValueError(f"{self.name(step)} cannot be read: {files.reason(error)}") from error

    def _complete(self, step: int, leaves: Mapping, metrics: Mapping | None, quiet: contextlib.ExitStack) -> None:
        """Waits for Orbax, writes the hashes, and puts the checkpoint in its place by a rename; in the background."""
        with quiet:
            self._open().wait_until_finished()
        if processes.index() != 0:
            return
        folder = self.scratch / str(step)
        hashes = {}
        for path in sorted(folder.rglob("*")):
            whole_files.sync(path)
            if path.is_file():
                name = path.relative_to(folder).as_posix()
                hashes[name] = {"bytes": path.stat().st_size, "sha256": foreign_files.sha256(path)}
        finite = {key: float(value) for key, value in (metrics or {}).items() if math.isfinite(value)}
        body = {"format": FORMAT, "step": step, "metrics": finite, "leaves": dict(leaves), "files": hashes}
        files.write_atomically(folder / MANIFEST, files.to_json(files.sealed(body)))
        os.rename(folder, self.path / str(step))
        whole_files.sync(self.path)
        with contextlib.suppress(OSError, ValueError):  # this checkpoint is saved; the next one tries again
            self.prune()

    def _open(self) -> Any:
        """Returns Orbax's checkpointer, whose import takes a third of a second and so waits for the first use."""
        if self._checkpointer is None:
            import orbax.checkpoint as ocp

            # If Orbax creates folders in the background, its threads wait for minutes when the disk is full.
            # Orbax measures timeouts by time.time(), so that a clock that is set forward would fail a save.
            options = ocp.options.AsyncOptions(
                create_directories_asynchronously=False, timeout_secs=_NO_TIMEOUT_SECONDS
            )
            self._checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(), async_options=options)
        return self._checkpointer

    @contextlib.contextmanager
    def _naming(self, step: int) -> Iterator[None]:
        """Turns any error into a SaveError of one line that names the checkpoint."""
        try:
            yield
        except Exception as error:
            # Without the paths and options that TensorStore writes around it.
            reason = files.reason(error).partition(" [")[0].rpartition('": ')[2]
            raise files.SaveError(f"checkpoint {step} could not be saved: {reason}") from error


def flatten(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a pytree by readable names, which do not depend on the classes of its nodes.

    >>> flatten({"params": {"kernel": 1.0}, "count": (2,)})
    {'count/0': 2, 'params/kernel': 1.0}
    """
    pairs = jax.tree_util.tree_flatten_with_path(tree)[0]
    flat = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in pairs}
    if len(flat) != len(pairs):
        raise ValueError("a state must not have two leaves of one name, as {'a/b': x, 'a': {'b': y}} has")
    for name, leaf in flat.items():
        if jax.numpy.issubdtype(getattr(leaf, "dtype", np.int32), jax.dtypes.extended):
            raise ValueError(f"state leaf {name!r}: is a typed PRNG key; store its jax.random.key_data instead")
    return flat


def _fetch(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Copies leaves to the host, except for arrays that are spread over several processes."""
    spread = {k: x for k, x in flat.items() if isinstance(x, jax.Array) and not x.is_fully_addressable}
    fetched = jax.device_get({name: leaf for name, leaf in flat.items() if name not in spread})
    return {name: spread[name] if name in spread else np.asarray(fetched[name]) for name in flat}


def _without_empty(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out arrays without elements, which Orbax refuses."""
    return {name: array for name, array in flat.items() if array.size > 0}


def _describe(leaf: Any) -> dict[str, Any]:
    leaf = leaf if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else np.asarray(leaf)
    return {"shape": list(leaf.shape), "dtype": str(np.dtype(leaf.dtype))}


def _example(leaf: Any) -> Any:
    """Returns the template from which Orbax restores a JAX array (for a leaf with a sharding) or a NumPy array."""
    if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is not None:
        return leaf
    known = _describe(leaf)
    return np.zeros(known["shape"], jax.numpy.dtype(known["dtype"]))  # jax.numpy knows bfloat16 and the float8s


def _check_fits(saved: Mapping[str, Any], wanted: Mapping[str, Any], *, where: str) -> None:
    """Raises ValueError, naming the first few leaves that differ in name, shape or dtype."""
    found = []
    for name in sorted(saved.keys() | wanted.keys()):
        if name not in wanted:
            found.append(f"{name} is in the checkpoint but not in the model")
        elif name not in saved:
            found.append(f"{name} is in the model but not in the checkpoint")
        elif saved[name] != wanted[name]:
            found.append(f"{name} is {_shown(saved[name])} in the checkpoint, {_shown(wanted[name])} in the model")
    if found:
        more = f"; and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
        raise ValueError(f"{where} does not fit the model: {'; '.join(found[:_MAX_SHOWN])}{more}")


def _shown(leaf: Mapping[str, Any]) -> str:
    return f"{leaf['dtype']} {tuple(leaf['shape'])}"


@contextlib.contextmanager
def _quiet_orbax() -> Iterator[None]:
    """Hides the output of Orbax and TensorStore during a save or restore; the error that they raise suffices.

    A save that fails, on a full disk for example, logs a page; and each array that is still being written or read when
    another one has failed prints a traceback, because it reports to an event loop that is closed by then. Both would
    bury the one line of the error. Logging and hook are as before afterwards.
    """
    logger = logging.getLogger("absl")
    hook_before = sys.unraisablehook

    def is_not_from_orbax(record: logging.LogRecord) -> bool:
        return f"{os.sep}orbax{os.sep}" not in record.pathname

    def hook(unraisable: Any) -> None:
        if not (unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed"):
            hook_before(unraisable)

    logger.addFilter(is_not_from_orbax)
    sys.unraisablehook = hook
    try:
        yield
    except BaseException:
        time.sleep(_LATE_SECONDS)
        raise
    finally:
        logger.removeFilter(is_not_from_orbax)
        if sys.unraisablehook is hook:
            sys.unraisablehook = hook_before
