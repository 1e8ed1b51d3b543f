"""The dialects: flags, words, endpoints and quirks of the engines that the embedded engine stands in for."""

from __future__ import annotations

from evenhand.engines.reference.dialects.base import Dialect


def dialect(name: str) -> Dialect:
    """The dialect called `name`, imported when it is asked for."""
    if name == "sglang":
        from evenhand.engines.reference.dialects.sglang import SglangDialect

        return SglangDialect()
    if name == "vllm.cpp":
        from evenhand.engines.reference.dialects.vllmcpp import VllmCppDialect

        return VllmCppDialect()
    from evenhand.engines.reference.dialects.vllm import VllmDialect

    return VllmDialect()
