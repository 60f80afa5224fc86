"""Reads the collectives of a compiled program and their bytes in its optimized HLO; the operations of a lowered one."""

import math
import re
from collections import Counter
from collections.abc import Iterator

from reducers.traffic import SENT, Traffic

# Kind -> its name in JAX, and the bytes of the operand over those of the result for n devices.
_KINDS = {
    "all-reduce": ("psum", lambda n: 1),
    "all-gather": ("all_gather", lambda n: 1 / n),
    "reduce-scatter": ("reduce_scatter", lambda n: n),
    "all-to-all": ("all_to_all", lambda n: 1),
    "collective-permute": ("ppermute", lambda n: 1),
}
_COLLECTIVE = re.compile(rf"\s({'|'.join(_KINDS)})(-start|-done)?\((.*)")
_UNKNOWN = re.compile(r"\s(ragged-all-to-all|collective-broadcast|send|recv)(-start|-done)?\(")
_COMPUTATION = re.compile(r"(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|\w+_computations?)=(\{[^}]*\}|%?[\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')

Instructions = list[str]


def traffic(text: str) -> Traffic:
    """Counts the bytes that one device sends in one call of a program, by the formulas of ``reducers.traffic``.

    A permutation in which some devices send nothing counts by the mean over all devices.
    Operations that XLA has combined count once, whatever the number of their operands. The operations in a loop count
    once per iteration, those in a conditional in all of its branches.

    Args:
      text: ``compiled.as_text()``.

    Returns:
      The traffic. Its kinds have their names in HLO, and ``bytes_per_worker`` are the bytes of a device with all its
      lanes.

    Raises:
      ValueError: for a collective that cannot be read, so that none is missed.
    """
    computations, entry = _computations(text)
    # A collective without groups is of all devices.
    found = {key: int(number) for key, number in re.findall(r"\b(replica_count|num_partitions)=(\d+)", text)}
    num_devices = math.prod(found.values())
    collectives: Counter[str] = Counter()

    def count(name: str, times: int) -> float:
        sent = 0.0
        for kind, num_bytes in _moved(computations[name], num_devices=num_devices):
            collectives[kind] += times
            sent += times * num_bytes
        for called, trips in _calls(computations[name]):
            if called in computations and _communicates(called, computations):
                if trips is None:
                    raise ValueError(f"{called}: a loop with collectives whose number of iterations is not known")
                sent += count(called, times * trips)
        return sent

    sent = count(entry, 1)
    return Traffic(sent, dict(collectives))


def _computations(text: str) -> tuple[dict[str, Instructions], str]:
    computations: dict[str, Instructions] = {}
    entry = name = ""
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header:
            name = header["name"]
            computations[name] = []
            entry = name if header["entry"] else entry
        elif " = " in line and name:
            # Metadata and comments may hold any word.
            computations[name].append(re.sub(r"/\*.*?\*/", "", line.partition(", metadata=")[0]) + _config(line))
    return computations, entry


def _config(line: str) -> str:
    trips = _TRIPS.search(line)
    return f", {trips[0]}" if trips else ""


def _calls(instructions: Instructions) -> Iterator[tuple[str, int | None]]:
    """Yields the computations that a computation calls, and how often; None where that is not known."""
    for line in instructions:
        trips = _TRIPS.search(line)
        for role, names in _CALLED.findall(line):
            in_loop = role in ("body", "condition")
            for name in re.findall(r"[\w.\-]+", names):
                yield name, (int(trips[1]) if trips else None) if in_loop else 1


def _communicates(name: str, computations: dict[str, Instructions]) -> bool:
    lines = computations.get(name, [])
    return any(_COLLECTIVE.search(line) for line in lines) or any(
        _communicates(called, computations) for called, _ in _calls(lines)
    )


def _moved(instructions: Instructions, *, num_devices: int) -> Iterator[tuple[str, float]]:
    """Yields the kind and the sent bytes of each collective.

    An asynchronous collective has its group in its start instruction and its result in its done instruction.
    """
    started: dict[str, str] = {}
    for line in instructions:
        name, _, right = line.partition(" = ")
        if _UNKNOWN.search(f" {right}"):
            raise ValueError(f"a collective of unknown kind: {line.strip()}")
        match = _COLLECTIVE.search(f" {right}")
        if not match:
            continue
        kind, stage, rest = match.groups()
        if stage == "-start":
            started[name.split()[-1].removeprefix("%")] = rest
            continue
        if stage == "-done":
            rest = next(started[word] for word in re.findall(r"[\w.\-]+", rest) if word in started)
        is_permute = kind == "collective-permute"
        n = 2 if is_permute else _group_size(rest, num_devices=num_devices)
        primitive, operand_over_result = _KINDS[kind]
        share = _share_that_sends(rest, num_devices=num_devices) if is_permute else 1.0
        yield kind, share * SENT[primitive](n) * operand_over_result(n) * _num_bytes(f" {right}"[: match.start()])


def _num_bytes(types: str) -> float:
    """Returns the bytes of a type such as ``f32[300,70]{1,0}``, or of all types in a tuple."""
    total = 0.0
    for dtype, shape in re.findall(r"\b([a-z]\w*)\[([\d,]*)\]", types):
        bits = re.match(r"[a-z]+(\d+)", dtype)
        width = int(bits[1]) / 8 if bits else {"pred": 1, "token": 0}[dtype]
        total += width * math.prod(int(size) for size in shape.split(",") if size)
    return total


def _share_that_sends(attributes: str, *, num_devices: int) -> float:
    """Returns which share of the devices sends to others; 2 of 3 do by ``source_target_pairs={{0,1},{1,2},{2,2}}``."""
    match = re.search(r"source_target_pairs=\{(.*?)\}(?:, \w+=|$)", attributes)
    if not match:
        raise ValueError(f"source_target_pairs of {attributes}: cannot be read")
    pairs = re.findall(r"\{(\d+),(\d+)\}", match[1])
    return sum(source != target for source, target in pairs) / num_devices


def _group_size(attributes: str, *, num_devices: int) -> int:
    """Returns the size of groups such as ``{{0,1},{2,3}}``, ``[2,4]<=[8]`` or ``mesh['a'=2,'b'=4] {'b'}``.

    A mesh may have its devices in an order of their own: ``mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}``.
    """
    match = re.search(r"replica_groups=(.*?)(?:, (?!device_ids=)\w+=|$)", attributes)
    groups = match[1] if match else "{}"
    if groups == "{}":
        return num_devices
    if listed := re.fullmatch(r"\{(\{[\d,]+\}(?:,\{[\d,]+\})*)\}", groups):
        (size,) = {len(group.split(",")) for group in listed[1].split("},{")}
        return size
    if iota := re.match(r"\[\d+,(\d+)\]<=\[", groups):
        return int(iota[1])
    if mesh := re.fullmatch(r"mesh\[(.*?)\](?:, device_ids=\(.*\))? \{(.*)\}", groups):
        sizes = {axis: int(size) for axis, size in re.findall(r"'([^']+)'=(\d+)", mesh[1])}
        axes = mesh[2].split(",")
        if all(axis.strip(" '") in sizes for axis in axes):
            return math.prod(sizes[axis.strip(" '")] for axis in axes)
    raise ValueError(f"replica_groups={groups}: cannot be read")


def operations(program, *, inside: str = "") -> list[tuple[str, bool]]:
    """Returns the operations of a lowered program, in which each call stands for the operations of its function.

    Args:
      program: of ``jitted.lower``.
      inside: the name of an operation.

    Returns:
      The operations' names, each with whether it is inside of an operation with that name.
    """
    module = program.compiler_ir().body
    functions = {op.attributes["sym_name"].value: op for op in module if op.operation.name == "func.func"}

    def walk(op, within):
        name = op.operation.name
        yield name, within
        called = functions[op.attributes["callee"].value] if name == "func.call" else op
        for region in called.regions:
            for block in region:
                for inner in block:
                    yield from walk(inner, within or name == inside)

    return list(walk(functions["main"], False))
