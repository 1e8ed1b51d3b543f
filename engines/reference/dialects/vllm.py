"""vLLM's dialect, after 0.32: flags, exposition, error bodies, start-up words and refusal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evenhand.engines.reference.config import EngineConfig, Flag
from evenhand.engines.reference.dialects.base import JSON, TEXT, Answer, Dialect, Frame, Route, Words, encode, id_list, words
from evenhand.engines.reference.options import Options
from evenhand.engines.reference.resolve import Refused, Setup, VllmDefaults

if TYPE_CHECKING:
    from evenhand.engines.reference.api import ApiError, Ask
    from evenhand.engines.reference.server import Server

GIB = 1 << 30
FLAGS: dict[str, Flag] = {
    "--model": Flag("model"),
    "--served-model-name": Flag("served_name"),
    "--host": Flag("host"),
    "--port": Flag("port", "int"),
    "--max-model-len": Flag("context", "int"),
    "--max-num-seqs": Flag("seats", "int"),
    "--max-num-batched-tokens": Flag("batch_tokens", "int"),
    "--block-size": Flag("block_tokens", "int"),
    "--num-gpu-blocks-override": Flag("pool_blocks", "int"),
    "--kv-cache-memory-bytes": Flag("pool_bytes", "bytes"),
    "--gpu-memory-utilization": Flag("pool_fraction", "float"),
    "--enable-prefix-caching": Flag("caching", "on"),
    "--no-enable-prefix-caching": Flag("caching", "off"),
    "--mamba-cache-mode": Flag("state_mode"),
    "--mamba-ssm-cache-dtype": Flag("state_dtype"),
    "--kv-cache-dtype": Flag("cache_dtype"),
    "--dtype": Flag("dtype"),
    "--seed": Flag("seed", "int"),
    "--speculative-config": Flag("speculation", "json"),
    "--enable-prompt-tokens-details": Flag("report_cached", "on"),
    "--async-scheduling": Flag("async_scheduling", "on"),
    "--no-async-scheduling": Flag("async_scheduling", "off"),
    "--enforce-eager": Flag("", "ignore_switch"),
    "--load-format": Flag("", "ignore"),
}


def _stamp(process: str, pid: int) -> str:
    return f"({process} pid={pid}) INFO {time.strftime('%m-%d %H:%M:%S')}"


class VllmFrame(Frame):
    """Events as vLLM frames them."""

    def __init__(self, ask: Ask, name: str, created: int, model: str, details: bool) -> None:
        super().__init__(ask, name, created, model)
        self._details = details
        kind = b"chat.completion.chunk" if ask.chat else b"text_completion"
        self._start = b'{"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
            encode(name),
            kind,
            created,
            encode(model),
        )
        opening = b'{"index":0,"delta":{"content":"' if ask.chat else b'{"index":0,"text":"'
        self._open = b"data: " + self._start + opening
        self._shut = b'"},"logprobs":' if ask.chat else b'","logprobs":'
        self._tail = (
            b',"finish_reason":null,"token_ids":'
            if ask.chat
            else b',"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":'
        )

    def head(self) -> bytes:
        if not self.ask.chat:
            return b""
        prompt = id_list(self.ask.prompt.tolist()) if self.ask.ids else b"null"
        return (
            b"data: "
            + self._start
            + b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
            + b'"prompt_token_ids":%b,"prompt_text":null}\n\n' % prompt
        )

    def event(
        self, text: bytes, ids: list[int] | None, finish: str | None, usage: bytes | None, logprobs: bytes | None
    ) -> bytes:
        tail = self._tail
        if finish is not None or (self.first and ids is not None and not self.ask.chat):
            tail = tail.replace(b'"finish_reason":null', b'"finish_reason":"%b"' % finish.encode(), 1) if finish else tail
            if self.ask.chat:
                tail = tail.replace(b',"token_ids"', b',"stop_reason":null,"token_ids"')
            elif self.first and ids is not None:
                tail = tail.replace(b'"prompt_token_ids":null', b'"prompt_token_ids":' + id_list(self.ask.prompt.tolist()))
        self.first = False
        close = b"}]}\n\n" if usage is None else b'}],"usage":' + usage + b"}\n\n"
        return b"".join((self._open, text, self._shut, logprobs or b"null", tail, id_list(ids), close))

    def usage_event(self, usage: bytes) -> bytes:
        return b"data: " + self._start + b'],"usage":' + usage + b',"system_fingerprint":"vllm-reference"}\n\n'

    def usage(self, prompt: int, output: int, cached: int) -> bytes:
        body = b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d' % (prompt, prompt + output, output)
        if self._details:
            body += b',"prompt_tokens_details":{"cached_tokens":%d}' % cached
        return body + b"}"

    def whole(self, text: bytes, ids: list[int] | None, finish: str, usage: bytes, logprobs: bytes | None) -> bytes:
        kind = b"chat.completion" if self.ask.chat else b"text_completion"
        content = b'"message":{"role":"assistant","content":"%b"}' if self.ask.chat else b'"text":"%b"'
        start = self._start.replace(b"chat.completion.chunk", kind, 1)
        prompt = b"null" if ids is None else id_list(self.ask.prompt.tolist())
        return b"".join(
            (
                start,
                b'{"index":0,' + content % text,
                b',"logprobs":' + (logprobs or b"null"),
                b',"finish_reason":"%b","stop_reason":null,"token_ids":' % finish.encode(),
                id_list(ids),
                b',"prompt_token_ids":' + prompt,
                b'}],"usage":' + usage + b"}",
            )
        )


class VllmDialect(Dialect):
    """`vllm serve`."""

    name = "vllm"
    program = "vllm serve"
    version = "0.32.0"
    defaults = VllmDefaults()

    def flags(self, options: Options) -> Mapping[str, Flag]:
        return FLAGS

    def config(self, values: dict[str, Any], options: Options, env: Mapping[str, str]) -> EngineConfig:
        speculation = values.pop("speculation", None) or {}
        values.pop("", None)
        values["depth"] = int(speculation.get("num_speculative_tokens", 0))
        values["method"] = speculation.get("method")
        values["draft"] = speculation.get("model")
        values["dev_mode"] = env.get("VLLM_SERVER_DEV_MODE") == "1"
        if "pool_bytes" not in values and env.get("VLLM_CPU_KVCACHE_SPACE"):
            values["pool_bytes"] = int(float(env["VLLM_CPU_KVCACHE_SPACE"]) * GIB)
        return super().config(values, options, env)

    def usage_error(self, argument: str, text: str) -> Words:
        return Words(lines=[text.rstrip(), f"vllm: error: unrecognized arguments: {argument}"], exit_code=2)

    def refusal(self, refused: Refused, setup: EngineConfig) -> Words:
        error = (
            f"ValueError: To serve at least one request with the model's max seq len ({refused.context}), "
            f"({refused.needed / GIB:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({refused.available / GIB:.2f} GiB). Based on the available memory, the estimated maximum model length is "
            f"{refused.longest}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the "
            "engine."
        )
        stamp = time.strftime("%m-%d %H:%M:%S")
        return Words(
            lines=[
                f"(EngineCore pid=1) ERROR {stamp} [core.py:1510] EngineCore failed to start.",
                f"(EngineCore pid=1) ERROR {stamp} [core.py:1510] {error}",
                error,
                "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}",
            ],
            exit_code=1,
        )

    def boot_lines(self, setup: Setup, pid: int) -> list[str]:
        version = setup.config.options.version or self.version
        core, front = _stamp("EngineCore", pid), _stamp("APIServer", pid)
        lines = [f"{core} [core.py:133] Initializing a V1 LLM engine (v{version}) with config: reference model"]
        if setup.rules.in_flight:
            lines.append(f"{front} [vllm.py:1109] Asynchronous scheduling is enabled.")
        if setup.state_groups:
            lines.append(
                f"{core} [interface.py:1096] Setting attention block size to {setup.rules.block_tokens} tokens to ensure that "
                "attention page size is >= mamba page size."
            )
            lines.append(
                f"{core} [interface.py:1120] Padding mamba page size by {100 * setup.padding:.2f}% to ensure that mamba page "
                "size and attention page size are exactly equal."
            )
        memory = setup.pool_blocks * setup.block_bytes / GIB
        lines.append(f"{core} [gpu_worker.py:560] Available KV cache memory: {memory:.2f} GiB")
        lines.append(
            f"{core} [kv_cache_utils.py:2327] GPU KV cache size: {setup.pool_tokens:,} tokens, Maximum concurrency for "
            f"{setup.rules.context:,} tokens per request: {setup.concurrency:.2f}x"
        )
        return lines

    def ready_lines(self, setup: Setup, pid: int) -> list[str]:
        return [
            f"(APIServer pid={pid}) INFO:     Started server process [{pid}]",
            f"(APIServer pid={pid}) INFO:     Application startup complete.",
        ]

    def frame(self, ask: Ask, number: int, created: int, model: str, server: Server) -> Frame:
        name = f"{'chatcmpl' if ask.chat else 'cmpl'}-{number:016x}"
        return VllmFrame(ask, name, created, model, server.setup.config.report_cached)

    def error(self, error: ApiError, server: Server) -> Answer:
        facts = error.facts
        kind, param = "BadRequestError", None
        if error.kind == "model":
            kind, param = "NotFoundError", "model"
            text = f"The model `{facts['asked']}` does not exist. Valid aliases: {facts['served']}."
        elif error.kind == "too long":
            param = "input_tokens"
            text = (
                f"This model's maximum context length is {facts['context']} tokens. However, your prompt contains at least "
                f"{facts['prompt']} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
                f"length of the input prompt. (parameter=input_tokens, value={facts['prompt']})"
            )
        elif error.kind == "max tokens":
            param = "max_tokens"
            text = (
                f"max_tokens={facts['wanted']} cannot be greater than max_model_len={facts['context']}. Please request fewer "
                f"output tokens. (parameter=max_tokens, value={facts['wanted']})"
            )
        elif error.kind == "not ready":
            return (
                500,
                encode({"error": {"message": "not ready", "type": "InternalServerError", "param": None, "code": 500}}),
                JSON,
            )
        else:
            text = words(error.kind, facts)
        return error.status, encode({"error": {"message": text, "type": kind, "param": param, "code": error.status}}), JSON

    def dead_lines(self, message: str) -> list[str]:
        return [f"(EngineCore pid=1) ERROR [core.py:1600] EngineCore encountered a fatal error. {message}"]

    def routes(self) -> Mapping[tuple[str, str], Route]:
        return {
            ("GET", "/health"): lambda server: (503 if server.engine.dead else 200, b"", JSON),
            ("GET", "/version"): lambda server: (200, encode({"version": server.version}), JSON),
            ("GET", "/v1/models"): models,
            ("GET", "/metrics"): lambda server: (200, exposition(server), TEXT),
            ("GET", "/server_info"): _server_info,
            ("POST", "/reset_prefix_cache"): _reset,
        }


def models(server: Server) -> Answer:
    """GET /v1/models."""
    data = [
        {
            "id": server.served,
            "object": "model",
            "created": server.created,
            "owned_by": "vllm",
            "root": server.setup.config.model,
            "parent": None,
            "max_model_len": server.setup.rules.context,
        }
    ]
    return 200, encode({"object": "list", "data": data if server.lists_models else []}), JSON


def _reset(server: Server) -> Answer:
    if not server.setup.config.dev_mode:
        return 404, encode({"detail": "Not Found"}), JSON
    return 200, encode({"success": server.engine.reset_cache()}), JSON


def _server_info(server: Server) -> Answer:
    if not server.setup.config.dev_mode:
        return 404, encode({"detail": "Not Found"}), JSON
    setup = server.setup
    config, rules = setup.config, setup.rules
    speculative: dict[str, Any] | None = None
    if config.depth:
        speculative = {"method": config.method, "num_speculative_tokens": config.depth, "model": config.draft}
    info: dict[str, Any] = {
        "model_config": {
            "model": config.model,
            "dtype": f"torch.{setup.shape.dtype if config.dtype in (None, 'auto') else config.dtype}",
            "seed": config.seed,
            "max_model_len": rules.context,
            "quantization": None,
            "enforce_eager": True,
            "served_model_name": server.served,
            "hf_token": None,
            "generation_config": "auto",
            "override_generation_config": {},
            "logprobs_mode": "raw_logprobs",
        },
        "cache_config": cache_config(server),
        "parallel_config": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1},
        "scheduler_config": {
            "max_num_seqs": rules.seats,
            "max_num_batched_tokens": rules.batch_tokens,
            "enable_chunked_prefill": True,
            "policy": "fcfs",
            "async_scheduling": bool(rules.in_flight),
        },
        "device_config": {"device": "reference"},
        "speculative_config": speculative,
        "instance_id": str(server.created),
        "additional_config": server.own_config(),
    }
    return 200, encode({"vllm_config": info}), JSON


def cache_config(server: Server) -> dict[str, Any]:
    """The cache's effective configuration: what caching and the state mode really are, not what was asked."""
    setup = server.setup
    config, rules = setup.config, setup.rules
    hybrid = setup.shape.state_layers > 0
    return {
        "block_size": rules.block_tokens,
        "cache_dtype": config.cache_dtype or "auto",
        "enable_prefix_caching": rules.caching,
        "prefix_caching_hash_algo": "blake2b",
        "gpu_memory_utilization": config.pool_fraction or 0.9,
        "kv_cache_memory_bytes": config.pool_bytes,
        "mamba_block_size": rules.block_tokens if hybrid else None,
        "mamba_cache_dtype": "auto",
        "mamba_ssm_cache_dtype": setup.state_dtype if hybrid else "auto",
        "mamba_cache_mode": "align" if rules.aligned else "none",
        "mamba_page_size_padded": None,
        "num_gpu_blocks": setup.pool_blocks,
        "num_gpu_blocks_override": config.pool_blocks,
        "kv_cache_size_tokens": setup.pool_tokens,
        "kv_cache_max_concurrency": setup.concurrency,
    }


