"""How the peak learning rate grows with the number of workers: rules by name."""

import math


def factor(name: str, *, num_workers: int) -> float:
    """Returns the factor by which the rule `name` multiplies the peak learning rate.

    `linear` is the rule of synchronous SGD with averaged gradients, rate(N) = rate(1) * N; summing the gradients
    under `none` is the same for plain SGD. `sqrt` keeps the variance of a step constant instead.

    Args:
        name: "none", "linear" or "sqrt".
        num_workers: how many workers' gradients make one update.

    Returns:
        The factor, 1.0 for one worker under every rule.

    >>> [factor(rule, num_workers=4) for rule in ("none", "linear", "sqrt")]
    [1.0, 4.0, 2.0]

    Reference: Chen et al., Revisiting Distributed Synchronous SGD (2016), learning rates of the Inception experiments.
    """
    return {"none": 1.0, "linear": float(num_workers), "sqrt": math.sqrt(num_workers)}[name]
