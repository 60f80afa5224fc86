"""Signals that ask a command to end: one line and exit code 128 + n, at any moment, unless the command handles them.

Python runs a signal's handler in the main thread, between two of its instructions: not while that thread waits inside a
library, for example for another process. An exception of the handler is lost if a library's callback, such as JAX's
hook of the garbage collector, is running. So the handlers of a command do nothing; a thread learns of each signal at
once from Python's wake-up descriptor.

A command that was started by ``launch.children`` also ends, as by SIGTERM, when the process that started it is gone.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

# A cluster's scheduler sends SIGUSR1 or SIGUSR2 before the time of a job is up.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
WARNINGS = STOPS[2:]  # one event may send these repeatedly, or before another signal
PARENT = "LAUNCH_PARENT"  # environment variable: the pipe that ends with the parent process
SECONDS_TO_CLEAN_UP = 30.0  # after a signal, before an interruptible command is ended

Handle = Callable[[int], Any]

_handle: Handle | None = None  # called by the thread; None if this process is not a command
_ending = threading.RLock()


def listen() -> None:
    """Makes the signals end this process from now on; call it once, in the main thread, before slow imports."""
    global _handle
    _handle = end
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    for number in _caught():
        signal.signal(number, _do_nothing)
    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, STOPS),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS),
        after_in_child=_forget,
    )
    threading.Thread(target=_hear, args=(ours,), daemon=True, name="signals").start()
    parent = _parent_pipe(os.environ.pop(PARENT, ""))
    if parent is not None:
        threading.Thread(target=_hear_parent, args=(parent,), daemon=True, name="parent").start()


def is_listening() -> bool:
    """Returns whether this process is a command, rather than a notebook or a test that imports the code."""
    return _handle is not None


def end(number: int, *, why: str = "") -> NoReturn:
    """Ends the process with one line and exit code 128 + n, without an exception that could be lost."""
    with _ending:
        new_line = "\n" if os.isatty(2) else ""  # the cursor may be behind ^C or a progress bar
        with contextlib.suppress(OSError):
            os.write(2, f"{new_line}stopped by {signal.Signals(number).name}{why}\n".encode())
        os._exit(128 + number)


@contextlib.contextmanager
def handled(handle: Handle) -> Iterator[None]:
    """Calls ``handle(number)`` for each signal within the block, instead of ending the process.

    In a command the listening thread calls it, at once. In any other process Python's handlers call it in the main
    thread, and the earlier handlers are restored at the end; it is not called in a block of another thread, where
    Python sets no handlers.

    >>> seen = []
    >>> with handled(seen.append):
    ...     signal.raise_signal(signal.SIGTERM)
    >>> seen == [signal.SIGTERM]
    True
    """
    global _handle
    if _handle is not None:
        before, _handle = _handle, handle
        try:
            yield
        finally:
            _handle = before
    elif threading.current_thread() is not threading.main_thread():
        yield
    else:
        handlers = {number: signal.signal(number, lambda n, frame: handle(n)) for number in _caught()}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                # None means a handler that was not set from Python; it cannot be restored.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


def interruptible(command: Callable[[], int]) -> int:
    """Calls a command that cleans up at KeyboardInterrupt, which each of the signals raises in the main thread.

    At a second signal, or if the command has not ended after SECONDS_TO_CLEAN_UP because a library's callback has lost
    the exception, the process ends at once. A process that is not a command leaves its signals as they are.

    Args:
      command: returns an exit code; it may catch KeyboardInterrupt.

    Returns:
      The command's exit code. After signal n the process ends here, with 128 + n: threads of XLA may still be
      computing, and would crash an interpreter that shuts down.
    """
    if not is_listening():
        return command()
    received: list[int] = []
    heard: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:  # in the main thread, between two instructions
        received.append(number)
        if len(received) == 1:
            raise KeyboardInterrupt

    def hear(number: int) -> None:  # in the listening thread, at once
        heard.append(number)
        if len(heard) > 1:
            end(number)
        timer = threading.Timer(SECONDS_TO_CLEAN_UP, end, [number])
        timer.daemon = True
        timer.start()

    with handled(hear):
        for number in _caught():
            signal.signal(number, interrupt)
        try:
            code = command()
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
        finally:
            for number in _caught():
                signal.signal(number, _do_nothing)
    if not received:
        return code
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    end(received[0])


def parent_variable(pipe: int) -> dict[str, str]:
    """Returns the environment variable by which a child process knows the reading end of its parent's pipe."""
    status = os.fstat(pipe)  # shows that the number is still that pipe, and not another file of a grandchild
    return {PARENT: f"{pipe}:{status.st_dev}:{status.st_ino}"}


def _parent_pipe(text: str) -> int | None:
    """Returns the pipe that the variable ``PARENT`` names; None if this process was not started with it."""
    try:
        pipe, device, number = map(int, text.split(":"))
        status = os.fstat(pipe)
    except (ValueError, OSError):
        return None
    if (status.st_dev, status.st_ino) != (device, number):
        return None
    os.set_inheritable(pipe, False)
    return pipe


def _hear(pipe: int) -> None:
    while True:
        for number in os.read(pipe, 64):
            if number in STOPS and _handle is not None:
                _handle(number)


def _hear_parent(pipe: int) -> None:
    os.read(pipe, 1)  # returns at the end of the pipe, to which no process writes
    if _handle is not None:
        _handle(signal.SIGTERM)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """The handler of a command in Python: without one, Python would not write to the wake-up descriptor."""


def _caught() -> list[signal.Signals]:
    """Returns the signals to handle, without those ignored at the start, as nohup ignores SIGHUP."""
    return [n for n in STOPS if n not in WARNINGS or signal.getsignal(n) != signal.SIG_IGN]


def _forget() -> None:
    """Gives a forked process the handlers of a new one, because it would share its parent's pipe."""
    global _handle
    _handle = None
    signal.set_wakeup_fd(-1)
    for number in _caught():
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)  # only now: earlier signals were meant for this process
