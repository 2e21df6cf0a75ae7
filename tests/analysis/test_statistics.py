from __future__ import annotations

import math

import pytest

from nemo_gym.analysis import statistics


@pytest.mark.parametrize(
    ("p", "df", "expected"),
    [
        (0.975, 1, 12.706204736432095),
        (0.975, 2, 4.302652729911275),
        (0.975, 3, 3.182446305284263),
        (0.975, 4, 2.7764451051977987),
        (0.975, 5, 2.570581835636314),
        (0.975, 10, 2.2281388519649385),
        (0.975, 30, 2.0422724563012373),
        (0.975, 120, 1.9799304050824413),
        (0.95, 7, 1.894578605061305),
        (0.995, 9, 3.2498355440153697),
        (0.75, 1, 1.0),
        (0.6, 2, 0.2886751345948129),
    ],
)
def test_t_quantiles_are_those_of_the_tables(p: float, df: int, expected: float) -> None:
    assert statistics.t_quantile(p, df) == pytest.approx(expected, rel=1e-9)
    assert statistics.t_quantile(1 - p, df) == pytest.approx(-expected, rel=1e-9)


@pytest.mark.parametrize("p", [0.51, 0.6, 0.9, 0.975, 0.9995])
def test_t_quantiles_of_one_and_two_degrees_have_closed_forms(p: float) -> None:
    assert statistics.t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-12)
    assert statistics.t_quantile(p, 2) == pytest.approx((2 * p - 1) / math.sqrt(2 * p * (1 - p)), rel=1e-12)


def test_t_quantile_with_many_degrees_of_freedom_is_that_of_the_normal_distribution() -> None:
    assert statistics.t_quantile(0.975, 10_000_000) == pytest.approx(1.959963984540054, rel=1e-6)


@pytest.mark.parametrize("df", [1, 2, 5, 17, 400])
@pytest.mark.parametrize("p", [0.001, 0.2, 0.5, 0.51, 0.9, 0.9999])
def test_t_quantile_and_cdf_undo_each_other(p: float, df: int) -> None:
    assert statistics.t_cdf(statistics.t_quantile(p, df), df) == pytest.approx(p, rel=1e-10)


def test_t_quantile_refuses_what_has_no_quantile() -> None:
    for p, df in ((0, 3), (1, 3), (0.5, 0)):
        with pytest.raises(ValueError, match="no t quantile"):
            statistics.t_quantile(p, df)


def test_incomplete_beta_has_its_closed_forms() -> None:
    for x in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert statistics.regularized_beta(x, 1, 1) == pytest.approx(x, abs=1e-15)
        assert statistics.regularized_beta(x, 3, 1) == pytest.approx(x**3, abs=1e-14)
        assert statistics.regularized_beta(x, 0.5, 0.5) == pytest.approx(2 / math.pi * math.asin(x**0.5), abs=1e-13)


def test_quantiles_interpolate_between_order_statistics() -> None:
    assert statistics.quantile([1, 3], 0.9) == pytest.approx(2.8)
    assert statistics.quantile([4, 1, 3, 2], 0.25) == pytest.approx(1.75)
    assert statistics.quantile([7], 0.99) == 7
    assert statistics.median([3, 1, 2]) == 2
    assert statistics.median([1, 2, 3, 10]) == 2.5


def test_interval_of_the_mean_is_the_textbook_one() -> None:
    low, high = statistics.t_interval_95([1.0, 2.0, 3.0]) or (0, 0)
    assert (low, high) == pytest.approx((2 - 4.302652729911275 / 3**0.5, 2 + 4.302652729911275 / 3**0.5))
    assert statistics.t_interval_95([5.0]) is None
    assert statistics.t_interval_95([5.0, 5.0]) == (5.0, 5.0)


def test_deviations_tell_sample_from_population() -> None:
    assert statistics.population_std([1, 3]) == 1.0
    assert statistics.sample_std([1, 3]) == pytest.approx(2**0.5)
    assert statistics.sample_std([1]) is None
