"""What a run ran on: software versions, commit, devices, command."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def describe(*, devices: Sequence[str] = ()) -> dict[str, Any]:
    """One entry of env.json's list of starts; `devices` come from the caller, for asking JAX would start it."""
    commit, tree = _git()
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "pid": os.getpid(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": commit,
        "tree": tree,
        "platform": platform.platform(),
        "devices": list(devices),
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """What can move the last bits of a result between two starts of a run, one line each.

    >>> changes({"packages": {"jax": "1"}, "commit": "c"}, {"packages": {"jax": "2"}, "commit": "c"})
    ("jax was '1', is '2'",)
    """
    pairs = [(key, before.get(key), now.get(key)) for key in ("python", "commit", "tree", "platform", "devices")]
    versions_before = before.get("packages") or {}
    pairs += [(key, versions_before.get(key), version) for key, version in (now.get("packages") or {}).items()]
    return tuple(f"{key} was {old!r}, is {new!r}" for key, old, new in pairs if old != new)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git() -> tuple[str | None, str | None]:
    """Commit, and "clean" or "dirty" (tracked files changed), of the checkout that this code lies in."""
    try:
        commit = _ask_git("rev-parse", "HEAD")
        status = _ask_git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):  # no git, no checkout, no commit yet, or git takes too long
        return None, None
    return commit.strip(), "dirty" if status.strip() else "clean"


def _ask_git(*arguments: str) -> str:
    answer = subprocess.run(
        ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
    )
    return answer.stdout
