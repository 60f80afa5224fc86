"""The Gram family in float64 NumPy, on the gradients themselves, [n, m] -> [m]; by other algorithms where there are."""

import itertools

import numpy as np


def _norms(g):
    return np.linalg.norm(g, axis=1)


def krum(g, *, byzantine=1, selected=1):
    n = len(g)
    near = max(1, n - byzantine - 2)
    sums = [np.sort([np.square(g[i] - g[j]).sum() for j in range(n) if j != i])[:near].sum() for i in range(n)]
    best = np.argsort(sums, kind="stable")
    return g[best[: max(1, n - byzantine) if selected is None else selected]].mean(0)


def geometric_median(g, *, steps=20_000):
    """A point that is one; else Weiszfeld's iteration from zero, which decides where any between two points is one."""
    scale = _norms(g).max() or 1
    points, z = g / scale, np.zeros_like(g[0])
    for point in points:
        away = points - point
        far = _norms(away) > 1e-12
        if np.linalg.norm((away[far] / _norms(away[far])[:, None]).sum(0)) < (~far).sum() - 1e-9:
            return scale * point
    for _ in range(steps):
        weights = 1 / np.maximum(_norms(points - z), 1e-12)
        after = weights @ points / weights.sum()
        if np.abs(after - z).max() < 1e-15:
            break
        z = after
    return scale * z


def pcgrad(g, *, order=None):
    result = np.zeros_like(g[0])
    for i in range(len(g)):
        p = g[i].copy()
        for j in range(len(g)) if order is None else order[i]:
            if j != i and p @ g[j] < 0:
                p -= p @ g[j] / (g[j] @ g[j]) * g[j]
        result += p / len(g)
    return result


def mgda(g):
    """The shortest convex combination: the best of all sets of workers, on whose hull it is a stationary point."""
    scale = _norms(g).max() or 1
    gram = (g / scale) @ (g / scale).T
    best, length = None, np.inf
    for count in range(1, len(g) + 1):
        for chosen in map(list, itertools.combinations(range(len(g)), count)):
            system = np.ones((count + 1, count + 1))
            system[:-1, :-1], system[-1, -1] = gram[np.ix_(chosen, chosen)], 0
            weights = np.linalg.lstsq(system, np.eye(count + 1)[-1], rcond=None)[0][:-1]
            if weights.min() < -1e-12 or abs(weights.sum() - 1) > 1e-9:
                continue
            found = weights @ g[chosen]
            if np.linalg.norm(found / scale) < length - 1e-13:
                best, length = found, np.linalg.norm(found / scale)
    return best


def upgrad(g, *, sweeps=20_000):
    """Projections by Hildreth's iteration on the gradients: each is moved out of the half-spaces it must not be in."""
    scale = _norms(g).max() or 1
    rows = g / scale
    result = np.zeros_like(g[0])
    for x in rows:
        multipliers, y = np.zeros(len(g)), x.copy()
        for _ in range(sweeps):
            before = y.copy()
            for j, row in enumerate(rows):
                if square := row @ row:
                    change = max(-multipliers[j], -(y @ row) / square)
                    multipliers[j] += change
                    y += change * row
            if np.abs(y - before).max() < 1e-15:
                break
        result += y / len(g)
    return scale * result


def radial_directional(g):
    norms = _norms(g)
    total = (g / np.where(norms == 0, 1, norms)[:, None]).sum(0)
    return norms.mean() * total / (np.linalg.norm(total) or 1)


def agreement_scaled_mean(g):
    mean = g.mean(0)
    square = np.square(_norms(g / (_norms(g).max() or 1))).mean()
    of_mean = np.square(np.linalg.norm(mean / (_norms(g).max() or 1)))
    return min(len(g), square / of_mean if of_mean else 1) * mean
