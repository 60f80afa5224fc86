"""Locks a run's folder for one process at a time, by `flock` on its file `lock`."""

import dataclasses
import errno
import fcntl
import os
import re
import time
from pathlib import Path

RUN = "lock"  # held by the process that works on the run
QUEUE = "queue.lock"  # held by a queue until the process that it started has ended
_LOOK_SECONDS = 0.1  # longer than `check`, which keeps a run from taking the lock
_NO_FLOCK = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
_OPEN = os.O_RDWR | os.O_NOFOLLOW  # never writes through a symbolic link


class InUse(ValueError):
    """Another process has the lock; the message is one line that names it."""


@dataclasses.dataclass(frozen=True)
class Lock:
    """A lock that this process has.

    Attributes:
      file: the locked file.
      descriptor: descriptor of the file; the lock belongs to it, and so ends with the process.
    """

    file: Path
    descriptor: int

    def is_in_place(self) -> bool:
        """Returns whether the locked file is still in the folder; if not, another run can lock the folder's file."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(self.file, follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        """Releases the lock."""
        os.close(self.descriptor)


def take(workdir: str, path: Path, *, name: str = RUN) -> Lock:
    """Locks a run's folder for this process, and for processes that inherit the descriptor.

    Raises:
      InUse: in one line, if another process has it.
      ValueError: in one line, if `lock` has the content of another file, or its file system has no `flock`.
      OSError: if `lock` cannot be opened; a symbolic link is not followed.
    """
    lock = os.open(path / name, _OPEN | os.O_CREAT, 0o644)
    try:
        _flock(workdir, lock, fcntl.LOCK_EX, seconds=_LOOK_SECONDS)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)  # for human readers
    except BaseException:
        os.close(lock)
        raise
    return Lock(path / name, lock)


def check(workdir: str, path: Path, *, name: str = RUN) -> None:
    """Raises the errors of ``take``, and keeps no lock. Several processes may check at the same time."""
    try:
        lock = os.open(path / name, _OPEN)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # a run will refuse a symbolic link
            return
        raise
    try:
        _flock(workdir, lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)


def _flock(workdir: str, lock: int, kind: int, *, seconds: float = 0.0) -> None:
    """Locks an open file, retrying for some seconds; refuses a file that ``take`` did not write."""
    if not re.fullmatch(rb"(\d+\n)?", os.pread(lock, 32, 0)):
        raise ValueError(
            f"workdir={workdir!r}: lock must be the file of a run's lock, and is another one; move it away"
        )
    end = time.monotonic() + seconds
    while True:
        try:
            return fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                break
            time.sleep(seconds / 10)
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
            reason = f"its file system has no flock ({error.strerror}), with which a run locks its folder"
            raise ValueError(f"workdir={workdir!r}: {reason}; use another --workdir") from None
    pid = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
    raise InUse(f"workdir={workdir!r}: in use by another run (process {pid}); stop that one, or use another --workdir")
