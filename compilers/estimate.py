"""What a compiled program needs of a device, and the least time that its kind of device allows."""

import dataclasses
import itertools
import pathlib
import re
import time
from collections.abc import Set
from typing import Any

import jax

from compilers import program
from compilers.program import Collective, Kernel, Program
from reducers.targets import Kind, Target

_ROOT = pathlib.Path(__file__).parent.parent
# Functions of the step whose kernels are the reduction.
REDUCTION = frozenset({"reduce_gradients", "apply_in_order"})
BOUNDS = ("memory", "products", "launches")
_DEAREST = 10
_SHOWN = 80  # characters of an operation


@dataclasses.dataclass(frozen=True)
class Cost:
    """A kernel, or several: ``seconds`` is the least time of all its iterations.

    A kernel takes at least as long as its bytes take through memory or its products at the peak, whichever is longer,
    and a launch.
    """

    seconds: float
    bytes: float
    flops: float
    times: int
    name: str = ""
    source: str = ""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """One compiled program, per device and call.

    Attributes:
      arguments: bytes; ``reused`` of them may hold results.
      reused: bytes of arguments that the program overwrites with results.
      results: bytes.
      temporaries: bytes.
      program_bytes: size of the code; 0 if the compiler does not say.
      compile_seconds: on this machine.
      collectives: kind -> [count, bytes that a device sends].
      longest_chain: the most collectives of which each waits for the one before it.
      kernels: how many the device runs.
      memory_bytes: through memory.
      flops: of products and convolutions.
      least_seconds: the sum of the kernels' least times, as if nothing overlapped; without collectives.
      bounds: the seconds of "memory", "products" and "launches" alone.
      link_seconds: the bytes of collectives over the bandwidth of the links.
      reduction: the share of the reduction's kernels in ``least_seconds``.
      unknown_loops: loops whose number of iterations is not known; one counts.
      dearest: the ten kernels with the largest ``seconds``.
    """

    arguments: int
    reused: int
    results: int
    temporaries: int
    program_bytes: int
    compile_seconds: float
    collectives: dict[str, list[float]]
    longest_chain: int
    kernels: int
    memory_bytes: float
    flops: float
    least_seconds: float
    bounds: dict[str, float]
    link_seconds: float
    reduction: float
    unknown_loops: int
    dearest: list[Cost]

    @property
    def total_bytes(self) -> int:
        """The memory that the program needs on a device."""
        return self.arguments - self.reused + self.results + self.temporaries

    @property
    def num_collectives(self) -> float:
        """How many collectives there are, of all kinds."""
        return sum(count for count, _ in self.collectives.values())

    @property
    def bound(self) -> str:
        """Which of the bounds is the largest."""
        return max(self.bounds, key=self.bounds.__getitem__)

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "total_bytes": self.total_bytes, "bound": self.bound}


class RejectedError(ValueError):
    """A compiler rejects a program; the message is one line."""


def compile_for(target: Target, lowered: Any, *, reduction: Set[str] = REDUCTION) -> tuple[Estimate, str]:
    """Compiles a program for devices that are not here.

    Args:
      target: the devices; the caller is inside of its ``compiling()``.
      lowered: ``jitted.lower(...)``.
      reduction: names of the functions whose kernels are the reduction.

    Returns:
      What the program needs of a device, and its optimized text.

    Raises:
      RejectedError: if the compiler rejects the program.
    """
    began = time.perf_counter()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        raise RejectedError(f"{target.name!r}: {_rejected(str(error))}") from None
    seconds = time.perf_counter() - began
    needs = estimate(compiled, target.kind, num_hosts=target.num_hosts, seconds=seconds, reduction=reduction)
    return needs, compiled.as_text()


