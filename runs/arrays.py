"""A flat dict of named arrays as a folder of files, through Orbax."""

import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_NEVER = 10**9  # seconds


class OrbaxFiles:
    """Writes in the background; one write at a time. Orbax, a third of a second to import, comes with the first use."""

    def __init__(self) -> None:
        self._checkpointer: Any = None

    def start_write(self, folder: Path, flat: Mapping[str, np.ndarray]) -> None:
        """Copies the arrays and begins to write them; `folder` appears when they are complete."""
        # `force`: over what a failed write may have left.
        arguments = _orbax().args.StandardSave(_filled(flat))
        self._open().save(folder, args=arguments, force=True)

    def wait(self) -> None:
        """Waits for the write under way, and raises what went wrong with it."""
        if self._checkpointer is not None:
            self._checkpointer.wait_until_finished()

    def read(self, folder: Path, like: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Reads arrays of the names, shapes and dtypes of `like`."""
        arguments = _orbax().args.StandardRestore(_filled(like))
        return {**like, **self._open().restore(folder, args=arguments)}

    def close(self) -> None:
        """Ends Orbax's threads; a second call does nothing."""
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            checkpointer.close()

    def _open(self) -> Any:
        if self._checkpointer is None:
            orbax = _orbax()
            # With folders made in the background, a full disk leaves threads that wait for minutes.
            # Orbax's timeouts are of time.time(): a clock set forward by more than one would fail a save.
            options = orbax.options.AsyncOptions(create_directories_asynchronously=False, timeout_secs=_NEVER)
            self._checkpointer = orbax.AsyncCheckpointer(orbax.StandardCheckpointHandler(), async_options=options)
        return self._checkpointer


def _filled(flat: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Without the arrays of no elements: Orbax takes none, and they hold nothing to be kept."""
    return {name: array for name, array in flat.items() if array.size > 0}


def _orbax() -> Any:
    import orbax.checkpoint

    logger = logging.getLogger("absl")
    if _not_chatter not in logger.filters:
        logger.addFilter(_not_chatter)
        sys.unraisablehook = functools.partial(_show_but_late_ends, before=sys.unraisablehook)
    return orbax.checkpoint


def _show_but_late_ends(unraisable: Any, *, before: Callable[[Any], Any]) -> None:
    """Leaves out what TensorStore's threads print, a page, of writes that end after another one has failed."""
    if not (unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed"):
        before(unraisable)


def _not_chatter(record: logging.LogRecord) -> bool:
    """Lets pass what comes from elsewhere: Orbax's errors, a page each on a full disk, are raised besides."""
    return f"{os.sep}orbax{os.sep}" not in record.pathname
