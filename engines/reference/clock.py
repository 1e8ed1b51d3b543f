"""How long a step takes: a base, and a share per prompt token and per decoding sequence's token. Nothing is measured here."""

from __future__ import annotations

import msgspec


class Clock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Step time model, seconds."""

    base_s: float = 0.003
    prefill_token_s: float = 2e-6
    decode_token_s: float = 2e-5
    factor: float = 1.0
    """Everything times this: 1.1 plants a slow-down of 10 %."""

    def step_s(self, prefill_tokens: int, decode_tokens: int) -> float:
        """Seconds of one step."""
        return self.factor * (self.base_s + prefill_tokens * self.prefill_token_s + decode_tokens * self.decode_token_s)
