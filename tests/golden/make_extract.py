"""Makes horovod_adasum.npz beside it from the full file of Horovod's outputs: `make_extract.py FULL_FILE`.

An array costs a kilobyte in an archive, so all arrays of a dtype are kept as one, with an index of where each lies.
"""

import json
import math
import pathlib
import sys

import numpy as np

# Cases up to so many elements, by dtype; float64 weighs most and has the same cases as float32.
_MAX_ELEMENTS = {"float16": 100, "float32": 100, "float64": 64}
_LARGE = {("random_s1000", "float32"), ("random_s255", "float64"), ("random_s1000", "float16")}
_TREES = {("tree_random", 2), ("tree_geometry", 2), ("tree_geometry", 4)}


def keys_to_keep(manifest):
    """Yields the keys of the extract, and which cases, trees and trajectories they are, as a manifest has them."""
    kept = {"cases": [], "trees": [], "traj": [], "made_with": manifest["made_with"]}
    for n, name, dtype, shape in manifest["cases"]:
        beyond_double = name.startswith("f64_") and not name.endswith(("1e-70", "_1e-76", "1e155"))
        small = math.prod(shape) <= _MAX_ELEMENTS[dtype] and not beyond_double
        if small or (name, dtype) in _LARGE:
            kept["cases"].append([n, name, dtype, shape])
    kept["trees"] = [tree for tree in manifest["trees"] if (tree[1], tree[0]) in _TREES and tree[2] == "float32"]
    kept["traj"] = [[problem, n, tag] for problem, n, tag in manifest["traj"] if problem == "main"]
    keys = [f"case|{n}|{name}|{dtype}|{end}" for n, name, dtype, _ in kept["cases"] for end in ("in", "out")]
    for n, name, dtype, leaves in kept["trees"]:
        keys += [f"tree|{n}|{name}|{dtype}|{leaf}|in" for leaf in leaves if leaf != "__concat__"]
        keys += [f"tree|{n}|{name}|{dtype}|{leaf}|out" for leaf in leaves]
    keys += [f"traj|main|{name}" for name in ("X", "Y", "W0", "b0")]
    keys += [f"traj|main|{n}|{tag}|{name}" for _, n, tag in kept["traj"] for name in ("W", "b")]
    return keys, kept


def main(full_file):
    full = np.load(full_file)
    keys, kept = keys_to_keep(json.loads(str(full["manifest"])))
    flat, index, used = {}, {}, {}
    for key in keys:
        array = full[key]
        dtype = array.dtype.name
        index[key] = (dtype, used.get(dtype, 0), array.shape)
        used[dtype] = used.get(dtype, 0) + array.size
        flat.setdefault(dtype, []).append(array.ravel())
    text = json.dumps({"index": index, **kept}, separators=(",", ":")).encode()
    arrays = {dtype: np.concatenate(parts) for dtype, parts in flat.items()}
    target = pathlib.Path(__file__).with_name("horovod_adasum.npz")
    np.savez_compressed(target, index=np.frombuffer(text, np.uint8), **arrays)
    print(f"{target.name}: {len(keys)} arrays, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
