"""The environment of a run: software versions, commit, devices and command."""

import datetime
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from parallel import backend, processes
from reducers.arrivals import foreign_files
from runs import identity
from runs.errors import ROOT

Code = Mapping[str, Mapping[str, str]]
"""Module, or key of a config -> "path" and "sha256" of its file."""

INPUT = "config."
"""Begins the keys of ``Code`` that are no modules, such as ``config.arrivals.path``."""


class Inputs(NamedTuple):
    """The inputs on which a run depends beside its config.

    Attributes:
      code: the files of code outside of this repository.
      data: the fingerprint of the examples; "" if the config alone decides them.
    """

    code: Code
    data: str = ""


NO_INPUTS = Inputs({})

# Settings of JAX that change the numbers of a run; XLA_FLAGS may, too.
SETTINGS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_jit",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_threefry_partitionable",
)
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
_CPU_FIELDS = {  # field of /proc/cpuinfo -> prefix of its value; x86 has the first four, ARM the others
    "model name": "",
    "cpu family": "family ",
    "model": "model ",
    "cache size": "cache ",
    "CPU implementer": "implementer ",
    "CPU part": "part ",
}
PARTS = (  # the packages that train.py imports, directly or not
    "asynchronous",
    "compilers",
    "configs",
    "data",
    "launch",
    "live",
    "models",
    "optim",
    "parallel",
    "reducers",
    "runs",
    "training",
)


def describe(*, devices: Sequence[str] = (), inputs: Inputs = NO_INPUTS) -> dict[str, Any]:
    """Returns one entry of env.json's list of starts.

    Args:
      devices: names of the devices; the caller passes them, because asking JAX would start its backend.
      inputs: the run's inputs.
    """
    commit, tree = _git()
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "pid": os.getpid(),
        "python": platform.python_version(),
        "settings": settings(),
        "packages": versions(),
        "commit": commit,
        "tree": tree,
        "platform": platform.platform(),
        "cpu": processor(),
        "cores": backend.usable_cores(),
        "devices": list(devices),
        "code": {name: dict(file) for name, file in inputs.code.items()},
        "data": inputs.data,
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns one line for each difference between two starts that can change the last bits of a result.

    >>> changes({"packages": {"jax": "1"}, "commit": "c"}, {"packages": {"jax": "2"}, "commit": "c"})
    ("jax was '1', is '2'",)
    """
    keys = ("python", "commit", "tree", "platform", "cpu", "devices")
    values = [(key, before.get(key), now.get(key)) for key in keys]
    for group in ("packages", "settings"):
        old = before.get(group) or {}
        values += [(key, old.get(key), value) for key, value in (now.get(group) or {}).items()]
    return tuple(f"{key} was {old!r}, is {new!r}" for key, old, new in values if old != new)


def changed_code(starts: Sequence[Mapping[str, Any]], code: Code) -> list[str]:
    """Returns the files of a run's own code that differ from those of its last start; none if no start recorded any.

    Files that only one of the starts recorded are ignored: a file that imports a new one has changed as well, and a run
    that goes on no longer reads ``config.init_from``.

    >>> before = {"code": {"mine": {"path": "/a/mine.py", "sha256": "1"}, "old": {"path": "/a/old.py", "sha256": "2"}}}
    >>> changed_code([before], {"mine": {"path": "/b/mine.py", "sha256": "3"}})
    ['mine.py']
    """
    before: Code = first(starts[::-1], "code") or {}
    changed = []
    for name in sorted(before.keys() & code.keys()):
        if before[name].get("sha256") != code[name].get("sha256"):
            path = code[name].get("path", name)
            is_named = name.startswith(INPUT)
            changed.append(f"the content of {name}={path!r}" if is_named else os.path.basename(path))
    return changed


def cadences(starts: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Returns the first step and the ``log_every_steps`` of each start that recorded both.

    >>> cadences([{"step": 0, "log_every_steps": 10}, {"step": 40, "log_every_steps": 5}, {"commit": "c"}])
    [(0, 10), (40, 5)]
    """
    return [
        (start["step"], start["log_every_steps"]) for start in starts if {"step", "log_every_steps"} <= start.keys()
    ]


def changed_files(code: Code) -> list[str]:
    """Returns the paths of the files that changed since their hashes were taken."""
    found = []
    for file in code.values():
        try:
            digest = foreign_files.sha256(file["path"])
        except OSError:
            digest = ""
        if digest != file["sha256"]:
            found.append(file["path"])
    return found


def first(starts: Sequence[Mapping[str, Any]], key: str) -> Any:
    """Returns the value of a key in the oldest start that has one; None if no start has."""
    return next((start[key] for start in starts if key in start), None)


