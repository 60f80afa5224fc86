"""The environment of a run: software versions, commit, devices and command."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

# Settings of JAX that change the numbers of a run; XLA_FLAGS may, too.
SETTINGS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_jit",
    "jax_enable_x64",
    "jax_threefry_partitionable",
)
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def describe(*, devices: Sequence[str] = ()) -> dict[str, Any]:
    """Returns one entry of env.json's list of starts.

    Args:
      devices: names of the devices; the caller gives them, because a question to JAX would start its backend.
    """
    commit, tree = _git()
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "pid": os.getpid(),
        "python": platform.python_version(),
        "settings": {
            "XLA_FLAGS": os.environ.get("XLA_FLAGS"),
            **{name: getattr(jax.config, name) for name in SETTINGS},
        },
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": commit,
        "tree": tree,
        "platform": platform.platform(),
        "devices": list(devices),
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns one line for each difference between two starts that can change the last bits of a result.

    >>> changes({"packages": {"jax": "1"}, "commit": "c"}, {"packages": {"jax": "2"}, "commit": "c"})
    ("jax was '1', is '2'",)
    """
    pairs = [(key, before.get(key), now.get(key)) for key in ("python", "commit", "tree", "platform", "devices")]
    for group in ("packages", "settings"):
        old, new = before.get(group) or {}, now.get(group) or {}
        pairs += [(key, old.get(key), value) for key, value in new.items() if group in before]
    return tuple(f"{key} was {old!r}, is {new!r}" for key, old, new in pairs if old != new)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git() -> tuple[str | None, str | None]:
    """Returns the commit of the checkout that has this code, and "clean" or, if tracked files changed, "dirty"."""
    try:
        commit = _ask_git("rev-parse", "HEAD")
        status = _ask_git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):  # git is missing or slow, or this is no checkout, or it has no commit
        return None, None
    return commit.strip(), "dirty" if status.strip() else "clean"


def _ask_git(*arguments: str) -> str:
    answer = subprocess.run(
        ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
    )
    return answer.stdout
