"""GradVac: each gradient is turned towards the others until it is as near to each as it usually is."""

from typing import Annotated, Literal, Unpack

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName
from reducers.gram import Products, from_gram
from reducers.gram.reducer import GramOptions, takes_gram_options
from reducers.gram.scales import nonzero
from reducers.gram.weights.orders import orders_of
from reducers.options import Count, Seed, check_options, check_static
from reducers.reducer import Reducer

_LEAST_SINE = 1e-8  # where a gradient always has the direction of another; TorchJD adds it


@takes_gram_options
def gradvac(
    axis_name: AxisName,
    *,
    beta: Annotated[float, "[0, 1]"] = 0.5,
    order: Literal["random", "workers"] = "random",
    seed: Seed = 0,
    max_workers: Count = 64,
    **options: Unpack[GramOptions],
) -> Reducer:
    r"""Turns each gradient towards those to which it is less similar than usual, and averages.

    .. math:: R(g_1, \dots, g_n) = \frac{1}{n} \sum_i p_i, \qquad p_i \leftarrow p_i + |p_i|
        \frac{\hat\varphi_{ij} \sqrt{1 - \varphi^2} - \varphi \sqrt{1 - \hat\varphi_{ij}^2}}
        {|g_j| \sqrt{1 - \hat\varphi_{ij}^2}} g_j \quad \text{where} \quad
        \varphi = \cos(p_i, g_j) < \hat\varphi_{ij}

    p_i starts as g_i and meets the other gradients one after the other. Afterwards the usual cosine follows:
    phi_ij becomes (1 - beta) phi_ij + beta phi. It starts at 0, so that the first step is that of ``pcgrad``.

    Args:
      axis_name: the worker axis or axes, lanes last.
      beta: the weight of the newest cosine.
      order: in which a gradient meets the others: "random" draws an order for each gradient and step, "workers" is the
        order of the workers.
      seed: the seed of the random orders, which are the same on all workers.
      max_workers: how many cosines each worker keeps; at least the number of workers.
      **options: ``granularity``, ``telemetry`` and ``sharded_over``; see ``from_gram``.

    Returns:
      A reducer with ``GramState``, in which each worker has its own usual cosines, [max_workers], and the number of
      steps. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted; cosines of a worker that is not, or whose gradient is zero, stay as they are. NaN or Inf of a worker
      that counts makes its group NaN, and leaves all cosines as they are.

    Raises:
      ValueError: for an option out of its range; when traced, for more workers than max_workers.

    >>> reducer = gradvac("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]))[0].round(4)
    Array([0.2924, 1.9006, 1.9006], dtype=float32)

    Reference: Wang, Tsvetkov, Firat, Cao, "Gradient Vaccine: Investigating and Improving Multi-task Optimization in
    Massively Multilingual Models", arXiv 2010.05874; known through TorchJD's code. Differs from it in: the mean, not
    the sum, so that a learning rate means what it does with ``mean``.
    """
    check_options(gradvac, beta=beta, order=order, seed=seed, max_workers=max_workers)
    check_static(seed=seed, max_workers=max_workers)

    def rule(products, state):
        usual, step = state
        n = len(products.scales)
        if n > max_workers:
            raise ValueError(f"num_workers={n}: exceeds max_workers={max_workers}")
        orders = orders_of(order, seed, step, n)
        meet = jax.vmap(vaccinated, in_axes=(None, 0, 0, 0, None))
        coefficients, after = meet(products, jnp.arange(n), orders, usual[:, :n].astype(products.gram.dtype), beta)
        lengths = products.relative_scales * products.unit_norms
        shares = lengths @ coefficients / products.num_counted
        weights = products.scales.max() * (shares * products.directions)
        weights = products.nan_unless_finite(weights)
        after = jnp.where(products.all_finite, after.astype(usual.dtype), usual[:, :n])
        return weights, (usual.at[:, :n].set(after), step + 1)

    return from_gram(
        axis_name, rule, init=lambda dtype: (jnp.zeros(max_workers, dtype), jnp.zeros((), jnp.int32)), **options
    )


def vaccinated(
    products: Products, worker: jax.Array, order: jax.Array, usual: jax.Array, beta: float
) -> tuple[jax.Array, jax.Array]:
    """Returns the coefficients of all directions in a worker's turned one, and its new usual cosines, both [n]."""
    cosines = products.cosines
    has_length = products.counted & (products.scales > 0)

    def meet(place, carry):
        weights, usual = carry
        other = order[place]
        length = jnp.sqrt(jnp.maximum(weights @ cosines @ weights, 0))
        cosine = cosines[other] @ weights / nonzero(length)
        target = usual[other]
        sines = [jnp.sqrt(jnp.maximum(1 - x * x, 0)) for x in (cosine, target)]
        turn = length * (target * sines[0] - cosine * sines[1]) / jnp.maximum(sines[1], _LEAST_SINE)
        meets = (other != worker) & has_length[other] & has_length[worker]
        return (
            weights.at[other].add(jnp.where(meets & (cosine < target), turn, 0)),
            usual.at[other].set(jnp.where(meets, (1 - beta) * target + beta * cosine, target)),
        )

    start = jnp.where((jnp.arange(len(order)) == worker) & has_length, 1, 0).astype(cosines.dtype)
    return lax.fori_loop(0, len(order), meet, (start, usual))
