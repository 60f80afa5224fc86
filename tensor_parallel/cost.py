"""The cost of matrix products on a mesh: bytes, rounds, operations and memory in 1, 2 and 2.5 dimensions."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from tensor_parallel.mesh import check_divides

Shape = tuple[int, int, int]


class Cost(NamedTuple):
    """The cost for one device of the forward and backward passes of some layers.

    Attributes:
      bytes: the bytes that the device sends; it receives as many.
      rounds: the number of messages that wait for each other; all-reduces are by halving and doubling.
      flops: additions and multiplications.
      memory: the bytes of its blocks of X, A and Y, and of the blocks that it receives for a product.
    """

    bytes: float
    rounds: int
    flops: float
    memory: float


def cost(shapes: Sequence[Shape], q: int, d: int, *, bytes_per_number: int = 4) -> dict[str, Cost]:
    r"""Returns the cost of layers on P = d q^2 devices, for each arrangement.

    For m x k activations X and a k x n matrix A, the forward and backward pass of a layer sends from each device, in
    numbers:

    .. math::
       C_{2.5} = 3 (q - 1) \left(\frac{m k}{d q^2} + \frac{k n}{q^2}\right) + 2 \frac{d - 1}{d} \frac{k n}{q^2},
       \qquad C_2 = 3 (\sqrt P - 1) \frac{m k + k n}{P}, \qquad C_1 = 2 \frac{P - 1}{P} m l

    In one dimension, layers alternate. An even layer cuts A by columns; all devices have the whole X and sum its
    gradient, so that l = k. An odd layer cuts A by rows, and the devices sum Y, so that l = n.

    Args:
      shapes: (m, k, n) of each layer, in order.
      q: the side of a square of devices.
      d: the number of squares.
      bytes_per_number: the size of a number in X, A and Y.

    Returns:
      Costs "1-D" and "2.5-D"; and "2-D", if P is a square whose side divides all sizes.

    Raises:
      ValueError: one line, if q or d is below 1, or the 2.5-D arrangement does not divide a size; it names sizes that
        are allowed.

    >>> {name: each.bytes for name, each in cost([(64, 16, 16)], q=2, d=2).items()}
    {'1-D': 7168.0, '2.5-D': 2560.0}

    Reference: C_2.5 is DERIVED from optimal collectives; ``published_bandwidth`` is the formula of the authors of arXiv
    2105.14500. C_1 is from Shoeybi et al., "Megatron-LM", arXiv 1909.08053 (MEM); C_2 is C_2.5 with d = 1.
    """
    for name, value in (("q", q), ("d", d)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    for m, k, n in shapes:
        check_divides("rows", m, d * q, of="d * q")
        check_divides("inner", k, q, of="q")
        check_divides("columns", n, q, of="q")
    num_devices = d * q * q
    found = {"1-D": _sum(_one_dimensional(shape, i, num_devices) for i, shape in enumerate(shapes))}
    side = math.isqrt(num_devices)
    if side**2 == num_devices and not any(size % side for shape in shapes for size in shape):
        found["2-D"] = _sum(_squares(shape, side, 1) for shape in shapes)
    found["2.5-D"] = _sum(_squares(shape, q, d) for shape in shapes)
    return {
        name: each._replace(bytes=each.bytes * bytes_per_number, memory=each.memory * bytes_per_number)
        for name, each in found.items()
    }


def published_bandwidth(*, q: int, d: int) -> float:
    r"""Returns the published cost of the forward and backward pass of a product, up to its unit.

    .. math:: \frac{3 (q - 1) (d + 1)}{d q}

    If X and A have s numbers each and the unit is s / q, it is C_2.5 of ``cost`` without the sum over depth.

    >>> published_bandwidth(q=4, d=4), published_bandwidth(q=8, d=1)
    (2.8125, 5.25)

    Reference: the documentation of ColossalAI, 2.5-D tensor parallelism (READ); the unit is DERIVED.
    """
    return 3 * (q - 1) * (d + 1) / (d * q)


def _squares(shape: Shape, q: int, d: int) -> Cost:
    """Returns the cost in numbers of a layer on d squares of q x q devices: 2.5-D, or 2-D with d = 1."""
    m, k, n = shape
    of_x = m * k / (d * q * q)
    of_a = k * n / (q * q)
    of_y = m * n / (d * q * q)
    return Cost(
        bytes=3 * (q - 1) * (of_x + of_a) + 2 * (d - 1) / d * of_a,
        rounds=6 * q * math.ceil(math.log2(q)) + 2 * math.ceil(math.log2(d)),
        flops=6 * m * k * n / (d * q * q),
        memory=2 * (of_x + of_a) + of_y,
    )


def _one_dimensional(shape: Shape, place: int, num_devices: int) -> Cost:
    """Returns the 1-D cost in numbers of the layer at a place in the network: A is cut by columns if it is even."""
    m, k, n = shape
    by_columns = place % 2 == 0
    of_x, of_y = (m * k, m * n / num_devices) if by_columns else (m * k / num_devices, m * n)
    return Cost(
        bytes=2 * (num_devices - 1) / num_devices * m * (k if by_columns else n),
        rounds=2 * math.ceil(math.log2(num_devices)),
        flops=6 * m * k * n / num_devices,
        memory=of_x + k * n / num_devices + of_y,
    )


def _sum(costs) -> Cost:
    return Cost(*map(sum, zip(*costs, strict=True)))
