"""Upper bounds for optimizers: those of Adam, for smooth losses and bounded gradients.

Reference: Défossez, Bottou, Bach, Usunier, "A Simple Convergence Proof of Adam and Adagrad", arXiv 2003.02395; that the
squared gradient is of order d ln N / sqrt(N), and depends on the momentum as 1 / (1 - b1), is READ, all constants MEM.
"""

import math

import numpy as np


def adam(
    N: int, d: int, R: float, L: float, alpha: float, betas: tuple[float, float], *, gap: float, eps: float = 1e-8
) -> float:
    r"""Returns a bound on the mean squared gradient of ``adam_plain`` at an index drawn by ``weights``.

    .. math:: \frac{2 R \, gap}{\alpha \tilde N} + E \left(\frac{1}{\tilde N} \ln\left(1 + \frac{R^2}{(1 - \beta_2)
        \epsilon}\right) - \frac{N}{\tilde N} \ln \beta_2\right), \quad \tilde N = N - \frac{\beta_1}{1 - \beta_1}

    .. math:: E = \frac{\alpha d R L (1 - \beta_1)}{(1 - \beta_1 / \beta_2)(1 - \beta_2)}
        + \frac{12 d R^2 \sqrt{1 - \beta_1}}{(1 - \beta_1 / \beta_2)^{3/2} \sqrt{1 - \beta_2}}
        + \frac{2 \alpha^2 d L^2 \beta_1}{(1 - \beta_1 / \beta_2)(1 - \beta_2)^{3/2}}

    Without momentum the factor 12 is 4.

    Args:
      N: the number of updates.
      d: the number of parameters.
      R: a bound on the absolute value of each gradient's coordinates, plus the root of ``eps``. It bounds the noise,
        too, so that averaging over workers leaves it as it is.
      L: the smoothness of the loss.
      alpha: the learning rate.
      betas: the decays b1 and b2; b1 is below b2.
      gap: the loss at the start less its least value.
      eps: see ``adam_plain``.

    Raises:
      ValueError: one line, where the bound does not apply.

    >>> [round(adam(10**6, 2, 3.0, 1.0, 1e-3, (b1, 1 - 1e-6), gap=1.0)) for b1 in (0.0, 0.9, 0.99)]
    [3, 78, 780]

    Reference: arXiv 2003.02395, theorems 2 and 4 (MEM).
    """
    b1, b2 = betas
    if not 0 <= b1 < b2 < 1:
        raise ValueError(f"b1={b1}, b2={b2}: must be 0 <= b1 < b2 < 1")
    steps = N - b1 / (1 - b1)
    if steps <= 0:
        raise ValueError(f"N={N}: must be above b1 / (1 - b1)={b1 / (1 - b1):g}")
    ratio, rest = 1 - b1 / b2, 1 - b2
    error = (
        alpha * d * R * L * (1 - b1) / (ratio * rest)
        + (12 if b1 else 4) * d * R**2 * math.sqrt(1 - b1) / (ratio**1.5 * math.sqrt(rest))
        + 2 * alpha**2 * d * L**2 * b1 / (ratio * rest**1.5)
    )
    return 2 * R * gap / (alpha * steps) + error * (math.log1p(R**2 / (rest * eps)) - N * math.log(b2)) / steps


def weights(N: int, b1: float) -> np.ndarray:
    """Returns the probability of each index in the bound's mean, [N]: in proportion to 1 - b1^(N - j).

    >>> weights(2, 0.0), weights(2, 0.5)
    (array([0.5, 0.5]), array([0.6, 0.4]))
    """
    given = 1 - b1 ** (N - np.arange(float(N)))
    return given / given.sum()
