"""Control calls that several engines share. `http` is bound to the engine's base URL; a failure is None, never raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from evenhand.engines.base import EngineError

if TYPE_CHECKING:
    import httpx


def base_url(url: str) -> str:
    """The root of a server from any form a user may give: with or without a slash at the end, with or without /v1.

    Raises EngineError for what is no http(s) URL of a server.
    """
    text = url.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        _ = parts.port
    except ValueError as error:
        raise EngineError(f"url: {url!r} is no URL ({error}); give one like http://127.0.0.1:8000") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise EngineError(f"url: {url!r} is no http or https URL; give one like http://127.0.0.1:8000")
    if parts.query or parts.fragment:
        raise EngineError(f"url: {url!r} has a query or a fragment; give the root of the server, like http://127.0.0.1:8000")
    if "@" in parts.netloc:
        raise EngineError("url: a name or a password in the URL would end up in the record; leave it out")
    path = parts.path.rstrip("/")
    path = path.removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


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
