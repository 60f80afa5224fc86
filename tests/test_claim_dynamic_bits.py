"""Widths that follow the gradient beside fixed ones: how far they end above the line through these."""

import pytest

from experiments.claims.dynamic_bits import claim as dynamic_bits
from experiments.study.frames import Frame

FIXED = {"2 bits": 88.0, "3 bits": 93.0, "4 bits": 95.0, "6 bits": 96.6, "8 bits": 96.9}


@pytest.mark.parametrize(("bits", "line"), [(1.0, 88.0), (2.5, 90.5), (8.0, 96.9), (10.0, 96.9)])
def test_the_line_ends_with_the_widths(bits, line):
    runs = [(name, float(name[0]), end) for name, end in FIXED.items()]
    runs += [(name, bits, 93.0) for name in dynamic_bits.DYNAMIC]
    over = dynamic_bits.over_the_line(Frame(runs, columns=["encoding", "sent", "end"]))
    assert over == {name: pytest.approx(93.0 - line) for name in dynamic_bits.DYNAMIC}
