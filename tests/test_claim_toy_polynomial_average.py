"""The claim about the toy polynomial, averaged over random samples."""

from experiments.claims.toy_polynomial_average import claim as toy_polynomial_average
from experiments.study.polynomials import NOT_STOPPED, RATES

CLAIM = toy_polynomial_average.CLAIM


def test_the_polynomial_is_measured_at_every_rate():
    row = CLAIM.measure(polynomial="square", x_max=1.0, num_draws=4, seed=0)
    assert set(row) == {f"{reducer}_{what}" for reducer in ("mean", "adasum") for what in ("steps", "stopped")}
    assert {len(values) for values in row.values()} == {len(RATES)}
    assert all(2 < steps <= NOT_STOPPED for steps in row["adasum_steps"])
