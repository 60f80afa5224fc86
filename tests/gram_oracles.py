"""The Gram family in float64 NumPy, on the gradients themselves, [n, m] -> [m]; by other algorithms where there are."""

import numpy as np
from scipy.optimize import nnls


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
    """With x_i / |g_i| for the weights: least |sum x_i g_i / |g_i||^2 + (sum x_i / |g_i| - 1)^2."""
    lengths = _norms(g)
    if lengths.min() == 0:
        return np.zeros_like(g[0])
    inverse = lengths.min() / lengths
    x = nnls(np.vstack([(g / lengths[:, None]).T, inverse]), np.eye(g.shape[1] + 1)[-1], maxiter=10_000)[0]
    return x * inverse @ g / (x @ inverse)


def upgrad(g):
    lengths = np.where(_norms(g) == 0, 1, _norms(g))
    u = (g / lengths[:, None]).T
    projections = [unit + u @ nnls(u, -unit, maxiter=10_000)[0] for unit in u.T]
    return _norms(g) @ projections / len(g)


def radial_directional(g):
    norms = _norms(g)
    total = (g / np.where(norms == 0, 1, norms)[:, None]).sum(0)
    return norms.mean() * total / (np.linalg.norm(total) or 1)


def agreement_scaled_mean(g):
    mean = g.mean(0)
    square = np.square(_norms(g / (_norms(g).max() or 1))).mean()
    of_mean = np.square(np.linalg.norm(mean / (_norms(g).max() or 1)))
    return min(len(g), square / of_mean if of_mean else 1) * mean
