"""A lock on a file of a run's folder, by which one process at a time has the run.

The lock is `flock` on the file `lock`. Where the file system has no `flock`, it is the file `lock.host` itself, which
only one process can create, and which names its host and process.
"""

import contextlib
import dataclasses
import errno
import fcntl
import os
import re
import socket
import time
import uuid
from pathlib import Path

from reducers.arrivals import foreign_files

RUN = "lock"  # of the process that works on the run
QUEUE = "queue.lock"  # of a queue that starts this process, until the process has ended
_LOOK_SECONDS = 0.1  # longer than a look of `check` takes, which keeps a run from taking the lock
_UNKNOWN = "unknown"  # when a process began, where the system does not tell
_NO_FLOCK = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
_OPEN = os.O_RDWR | os.O_NOFOLLOW  # what a symbolic link leads to is never written


class InUse(ValueError):
    """Another process has the lock; the message is one line that names it."""


@dataclasses.dataclass(frozen=True)
class Lock:
    """A lock that this process has.

    Attributes:
      file: the locked file.
      descriptor: of the file; with `flock` the lock belongs to it, so that it ends with the process.
      note: a line that says why the file itself is the lock; "" with `flock`.
    """

    file: Path
    descriptor: int
    note: str = ""

    def is_in_place(self) -> bool:
        """Returns whether the locked file is still the one in the folder; if not, another run can lock that one."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(self.file, follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        """Ends the lock."""
        if self.note and self.is_in_place():
            with contextlib.suppress(OSError):
                self.file.unlink()
        os.close(self.descriptor)


def take(workdir: str, path: Path, *, name: str = RUN) -> Lock:
    """Locks a run's folder for this process; with `flock` also for those that inherit the descriptor.

    Raises:
      InUse: in one line, if another process has it.
      ValueError: in one line, if `lock` has the content of another file.
      OSError: if `lock` cannot be opened; a symbolic link is not followed.
    """
    file = path / name
    lock = os.open(file, _OPEN | os.O_CREAT, 0o644)
    try:
        _flock(workdir, lock, fcntl.LOCK_EX, seconds=_LOOK_SECONDS)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)  # for people
    except OSError as error:
        os.close(lock)
        if error.errno not in _NO_FLOCK:
            raise
        return _take_by_creation(workdir, path / f"{name}.host", error)
    except BaseException:
        os.close(lock)
        raise
    return Lock(file, lock)


def check(workdir: str, path: Path, *, name: str = RUN) -> None:
    """Raises ValueError as ``take`` does; keeps no lock. Those that look at once do not take each other for a run."""
    try:
        lock = os.open(path / name, _OPEN)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # a run will refuse a symbolic link
            return
        raise
    try:
        _flock(workdir, lock, fcntl.LOCK_SH)
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
        file = path / f"{name}.host"
        with contextlib.suppress(FileNotFoundError):
            _refuse_if_alive(workdir, file, _owner(file))
    finally:
        os.close(lock)


def _flock(workdir: str, lock: int, kind: int, *, seconds: float = 0.0) -> None:
    """Locks an open file, and tries it again for some seconds; refuses a file that no lock has written."""
    if not re.fullmatch(rb"(\d+\n)?", os.pread(lock, 32, 0)):
        raise ValueError(
            f"workdir={workdir!r}: lock must be the file of a run's lock, and is another one; move it away"
        )
    end = time.monotonic() + seconds
    while True:
        try:
            return fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        if time.monotonic() >= end:
            break
        time.sleep(seconds / 10)
    pid = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
    raise InUse(f"workdir={workdir!r}: in use by another run (process {pid}); stop that one, or use another --workdir")


# ---- without flock ---------------------------------------------------------------------------------------------------


def _take_by_creation(workdir: str, file: Path, why: OSError) -> Lock:
    """Creates the file that is the lock; takes it over from a process of this host that has ended."""
    end = time.monotonic() + _LOOK_SECONDS
    while True:
        try:
            descriptor = os.open(file, _OPEN | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            try:
                owner = _owner(file)
            except FileNotFoundError:  # its owner has let go of it just now
                continue
            if owner or time.monotonic() >= end:  # its owner may be about to write it
                _refuse_if_alive(workdir, file, owner)
                _remove(file, owner)
            else:
                time.sleep(_LOOK_SECONDS / 10)
            continue
        os.pwrite(descriptor, f"{socket.gethostname()} {os.getpid()} {_begun(os.getpid())}\n".encode(), 0)
        reason = f"{why.strerror}; the lock is the file {str(file)!r}, which a killed run leaves behind"
        lock = Lock(file, descriptor, note=f"the file system of {str(file.parent)!r} has no flock ({reason})")
        time.sleep(_LOOK_SECONDS / 10)
        if lock.is_in_place():  # nobody took it for the file of an owner that has ended
            return lock
        os.close(descriptor)


def _owner(file: Path) -> str:
    """Returns what the file that is a lock says of its owner; "" if that is no such file."""
    try:
        return foreign_files.content(file).decode(errors="replace")
    except foreign_files.UnusableFile:
        return ""


def _refuse_if_alive(workdir: str, file: Path, owner: str) -> None:
    """Raises InUse unless the owner of the lock is a process of this host that has ended."""
    host, pid, begun = (*owner.split(), "", "", "")[:3]
    if host == socket.gethostname() and pid.isdecimal() and _begun(int(pid)) not in (begun, _UNKNOWN):
        return
    who = f"process {pid} of host {host}" if pid else "a process that it does not name"
    way_out = f"stop that one, use another --workdir, or remove {str(file)!r} if that process has ended"
    raise InUse(f"workdir={workdir!r}: in use by another run ({who}); {way_out}")


def _begun(pid: int) -> str:
    """Returns when a process began, by which it differs from a later one with its number; "" if there is none."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    except OSError:
        pass
    try:  # a system without /proc, or a process that has ended
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return _UNKNOWN


def _remove(file: Path, owner: str) -> None:
    """Removes the lock of an owner that has ended, and puts it back if another process has taken it over meanwhile."""
    moved = file.with_name(f".{file.name}.{uuid.uuid4().hex[:12]}.tmp")
    with contextlib.suppress(FileNotFoundError):
        os.rename(file, moved)
        if moved.read_text(errors="replace") == owner:
            moved.unlink()
        else:
            os.rename(moved, file)
