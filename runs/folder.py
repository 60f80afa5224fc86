"""The folder of a run: one experiment, one process at a time.

>>> import tempfile
>>> workdir = tempfile.mkdtemp()
>>> with open_run(workdir, {"seed": 0}) as folder:
...     folder.state
'new'
>>> with open_run(workdir, {"seed": 0}) as folder:
...     folder.state
'resumed'
>>> open_run(workdir, {"seed": 1})  # doctest: +ELLIPSIS
Traceback (most recent call last):
ValueError: workdir='...': holds a run with another config: seed=0 in the folder, 1 now; use another --workdir, ...
"""

import contextlib
import dataclasses
import itertools
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from launch import output
from parallel import processes
from runs import environment, files, identity, lock
from runs.environment import INPUT, NO_INPUTS, Code, Inputs
from runs.lock import Lock
from runs.reporting import done, records

Start = Literal["resume", "fresh"]
CodeChange = Literal["refuse", "accept"]


@dataclasses.dataclass(kw_only=True)
class Folder(contextlib.AbstractContextManager["Folder"]):
    """A run's folder, which this process holds until it calls `close` or ends.

    Attributes:
      path: the workdir, or a subfolder of it if the run was started with `start="fresh"`.
      state: "resumed" if the folder has a run already, else "new".
      process: index of this process among those of the run; the first, 0, writes the files.
      changes: one line for each difference of software and machine from the last start.
      resolved: values that follow from the devices of the run's first start.
      lock: this process's lock on the folder; None after `close`, and in processes other than the first.
      id: identifies the run from its first start on, even if the folder is moved.
      starts: the starts of the run, oldest first, as `begin` writes them to env.json; empty in processes other than the
        first.
      config: content of config.json; b"" in processes other than the first.
      is_longer: whether this start gives the run more steps than it had until now.
    """

    path: Path
    state: Literal["new", "resumed"]
    resolved: Mapping[str, int | None]
    changes: tuple[str, ...] = ()
    lock: Lock | None = None
    process: int = 0
    id: str = ""
    starts: tuple[dict[str, Any], ...] = ()
    config: bytes = b""
    is_longer: bool = False

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> dict[str, Any] | None:
        """The argument of `finish`; None if the run is not finished, or gets more steps."""
        return None if self.is_longer else done.read(self.path)

    def begin(self, **facts: Any) -> None:
        """Writes config.json and env.json, and removes DONE if the run gets more steps.

        Call it after every check that may refuse the run. A second call adds facts to env.json.

        Args:
          **facts: facts of this start for env.json: its first "step", its "log_every_steps", and the "code" and other
            inputs that it reads.
        """
        if self.process != 0:
            return
        *before, now = self.starts
        self.starts = (*before, {**now, **facts})
        known = self.path / "config.json"
        env = self.path / "env.json"
        with files.saving(env):
            if self.is_longer:  # no longer finished: a kill before the next line leaves the shorter run as it was
                (self.path / done.NAME).unlink(missing_ok=True)
            if self.is_longer or not known.exists():
                files.write_atomically(known, self.config)
            self.is_longer = False
            files.write_atomically(env, self._env())

    def _env(self) -> bytes:
        return files.to_json({"starts": list(self.starts)})

    def check_held(self) -> None:
        """Restores config.json and env.json if they were removed; does nothing in processes other than the first.

        Raises:
          GoneError: in one line, if the folder was moved, or its lock was removed, so that another run could take it.
        """
        if self.lock is None:
            return
        if not self.lock.is_in_place():
            self._remove_shell()
            way = "with the folder as it is named now as --workdir the same command goes on from its last checkpoint"
            raise files.GoneError(
                f"{str(self.path)!r} was moved or removed during the run, or its file lock was; {way}"
            )
        for name, content in (("config.json", self.config), ("env.json", self._env())):
            if not os.path.lexists(self.path / name):
                files.save(self.path / name, content)

    def _remove_shell(self) -> None:
        """Removes the empty folders that a running save has recreated at the old place of a moved folder."""
        if not os.path.lexists(self.path / lock.RUN):
            shutil.rmtree(self.path / "checkpoints" / ".scratch", ignore_errors=True)
            for empty in (self.path / "checkpoints", self.path):
                with contextlib.suppress(OSError):
                    empty.rmdir()

    def write(self, name: str, text: str) -> None:
        """Writes a file of results atomically; does nothing in processes other than the first."""
        if self.process == 0:
            self.check_held()
            files.save(self.path / name, text.encode())

    def recorded_input(self, key: str) -> Mapping[str, str] | None:
        """Returns the last file that `record_input` recorded for a key; None if there is none."""
        found = None
        for start in self.starts:
            found = start.get("code", {}).get(f"{INPUT}{key}", found)
        return found

    def record_input(self, key: str, file: Mapping[str, str]) -> None:
        """Records in env.json the "path" and the "sha256" of a file that this start of the run read."""
        self.begin(code={**self.starts[-1].get("code", {}), f"{INPUT}{key}": dict(file)})

    def follow(self) -> None:
        """Redirects what this process prints to `process-<n>.log`, unless it is the first one.

        Raises:
          ValueError: in one line, if the first process opened a folder that this one does not see.
        """
        if self.process == 0:
            return
        name = self.path / f"process-{self.process}.log"
        try:
            log = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o644)
        except OSError as error:
            reason = "must be on a file system that all processes share"
            raise ValueError(f"workdir={str(self.path)!r}: {reason} ({error.strerror})") from None
        output.say(f"the output of process {self.process} goes on in {name}", error=True)
        output.redirect(log)
        os.close(log)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Marks the run as finished; call it when the last checkpoint and all records are written."""
        if self.process == 0:
            self.write(done.NAME, done.content(self.path, summary).decode())

    def close(self) -> None:
        """Releases the lock; a second call does nothing."""
        held, self.lock = self.lock, None
        if held is not None:
            held.release()

    def __exit__(self, *_: object) -> None:
        self.close()


def open_run(
    workdir: str,
    config: Mapping[str, Any],
    *,
    start: Start = "resume",
    devices: Sequence[str] = (),
    resolve: Callable[[], Mapping[str, int | None]] = dict,
    inputs: Inputs = NO_INPUTS,
    code_change: CodeChange = "refuse",
    begin: Literal["now", "later"] = "now",
) -> Folder:
    """Creates or reopens a run's folder, locks it and writes config.json and env.json.

    In a multi-process run the first process does this for all.

    Args:
      workdir: the folder; it and its parents are created if they are missing.
      config: the whole experiment, as nested dicts of JSON values.
      start: "resume" opens the workdir itself. "fresh" creates the first free `workdir/fresh-<n>`.
      devices: names of the devices, for env.json.
      resolve: returns values that the config leaves to the devices, for env.json. A run keeps those of its first start,
        even on other devices.
      inputs: the files and examples that the run depends on, for env.json.
      code_change: "refuse" raises an error if the files differ from those of the run's last start; "accept" records
        them.
      begin: whether the files are written "now", or "later", by ``Folder.begin``; until then the folder stays as it is.

    Returns:
      The folder, which no other run can open until this process closes it or ends.

    Raises:
      ValueError: in one line, if the folder cannot be created or written, if another process has it, if it has another
        config, code or data, or if its files are damaged or of another kind; then nothing was written.
    """
    opened: list[Folder] = []

    def open_first() -> dict[str, Any]:
        try:
            _check(workdir, config, start=start, inputs=inputs, code_change=code_change)
            path = _make(identity.expand(workdir), start)
            held = lock.take(workdir, path)
        except OSError as error:
            where = f" ({str(error.filename)!r})" if error.filename else ""
            raise ValueError(f"workdir={workdir!r}: {error.strerror or error}{where}") from error
        try:
            files.remove_temporary(path)
            # Another run may have begun in this folder since the first check; now that it is locked, none can.
            saved, starts = _read(path, config, inputs=inputs, code_change=code_change)
            now = environment.describe(devices=devices, inputs=inputs)
            now["config"] = identity.fingerprint(config)
            now["resolved"] = environment.first(starts, "resolved") or resolve()
            now["id"] = environment.first(starts, "id") or uuid.uuid4().hex
            changes = environment.changes(starts[-1], now) if starts else ()
            if accepted := environment.changed_code(starts, inputs.code):
                changes += (f"{', '.join(accepted)} changed since the last start, which was accepted",)
            is_longer = saved is not None and identity.is_longer(saved, config)
            kept = config if saved is None or is_longer else saved
            folder = Folder(
                path=path,
                state="new" if saved is None else "resumed",
                changes=changes,
                lock=held,
                resolved=now["resolved"],
                id=now["id"],
                starts=(*starts, now),
                config=files.to_json(identity.plain(kept)),
                is_longer=is_longer,
            )
            if begin == "now":
                folder.begin()
        except BaseException:
            held.release()
            raise
        opened.append(folder)
        return {"path": str(path.absolute()), "state": folder.state, "resolved": dict(folder.resolved)}

    found = processes.from_first(open_first)
    if opened:
        return opened[0]
    path = Path(found["path"])
    return Folder(path=path, state=found["state"], resolved=found["resolved"], process=processes.index())


def _check(workdir: str, config: Mapping[str, Any], *, start: Start, inputs: Inputs, code_change: CodeChange) -> None:
    """Raises ValueError or OSError if the run cannot use a folder; leaves no file behind."""
    if not workdir:
        raise ValueError("workdir='': must name a folder")
    if "\0" in workdir:
        raise ValueError(f"workdir={workdir!r}: must not have a NUL character")
    path = identity.expand(workdir)
    nearest = next(folder for folder in (path.absolute(), *path.absolute().parents) if os.path.lexists(folder))
    if not nearest.is_dir():
        raise ValueError(f"workdir={workdir!r}: {str(nearest)!r} is not a folder")
    with tempfile.TemporaryFile(dir=nearest):  # tried, because root may write despite the permissions
        pass
    if start == "resume" and path.is_dir():
        for name in ("checkpoints", "tensorboard"):
            if os.path.lexists(path / name) and not os.path.isdir(path / name):
                raise ValueError(f"workdir={workdir!r}: {name} must be a folder, and is none; move it away")
        done.check(path)
        _read(path, config, inputs=inputs, code_change=code_change)
        with contextlib.suppress(FileNotFoundError):
            for _ in records.stream(path / "metrics.jsonl"):
                pass


def _read(
    path: Path, config: Mapping[str, Any], *, inputs: Inputs, code_change: CodeChange
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Returns the config and the starts of the run in a folder; refuses another config, or other inputs.

    Without a run in the folder the config is None, and the starts are empty.
    """
    saved = identity.check_same(path, config)
    starts = environment.read_starts(path)
    if code_change == "refuse":
        check_code(path, starts, inputs.code)
    before = starts[-1].get("data", "") if starts else ""
    if inputs.data and before and inputs.data != before and _has_records(path):
        found = f"it has fingerprint {inputs.data}, and had {before} when this run was started"
        way_out = "use another --workdir, or --fresh"
        raise ValueError(f"workdir={str(path)!r}: config.data: changed or damaged; {found}; {way_out}")
    return saved, starts


