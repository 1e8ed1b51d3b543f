"""What of a scenario, a command line and an error may be recorded: everything but tokens, keys and passwords."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from evenhand import scenario as sc
from evenhand.boot.environment import HIDDEN, redact, redact_argv, secret_name, secrets_of
from evenhand.records import RequestRow


def known_secrets(scenario: sc.Scenario) -> list[str]:
    """Values that our environment or an arm's calls a secret, by their names."""
    return secrets_of(os.environ, *(arm.env for arm in scenario.arm))


def recorded_scenario(scenario: sc.Scenario) -> dict[str, Any]:
    """The scenario as plain values without its secrets: what a manifest holds, and what a resume compares."""
    found: dict[str, Any] = _concealed(msgspec.to_builtins(scenario), known_secrets(scenario))
    return found


def without_secrets(text: str, scenario: sc.Scenario) -> str:
    """A text about the scenario, fit to be shown and pasted."""
    return redact(text, known_secrets(scenario))


def recorded_requests(rows: list[RequestRow], key: str | None) -> list[RequestRow]:
    """Rows whose errors do not repeat the server's key: a server may quote what it was sent."""
    if key is None:
        return rows

    def hidden(text: str | None) -> str | None:
        return None if text is None else redact(text, [key])

    return [msgspec.structs.replace(row, reason=hidden(row.reason), error_text=hidden(row.error_text)) for row in rows]


def recorded_words(words: Sequence[str], secrets: Iterable[str]) -> list[str]:
    """A command line or overrides (`arm.NAME.env.X=...`) without secrets."""
    known = tuple(secrets)
    return [_assignment(word) for word in redact_argv(words, known)]


def _assignment(word: str) -> str:
    name, equals, _ = word.partition("=")
    return f"{name}={HIDDEN}" if equals and _secret(name.rpartition(".")[2]) else word


def _secret(name: str) -> bool:
    # the name of a variable that holds a secret is none itself
    return secret_name(name) and not name.lower().endswith("_env")


def _concealed(value: Any, secrets: list[str], name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _concealed(item, secrets, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            return redact_argv(value, secrets)
        return [_concealed(item, secrets) for item in value]
    if isinstance(value, str) and value:
        return HIDDEN if _secret(name) else redact(value, secrets)
    return value
