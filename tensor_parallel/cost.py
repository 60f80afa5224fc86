"""What products cost on a mesh: bytes, rounds, operations and memory of 1-D, 2-D and 2.5-D arrangements."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from tensor_parallel.mesh import check_divides

Shape = tuple[int, int, int]


class Cost(NamedTuple):
    """Cost of the forward and the backward pass of some layers, for one device.

    Attributes:
      bytes: that it sends; it receives as many.
      rounds: messages that wait for one another, all-reduces by halving and doubling.
      flops: additions and multiplications.
      memory: bytes of its parts of the layers' X, A and Y, and of the blocks that a product receives.
    """

    bytes: float
    rounds: int
    flops: float
    memory: float


def cost(shapes: Sequence[Shape], q: int, d: int, *, bytes_per_number: int = 4) -> dict[str, Cost]:
    r"""Returns what layers cost on P = d q^2 devices, by arrangement.

    Of m x k activations X and a k x n matrix A, forward and backward, a device sends in bytes of a number:

    .. math::
       C_{2.5} = 3 (q - 1) \left(\frac{m k}{d q^2} + \frac{k n}{q^2}\right) + 2 \frac{d - 1}{d} \frac{k n}{q^2},
       \qquad C_2 = 3 (\sqrt P - 1) \frac{m k + k n}{P}, \qquad C_1 = 2 \frac{P - 1}{P} m l

    In one dimension layers take turns: the first one's matrix is cut by columns and all devices have the whole of X,
    whose gradient is summed, so that l = k; the next one's by rows, and its Y is summed, so that l = n.

    Args:
      shapes: (m, k, n) of each layer in turn: its rows, its inner size, its columns.
      q: the side of a square of devices.
      d: the number of squares.
      bytes_per_number: of all three matrices.

    Returns:
      "1-D"; "2-D", where P is a square whose side divides all sizes; and "2.5-D".

    Raises:
      ValueError: one line with sizes that would do, for a q or d below 1, and sizes that the 2.5-D arrangement does not
        divide.

    >>> {name: each.bytes for name, each in cost([(64, 16, 16)], q=2, d=2).items()}
    {'1-D': 7168.0, '2.5-D': 2560.0}

    Reference: C_2.5 is DERIVED from optimal collectives; see ``published_bandwidth`` for that of the authors of arXiv
    2105.14500. C_1 is that of Shoeybi et al., "Megatron-LM", arXiv 1909.08053 (MEM), C_2 that of C_2.5 with d = 1.
    """
    for name, value in (("q", q), ("d", d)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    for m, k, n in shapes:
        check_divides("rows", m, d * q, of="d * q")
        check_divides("inner", k, q, of="q")
        check_divides("columns", n, q, of="q")
    num_devices = d * q * q
    found = {"1-D": _sum(_in_one(shape, i, num_devices) for i, shape in enumerate(shapes))}
    side = math.isqrt(num_devices)
    if side**2 == num_devices and not any(size % side for shape in shapes for size in shape):
        found["2-D"] = _sum(_in_squares(shape, side, 1) for shape in shapes)
    found["2.5-D"] = _sum(_in_squares(shape, q, d) for shape in shapes)
    return {
        name: each._replace(bytes=each.bytes * bytes_per_number, memory=each.memory * bytes_per_number)
        for name, each in found.items()
    }


def published_bandwidth(*, q: int, d: int) -> float:
    r"""Returns the published cost of a product, forward and backward, up to its unit.

    .. math:: \frac{3 (q - 1) (d + 1)}{d q}

    In the unit of s / q, for X and A of s numbers each, it is C_2.5 of ``cost`` without the sum over depth.

    >>> published_bandwidth(q=4, d=4), published_bandwidth(q=8, d=1)
    (2.8125, 5.25)

    Reference: the documentation of ColossalAI, 2.5-D tensor parallelism (READ); the unit is DERIVED.
    """
    return 3 * (q - 1) * (d + 1) / (d * q)


def _in_squares(shape: Shape, q: int, d: int) -> Cost:
    m, k, n = shape
    of_x, of_a, of_y = m * k / (d * q * q), k * n / (q * q), m * n / (d * q * q)
    return Cost(
        bytes=3 * (q - 1) * (of_x + of_a) + 2 * (d - 1) / d * of_a,
        rounds=6 * q * math.ceil(math.log2(q)) + 2 * math.ceil(math.log2(d)),
        flops=6 * m * k * n / (d * q * q),
        memory=2 * (of_x + of_a) + of_y,
    )


def _in_one(shape: Shape, place: int, num_devices: int) -> Cost:
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
