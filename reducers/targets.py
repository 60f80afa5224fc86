"""Devices that are only described: compile a program for TPUs or GPUs on a machine that has neither.

    with targets.find("v5e:4x4").compiling() as devices:
        compiled = jax.pmap(step, devices=devices).lower(*shapes).compile()

The compilers are libtpu and XLA's plugin for GPUs (requirements-compilers.txt); they need no device and no driver.
"""

import contextlib
import contextvars
import dataclasses
import importlib.util
import math
import os
import pkgutil
import re
from collections.abc import Iterator
from typing import Any, Literal

import jax
from jax.experimental import topologies

GB, GIB = 10**9, 2**30


@dataclasses.dataclass(frozen=True)
class Kind:
    """What one device of a kind has, by its vendor's sheet or as it was measured; speeds are the most it can do.

    Attributes:
      platform: "tpu" or "gpu".
      memory: bytes that JAX lets a program use.
      bandwidth: bytes a second to and from memory.
      flops: floating point operations a second of products in bfloat16.
      link: bytes a second that a device sends to others of its slice (TPU) or host (GPU).
      network: bytes a second that a device sends to another host, where that goes another way.
      launch: seconds from the start of a kernel to that of the next at least; 0 where it is not known.
      shapes: slices that there are, for TPUs.
      cores: TensorCores of a chip; clouds count them in the names of v4 and v5p.
      sources: where the numbers are from.
      measured: steps whose seconds were measured, over the least time, with where; None if there are none.
      device_kind: the name that JAX gives it.
      compiler: the compiler's description of the device, for GPUs.
    """

    platform: Literal["tpu", "gpu"]
    memory: float
    bandwidth: float
    flops: float
    link: float
    sources: str
    network: float = math.inf
    launch: float = 0.0
    shapes: tuple[str, ...] = ()
    cores: int = 1
    measured: str | None = None
    device_kind: str = ""
    compiler: str = ""


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")
_SHEET = "cloud.google.com/tpu/docs/{}, read 2026-11"
# XLA's descriptions of both GPUs, the fields that its compiler needs: xla/backends/gpu/target_config/specs.
_GPU = """gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  threads_per_core_limit: 2048 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 {} }}
  platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 patch: 0 }} device_description_str: "{}" """
_H100 = """core_count: 132 fpus_per_core: 128 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84978434048
  cuda_compute_capability { major: 9 minor: 0 }"""
_A100 = """core_count: 108 fpus_per_core: 64 shared_memory_per_core: 167936 shared_memory_per_block_optin: 166912
  memory_bandwidth: 2039040000000 l2_cache_size: 41943040 clock_rate_ghz: 1.41 device_memory_size: 85100068864
  cuda_compute_capability { major: 8 minor: 0 }"""
_OF_GPU_MEMORY = 0.75  # JAX's default share: XLA_PYTHON_CLIENT_MEM_FRACTION

KINDS = {
    "v4": Kind(
        "tpu", 32 * GIB, 1.228e12, 275e12, 300e9, _SHEET.format("v4"), shapes=_CUBES, cores=2, device_kind="TPU v4"
    ),
    "v5e": Kind("tpu", 16 * GIB, 819e9, 197e12, 200e9, _SHEET.format("v5e"), shapes=_FLAT, device_kind="TPU v5 lite"),
    "v5p": Kind(
        "tpu", 95 * GIB, 2.765e12, 459e12, 600e9, _SHEET.format("v5p"), shapes=_CUBES, cores=2, device_kind="TPU v5"
    ),
    "v6e": Kind(
        "tpu", 32 * GIB, 1.638e12, 918e12, 400e9, _SHEET.format("v6e"), shapes=_FLAT, device_kind="TPU v6 lite"
    ),
    "a100": Kind(
        "gpu",
        _OF_GPU_MEMORY * 85100068864,
        2.039e12,
        312e12,
        300e9,
        "NVIDIA A100 data sheet, SXM 80 GB: not measured",
        network=25e9,
        launch=2.5e-6,
        device_kind="NVIDIA A100-SXM4-80GB",
        compiler=_GPU.format(_A100, "NVIDIA A100-SXM4-80GB"),
    ),
    "h100": Kind(
        "gpu",
        _OF_GPU_MEMORY * 84978434048,
        2.92e12,
        690e12,
        450e9,
        "memory and bfloat16 products as measured (sheet: 3.35 TB/s, 989 TFLOP/s); links by NVIDIA's data sheet, SXM",
        network=50e9,
        launch=2.5e-6,
        measured="ResNet-50 1.07 to 1.16, BERT-Large 1.39, ResNet-20 1.5 and 2.0 (benchmarks/RESULTS.md#gpu)",
        device_kind="NVIDIA H100 80GB HBM3",
        compiler=_GPU.format(_H100, "NVIDIA H100 80GB HBM3"),
    ),
}


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices of one kind.

    Attributes:
      name: as it was asked for.
      kind: what a device has.
      shape: of a TPU slice, "4x4"; of GPUs, "hosts x GPUs of a host".
      num_devices: of all hosts.
      num_hosts: hosts, each a process.
    """

    name: str
    kind: Kind
    shape: str
    num_devices: int
    num_hosts: int

    def check_compiler(self) -> None:
        """Raises ValueError, one line with the command, if the target's compiler is not installed."""
        if not has_compiler(self.kind.platform):
            what = "libtpu" if self.kind.platform == "tpu" else "JAX's plugin for CUDA"
            command = "python -m pip install -r requirements-compilers.txt, or make compilers"
            raise ValueError(f"{self.name!r}: needs {what}: {command}")

    @contextlib.contextmanager
    def compiling(self) -> Iterator[tuple[Any, ...]]:
        """Gives the devices; inside, ``platform()`` and ``num_processes()`` are those of the target.

        Raises:
          ValueError: one line, if the compiler is not installed.
        """
        self.check_compiler()
        devices = self._devices()
        with self.assumed():
            yield devices

    @contextlib.contextmanager
    def assumed(self) -> Iterator[None]:
        """Inside, programs are written as for the target, but run on the devices that there are; it needs no compiler.

        >>> with find("h100").assumed():
        ...   platform()
        'gpu'
        """
        before = _assumed.set(self)
        try:
            yield
        finally:
            _assumed.reset(before)

    def _devices(self) -> tuple[Any, ...]:
        if self.kind.platform == "gpu":
            hosts, each = self.shape.split("x")
            options: dict[str, Any] = {"topology": f"{hosts}x1x{each}", "target_config": self.kind.compiler}
            try:
                topology = topologies.get_topology_desc(platform="cuda", topology_name="", **options)
            except NotImplementedError:  # the plugin did not load, because it looked for a GPU
                raise ValueError(f"{self.name!r}: JAX was started without JAX_PLATFORMS=cpu") from None
        else:
            # libtpu asks the cloud's server who it is, unless all of this is known.
            os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
            os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
            os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-16")
            # Its lock keeps a TPU for one process; several may compile.
            os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
            name = next(name for name, kind in KINDS.items() if kind == self.kind)
            options = {"chip_config_name": "megacore"} if name == "v4" else {}  # else a device is half a chip
            if self.num_devices == 1:
                options["chips_per_host_bounds"] = (1, 1, 1)
            topology = topologies.get_topology_desc(platform="tpu", topology_name=f"{name}:{self.shape}", **options)
        return tuple(topology.devices)


