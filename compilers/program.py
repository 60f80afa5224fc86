"""Reads an optimized program of XLA: its kernels with their bytes and operations, and its collectives.

No device is needed: the program may be compiled for devices that are only described (``compilers.targets``).

An instruction of the entry computation, or of a loop's body, is one kernel of a GPU (one operation of a TPU), unless it
only names or forwards data. It reads its operands and writes its results, each once: of an operand that is only sliced,
the slices; of a result that is an operand with a slice replaced, the slice. An instruction in a loop counts once per
iteration; of a conditional's branches the dearest counts. Where a loop's number of iterations is not known, as where a
call takes "up to K steps", one iteration counts.

Differs from ``compiled.cost_analysis()`` in: iterations of loops, collectives, slices, products in calls of libraries,
and arrays that a TPU keeps on the chip, which cost no memory traffic here.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from compilers.groups import groups
from reducers.traffic import SENT, Traffic

# Kind -> its name in JAX, and the bytes of the operand over those of the result for n devices.
_KINDS: dict[str, tuple[str, Callable[[int], float]]] = {
    "all-reduce": ("psum", lambda n: 1),
    "all-gather": ("all_gather", lambda n: 1 / n),
    "reduce-scatter": ("reduce_scatter", lambda n: n),
    "all-to-all": ("all_to_all", lambda n: 1),
    "collective-permute": ("ppermute", lambda n: 1),
}
_UNKNOWN = {"ragged-all-to-all", "collective-broadcast", "send", "recv"}
# Instructions that are no kernel: they name or forward data, or are the end of one that has begun before.
_FREE = {
    "add-dependency",
    "after-all",
    "bitcast",
    "constant",
    "domain",
    "get-tuple-element",
    "iota",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
}
_ALLOCATES = 'custom_call_target="AllocateBuffer"'  # a TPU's array that is filled later
# A TPU's collective beside other kernels: the fusions that begin it, go on and end it all name it.
_BEGINS, _ENDS = 'custom_call_target="AsyncCollectiveStart"', 'custom_call_target="AsyncCollectiveDone"'
_SLICES = {"slice", "dynamic-slice", "gather"}

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|\w+_computations?)=(\{[^}]*\}|%?[\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


class Instruction(NamedTuple):
    """A line of a program: ``%name = result op(operands), attributes``."""

    name: str
    result: str
    op: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    @property
    def kind(self) -> str:
        """The operation without the suffix of an asynchronous one."""
        return re.sub(r"-(start|done|update)$", "", self.op)

    @property
    def is_end(self) -> bool:
        """Whether it waits for an asynchronous operation that another instruction started."""
        return self.op.endswith(("-done", "-update"))

    @property
    def called(self) -> list[str]:
        """The computations that it runs, but for a loop's condition."""
        return [name for names in _CALLED.findall(self.attributes) for name in re.findall(r"[\w.\-]+", names)]


class Collective(NamedTuple):
    """Operations that communicate, which XLA may have combined.

    Attributes:
      kind: its name in HLO.
      times: how often one call of the program runs it.
      num_bytes: bytes that a device sends each time.
      groups: the devices that communicate, [groups, size]; of a permutation, its pairs.
    """

    kind: str
    times: int
    num_bytes: float
    groups: np.ndarray


