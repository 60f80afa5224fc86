"""Compares the plans of a run's processes, because a difference makes results wrong or leaves a process waiting."""

from collections.abc import Mapping
from typing import Any

from parallel import processes
from runs import environment, identity


def check(config: Mapping[str, Any], *, flags: Mapping[str, Any]) -> None:
    """Raises an error unless all processes of the run have the same config, flags and software.

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
    settings = environment.settings()
    xla_flags = (settings.pop("XLA_FLAGS") or "").split()
    return {
        **{f"config.{key}": value for key, value in keys if key != "data.dir"},  # which depends on the machine
        **flags,
        "XLA_FLAGS": " ".join(sorted(flag for flag in xla_flags if "dump" not in flag)),
        **{name: str(value) for name, value in settings.items()},
        **environment.versions(),
        "code": environment.code(),
    }
