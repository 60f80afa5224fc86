"""Which devices a collective of an optimized program connects."""

import re

import numpy as np


def groups(kind: str, attributes: str, *, num_devices: int) -> np.ndarray:
    """Returns the groups of devices that communicate, [groups, size]; of a permutation, who sends to whom, [pairs, 2].

    XLA writes ``{{0,1},{2,3}}``, ``[2,4]<=[8]`` or ``mesh['a'=2,'b'=4] {'b'}``. A list of numbers may have an order of
    its own, ``[4,2]<=[2,4]T(1,0)``; so may a mesh, ``mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}``.

    Args:
      kind: of the collective.
      attributes: the attributes of an instruction.
      num_devices: of the program.

    Raises:
      ValueError: for groups that cannot be read.

    >>> groups("all-reduce", "replica_groups=[2,2]<=[2,2]T(1,0), to_apply=%add", num_devices=4).tolist()
    [[0, 2], [1, 3]]
    >>> groups("all-reduce", "replica_groups=mesh['a'=2,'b'=2] {'b'}", num_devices=4).tolist()
    [[0, 1], [2, 3]]
    """
    if kind == "collective-permute":
        if not (match := re.search(r"source_target_pairs=\{(.*?)\}(?:, \w+=|$)", attributes)):
            raise ValueError(f"source_target_pairs of {attributes}: cannot be read")
        return np.array(re.findall(r"\{(\d+),(\d+)\}", match[1]), int).reshape(-1, 2)
    match = re.search(r"replica_groups=(.*?)(?:, (?!device_ids=)\w+=|$)", attributes)
    found = match[1] if match else "{}"
    if found == "{}":
        return np.arange(num_devices)[None]
    if listed := re.fullmatch(r"\{(\{[\d,]+\}(?:,\{[\d,]+\})*)\}", found):
        return np.array([[int(device) for device in group.split(",")] for group in listed[1][1:-1].split("},{")])
    if iota := re.match(r"\[(\d+),(\d+)\]<=(\[.*)", found):
        return _devices(iota[3]).reshape(int(iota[1]), int(iota[2]))
    if mesh := re.fullmatch(r"mesh\[(.*?)\](?:, device_ids=\((.*)\))? \{(.*)\}", found):
        sizes = {axis: int(size) for axis, size in re.findall(r"'([^']+)'=(\d+)", mesh[1])}
        axes = [axis.strip(" '") for axis in mesh[3].split(",")]
        if all(axis in sizes for axis in axes):
            devices = _devices(mesh[2] or f"[{num_devices}]").reshape([*sizes.values()])
            last = np.moveaxis(devices, [[*sizes].index(axis) for axis in axes], range(-len(axes), 0))
            return last.reshape(-1, int(np.prod([sizes[axis] for axis in axes])))
    raise ValueError(f"replica_groups={found}: cannot be read")


def _devices(text: str) -> np.ndarray:
    """Returns the numbers from 0 on in the order of ``[4,2]T(1,0)``: those of an array, transposed."""
    shape, *order = (list(map(int, part.split(","))) for part in re.findall(r"[\[(]([\d,]+)[\])]", text))
    return np.arange(np.prod(shape)).reshape(shape).transpose(*order)
