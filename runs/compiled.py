"""Compiled programs on disk, for the next run of the same shapes."""

import re
import warnings
from pathlib import Path

import jax

DEFAULT = "out/compiled"
MIN_SECONDS = 0.2  # of compiling, below which a file is not worth it
_DAMAGED = re.compile(r"Error reading persistent compilation cache entry for '([\w.<>-]+)'")


def keep_compiled(folder: str | None) -> None:
    """Has JAX keep what it compiles, and begin with what is there.

    JAX writes its files in place, so that a kill can leave a damaged one. It is found by its checksum and removed, and
    the program is compiled and kept again.

    Args:
      folder: where; "" keeps nothing; None is where the environment (JAX_COMPILATION_CACHE_DIR) or the calling program
        says, or else ``DEFAULT``.
    """
    if folder is None and getattr(jax.config, "jax_compilation_cache_dir", None):  # set at run time, unknown to types
        return
    folder = DEFAULT if folder is None else folder
    jax.config.update("jax_compilation_cache_dir", folder or None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_SECONDS)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if folder:
        _remove_damaged(Path(folder))


def _remove_damaged(folder: Path) -> None:
    """Answers JAX's warning of a damaged file by removing it, before JAX keeps the program anew."""
    show = warnings.showwarning

    def remove(message, category, filename, lineno, file=None, line=None):
        if (found := _DAMAGED.match(str(message))) is None:
            return show(message, category, filename, lineno, file, line)
        for path in folder.glob(f"{found[1]}-*"):  # files begin with the program's name
            path.unlink(missing_ok=True)

    warnings.showwarning = remove
