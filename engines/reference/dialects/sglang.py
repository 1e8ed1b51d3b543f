"""SGLang's dialect, after 0.5.23: flags, exposition, bare error bodies, the seat clamp, the refusal, and the end by SIGKILL.

Prefix hits of hybrid models are not modelled: their state slots are written in place here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evenhand.engines.reference.config import EngineConfig, Flag
from evenhand.engines.reference.dialects.base import JSON, TEXT, Answer, Dialect, Frame, Route, Words, encode, id_list, words
from evenhand.engines.reference.options import Options
from evenhand.engines.reference.resolve import Refused, Setup, SglangDefaults

if TYPE_CHECKING:
    from evenhand.engines.reference.api import ApiError, Ask
    from evenhand.engines.reference.server import Server

GIB = 1 << 30
METHODS = {"STANDALONE": "draft_model", "NEXTN": "mtp"}
"""Names of draft methods that are not the neutral ones in capitals."""
FLAGS: dict[str, Flag] = {
    "--model-path": Flag("model"),
    "--model": Flag("model"),
    "--served-model-name": Flag("served_name"),
    "--host": Flag("host"),
    "--port": Flag("port", "int"),
    "--context-length": Flag("context", "int"),
    "--max-running-requests": Flag("seats", "int"),
    "--max-total-tokens": Flag("pool_tokens", "int"),
    "--mem-fraction-static": Flag("pool_fraction", "float"),
    "--page-size": Flag("block_tokens", "int"),
    "--chunked-prefill-size": Flag("batch_tokens", "int"),
    "--disable-radix-cache": Flag("caching", "off"),
    "--mamba-ssm-dtype": Flag("state_dtype"),
    "--mamba-full-memory-ratio": Flag("state_ratio", "float"),
    "--max-mamba-cache-size": Flag("state_slots", "int"),
    "--kv-cache-dtype": Flag("cache_dtype"),
    "--dtype": Flag("dtype"),
    "--random-seed": Flag("seed", "int"),
    "--speculative-algorithm": Flag("method"),
    "--speculative-draft-model-path": Flag("draft"),
    "--speculative-num-draft-tokens": Flag("verify", "int"),
    "--speculative-num-steps": Flag("", "ignore"),
    "--speculative-eagle-topk": Flag("", "ignore"),
    "--enable-metrics": Flag("metrics", "on"),
    "--enable-cache-report": Flag("report_cached", "on"),
    "--decode-log-interval": Flag("gauge_every", "int"),
    "--disable-overlap-schedule": Flag("async_scheduling", "off"),
    "--disable-cuda-graph": Flag("", "ignore_switch"),
    "--device": Flag("", "ignore"),
    "--attention-backend": Flag("", "ignore"),
    "--grammar-backend": Flag("", "ignore"),
}
DEFAULT_GAUGE_EVERY = 40


def algorithm(method: str | None) -> str | None:
    """SGLang's name of a neutral draft method."""
    if method is None:
        return None
    return next((theirs for theirs, neutral in METHODS.items() if neutral == method), method.upper())


