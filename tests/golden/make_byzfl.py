"""Makes byzfl.npz beside it from ByzFL's own code: `make_byzfl.py`, where byzfl 0.0.11 and torch are installed.

Each case has the workers' rows [n, d], and what the rules, the wrappers and the attacks of ByzFL make of them. The
attacks see all rows as honest. Centred clipping is called three times with other rows, and begins at its last result.
"""

import importlib.util
import pathlib
import sys
import types

import numpy as np

SIZE = 12
CASES = [(5, 1.0), (8, 1e-3), (8, 1.0), (8, 1e3), (25, 1.0)]  # workers, and a factor of all numbers


def library():
    """ByzFL's aggregators and attacks alone: the package would import torchvision."""
    package = types.ModuleType("byzfl")
    package.__path__ = importlib.util.find_spec("byzfl").submodule_search_locations
    sys.modules["byzfl"] = package
    from byzfl import aggregators
    from byzfl.attacks import attacks

    return aggregators, attacks


def main():
    aggregators, attacks = library()
    found = {}
    for number, (n, scale) in enumerate(CASES):
        rng = np.random.default_rng(number)
        rows = scale * (rng.standard_normal((3, n, SIZE)) + rng.standard_normal(SIZE)).astype(np.float32).astype(
            np.float64
        )
        f = (n - 1) // 3
        clipping = aggregators.CenteredClipping(L=2, tau=2.0 * scale)
        np.random.seed(number)
        order = np.random.permutation(n)
        np.random.seed(number)
        case = {
            "rows": rows,
            "f": f,
            "radius": 2.0 * scale,
            "order": order,
            "coordinate_median": aggregators.Median()(rows[0]),
            "trimmed_mean": aggregators.TrMean(f)(rows[0]),
            "meamed": aggregators.Meamed(f)(rows[0]),
            "centred_clipping": np.stack([clipping(each) for each in rows]),
            "nearest_neighbour_mixing": aggregators.NNM(f)(rows[0]),
            "bucketing": aggregators.Bucketing(2)(rows[0]),
            "little": attacks.ALittleIsEnough()(rows[0]),
            "inner_product": attacks.InnerProductManipulation()(rows[0]),
            "copy": attacks.Mimic()(rows[0]),
        }
        found |= {f"{number}|{name}": value for name, value in case.items()}
    target = pathlib.Path(__file__).with_name("byzfl.npz")
    np.savez_compressed(target, **found)
    print(f"{target.name}: {len(found)} arrays, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