class Kernel(NamedTuple):
    """An instruction that a device runs.

    Attributes:
      name: the instruction's name.
      kind: its operation, "fusion" for most.
      times: how often one call of the program runs it.
      read: bytes of memory that it reads each time.
      written: bytes that it writes.
      flops: floating point operations of its products and convolutions.
      result: the types of its results.
      operation: JAX's name of it, "jit(step)/jvp(MLP)/dot_general".
      sources: the functions that asked for it, outermost first: ("map_workers.<locals>.step", "mapping.py:127").
    """

    name: str
    kind: str
    times: int
    read: float
    written: float
    flops: float
    result: str
    operation: str
    sources: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Program:
    """The computations of an optimized program.

    Attributes:
      computations: name -> instructions.
      entry: the name of the computation that a call runs.
      num_devices: the devices that run it together.
      frames: stack frame id -> the functions that asked for an instruction, outermost first.
      has_tiles: whether arrays are padded to tiles and may be kept on the chip, as on TPUs.
    """

    computations: Mapping[str, list[Instruction]]
    entry: str
    num_devices: int
    frames: Mapping[str, tuple[tuple[str, str], ...]]
    has_tiles: bool

    @functools.cached_property
    def _by_name(self) -> dict[str, dict[str, Instruction]]:
        return {name: {i.name: i for i in body} for name, body in self.computations.items()}

    @functools.cached_property
    def _uses(self) -> dict[str, dict[str, list[Instruction]]]:
        """Computation -> value -> the instructions that have it as an operand, each once."""
        uses: dict[str, dict[str, list[Instruction]]] = {}
        for computation, body in self.computations.items():
            of_values = uses.setdefault(computation, {})
            for i in body:
                for name in dict.fromkeys(i.operands):
                    of_values.setdefault(name, []).append(i)
        return uses

    @functools.cached_property
    def _types(self) -> dict[str, dict[str, str]]:
        return {name: {i.name: i.result for i in body} for name, body in self.computations.items()}

    # ---- kernels ----

    def kernels(self) -> list[Kernel]:
        """Returns the kernels of one call of the program, those of a loop's body with their number of iterations."""
        return self._kernels(self.entry, 1)

    def loops_of_unknown_length(self) -> int:
        """Returns the number of loops of which one iteration counts."""
        found = ((name, i) for name in self._running for i in self.computations[name] if i.op == "while")
        return sum(self._trips(name, loop) is None for name, loop in found)

    def _trips(self, computation: str, loop: Instruction) -> int | None:
        """Returns how many iterations a loop has, or None.

        The compiler of GPUs writes it down, that of TPUs does not: then it is known where a counter starts at a
        constant, each iteration adds a constant, and the loop goes on while the counter is less than a constant.
        """
        if known := _TRIPS.search(loop.attributes):
            return int(known[1])
        names = re.search(r"condition=%?([\w.\-]+), body=%?([\w.\-]+)", loop.attributes)
        if names is None or not set(names.groups()) <= self.computations.keys():
            return None
        condition, body = names.groups()
        compare, after = self._root(condition), self._root(body)
        before = self._value(computation, loop.operands[0])
        if compare.op != "compare" or "direction=LT" not in compare.attributes or {before.op, after.op} != {"tuple"}:
            return None
        counter = re.search(r"index=(\d+)", self._value(condition, compare.operands[0]).attributes)
        if counter is None:
            return None
        k = int(counter[1])
        add = self._value(body, after.operands[k])
        start, end = self._constant(computation, before.operands[k]), self._constant(condition, compare.operands[1])
        if add.op != "add" or start is None or end is None:
            return None
        added = [self._value(body, name) for name in add.operands]
        is_counter = [i.op == "get-tuple-element" and f"index={k}" in re.split(r"[ ,]+", i.attributes) for i in added]
        steps = [self._constant(body, name) for name in add.operands]
        step = steps[1] if is_counter[0] else steps[0] if is_counter[1] else None
        return max(0, -((start - end) // step)) if step else None

    def _root(self, computation: str) -> Instruction:
        return next(i for i in self.computations[computation] if i.is_root)

    def _value(self, computation: str, name: str) -> Instruction:
        """Returns the instruction that computes a value, before copies of it."""
        i = self._by_name[computation][name]
        while i.op in ("copy", "bitcast"):
            i = self._by_name[computation][i.operands[0]]
        return i

    def _constant(self, computation: str, name: str) -> int | None:
        i = self._value(computation, name)
        is_number = i.op == "constant" and re.fullmatch(r"-?\d+", i.operands[0])
        return int(i.operands[0]) if is_number else None

    @functools.cached_property
    def _running(self) -> set[str]:
        """The computations whose instructions are kernels: the entry, loops, branches, calls."""
        running, waiting = set(), [self.entry]
        while waiting:
            name = waiting.pop()
            running.add(name)
            for i in self.computations[name]:
                if i.op in ("while", "call", "conditional", "async-start"):
                    waiting += [called for called in i.called if called in self.computations and called not in running]
        return running

    def _kernels(self, computation: str, times: int) -> list[Kernel]:
        found: list[Kernel] = []
        for i in self.computations[computation]:
            if i.op in ("while", "call", "async-start"):
                trips = (self._trips(computation, i) or 1) if i.op == "while" else 1
                for name in i.called:
                    found += self._kernels(name, times * trips) if name in self._running else []
            elif i.op == "conditional":
                branches = [self._kernels(name, times) for name in i.called if name in self._running]
                found += max(branches, key=_total_bytes) if branches else []
            elif i.kind not in _FREE and not i.is_end and _ALLOCATES not in i.attributes:
                found.append(self._kernel(i, computation, times))
        return found

    def _kernel(self, i: Instruction, computation: str, times: int) -> Kernel:
        types = self._types[computation]

        def size(names, **which):
            return sum(self._in_memory(types.get(name, ""), **which) for name in names)

        if i.op == "fusion":
            read, written, flops = self._fused(i, types)
        else:
            own = set(i.operands)  # an array that is given twice is read once
            read, written, flops = size(own), self._in_memory(_without_scratch(i)), _flops(i, types)
            if i.op == "dynamic-update-slice":
                _, update, *_ = i.operands
                read, written = size([update]), min(written, size([update], or_on_chip=True))
            elif i.op.endswith("-start") and i.kind != "all-reduce":  # its result names its operands as well
                written = max(0.0, written - read)
            if i.kind in _SLICES:
                again = size(own, or_on_chip=True) if i.op.endswith("-start") else 0.0
                arrays = re.sub(r"\w+\[\]\S*", "", i.result)  # without the flag that says when it is done
                read = min(read, self._in_memory(arrays, or_on_chip=True) - again)
        named = re.search(r'op_name="([^"]*)"', i.attributes)
        operation = named[1] if named else ""
        return Kernel(i.name, i.kind, times, read, written, flops, i.result, operation, self.sources(i))

    def _fused(self, fusion: Instruction, types: Mapping[str, str]) -> tuple[float, float, float]:
        """Returns the bytes read and written, and the operations, of a fusion."""
        (computation,) = fusion.called
        reads: dict[str, float] = {}  # of each array; one that is given twice is read once
        for i, outside in zip(self._parameters(computation), fusion.operands, strict=False):
            whole = self._in_memory(types.get(outside, i.result))
            reads[outside] = min(whole, reads.get(outside, 0.0) + self._read(computation, i.name, whole))
        read = sum(reads.values())
        written = self._written(computation, self._root(computation), fusion.result)
        return read, written, self._flops_inside(computation)

    def _parameters(self, computation: str) -> list[Instruction]:
        found = (i for i in self.computations[computation] if i.op == "parameter")
        return sorted(found, key=lambda i: int(i.attributes or 0))

    def _read(self, computation: str, name: str, whole: float) -> float:
        """Returns the bytes that a fused computation reads of one of its values, which has ``whole`` bytes."""
        read = 0.0
        for user in self._uses[computation].get(name, ()):
            if user.op in ("bitcast", "reshape") and not user.is_root:
                read += self._read(computation, user.name, whole)
            elif user.op in _SLICES and user.operands[0] == name:
                read += self._in_memory(user.result, or_on_chip=True)
            elif user.op == "fusion":
                (inner,) = user.called
                pairs = zip(self._parameters(inner), user.operands, strict=False)
                read += sum(self._read(inner, i.name, whole) for i, outside in pairs if outside == name)
            elif not self._goes_on(computation, user) and (user.op, user.operands[0]) != ("dynamic-update-slice", name):
                return whole
        return min(read, whole)

    def _written(self, computation: str, i: Instruction, result: str) -> float:
        """Returns the bytes that a fused computation writes for one of its results, of type ``result``."""
        by_name = self._by_name[computation]
        if i.op == "tuple":
            return sum(self._written(computation, by_name[name], by_name[name].result) for name in i.operands)
        if self._goes_on(computation, i):
            return 0.0
        replaced, whole = 0.0, self._in_memory(result)
        while i.op in ("bitcast", "dynamic-update-slice"):
            if i.op == "dynamic-update-slice":
                replaced += self._in_memory(by_name[i.operands[1]].result, or_on_chip=True)
            i = by_name[i.operands[0]]
        is_in_place = i.op == "parameter" or _ALLOCATES in i.attributes
        return min(replaced, whole) if replaced and is_in_place else whole

    def _flops_inside(self, computation: str) -> float:
        nested = (name for i in self.computations[computation] if i.op == "fusion" for name in i.called)
        own = sum(_flops(i, self._types[computation]) for i in self.computations[computation])
        return own + sum(map(self._flops_inside, nested))

    def _in_memory(self, types: str, *, or_on_chip: bool = False) -> float:
        """Returns the bytes that arrays of these types take in a device's memory, with the padding of tiles."""
        return num_bytes(types, in_tiles=self.has_tiles, on_chip=or_on_chip or not self.has_tiles)

    # ---- where a kernel comes from ----

    def sources(self, i: Instruction) -> tuple[tuple[str, str], ...]:
        """Returns the functions that asked for an instruction, outermost first, each with its file and line."""
        found = re.search(r"stack_frame_id=(\d+)", i.attributes)
        if not found and (calls := re.search(r"calls=%?([\w.\-]+)", i.attributes)):
            inner = (re.search(r"stack_frame_id=(\d+)", x.attributes) for x in self.computations.get(calls[1], ()))
            found = next((x for x in inner if x), None)
        return self.frames.get(found[1], ()) if found else ()

    # ---- collectives ----

    def traffic(self) -> Traffic:
        """Counts the bytes that one device sends in one call, by the formulas of ``reducers.traffic``.

        A permutation in which some devices send nothing counts by the mean over all devices. Operations that XLA has
        combined count once, whatever the number of their operands; those in a conditional count in all its branches.

        Returns:
          The traffic. Its kinds have their names in HLO, and ``bytes_per_worker`` are the bytes of a device with all
          its lanes.

        Raises:
          ValueError: for a collective that cannot be read, so that none is missed.
        """
        count: Counter[str] = Counter()
        for found in (sent := self.collectives(must_know_trips=True)):
            count[found.kind] += found.times
        return Traffic(sum(found.times * found.num_bytes for found in sent), dict(count))

    def collectives(self, *, must_know_trips: bool = False) -> list[Collective]:
        """Returns the collectives of one call.

        Args:
          must_know_trips: whether a loop of unknown length is refused, or counts once.
        """
        return list(self._collectives(self.entry, 1, must_know_trips))

    def _collectives(self, computation: str, times: int, must_know_trips: bool) -> Iterator[Collective]:
        body = self.computations[computation]
        started = {i.name: i for i in body if i.op.endswith("-start")}
        for i in body:
            if i.kind in _UNKNOWN:
                raise ValueError(f"a collective of unknown kind: {i.name} = {i.op}")
            if i.kind in _KINDS:
                if i.op.endswith("-start"):
                    continue  # its groups are here, its result is that of the end
                begun = started[i.operands[0]] if i.is_end else i
                connected = groups(i.kind, begun.attributes, num_devices=self.num_devices)
                kind, result = self._done(computation, i)
                yield Collective(kind, times, self._sent(kind, result, connected), connected)
            elif any(self._communicates(name) for name in i.called):
                trips = self._trips(computation, i) if i.op == "while" else 1
                if trips is None and must_know_trips:
                    raise ValueError(f"{i.name}: a loop with collectives whose number of iterations is not known")
                for name in filter(self.computations.__contains__, i.called):
                    yield from self._collectives(name, times * (trips or 1), must_know_trips)

    def _done(self, computation: str, i: Instruction) -> tuple[str, str]:
        """Returns the kind of a collective, and the type of its result; a fusion may cut a part out of a sum."""
        if i.kind == "all-reduce" and computation not in self._running:
            root = self._root(computation)
            if root.op == "dynamic-slice" and self._value(computation, root.operands[0]) == i:
                return "reduce-scatter", root.result
        return i.kind, i.result

    @functools.cached_property
    def _steps(self) -> set[str]:
        """The fusions of a TPU that go on with a collective, or end it, which another one began."""
        named = {
            computation
            for computation, body in self.computations.items()
            if any(i.kind in _KINDS and "chain_id=" in i.attributes for i in body)
        }
        return {name for name in named if not any(_BEGINS in i.attributes for i in self.computations[name])}

    def _goes_on(self, computation: str, i: Instruction) -> bool:
        """Returns whether an instruction only hands a collective on to the fusion after this one."""
        hands_on = i.kind in _KINDS or i.op in ("parameter", "tuple") or _ENDS in i.attributes
        return hands_on and computation in self._steps

    def _communicates(self, computation: str) -> bool:
        body = () if computation in self._steps else self.computations.get(computation, ())
        return any(i.kind in _KINDS or any(map(self._communicates, i.called)) for i in body)

    def _sent(self, kind: str, result: str, connected: np.ndarray) -> float:
        primitive, operand_over_result = _KINDS[kind]
        n = connected.shape[1]
        senders = int((connected[:, 0] != connected[:, 1]).sum()) if kind == "collective-permute" else self.num_devices
        return senders / self.num_devices * SENT[primitive](n) * operand_over_result(n) * num_bytes(result)

    def longest_chain(self) -> int:
        """Returns the most collectives of which each needs a result of the one before it, or must wait for it."""
        return self._chain(self.entry)

    def _chain(self, computation: str) -> int:
        depth: dict[str, int] = {}
        for i in self.computations[computation]:
            own = int(i.kind in _KINDS and not i.is_end)
            if not own and any(map(self._communicates, i.called)):
                trips = (self._trips(computation, i) or 1) if i.op == "while" else 1
                own = trips * max(self._chain(name) for name in i.called if name in self.computations)
            waits = re.search(r"control-predecessors=\{([^}]*)\}", i.attributes)
            before = (*i.operands, *(re.findall(r"[\w.\-]+", waits[1]) if waits else ()))
            depth[i.name] = own + max((depth.get(name, 0) for name in before), default=0)
        return max(depth.values(), default=0)


# ---- reading -----------------------------------------------------------------------------------------------------


def read(text: str) -> Program:
    """Reads an optimized program.

    Args:
      text: ``compiled.as_text()``.

    >>> program = read('''HloModule f, num_partitions=2
    ...
    ... ENTRY %main (p: f32[8,4]) -> f32[8,4] {
    ...   %p = f32[8,4]{1,0} parameter(0)
    ...   ROOT %sum = f32[8,4]{1,0} all-reduce(%p), replica_groups={{0,1}}, to_apply=%add
    ... }''')
    >>> program.traffic()
    Traffic(bytes_per_worker=128.0, collectives={'all-reduce': 1})
    >>> [(kernel.name, kernel.read, kernel.written) for kernel in program.kernels()]
    [('sum', 128.0, 128.0)]
    """
    computations: dict[str, list[Instruction]] = {}
    entry = ""
    body: list[Instruction] = []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            body = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif (found := _INSTRUCTION.match(line)) and (instruction := _instruction(found)):
            body.append(instruction)
    # A collective without groups is of all devices.
    devices = re.findall(r"\b(?:replica_count|num_partitions)=(\d+)", text.partition("\n")[0])
    return Program(computations, entry, math.prod(map(int, devices)), _frames(text), ":T(" in text)


def _instruction(found: re.Match) -> Instruction | None:
    """Splits ``result op(operands), attributes``; a result may be a tuple, and comments and texts may hold any word."""
    rest = re.sub(r"/\*.*?\*/", "", found[3])
    end = _closing(rest) + 1 if rest.startswith("(") else rest.find(" ")
    called = re.match(r"\s*([\w\-]+)\(", rest[end:])
    if not called:
        return None
    inside = rest[end + called.end() - 1 :]
    close = _closing(inside)
    operands = tuple(word.split()[-1].removeprefix("%") for word in _split(inside[1:close]))
    attributes = inside[close + 1 :]
    if called[1] == "parameter":
        return Instruction(found[2], rest[:end], "parameter", (), inside[1:close], bool(found[1]))
    return Instruction(found[2], rest[:end], called[1], operands, attributes, bool(found[1]))


def _closing(text: str) -> int:
    """Returns the index of the bracket that closes the first one."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter in "({") - (letter in ")}")
        if depth == 0:
            return i
    return len(text)


def _split(text: str) -> list[str]:
    """Splits operands at commas outside of brackets: older programs write each with its type.

    >>> _split("f32[2,3]{1,0} %a, (f32[], s32[]) %b")
    ['f32[2,3]{1,0} %a', '(f32[], s32[]) %b']
    """
    if not re.search(r"[(\[{]", text):  # most programs write names alone, and large ones have long lists of them
        return [part for word in text.split(",") if (part := word.strip())]
    depth = list(itertools.accumulate((c in "([{") - (c in ")]}") for c in text))
    cuts = [-1, *(i for i, c in enumerate(text) if c == "," and depth[i] == 0), len(text)]
    return [part for a, b in itertools.pairwise(cuts) if (part := text[a + 1 : b].strip())]


def _frames(text: str) -> dict[str, tuple[tuple[str, str], ...]]:
    """Reads the tables of files, functions and stack frames that stand before the computations."""
    head = text[: text.find("\n\n%")] if "\n\n%" in text else text
    table = {
        title: dict(re.findall(r"^(\d+) (.*)$", rows, re.MULTILINE))
        for title, rows in re.findall(
            r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n((?:\d+ .*\n)+)", head, re.MULTILINE
        )
    }
    if len(table) < 4:
        return {}
    fields = lambda row: {key: value for key, value in re.findall(r"(\w+)=(\d+)", row)}  # noqa: E731
    places = {}
    for key, row in table["FileLocations"].items():
        at = fields(row)
        file = table["FileNames"].get(at["file_name_id"], "").strip('"')
        places[key] = table["FunctionNames"].get(at["function_name_id"], "").strip('"'), f"{file}:{at['line']}"
    rows = {key: fields(row) for key, row in table["StackFrames"].items()}
    shift = int(rows.get("1", {}).get("parent_frame_id") == "1")  # some releases write a parent's id plus one
    found: dict[str, tuple[tuple[str, str], ...]] = {}
    for key, row in rows.items():
        parent = str(int(row.get("parent_frame_id", 0)) - shift)
        found[key] = (*found.get(parent, ()), places.get(row["file_location_id"], ("", "")))
    return found


# ---- arithmetic --------------------------------------------------------------------------------------------------


def num_bytes(types: str, *, in_tiles: bool = False, on_chip: bool = True) -> float:
    """Returns the bytes of a type such as ``f32[300,70]{1,0}``, or of all types in a tuple.

    Args:
      types: the type, or the tuple.
      in_tiles: whether they are padded to the tiles of their layouts.
      on_chip: whether arrays that are kept on a TPU's chip count.
    """
    total = 0.0
    for dtype, shape, layout in _ARRAY.findall(types):
        if on_chip or "S(" not in layout:
            sizes = _numbers(shape)
            total += _width(dtype) * math.prod(_padded(sizes, layout) if in_tiles else sizes)
    return total


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def _width(dtype: str) -> float:
    bits = re.match(r"[a-z]+(\d+)", dtype)
    return int(bits[1]) / 8 if bits else {"pred": 1, "token": 0}.get(dtype, 0)


def _padded(sizes: list[int], layout: str) -> list[int]:
    """Pads an array's most minor dimensions to its first tile: ``1,0:T(8,128)``."""
    order, _, tiles = layout.partition(":")
    tile = re.match(r"T\(([\d,]+)\)", tiles)
    if not tile or not order:
        return sizes
    padded = list(sizes)
    for axis, size in zip(map(int, order.split(",")), reversed(tile[1].split(",")), strict=False):
        padded[axis] = -(-padded[axis] // int(size)) * int(size)
    return padded


def _total_bytes(kernels: Iterable[Kernel]) -> float:
    return sum(kernel.times * (kernel.read + kernel.written) for kernel in kernels)


def _without_scratch(i: Instruction) -> str:
    """Returns the types of an instruction's results, without the memory that a call of cuBLAS or cuDNN works in."""
    if re.search(r'custom_call_target="__(cublas|cudnn)', i.attributes) and i.result.startswith("("):
        return "".join(f"{array[0]} " for array in list(_ARRAY.finditer(i.result))[:-1])
    return i.result


def _shape(types: str) -> list[int]:
    found = _ARRAY.search(types)
    return _numbers(found[2]) if found else []


def _flops(i: Instruction, types: Mapping[str, str]) -> float:
    """Returns the floating point operations of a product or convolution, two for each multiplication; else 0."""
    if i.op == "dot":
        over = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", i.attributes)
        return _product(i, types, over[1] if over else "")
    if i.op == "convolution":
        return _convolution(i, _shape(types.get(i.operands[0], "")), _shape(types.get(i.operands[1], "")))
    if i.op == "custom-call" and "__cublas" in i.attributes:
        over = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', i.attributes)
        return _product(i, types, over[1].replace('"', "") if over else "")
    if i.op == "custom-call" and "__cudnn$conv" in i.attributes:
        return _library_convolution(i, types)
    return 0


def _product(i: Instruction, types: Mapping[str, str], over: str) -> float:
    left = _shape(types.get(i.operands[0], ""))
    inner = math.prod(left[axis] for axis in _numbers(over)) if left else 0
    return 2.0 * inner * math.prod(_shape(i.result))


def _convolution(i: Instruction, image: list[int], kernel: list[int]) -> float:
    """Counts the multiplications whose two factors are there: neither in the padding nor in a dilation's gaps."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", i.attributes)
    if not labels or not image or not kernel:
        return 0
    result = dict(zip(labels[3], _shape(i.result), strict=False))
    of_image, of_kernel = dict(zip(labels[1], image, strict=False)), dict(zip(labels[2], kernel, strict=False))
    window = re.search(r"window=\{([^}]*)\}", i.attributes)
    given = dict(word.split("=") for word in window[1].split()) if window else {}
    total = 2.0 * result["b"] * result["f"] * of_kernel["i"]
    for axis in sorted(label for label in of_kernel if label.isdigit()):
        k = int(axis)
        option = lambda name, default, k=k: given[name].split("x")[k] if name in given else default  # noqa: E731
        low = int(option("pad", "0_0").split("_")[0])
        numbers = [int(option(name, "1")) for name in ("stride", "lhs_dilate", "rhs_dilate")]
        total *= _positions(of_image[axis], of_kernel[axis], result[axis], low, *numbers)
    return total


@functools.lru_cache(maxsize=4096)
def _positions(image: int, kernel: int, result: int, low: int, stride: int, dilate: int, kernel_dilate: int) -> int:
    """Returns how many (result, kernel) positions of one axis meet an element of the image."""
    extent = (image - 1) * dilate + 1
    found = 0
    for k in range(kernel):
        first = k * kernel_dilate - low
        if dilate == 1:
            least, most = max(0, -(first // stride)), min(result - 1, (extent - 1 - first) // stride)
            found += max(0, most - least + 1)
        else:
            at = range(first, first + result * stride, stride)
            found += sum(0 <= x < extent and x % dilate == 0 for x in at)
    return found


def _library_convolution(i: Instruction, types: Mapping[str, str]) -> float:
    """Counts a convolution of cuDNN, forward or backward, without regard to padding."""
    labels = re.search(r"dim_labels=\w+_(\w+)->\w+", i.attributes)
    first, second = (_shape(types.get(name, "")) for name in i.operands[:2])
    result = _shape(i.result)
    kernel, image = (result, second) if "BackwardFilter" in i.attributes else (second, result)
    image = first if "BackwardInput" in i.attributes else image
    if not labels or not kernel:
        return 0
    return 2.0 * math.prod(image) * math.prod(kernel) / kernel[labels[1].index("o")]
