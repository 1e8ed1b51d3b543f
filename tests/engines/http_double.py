"""An httpx client whose answers are given by a table path -> (status, body)."""

from __future__ import annotations

import json
from collections.abc import Mapping

import httpx

Answer = tuple[int, object]


def client(answers: Mapping[str, Answer]) -> httpx.Client:
    """Answers by path; anything else is 404, a path mapped to status 0 does not connect."""

    def handle(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path not in answers:
            return httpx.Response(404, json={"detail": "Not Found"})
        status, body = answers[path]
        if status == 0:
            raise httpx.ConnectError("refused", request=request)
        content = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        return httpx.Response(status, content=content)

    return httpx.Client(base_url="http://127.0.0.1:1", transport=httpx.MockTransport(handle), trust_env=False)