_assumed: contextvars.ContextVar[Target | None] = contextvars.ContextVar("target", default=None)


def current() -> Target | None:
    """Returns the target whose ``assumed()`` or ``compiling()`` this is inside of; None for this machine's devices."""
    return _assumed.get()


def platform() -> str:
    """Returns the platform that programs are compiled for: "cpu", "gpu" or "tpu"."""
    target = current()
    return jax.default_backend() if target is None else target.kind.platform


def device_kind() -> str:
    """Returns the name of the devices that programs are compiled for, as ``jax.Device.device_kind``."""
    target = current()
    return jax.devices()[0].device_kind if target is None else target.kind.device_kind


def num_processes() -> int:
    """Returns the number of processes whose devices run a program together."""
    target = current()
    return jax.process_count() if target is None else target.num_hosts


def find(name: str) -> Target:
    """Returns the target that a name describes.

    Args:
      name: of TPUs a slice, ``v5e:4x4``, or its size as clouds write it, ``v5e-16`` or ``v5litepod-16`` (chips; of v4
        and v5p TensorCores, two a chip); of GPUs their number, ``h100:8``, and with several hosts ``h100:2x8``, two
        hosts of eight.

    Raises:
      ValueError: one line with what is allowed.

    >>> find("v5litepod-16").shape, find("v5p:4x4x4").num_devices, find("v4-8").num_devices, find("h100:2x8").num_hosts
    ('4x4', 64, 4, 2)
    """
    found = re.fullmatch(r"(\w+?)(?:(:|-)([\dx]+))?", name.lower().replace("v5litepod", "v5e"))  # Google's name of it
    kind = KINDS.get(found[1]) if found else None
    if found is None or kind is None:
        raise ValueError(f"{name!r}: must be of one of {', '.join(KINDS)}, as in v5e:4x4, v5e-16, h100:8, h100:2x8")
    if kind.platform == "gpu":
        sizes = [int(size) for size in (found[3] or "1").split("x") if size]
        if (
            found[2] == "-"
            or len(sizes) > 2
            or "" in (found[3] or "1").split("x")
            or not all(0 < n <= 1024 for n in sizes)
        ):
            raise ValueError(f"{name!r}: must be {found[1]}, {found[1]}:8, or {found[1]}:2x8 for two hosts of eight")
        hosts, each = sizes if len(sizes) == 2 else (1, sizes[0])
        return Target(name, kind, f"{hosts}x{each}", hosts * each, hosts)
    by_size = {str(kind.cores * _chips(shape)): shape for shape in kind.shapes}
    shape = by_size.get(found[3]) if found[2] == "-" else found[3]
    if shape not in kind.shapes:
        allowed = " ".join([f"{found[1]}:{shape}" for shape in kind.shapes])
        by_cloud = " ".join(f"{found[1]}-{size}" for size in by_size)
        raise ValueError(f"{name!r}: must be one of {allowed}, or {by_cloud}")
    chips = _chips(shape)
    return Target(name, kind, shape, chips, max(1, chips // 4))


def _chips(shape: str) -> int:
    return math.prod(map(int, shape.split("x")))


def has_compiler(platform: Literal["tpu", "gpu"]) -> bool:
    """Returns whether the compiler for a platform is installed."""
    if platform == "tpu":
        return importlib.util.find_spec("libtpu") is not None
    found = importlib.util.find_spec("jax_plugins")
    plugins = pkgutil.iter_modules(found.submodule_search_locations) if found else ()
    return any(module.name.startswith("xla_cuda") for module in plugins)
