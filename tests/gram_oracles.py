"""The Gram family in float64 NumPy, on the gradients themselves, [n, m] -> [m]; by other algorithms where there are."""

import itertools

import numpy as np
from scipy.optimize import nnls


def gaussian(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


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


def neighbours(g, *, byzantine):
    """The mean of the n - f gradients nearest to each, itself among them, [n, m]."""
    near = [np.argsort(_norms(g - own), kind="stable")[: max(1, len(g) - byzantine)] for own in g]
    return np.stack([g[chosen].mean(0) for chosen in near])


def centred_clipping(g, *, radius, steps=1, start=0):
    v = np.zeros_like(g[0]) + start
    for _ in range(steps):
        away = g - v
        lengths = _norms(away)
        v = v + (away * np.minimum(1, radius / np.where(lengths == 0, 1, lengths))[:, None]).mean(0)
    return v


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


def gradvac(g):
    """The first step, in which the usual cosines are 0."""
    return pcgrad(g)


def imtl_g(g):
    if not g.any():
        return g[0]
    v = np.linalg.pinv(g @ g.T / np.square(_norms(g)).max()) @ (_norms(g) / _norms(g).max())
    return v @ g / v.sum()


def aligned_mtl(g):
    """By singular values of the gradients: all are made as large as the least."""
    u, values, v = np.linalg.svd(g, full_matrices=False)
    kept = values > 1e-7 * values.max()
    if not kept.any():
        return g.mean(0)
    return values[kept].min() * (u[:, kept] @ v[kept]).mean(0)


def cagrad(g, *, c=0.5):
    """Tries each choice of the workers that have a weight, and takes the best stationary point."""
    scale = _norms(g).max() or 1
    g, n = g / scale, len(g)
    gram, mean = g @ g.T, g.mean(0)
    along, radius = g @ mean, c * np.linalg.norm(mean)
    best, weights = np.inf, np.zeros(n)
    for chosen in itertools.product([False, True], repeat=n):
        some = np.flatnonzero(chosen)
        if not len(some):
            continue
        inverse = np.linalg.pinv(gram[np.ix_(some, some)])
        p = inverse.sum(1)
        q = inverse @ along[some]  # u = (t p - q) / radius, of length 1
        a = p.sum()
        b = -q.sum()
        d = q @ along[some] - radius**2
        for gain in np.roots([a, 2 * b, d]) if len(some) > 1 else [np.nan]:
            u = (gain.real * p - q) if len(some) > 1 else np.ones(1)
            if not (u > 0).all():
                continue
            w = np.zeros(n)
            w[some] = u / u.sum()
            value = w @ along + radius * np.linalg.norm(w @ g)
            if value < best:
                best, weights = value, w
    shortest = np.linalg.norm(weights @ g)
    if shortest <= 1e-4 * np.linalg.norm(g):
        return np.zeros_like(mean)
    return scale * (mean + radius / shortest * (weights @ g))


def nash_mtl(g):
    """The minimum of x C x / 2 - sum log x for the cosines C, by Newton's method with a search of the step."""
    if _norms(g).min() == 0:
        return np.zeros_like(g[0])
    u = g / _norms(g)[:, None]
    cosines, x = u @ u.T, np.ones(len(g))
    value = lambda x: x @ cosines @ x / 2 - np.log(x).sum() if x.min() > 0 else np.inf  # noqa: E731
    for _ in range(200):
        turn = np.linalg.solve(cosines + np.diag(1 / x**2), cosines @ x - 1 / x)
        length = 1.0
        while value(x - length * turn) > value(x) and length > 1e-12:
            length /= 2
        x = x - length * turn
    assert np.abs(x * (cosines @ x) - 1).max() < 1e-6
    return x @ u


def upgrad(g):
    lengths = np.where(_norms(g) == 0, 1, _norms(g))
    u = (g / lengths[:, None]).T
    projections = [unit + u @ nnls(u, -unit, maxiter=10_000)[0] for unit in u.T]
    return _norms(g) @ projections / len(g)


def fairgrad(g, *, alpha=2.0):
    """The minimum of x G x / 2 plus a barrier of each x, by Newton's method with a search of the step."""
    if _norms(g).min() == 0:
        return np.zeros_like(g[0])
    # Over the longest one, and in the x of orthogonal gradients.
    size, p = _norms(g).max(), 1 / alpha
    unit = (g / size) * (_norms(g / size) ** (-2 / (1 + p)))[:, None]
    gram, target = unit @ unit.T, np.square(_norms(unit))
    barrier = lambda x: -np.log(x) if p == 1 else -(x ** (1 - p)) / (1 - p)  # noqa: E731
    value = lambda x: x @ gram @ x / 2 + target @ barrier(x) if x.min() > 0 else np.inf  # noqa: E731
    x = np.ones(len(g))
    for _ in range(500):
        turn = np.linalg.solve(gram + np.diag(p * target * x ** (-p - 1)), gram @ x - target * x**-p)
        length = 1.0
        while value(x - length * turn) > value(x) and length > 1e-12:
            length /= 2
        x = x - length * turn
    assert np.abs(gram @ x / (target * x**-p) - 1).max() < 1e-6
    return size ** ((p - 1) / (p + 1)) * (x @ unit)


def dualproj(g):
    lengths = np.where(_norms(g) == 0, 1, _norms(g))
    u, mean = (g / lengths[:, None]).T, g.mean(0)
    size = np.abs(mean).max() or 1
    return mean + size * (u @ nnls(u, -mean / size, maxiter=10_000)[0])


def radial_directional(g):
    norms = _norms(g)
    total = (g / np.where(norms == 0, 1, norms)[:, None]).sum(0)
    return norms.mean() * total / (np.linalg.norm(total) or 1)


def agreement_scaled_mean(g):
    mean = g.mean(0)
    square = np.square(_norms(g / (_norms(g).max() or 1))).mean()
    of_mean = np.square(np.linalg.norm(mean / (_norms(g).max() or 1)))
    return min(len(g), square / of_mean if of_mean else 1) * mean
