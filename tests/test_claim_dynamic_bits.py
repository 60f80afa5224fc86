"""Widths that follow the gradient beside fixed ones: configs, the verdict for each outcome, bytes and the line."""

import math
import random

import pytest

from experiments.claims.dynamic_bits import claim as dynamic_bits
from experiments.study.encoded_runs import FULL
from tests.claim_rows import complete

CLAIM, RUNS = dynamic_bits.CLAIM, dynamic_bits.RUNS
D3, D4, D6 = dynamic_bits.DYNAMIC
ENDS = {FULL: 0.97, "2 bits": 0.88, "3 bits": 0.93, "4 bits": 0.95, "6 bits": 0.966, "8 bits": 0.969}
ALIKE = {D3: 0.93, D4: 0.95, D6: 0.966}
BITS = {FULL: 32 / 4, "2 bits": 2, "3 bits": 3, "4 bits": 4, "6 bits": 6, "8 bits": 8, D3: 2.5, D4: 3.5, D6: 5.5}


def rows(ends=None, *, bits=None, spread=0.001):
    """Rows in which a dynamic width ends as the next fixed one does, with less bytes, but for those in ``ends``."""

    def measured(labels):
        name = labels["encoding"]
        noise = random.Random(str(sorted(labels.items()))).gauss(0, spread)
        end = {**ENDS, **ALIKE, **(ends or {})}[name] + noise - 0.02 * abs(math.log(labels["rate"] / 0.03))
        end -= 0.1 * (labels["split"] == "validation")  # which no verdict may see
        sent = 1e6 * {**BITS, **(bits or {})}[name]
        return {"step": [1, 2], "epoch": [0.5, 1.0], "accuracy": [0.5, end], "sent_bytes": [sent / 2, sent]}

    return complete(CLAIM, measured)


def test_the_line_ends_with_the_widths():
    for bits, at_the_end in ((1, 88), (10, 96.9)):
        df = CLAIM.frame(rows({D3: 0.93}, bits={D3: bits}, spread=0))
        end = df.loc[df["encoding"] == D3, "end"].mean()
        assert dynamic_bits.over_the_line(df)[D3] == pytest.approx(end - at_the_end)