class SglangFrame(Frame):
    """Events as SGLang frames them."""

    def __init__(self, ask: Ask, name: str, created: int, model: str, details: bool) -> None:
        super().__init__(ask, name, created, model)
        self._details = details
        kind = b"chat.completion.chunk" if ask.chat else b"text_completion"
        self._start = b'{"id":%b,"object":"%b","created":%d,' % (encode(name), kind, created)
        self._start += b'"model":%b,"choices":[' % encode(model)
        opening = b'{"index":0,"delta":{"reasoning_content":null,"content":"' if ask.chat else b'{"index":0,"text":"'
        self._open = b"data: " + self._start + opening
        self._shut = b'"},"logprobs":' if ask.chat else b'","logprobs":'

    def head(self) -> bytes:
        if not self.ask.chat:
            return b""
        role = b'{"index":0,"delta":{"reasoning_content":null,"role":"assistant","content":""},"logprobs":null,'
        return b"data: " + self._start + role + b'"finish_reason":null,"matched_stop":null}]}\n\n'

    def event(
        self, text: bytes, ids: list[int] | None, finish: str | None, usage: bytes | None, logprobs: bytes | None
    ) -> bytes:
        reason = b"null" if finish is None else b'"%b"' % finish.encode()
        # ids are streamed on completions only
        tokens = b"" if ids is None or self.ask.chat else b',"token_ids":' + id_list(ids)
        tail = b',"finish_reason":%b,"matched_stop":null%b}]' % (reason, tokens)
        if not self.ask.chat or usage is not None:
            tail += b',"usage":' + (usage or b"null")
        return b"".join((self._open, text, self._shut, logprobs or b"null", tail, b"}\n\n"))

    def usage_event(self, usage: bytes) -> bytes:
        return b"data: " + self._start + b'],"usage":' + usage + b"}\n\n"

    def usage(self, prompt: int, output: int, cached: int) -> bytes:
        details = b'{"cached_tokens":%d}' % cached if self._details and cached else b"null"
        counts = b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d' % (prompt, prompt + output, output)
        return counts + b',"prompt_tokens_details":%b,"reasoning_tokens":0,"completion_tokens_details":null}' % details

    def whole(self, text: bytes, ids: list[int] | None, finish: str, usage: bytes, logprobs: bytes | None) -> bytes:
        start = self._start.replace(b"chat.completion.chunk", b"chat.completion", 1)
        content = b'"message":{"role":"assistant","content":"%b"}' if self.ask.chat else b'"text":"%b"'
        tokens = b"" if ids is None or self.ask.chat else b',"token_ids":' + id_list(ids)
        return b"".join(
            (
                start,
                b'{"index":0,' + content % text,
                b',"logprobs":' + (logprobs or b"null"),
                b',"finish_reason":"%b","matched_stop":null%b}]' % (finish.encode(), tokens),
                b',"usage":' + usage + b',"metadata":{"weight_version":"default"}}',
            )
        )

    def error(self, message: str) -> bytes:
        return encode({"error": _body(message, "InternalServerError", 500)})


