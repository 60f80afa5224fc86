"""Where this machine keeps data: the user's home, and the folder of caches."""

import os
from pathlib import Path


def root() -> Path:
    """Returns the folder of all caches: syncsum/data in XDG_CACHE_HOME or ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME", "")  # relative paths are to be ignored, by its specification
    if not os.path.isabs(cache):
        cache = os.path.join(home(otherwise="XDG_CACHE_HOME", key="data.name"), ".cache")
    return Path(cache, "syncsum", "data")


def home(*, key: str, otherwise: str) -> str:
    """Returns the user's home folder.

    Args:
      key: the config key that an error names.
      otherwise: the variable that may be set instead of HOME.

    Raises:
      ValueError: One line; HOME is not set, and the system does not know the user. Python then leaves "~" as it is,
        which would name a folder in the working directory.
    """
    found = os.path.expanduser("~")
    if found == "~":
        raise ValueError(f"{key}: needs a home folder, and none is known; set HOME or {otherwise}")
    return found