def check_code(path: Path, starts: Sequence[Mapping[str, Any]], code: Code) -> None:
    """Refuses a folder whose run was last started with other code.

    Raises:
      ValueError: in one line that names the files.
    """
    if changed := environment.changed_code(starts, code):
        way_out = "--fresh starts over, --accept_code_change keeps what is there"
        raise ValueError(f"workdir={str(path)!r}: {', '.join(changed)} changed since this run was started; {way_out}")


def _has_records(path: Path) -> bool:
    """Returns whether a run has records, that is, has taken a step."""
    has_lines = any(file.stat().st_size for file in path.glob("metrics.jsonl"))
    return has_lines or any(file.name.isdecimal() for file in path.glob("checkpoints/*"))


def holder(path: Path) -> str:
    """Returns in words which process runs in this folder, or starts a run in it from a queue; "" if none does."""
    try:
        lock.check(str(path), path)
        lock.check(str(path), path, name=lock.QUEUE)
    except lock.InUse as error:
        return str(error).partition(";")[0]
    except ValueError:  # not the lock of a run; the run itself will report it
        pass
    return ""


def _make(path: Path, start: Start) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    if start == "resume":
        return path
    for number in itertools.count(1):
        with contextlib.suppress(FileExistsError):  # mkdir is atomic, so that two fresh runs get two folders
            (path / f"fresh-{number}").mkdir()
            return path / f"fresh-{number}"
    raise AssertionError("the count has no end")
