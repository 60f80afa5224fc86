"""A lock on a file of a run's folder, by which one process at a time has the run."""

import errno
import fcntl
import os
import time
from pathlib import Path

_LOOK_SECONDS = 0.1  # longer than a look of `check` takes, which keeps a run from taking the lock


def take(workdir: str, path: Path) -> int:
    """Locks the file `lock` of a run's folder, and returns its descriptor.

    The lock belongs to the open file, so that it ends with the process. The file has the process id, for people.

    Raises:
      ValueError: in one line, if another process has it.
    """
    lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _flock(workdir, lock, fcntl.LOCK_EX, seconds=_LOOK_SECONDS)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(lock)
        raise
    return lock


def is_in_place(lock: int, path: Path) -> bool:
    """Returns whether a locked file is still the file `lock` of the folder; if not, another run can lock that one."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(path / "lock"))
    except (FileNotFoundError, NotADirectoryError):
        return False


def check(workdir: str, path: Path) -> None:
    """Raises ValueError as ``take`` does; keeps no lock. Those that look at once do not take each other for a run."""
    try:
        lock = os.open(path / "lock", os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        _flock(workdir, lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)


def _flock(workdir: str, lock: int, kind: int, *, seconds: float = 0.0) -> None:
    """Locks an open file, and tries it again for some seconds."""
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
    raise ValueError(
        f"workdir={workdir!r}: in use by another run (process {pid}); stop that one, or use another --workdir"
    )
