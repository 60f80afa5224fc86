"""Machines with the compilers of TPUs and GPUs, but with neither: JAX then starts on the CPU, and in silence."""

import contextlib
import importlib.util
import os
import pathlib
import pkgutil
import sys
from collections.abc import Iterator

_OF_NVIDIA = {"xla_cuda12", "xla_cuda13"}


def ignore_missing_devices() -> None:
    """Makes JAX choose the CPU if its plugins for TPUs or NVIDIA's GPUs are installed and no such device is there.

    Their libraries else write pages about devices that they do not find: as JAX is imported, and again as it starts.
    Changes nothing if ``JAX_PLATFORMS`` is set to something else than "cpu", or if another plugin is installed.
    """
    plugins = _plugins()
    has_compiler = bool(plugins) or importlib.util.find_spec("libtpu") is not None
    if not has_compiler or plugins - _OF_NVIDIA or _has_device():
        return
    if os.environ.setdefault("JAX_PLATFORMS", "cpu") != "cpu":
        return
    with _silenced(), contextlib.suppress(Exception):
        from jax.experimental import topologies

        topologies.get_topology_desc("", platform="none")  # makes JAX load its plugins, and start no backend


def _plugins() -> set[str]:
    """Returns the installed plugins of JAX, of which libtpu is none."""
    found = importlib.util.find_spec("jax_plugins")
    return {module.name for module in pkgutil.iter_modules(found.submodule_search_locations)} if found else set()


def _has_device() -> bool:
    """Returns whether this machine has a TPU (a PCI device of Google's) or a GPU of NVIDIA's."""
    if any(os.path.exists(path) for path in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")):
        return True
    vendors = pathlib.Path("/sys/bus/pci/devices").glob("*/vendor")
    return "TPU_NAME" in os.environ or any(path.read_text().strip() == "0x1ae0" for path in vendors)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Drops what is written to standard error, also by libraries below Python."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
