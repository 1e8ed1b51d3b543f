"""vllm.cpp's dialect: a health that outlives the engine, no length check, builds that differ in flags, ids and /metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evenhand.engines.reference.config import EngineConfig, Flag
from evenhand.engines.reference.dialects.base import JSON, TEXT, Answer, Dialect, Frame, Route, Words, encode, id_list
from evenhand.engines.reference.dialects.vllm import exposition
from evenhand.engines.reference.options import Options
from evenhand.engines.reference.resolve import Refused, Setup, VllmCppDefaults

if TYPE_CHECKING:
    from evenhand.engines.reference.api import ApiError, Ask
    from evenhand.engines.reference.server import Server

GIB = 1 << 30
OLD: dict[str, Flag] = {
    "--model": Flag("model"),
    "--host": Flag("host"),
    "--port": Flag("port", "int"),
    "--served-model-name": Flag("served_name"),
    "--block-size": Flag("block_tokens", "int"),
    "--num-blocks": Flag("pool_blocks", "int"),
    "--max-model-len": Flag("context", "int"),
    "--max-num-seqs": Flag("seats", "int"),
    "--max-num-batched-tokens": Flag("batch_tokens", "int"),
    "--enable-prefix-caching": Flag("caching", "on"),
    "--no-enable-prefix-caching": Flag("caching", "off"),
    "--scheduling-policy": Flag("", "ignore"),
    "--enable-force-include-usage": Flag("", "ignore_switch"),
}
NEW: dict[str, Flag] = {
    **OLD,
    "--kv-cache-memory": Flag("pool_bytes", "bytes"),
    "--kv-cache-dtype": Flag("cache_dtype"),
    "--speculative-config": Flag("speculation", "json"),
    "--device": Flag("", "ignore"),
    "--enable-metrics": Flag("metrics", "on"),
    "--no-enable-metrics": Flag("metrics", "off"),
    "--enable-server-dev-mode": Flag("dev_mode", "on"),
    "--generation-config": Flag("", "ignore"),
    "--gpu-memory-utilization": Flag("", "ignore"),
}
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class VllmCppFrame(Frame):
    """Events with their members in alphabetical order; ids only where the build has them."""

    def __init__(self, ask: Ask, name: str, created: int, model: str, ids: bool) -> None:
        super().__init__(ask, name, created, model)
        self._ids = ids
        kind = b"chat.completion.chunk" if ask.chat else b"text_completion"
        self._end = b',"created":%d,"id":%b,"model":%b,"object":"%b"' % (created, encode(name), encode(model), kind)

    def head(self) -> bytes:
        if not self.ask.chat:
            return b""
        role = b'data: {"choices":[{"delta":{"content":"","role":"assistant"},"finish_reason":null,"index":0}]'
        return role + self._end + b"}\n\n"

    def event(
        self, text: bytes, ids: list[int] | None, finish: str | None, usage: bytes | None, logprobs: bytes | None
    ) -> bytes:
        reason = b"null" if finish is None else b'"%b"' % finish.encode()
        extra = b"" if logprobs is None else b',"logprobs":' + logprobs
        tokens = b"" if ids is None or not self._ids else b',"token_ids":' + id_list(ids)
        if self.ask.chat:
            body = b'{"delta":{"content":"%b"},"finish_reason":%b,"index":0%b%b}' % (text, reason, extra, tokens)
        else:
            body = b'{"finish_reason":%b,"index":0%b,"text":"%b"%b}' % (reason, extra, text, tokens)
        close = b"}\n\n" if usage is None else b',"usage":' + usage + b"}\n\n"
        return b'data: {"choices":[' + body + b"]" + self._end + close

    def usage_event(self, usage: bytes) -> bytes:
        return b'data: {"choices":[]' + self._end + b',"usage":' + usage + b"}\n\n"

    def usage(self, prompt: int, output: int, cached: int) -> bytes:
        return b'{"completion_tokens":%d,"prompt_tokens":%d,"total_tokens":%d}' % (output, prompt, prompt + output)

    def whole(self, text: bytes, ids: list[int] | None, finish: str, usage: bytes, logprobs: bytes | None) -> bytes:
        extra = b"" if logprobs is None else b',"logprobs":' + logprobs
        tokens = b"" if ids is None or not self._ids else b',"token_ids":' + id_list(ids)
        content = b'"message":{"content":"%b","role":"assistant"}' if self.ask.chat else b'"text":"%b"'
        body = b'{"finish_reason":"%b","index":0%b,' % (finish.encode(), extra) + content % text + tokens + b"}"
        end = self._end.replace(b"chat.completion.chunk", b"chat.completion", 1)
        return b'{"choices":[' + body + b"]" + end + b',"usage":' + usage + b"}"

    def error(self, message: str) -> bytes:
        return encode({"error": _body(message, "InternalServerError", 500)})


class VllmCppDialect(Dialect):
    """`vllm-server`."""

    name = "vllm.cpp"
    program = "vllm-server"
    version = "2026.10"
    defaults = VllmCppDefaults()
    checks_length = False

    def flags(self, options: Options) -> Mapping[str, Flag]:
        return OLD if options.build == "2026-07" else NEW

    def config(self, values: dict[str, Any], options: Options, env: Mapping[str, str]) -> EngineConfig:
        values.pop("", None)
        speculation = values.pop("speculation", None) or {}
        values["depth"] = int(speculation.get("num_speculative_tokens", 0))
        values["method"] = speculation.get("method")
        if options.build == "2026-07":
            values["metrics"] = False
        ping = env.get("VT_SERVER_SSE_PING_S")
        if ping and options.faults.keepalive_s is None and float(ping) > 0:
            import msgspec

            faults = msgspec.structs.replace(options.faults, keepalive_s=float(ping))
            options = msgspec.structs.replace(options, faults=faults)
        return super().config(values, options, env)

    def usage_error(self, argument: str, text: str) -> Words:
        return Words(lines=[f"server: unknown argument '{argument}'", text.rstrip()], exit_code=2)

    def refusal(self, refused: Refused, setup: EngineConfig) -> Words:
        slots, depth = refused.slots, refused.slots - 1
        text = (
            f"server: fatal: To serve {refused.seats} concurrent sequences, {refused.needed / GIB:.2f} GiB of recurrent "
            f"(Mamba/GDN) state is needed, which is larger than the available {refused.available / GIB:.2f} GiB."
        )
        if depth:
            text += (
                f" Speculative decoding widens that state to {slots} snapshot slots per sequence "
                f"(num_speculative_tokens={depth} + 1), so it costs {slots}x the non-speculative state. Reduce --max-num-seqs, "
                "lower num_speculative_tokens, or run without speculative decoding."
            )
        else:
            text += " Reduce --max-num-seqs."
        return Words(lines=[text], exit_code=1)

    def bind_failed(self, setup: Setup) -> Words:
        return Words(lines=[f"server: failed to bind {setup.config.host}:{setup.config.port}"], exit_code=1)

    def boot_lines(self, setup: Setup, pid: int) -> list[str]:
        folder = setup.config.model
        lines = [f"server: loading model from {folder} (config {folder}/config.json, tokenizer {folder}/tokenizer.json)"]
        if setup.rules.in_flight:
            lines.append("vllm.cpp: Asynchronous scheduling is enabled (max_concurrent_batches=2)")
        lines.append(f"server: prefix caching {'enabled' if setup.rules.caching else 'disabled'}")
        asked = setup.seats_asked
        if asked is not None and setup.rules.seats < asked:
            lines.append(f"server: --max-num-seqs {asked} lowered to {setup.rules.seats}: the pool holds no more sequences")
        page = setup.rules.block_tokens * setup.attention_bytes
        lines.append(f"kv-alloc: page_size_bytes={page} block_size={setup.rules.block_tokens} num_blocks={setup.pool_blocks}")
        host, port = setup.config.host, setup.config.port
        lines.append(
            f"server: listening on http://{host}:{port} (model '{setup.config.served_name}', HTTP worker pool 12 fixed)"
        )
        return lines

    def ready_lines(self, setup: Setup, pid: int) -> list[str]:
        return []  # "listening on" comes before the bind

    def frame(self, ask: Ask, number: int, created: int, model: str, server: Server) -> Frame:
        ids = server.setup.config.options.build != "2026-07"
        return VllmCppFrame(ask, f"{'chatcmpl' if ask.chat else 'cmpl'}-{number}", created, model, ids)

    def error(self, error: ApiError, server: Server) -> Answer:
        if error.kind == "model":
            text, kind = f"The model `{error.facts['asked']}` does not exist.", "NotFoundError"
        elif error.kind == "dead":
            return self.engine_dead(server, server.engine.dead or "")
        elif error.kind == "not ready":
            text, kind = "engine is not ready", "InternalServerError"
        else:
            text, kind = str(error.facts.get("why", error.kind)), "BadRequestError"
        return error.status, encode({"error": _body(text, kind, error.status)}), JSON

    def engine_dead(self, server: Server, message: str) -> Answer:
        text = f"{DEAD} [request submitted to a stopped AsyncLLM]"
        print(f"api-server: 500 endpoint=/v1/completions model={server.served} what={text}", flush=True)
        return 500, encode({"error": _body(text, "InternalServerError", 500)}), JSON

    def dead_lines(self, message: str) -> list[str]:
        what = message.removeprefix("EngineCore busy loop threw: ")
        return [
            f"engine-fatal: EngineCore busy loop threw: {what}",
            f"async-llm: output handler saw engine death: {DEAD} [{what}]",
        ]

    def routes(self) -> Mapping[tuple[str, str], Route]:
        return {
            ("GET", "/health"): lambda server: (200, b"", JSON),
            ("GET", "/version"): lambda server: (200, encode({"version": server.version}), JSON),
            ("GET", "/v1/models"): _models,
            ("GET", "/metrics"): _metrics,
            ("POST", "/reset_prefix_cache"): _reset,
        }


def _body(text: str, kind: str, code: int) -> dict[str, Any]:
    return {"code": code, "message": text, "param": None, "type": kind}


def _models(server: Server) -> Answer:
    entry = {"created": server.created, "id": server.served, "object": "model", "owned_by": "vllm"}
    return 200, encode({"data": [entry] if server.lists_models else [], "object": "list"}), JSON


def _metrics(server: Server) -> Answer:
    if not server.setup.config.metrics:
        return 404, b"", TEXT
    return 200, exposition(server, subset=True), TEXT


def _reset(server: Server) -> Answer:
    if not server.setup.config.dev_mode:
        return 404, b"", JSON
    return 200, encode({"success": server.engine.reset_cache()}), JSON
