"""Prompts, closed and open loop, the HTTP/SSE stream: stamps now, decodes later."""
