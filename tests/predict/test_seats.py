"""The refusal, ceilings, and the seats that fit."""

from __future__ import annotations

from evenhand.predict.pages import GIB
from evenhand.predict.seats import blocks_per_seat, seat_ceiling, seats_that_fit, slots_per_seat, state_bytes_needed
from evenhand.predict.shape import ModelShape


def test_the_refusal_to_the_byte(seed: ModelShape) -> None:
    need = state_bytes_needed(seed, 8, 32)
    assert need == 46_600_814_592
    assert f"{need / GIB:.2f}" == "43.40"


def test_ceiling_is_not_room(seed: ModelShape) -> None:
    assert seat_ceiling(288, 8) == 32
    assert seat_ceiling(118, 8) == 13
    assert seats_that_fit(seed, 8, 288, 832) == 10


def test_the_same_bytes_unified_serve_all(seed: ModelShape) -> None:
    assert 32 * blocks_per_seat(seed, 9, 832) == 864
    assert seats_that_fit(seed, 8, 1050, 832) >= 32
    assert seats_that_fit(seed, 8, 1050, 832, tokens=5 * 832) == 32
    assert seats_that_fit(seed, 8, 1050, 832, tokens=6 * 832) == 31


def test_slots() -> None:
    assert slots_per_seat(8) == 9
    assert slots_per_seat(3, align=True) == 5


def test_dense_seats_are_bound_by_tokens() -> None:
    dense = ModelShape(attention_layers=4, kv_heads=2, head_dim=32)
    assert state_bytes_needed(dense, 3, 8) == 0
    assert seats_that_fit(dense, 0, 100, 16, tokens=160) == 10
