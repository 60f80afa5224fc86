"""The environment of a run: software versions, commit, devices and command."""

import datetime
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
ROOT = Path(__file__).resolve().parent.parent
PARTS = ("asynchronous", "configs", "data", "models", "optim", "parallel", "reducers", "runs", "training")


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
        "packages": versions(),
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
    versions_before = before.get("packages") or {}
    pairs += [(key, versions_before.get(key), version) for key, version in (now.get("packages") or {}).items()]
    return tuple(f"{key} was {old!r}, is {new!r}" for key, old, new in pairs if old != new)


def versions() -> dict[str, str | None]:
    """Returns the versions of the libraries that a result depends on."""
    return {name: _version(name) for name in PACKAGES}


def code(root: Path = ROOT) -> str:
    """Returns twelve hexadecimal digits of a hash of the Python sources that runs import, by name and content.

    >>> len(code())
    12
    """
    digest = hashlib.sha256()
    for package in ("", *PARTS):
        for path in sorted((root / package).glob("**/*.py" if package else "*.py")):
            digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


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