class SglangDialect(Dialect):
    """`python -m sglang.launch_server`."""

    name = "sglang"
    program = "launch_server.py"
    version = "0.5.23"
    defaults = SglangDefaults()
    any_model = True

    def flags(self, options: Options) -> Mapping[str, Flag]:
        return FLAGS

    def config(self, values: dict[str, Any], options: Options, env: Mapping[str, str]) -> EngineConfig:
        values.pop("", None)
        verify = values.pop("verify", 0)
        values["depth"] = max(0, verify - 1)
        if values.get("method"):
            values["method"] = METHODS.get(values["method"], values["method"].lower())
        values.setdefault("metrics", False)
        values.setdefault("gauge_every", DEFAULT_GAUGE_EVERY)
        return super().config(values, options, env)

    def longest(self, setup: Setup) -> int:
        """What the pool of tokens can hold at all bounds a request as well."""
        return min(setup.rules.context, setup.pool_tokens - 1)

    def usage_error(self, argument: str, text: str) -> Words:
        lines = [text.rstrip(), f"launch_server.py: error: unrecognized arguments: {argument}"]
        return Words(lines=lines, exit_code=2)

    def refusal(self, refused: Refused, setup: EngineConfig) -> Words:
        """The child's traceback, then the parent is killed."""
        stamp = time.strftime("[%Y-%m-%d %H:%M:%S]")
        return Words(
            lines=[
                f"{stamp} Scheduler hit an exception: Traceback (most recent call last):",
                "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any requests. "
                f"max_mamba_cache_size={refused.seats}, mamba_ratio={refused.slots}, resulting max_num_reqs=0. "
                "Try: (1) reduce --max-running-requests, (2) increase --mem-fraction-static, or (3) use GPUs with more memory.",
                "",
                f"{stamp} Received sigquit from a child process. It usually means the child failed.",
            ],
            exit_code=137,
        )

    def boot_lines(self, setup: Setup, pid: int) -> list[str]:
        stamp = time.strftime("[%Y-%m-%d %H:%M:%S]")
        rules = setup.rules
        lines = []
        if setup.state_slots:
            gb = setup.state_slots * setup.state_row_bytes * setup.shape.state_layers / GIB
            lines.append(
                f"{stamp} Mamba Cache is allocated. max_mamba_cache_size: {setup.state_slots}, conv_state size: 0.00GB, "
                f"ssm_state size: {gb:.2f}GB "
            )
        asked = setup.seats_asked
        if asked is not None and rules.seats < asked:
            lines.append(
                f"{stamp} max_running_requests is capped to {rules.seats} by the mamba state cache "
                f"(max_mamba_cache_size={setup.state_slots}, {setup.state_slots // rules.seats} state slots per request). To "
                "raise it: increase --mamba-full-memory-ratio or --max-mamba-cache-size, or halve the state size with "
                "--mamba-ssm-dtype bfloat16."
            )
        half = setup.pool_tokens * setup.attention_bytes * setup.shape.attention_layers / GIB / 2
        lines.append(
            f"{stamp} KV Cache is allocated. dtype: torch.bfloat16, #tokens: {setup.pool_tokens}, K size: {half:.2f} GB, "
            f"V size: {half:.2f} GB"
        )
        lines.append(
            f"{stamp} max_total_num_tokens={setup.pool_tokens}, chunked_prefill_size={rules.batch_tokens}, "
            f"max_prefill_tokens=16384, max_running_requests={rules.seats}, context_len={rules.context}, "
            "available_gpu_mem=0.00 GB"
        )
        return lines

    def ready_lines(self, setup: Setup, pid: int) -> list[str]:
        stamp = time.strftime("[%Y-%m-%d %H:%M:%S]")
        where = f"http://{setup.config.host}:{setup.config.port}"
        return [
            f"{stamp} INFO:     Started server process [{pid}]",
            f"{stamp} INFO:     Application startup complete.",
            f"{stamp} INFO:     Uvicorn running on {where} (Press CTRL+C to quit)",
            f"{stamp} The server is fired up and ready to roll!",
        ]

    def frame(self, ask: Ask, number: int, created: int, model: str, server: Server) -> Frame:
        return SglangFrame(ask, f"{number:032x}", created, model, server.setup.config.report_cached)

    def error(self, error: ApiError, server: Server) -> Answer:
        facts = error.facts
        if error.kind == "too long":
            text = (
                f"The input ({facts['prompt']} tokens) is longer than the model's context length ({facts['context']} tokens)."
            )
        elif error.kind == "max tokens":
            total = facts["prompt"] + facts["wanted"]
            text = (
                f"Requested token count exceeds the model's maximum context length of {facts['context']} tokens. You requested "
                f"a total of {total} tokens: {facts['prompt']} tokens from the input messages and {facts['wanted']} tokens for "
                "the completion. Please reduce the number of tokens in the input messages or the completion to fit within the "
                "limit."
            )
        elif error.kind == "not ready":
            return 500, encode(_body("Server is not ready", "InternalServerError", 500)), JSON
        else:
            text = words(error.kind, facts)
        return error.status, encode(_body(text, "BadRequestError", error.status)), JSON

    def engine_dead(self, server: Server, message: str) -> Answer:
        return 500, encode(_body(message, "InternalServerError", 500)), JSON

    def dead_lines(self, message: str) -> list[str]:
        stamp = time.strftime("[%Y-%m-%d %H:%M:%S]")
        return [f"{stamp} Scheduler hit an exception: Traceback (most recent call last):", f"RuntimeError: {message}"]

    def routes(self) -> Mapping[tuple[str, str], Route]:
        return {
            ("GET", "/health"): lambda server: (503 if server.engine.dead or not server.generates else 200, b"", JSON),
            ("GET", "/health_generate"): lambda server: (503 if server.engine.dead or not server.generates else 200, b"", JSON),
            ("GET", "/v1/models"): _models,
            ("GET", "/metrics"): _metrics,
            ("GET", "/server_info"): _server_info,
            ("GET", "/get_server_info"): _server_info,
            ("POST", "/flush_cache"): _flush,
            ("GET", "/flush_cache"): _flush,
        }


def _body(text: str, kind: str, code: int) -> dict[str, Any]:
    return {"object": "error", "message": text, "type": kind, "param": None, "code": code}


def _models(server: Server) -> Answer:
    entry = {
        "id": server.served,
        "object": "model",
        "created": server.created,
        "owned_by": "sglang",
        "root": server.served,
        "parent": None,
        "max_model_len": server.setup.rules.context,
    }
    return 200, encode({"object": "list", "data": [entry] if server.lists_models else []}), JSON


def _flush(server: Server) -> Answer:
    if server.engine.reset_cache():
        return 200, b"Cache flushed.\nPlease check backend logs for more details.\n", TEXT
    return 400, b"Flush cache failed.\n", TEXT


