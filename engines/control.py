"""Control calls that several engines share. `http` is bound to the engine's base URL; a failure is None, never raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx


def get(http: httpx.Client, path: str) -> httpx.Response | None:
    """GET; None when nothing answers."""
    import httpx as library

    try:
        return http.get(path)
    except (library.HTTPError, OSError):
        return None


def post(http: httpx.Client, path: str) -> httpx.Response | None:
    """POST without a body; None when nothing answers."""
    import httpx as library

    try:
        return http.post(path)
    except (library.HTTPError, OSError):
        return None


def get_json(http: httpx.Client, path: str) -> dict[str, Any] | None:
    """The JSON object behind a 200; None for anything else."""
    response = get(http, path)
    if response is None or response.status_code != 200:
        return None
    try:
        found = response.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def get_text(http: httpx.Client, path: str) -> str | None:
    """The text behind a 200; None for anything else."""
    response = get(http, path)
    return response.text if response is not None and response.status_code == 200 else None


def healthy(http: httpx.Client, path: str = "/health") -> bool:
    """200 at `path`."""
    response = get(http, path)
    return response is not None and response.status_code == 200


def served(http: httpx.Client) -> list[str]:
    """Names in /v1/models; empty while loading."""
    found = get_json(http, "/v1/models") or {}
    models = found.get("data")
    return [str(model["id"]) for model in models or [] if isinstance(model, dict) and "id" in model]


def project(found: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Values at dotted keys that exist, flat: {"cache_config.block_size": 128}."""
    out: dict[str, Any] = {}
    for key in keys:
        value: Any = found
        for part in key.split("."):
            value = value.get(part, _ABSENT) if isinstance(value, dict) else _ABSENT
        if value is not _ABSENT:
            out[key] = value
    return out


_ABSENT = object()
