"""A lock on a file of a run's folder, by which one process at a time has the run."""

import errno
import fcntl
import os
from pathlib import Path


def take(workdir: str, path: Path) -> int:
    """Locks the file `lock` of a run's folder, and returns its descriptor.

    The lock belongs to the open file, so that it ends with the process. The file has the process id, for people.

    Raises:
      ValueError: in one line, if another process has it.
    """
    lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _flock(workdir, lock)
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
    """Raises ValueError as ``take`` does; keeps no lock."""
    try:
        lock = os.open(path / "lock", os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        _flock(workdir, lock)
    finally:
        os.close(lock)


def _flock(workdir: str, lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        pid = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        raise ValueError(
            f"workdir={workdir!r}: in use by another run (process {pid}); stop that one, or use another --workdir"
        ) from None