def read_starts(path: Path) -> list[dict[str, Any]]:
    """Returns the starts of the run in a folder, oldest first.

    Raises:
      ValueError: in one line, if env.json is damaged.
    """
    env = identity.read_object(path / "env.json")
    starts = [] if env is None else env.get("starts")
    if not isinstance(starts, list) or not all(isinstance(start, dict) for start in starts):
        raise identity.damaged(path / "env.json", "no list of starts")
    for key, is_whole in _WHOLE.items():
        for value in (start[key] for start in starts if key in start):
            if not is_whole(value):
                raise identity.damaged(path / "env.json", f"{key}={value!r}")
    return starts


def _is_resolved(value: Any) -> bool:
    return isinstance(value, dict) and all(x is None or (type(x) is int and x > 0) for x in value.values())


def _is_code(value: Any) -> bool:
    files = value.values() if isinstance(value, dict) else [None]
    return all(isinstance(file, dict) and all(isinstance(x, str) for x in file.values()) for file in files)


_WHOLE: Mapping[str, Callable[[Any], bool]] = {
    "resolved": _is_resolved,
    "code": _is_code,
    "data": lambda value: isinstance(value, str),
    "id": lambda value: isinstance(value, str),
    "step": lambda value: type(value) is int and value >= 0,
    "log_every_steps": lambda value: type(value) is int and value > 0,
    "packages": lambda value: isinstance(value, dict),
    "settings": lambda value: isinstance(value, dict),
}
"""Key of a start -> whether its value is one that this program writes."""


def settings() -> dict[str, Any]:
    """Returns the settings of JAX and XLA that a result depends on."""
    return {"XLA_FLAGS": os.environ.get("XLA_FLAGS"), **{name: getattr(jax.config, name) for name in SETTINGS}}


def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """Returns the model of the CPU, if the system reports it; another model may round differently.

    Its vectors and caches determine the order of sums in XLA's matrix products and convolutions.
    """
    try:
        first = info.read_text(errors="replace").split("\n\n")[0]
    except OSError:  # this is not Linux
        return platform.processor() or platform.machine()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    found = [f"{name}{fields[key]}" for key, name in _CPU_FIELDS.items() if key in fields]
    return ", ".join(found) or platform.machine()


def versions() -> dict[str, str]:
    """Returns the versions of the libraries that a result depends on."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def code(root: Path = ROOT) -> str:
    """Returns twelve hexadecimal digits of a hash of the Python sources that runs import, by name and content.

    >>> len(code())
    12
    """
    sources = sorted(root.glob("*.py"))
    for package in PARTS:
        sources += sorted((root / package).glob("**/*.py"))
    return hash_of(sources, root=root)


def hash_of(sources: Iterable[Path], *, root: Path) -> str:
    """Returns twelve hexadecimal digits of a hash of files, by their names below a folder and their content."""
    digest = hashlib.sha256()
    for path in sources:
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _git() -> tuple[str | None, str | None]:
    """Returns the commit of this code's checkout, and whether the checkout is "clean" or "dirty".

    It is dirty if a tracked file changed, or if a package has Python that is not tracked, such as a new claim. Files
    beside train.py are the user's own; a start's ``code`` records those that the run depends on.
    """
    try:
        commit = _ask_git("rev-parse", "HEAD")
        status = _ask_git("status", "--porcelain", "--untracked-files=no")
        status += _ask_git("ls-files", "--others", "--exclude-standard", ":(glob)[a-z]*/**/*.py")
    except (OSError, subprocess.SubprocessError):  # git is missing or slow, or this is no checkout, or it has no commit
        return None, None
    return commit.strip(), "dirty" if status.strip() else "clean"


def _ask_git(*arguments: str) -> str:
    answer = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=10, check=True)
    return answer.stdout


def check_agreement(config: Mapping[str, Any], *, flags: Mapping[str, Any]) -> None:
    """Raises an error unless all processes of the run have the same config, flags and software.

    A difference would make results wrong, or leave a process waiting.

    Args:
      config: the whole experiment, as nested dicts of JSON values.
      flags: the flags that decide which programs run, by name.

    Raises:
      ValueError: in all processes, in one line that names the process and the keys.
    """
    if processes.several():  # the facts take reading all sources
        processes.check_same(facts(config, flags=flags))


def facts(config: Mapping[str, Any], *, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config, the flags, XLA's and JAX's settings, the versions of the libraries and a hash of the code.

    >>> found = facts({"seed": 0, "data": {"dir": "x"}}, flags={"num_devices": 2})
    >>> found["config.seed"], found["num_devices"], "config.data.dir" in found
    (0, 2, False)
    """
    keys = identity.flatten(identity.plain(config))
    of_jax = settings()
    xla_flags = (of_jax.pop("XLA_FLAGS") or "").split()
    return {
        **{f"config.{key}": value for key, value in keys if key != "data.dir"},  # which depends on the machine
        **flags,
        "XLA_FLAGS": " ".join(sorted(flag for flag in xla_flags if "dump" not in flag)),
        **{name: str(value) for name, value in of_jax.items()},
        **versions(),
        "code": code(),
    }