def exposition(server: Server, subset: bool = False) -> bytes:
    """The exposition in vLLM's names; `subset`: as vllm.cpp has it, with two labels of the cache's configuration."""
    engine = server.engine
    state, totals = engine.state, engine.state.totals
    labels = f'engine="0",model_name="{server.served}"'
    info = cache_config(server)
    if subset:
        info = {key: info[key] for key in ("kv_cache_size_tokens", "kv_cache_max_concurrency")}
    told = ",".join(f'{key}="{value}"' for key, value in sorted({**info, "engine": "0"}.items()))
    usage = engine.usage_blocks / state.pool.usable if state.pool.usable else 0.0
    base = server.counter_base
    series: list[tuple[str, str, str, float]] = [
        ("num_requests_running", "gauge", "", engine.running),
        ("num_requests_waiting", "gauge", "", engine.waiting),
        ("num_requests_waiting_by_reason", "gauge", ',reason="capacity"', engine.waiting),
        ("num_requests_waiting_by_reason", "gauge", ',reason="deferred"', 0),
        ("kv_cache_usage_perc", "gauge", "", usage),
        ("prefix_cache_queries_total", "counter", "", totals.queried),
        ("prefix_cache_hits_total", "counter", "", totals.hit),
        ("num_preemptions_total", "counter", "", totals.preemptions),
        ("prompt_tokens_total", "counter", "", totals.prompt),
        ("prompt_tokens_cached_total", "counter", "", totals.cached),
        ("generation_tokens_total", "counter", "", totals.generated),
        *(("request_success_total", "counter", f',finished_reason="{reason}"', n) for reason, n in totals.finished.items()),
    ]
    if server.setup.config.depth:
        series += [
            ("spec_decode_num_drafts_total", "counter", "", totals.drafts),
            ("spec_decode_num_draft_tokens_total", "counter", "", totals.drafted),
            ("spec_decode_num_accepted_tokens_total", "counter", "", totals.accepted),
        ]
    lines: list[str] = []
    previous = ""
    for name, kind, extra, value in series:
        if kind == "counter":
            value -= base.get(name + extra, 0)
        if name != previous:
            lines.append(f"# HELP vllm:{name} Reference model, not a measurement.\n# TYPE vllm:{name} {kind}")
            previous = name
        lines.append(f"vllm:{name}{{{labels}{extra}}} {float(value)}")
    previous = ""
    for name, kind, extra, _ in series:
        if kind == "counter" and not subset:
            made = name.removesuffix("_total") + "_created"
            if made != previous:
                lines.append(f"# HELP vllm:{made} Reference model, not a measurement.\n# TYPE vllm:{made} gauge")
                previous = made
            lines.append(f"vllm:{made}{{{labels}{extra}}} {float(server.created)}")
    lines.append("# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n# TYPE vllm:cache_config_info gauge")
    lines.append(f"vllm:cache_config_info{{{told}}} 1.0")
    return ("\n".join(lines) + "\n").encode()


def counters(server: Server) -> dict[str, float]:
    """Counter values now, as `exposition` would subtract them after a restart."""
    totals = server.engine.state.totals
    found: dict[str, float] = {
        "prefix_cache_queries_total": totals.queried,
        "prefix_cache_hits_total": totals.hit,
        "num_preemptions_total": totals.preemptions,
        "prompt_tokens_total": totals.prompt,
        "prompt_tokens_cached_total": totals.cached,
        "generation_tokens_total": totals.generated,
        "spec_decode_num_drafts_total": totals.drafts,
        "spec_decode_num_draft_tokens_total": totals.drafted,
        "spec_decode_num_accepted_tokens_total": totals.accepted,
    }
    return found | {f'request_success_total,finished_reason="{reason}"': n for reason, n in totals.finished.items()}