def _server_info(server: Server) -> Answer:
    setup = server.setup
    config, rules = setup.config, setup.rules
    info = {
        "model_path": config.model,
        "served_model_name": server.served,
        "dtype": config.dtype or "auto",
        "kv_cache_dtype": config.cache_dtype or "auto",
        "context_length": rules.context,
        "max_running_requests": rules.seats,
        "max_total_tokens": config.pool_tokens,
        "mem_fraction_static": config.pool_fraction,
        "chunked_prefill_size": rules.batch_tokens,
        "page_size": rules.block_tokens,
        "schedule_policy": "fcfs",
        "disable_radix_cache": config.caching is False,
        "disable_overlap_schedule": not rules.in_flight,
        "attention_backend": "reference",
        "random_seed": config.seed,
        "speculative_algorithm": algorithm(config.method),
        "speculative_draft_model_path": config.draft,
        "speculative_num_draft_tokens": config.depth + 1 if config.depth else None,
        "mamba_ssm_dtype": setup.state_dtype if setup.shape.state_layers else None,
        "mamba_full_memory_ratio": config.state_ratio,
        "max_mamba_cache_size": setup.state_slots or None,
        "decode_log_interval": config.gauge_every,
        "enable_metrics": config.metrics,
        "enable_cache_report": config.report_cached,
        "status": "ready",
        "max_total_num_tokens": setup.pool_tokens,
        "max_req_input_len": server.dialect.longest(setup) - 5,
        "version": server.version,
        "internal_states": [{"effective_max_running_requests_per_dp": rules.seats, "memory_usage": {}}],
    }
    return 200, encode(info), JSON


def _metrics(server: Server) -> Answer:
    if not server.setup.config.metrics:
        return 404, b'{"detail":"Not Found"}', JSON
    return 200, exposition(server), TEXT


def _family(name: str, kind: str) -> list[str]:
    return [f"# HELP sglang:{name} Reference model, not a measurement.", f"# TYPE sglang:{name} {kind}"]


def exposition(server: Server) -> bytes:
    """The exposition in SGLang's names: usage is the maximum over pools, rounded; token figures are exact."""
    engine, setup = server.engine, server.setup
    state, totals, page = engine.state, engine.state.totals, setup.rules.block_tokens
    rank = f'engine_type="unified",model_name="{server.served}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    plain = f'engine_type="unified",model_name="{server.served}"'
    total, used = state.pool.usable * page, engine.usage_blocks * page
    evictable = state.pool.findable * page
    full = used / total if total else 0.0
    slots = state.slots.size if state.slots else 0
    mamba = engine.used_slots / slots if slots else 0.0
    steps = totals.drafts
    base = server.counter_base
    gauges: list[tuple[str, float]] = [
        ("num_running_reqs", engine.running),
        ("num_queue_reqs", engine.waiting),
        ("num_used_tokens", used),
        ("token_usage", round(max(full, mamba), 2)),
        ("full_token_usage", round(full, 2)),
        ("swa_token_usage", 0),
        ("mamba_usage", round(mamba, 2)),
        ("kv_used_tokens", used),
        ("kv_available_tokens", total - used - evictable),
        ("kv_evictable_tokens", evictable),
        ("swa_used_tokens", 0),
        ("mamba_used_tokens", engine.used_slots),
        ("mamba_available_tokens", slots - engine.used_slots),
        ("mamba_evictable_tokens", 0),
        ("num_retracted_reqs", totals.preemptions),
        ("cache_hit_rate", totals.hit / totals.queried if totals.queried else 0.0),
        ("spec_accept_length", 1 + totals.accepted / steps if steps else 0.0),
        ("spec_accept_rate", totals.accepted / totals.drafted if totals.drafted else 0.0),
        ("max_total_num_tokens", total),
        ("page_size", page),
        ("num_pages", state.pool.usable),
        ("context_len", setup.rules.context),
    ]
    done = sum(totals.finished.values())
    counters: list[tuple[str, str, float]] = [
        ("prompt_tokens_total", f'{plain},is_streaming="true"', totals.prompt - base.get("prompt_tokens_total", 0)),
        ("generation_tokens_total", f'{plain},is_streaming="true"', totals.generated - base.get("generation_tokens_total", 0)),
        ("num_requests_total", f'{plain},is_streaming="true"', done - base.get("requests", 0)),
        ("num_retracted_requests_total", plain, totals.preemptions - base.get("num_preemptions_total", 0)),
        ("cached_tokens_total", f'cache_source="device",{plain}', totals.cached - base.get("prompt_tokens_cached_total", 0)),
        ("spec_verify_calls_total", plain, totals.drafts - base.get("spec_decode_num_drafts_total", 0)),
    ]
    lines: list[str] = []
    for name, value in gauges:
        lines += _family(name, "gauge")
        lines.append(f"sglang:{name}{{{rank}}} {float(value)}")
    for name, labels, value in counters:
        lines += _family(name, "counter")
        lines.append(f"sglang:{name}{{{labels}}} {float(value)}")
    return ("\n".join(lines) + "\n").encode()
