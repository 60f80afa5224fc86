"""JAX's compilation cache on disk, for the next run with the same shapes."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

DEFAULT = "out/compiled"
MIN_SECONDS = 0.2  # programs that compile faster are not kept


@contextlib.contextmanager
def keep_compiled(folder: str | None) -> Iterator[None]:
    """Sets JAX's compilation cache within the block, and restores the former setting at its end.

    JAX writes its files in place, so that a kill can leave a damaged one; JAX then warns, and compiles the program.

    Args:
      folder: the folder of the cache; "" for no cache; None for the folder that the environment
        (JAX_COMPILATION_CACHE_DIR) or the calling program has set, or else ``DEFAULT``.
    """
    config: Any = jax.config  # type checkers do not know its settings
    if folder is None and config.jax_compilation_cache_dir:
        yield
        return
    folder = DEFAULT if folder is None else folder
    settings = {
        "jax_compilation_cache_dir": folder or None,
        "jax_persistent_cache_min_compile_time_secs": MIN_SECONDS,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(config, name) for name in settings}
    _set(settings)
    try:
        yield
    finally:
        _set(before)


def _set(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # JAX reads the folder's name only once, when it compiles its first program