def estimate(
    compiled: Any, kind: Kind, *, num_hosts: int = 1, seconds: float = 0.0, reduction: Set[str] = REDUCTION
) -> Estimate:
    """Analyses a compiled program.

    Args:
      compiled: ``jitted.lower(...).compile()``.
      kind: the kind of its devices.
      num_hosts: the hosts of the devices; with several, bytes go over the network of ``kind`` if it has one.
      seconds: how long it took to compile.
      reduction: names of the functions whose kernels are the reduction.
    """
    memory = compiled.memory_analysis()
    parsed = program.read(compiled.as_text())
    kernels = parsed.kernels()
    costs = [cost(kernel, kind) for kernel in kernels]
    is_of_reduction = [any(name.rpartition(".")[2] in reduction for name, _ in k.sources) for k in kernels]
    sent = collectives(parsed)
    least = sum(c.seconds for c in costs)
    moved, flops, times = (sum(getattr(c, name) for c in costs) for name in ("bytes", "flops", "times"))
    return Estimate(
        arguments=memory.argument_size_in_bytes,
        reused=memory.alias_size_in_bytes,
        results=memory.output_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        program_bytes=memory.generated_code_size_in_bytes,
        compile_seconds=seconds,
        collectives=sent,
        longest_chain=parsed.longest_chain(),
        kernels=times,
        memory_bytes=moved,
        flops=flops,
        least_seconds=least,
        bounds=dict(zip(BOUNDS, (moved / kind.bandwidth, flops / kind.flops, times * kind.launch), strict=True)),
        link_seconds=link_seconds(parsed, kind, num_hosts=num_hosts),
        reduction=sum(c.seconds for c in itertools.compress(costs, is_of_reduction)) / least if least else 0.0,
        unknown_loops=parsed.loops_of_unknown_length(),
        dearest=sorted(costs, key=lambda c: -c.seconds)[:_DEAREST],
    )


def cost(kernel: Kernel, kind: Kind) -> Cost:
    """Returns a kernel's cost on a kind of device."""
    moved = kernel.read + kernel.written
    seconds = max(moved / kind.bandwidth, kernel.flops / kind.flops) + kind.launch
    times = kernel.times
    return Cost(times * seconds, times * moved, times * kernel.flops, times, kernel.name, source(kernel))


def collectives(parsed: Program) -> dict[str, list[float]]:
    """Returns kind -> [count, bytes that a device sends], of one call."""
    found: dict[str, list[float]] = {}
    for one in parsed.collectives():
        count, sent = found.get(one.kind, [0, 0.0])
        found[one.kind] = [count + one.times, sent + one.times * one.num_bytes]
    return found


def link_seconds(parsed: Program, kind: Kind, *, num_hosts: int = 1) -> float:
    """Returns the seconds that the bytes of collectives take over links of this kind.

    Args:
      parsed: the program.
      kind: the kind of its devices; if they have a network, bytes of a group with devices of several hosts go over it.
      num_hosts: hosts with as many devices each, one after the other.
    """

    def speed(found: Collective) -> float:
        hosts = found.groups * num_hosts // parsed.num_devices
        return kind.link if (hosts == hosts[:, :1]).all() else min(kind.link, kind.network)

    return sum(found.times * found.num_bytes / speed(found) for found in parsed.collectives())


def source(kernel: Kernel) -> str:
    """Returns a kernel's operation, and the innermost function that is no library's, with its file and line.

    >>> source(Kernel("fusion.1", "fusion", 1, 0, 0, 0, "", "jit(step)/shard_map/jvp(MLP)/dot_general", ()))
    'jvp(MLP)/dot_general'
    """
    operation = re.sub(r"^(jit\(\w+\)|pmap\(\w+\)|shard_map|while|body|closed_call|/)*", "", kernel.operation)[-_SHOWN:]
    own = [frame for frame in kernel.sources if "site-packages" not in frame[1] and not frame[1].startswith("<")]
    if not own:
        return operation or "a copy of the compiler's own"
    function, place = own[-1]
    path, _, line = place.rpartition(":")
    shown = pathlib.Path(path)
    shown = shown.relative_to(_ROOT) if shown.is_relative_to(_ROOT) else pathlib.Path(shown.name)
    return f"{operation}, {function.replace('.<locals>', '')} ({shown}:{line})"


def largest_array(text: str) -> str:
    """Returns the largest array of a program and where it comes from, for the line that says that it does not fit."""
    kernel = max(program.read(text).kernels(), key=lambda kernel: program.num_bytes(kernel.result))
    arrays = re.findall(r"[a-z]\w*\[[\d,]*\]", kernel.result)
    largest = max(arrays, key=program.num_bytes, default=kernel.result)
    return f"{largest} of {program.num_bytes(kernel.result) / 1e9:.2f} GB, of {source(kernel)}"


def _rejected(message: str) -> str:
    """Returns the one line of a compiler's message that says what is wrong: for memory, the largest array."""
    used = re.search(r"Used ([\d.]+\w) of ([\d.]+\w) hbm", message)
    array = re.search(r"Shape: (\S+?)[{\s]", message)
    operator = re.search(r'op_name="([^"]*)"', message)
    if used:
        of = f" of {operator[1]}" if operator else ""
        what = f"; the largest array is {array[1]}{of}" if array else ""
        return f"does not fit: {used[1]} of {used[2]}{what}"
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return f"its compiler says: {lines[0][:300]}"
