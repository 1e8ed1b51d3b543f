"""How long a pressure request decodes: from the warm-up's time per output token."""

from __future__ import annotations

import pytest

from evenhand.measure import found_output_tokens, steady_tpot


def test_decoding_lasts_four_sample_intervals_even_where_the_warm_up_was_twice_as_slow() -> None:
    assert found_output_tokens(0.007, 0.25, None) == 288
    assert 288 * 0.007 / 2 >= 4 * 0.25
    assert found_output_tokens(0.007, 0.25, 100) == 100
    assert found_output_tokens(None, 0.25, None) == 64


@pytest.mark.parametrize(
    ("own", "every", "expected"),
    [
        (0.0001, [0.0001, 0.006, 0.007, 0.009], 0.0065),  # its answer came in one burst
        (0.009, [0.0001, 0.006, 0.007, 0.009], 0.009),
        (None, [None, 0.006], 0.006),
        (0.006, [], 0.006),
        (None, [None], None),
    ],
)
def test_a_burst_does_not_make_the_answer_minutes_long(
    own: float | None, every: list[float | None], expected: float | None
) -> None:
    assert steady_tpot(own, every) == (None if expected is None else pytest.approx(expected))
