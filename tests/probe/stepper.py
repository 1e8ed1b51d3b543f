"""Steps a real vLLM scheduler with a real block pool and real managers, without a model: run by test_real_modules.py.

    PYTHONPATH=SOURCES:PROBE EVENHAND_PROBE_LOG=FOLDER python stepper.py '[CASE, ...]'

The interpreter is one that holds vLLM's dependencies; SOURCES is the unpacked vLLM under test. The stand-in for the worker
answers every step with one token per request whose prompt is computed. Prints one JSON list;
each case has its log CASE["name"].jsonl in FOLDER, or none where the variable is not set.
"""

import json
import os
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

CASE: dict[str, Any] = {}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
    "vocab_size": 256,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}


def register() -> None:
    """Load the plug-in the way vLLM does: by its entry point."""
    from vllm.plugins import load_general_plugins

    load_general_plugins()


def build() -> Any:
    """A scheduler over one attention group and CASE["states"] state groups."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
    from vllm.v1.structured_output import StructuredOutputManager

    folder = tempfile.mkdtemp()
    (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
    block = CASE["block"]
    model = ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=65536, seed=0)
    cache = CacheConfig(block_size=block, gpu_memory_utilization=0.9, enable_prefix_caching=CASE["caching"])
    cache.mamba_cache_mode = "align" if CASE["states"] else "none"
    cache.mamba_block_size = block
    cache.num_gpu_blocks = CASE["blocks"]
    config = VllmConfig(
        model_config=model,
        cache_config=cache,
        device_config=DeviceConfig(device="cpu"),
        scheduler_config=SchedulerConfig(
            max_num_seqs=CASE["seats"],
            max_num_batched_tokens=CASE["budget"],
            max_model_len=65536,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=CASE["in_flight"] > 1,
        ),
    )
    # the model of the stand-in configuration is dense: its checks must not undo what the groups below are
    cache.block_size, cache.mamba_cache_mode = block, "align" if CASE["states"] else "none"
    attention = FullAttentionSpec(block_size=block, num_kv_heads=2, head_size=16, dtype=torch.bfloat16)
    state = MambaSpec(
        block_size=block,
        shapes=((4, 4),),
        dtypes=(torch.float32,),
        mamba_cache_mode="align",
        num_speculative_blocks=CASE.get("depth", 0),
    )
    groups = [KVCacheGroupSpec(["a"], attention)]
    groups += [KVCacheGroupSpec([f"s{n}"], state) for n in range(CASE["states"])]
    kv = KVCacheConfig(num_blocks=CASE["blocks"], kv_cache_tensors=[], kv_cache_groups=groups)
    if hasattr(kv, "hash_block_size"):
        kv.hash_block_size = kv.cache_hit_alignment_tokens = block
    cls = AsyncScheduler if CASE["in_flight"] > 1 else Scheduler
    scheduler = cls(config, kv, StructuredOutputManager(config), block_size=block, hash_block_size=block, log_stats=False)
    # a drafter would need a draft model's configuration; what matters here is that it takes one cacheable block less
    scheduler.use_eagle = CASE.get("depth", 0) > 0
    return scheduler


def drive(scheduler: Any) -> dict[str, Any]:
    """Run all requests; CASE["in_flight"] steps are scheduled before the first of them is answered."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    init_none_hash(hash)
    hasher = get_request_block_hasher(CASE["block"], lambda value: str(hash(value)).encode())
    tokens: dict[str, list[int]] = {}
    usage, steps, spent_ns = [], 0, 0
    pool = scheduler.kv_cache_manager.block_pool
    for wave in CASE["waves"]:
        for name, length in wave:
            sampling = SamplingParams(max_tokens=CASE["output"], temperature=0.0, ignore_eos=True)
            prompt = [(n * 7 + hash(name.split("@")[0]) % 97) % 251 for n in range(length)]
            scheduler.add_request(
                Request(
                    request_id=name, prompt_token_ids=prompt, sampling_params=sampling, pooling_params=None, block_hasher=hasher
                )
            )
        flying: deque[Any] = deque()
        while scheduler.has_requests() or flying:
            if scheduler.has_requests() and len(flying) < CASE["in_flight"]:
                start = time.perf_counter_ns()
                output = scheduler.schedule()
                spent_ns += time.perf_counter_ns() - start
                steps += 1
                if output.total_num_scheduled_tokens or not flying:
                    flying.append(output)
                    if len(flying) < CASE["in_flight"] and scheduler.has_requests():
                        continue
            output = flying.popleft()
            names = list(output.num_scheduled_tokens)
            done = {
                name: scheduler.requests[name].num_computed_tokens >= scheduler.requests[name].num_prompt_tokens
                if name in scheduler.requests
                else True
                for name in names
            }
            new = [[len(name) + len(tokens.get(name, ()))] if done[name] else [] for name in names]
            answer = ModelRunnerOutput(
                req_ids=names, req_id_to_index={n: i for i, n in enumerate(names)}, sampled_token_ids=new, logprobs=None
            )
            for outputs in scheduler.update_from_output(output, answer).values():
                for each in outputs.outputs:
                    tokens.setdefault(each.request_id, []).extend(each.new_token_ids)
            usage.append(round(pool.get_usage() * (pool.num_gpu_blocks - 1)))
    return {"tokens": tokens, "usage_after_step": usage, "steps": steps, "schedule_ns": spent_ns}


def lose_later(scheduler: Any) -> None:
    """Take away what only the probe reads, once the engine runs."""
    original = scheduler._update_after_schedule

    def update(output: Any) -> None:
        original(output)
        output.finished_req_ids = None

    scheduler._update_after_schedule = update


def lose_at_start(module: Any) -> None:
    """An internal of another type than expected."""
    original = module.KVCacheManager.__init__

    def changed(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.block_pool.num_gpu_blocks = float(self.block_pool.num_gpu_blocks)

    module.KVCacheManager.__init__ = changed


def main() -> None:
    """Build, drive, report, case by case."""
    import vllm

    folder = os.environ.get("EVENHAND_PROBE_LOG")
    register()
    import vllm.v1.core.sched.scheduler as module

    results = []
    for case in json.loads(sys.argv[1]):
        CASE.clear()
        CASE.update(case)
        if folder:
            os.environ["EVENHAND_PROBE_LOG"] = f"{folder}/{case['name']}.jsonl"
        if case.get("lost") == "at start":
            lose_at_start(module)
        scheduler = build()
        if case.get("lost") == "later":
            lose_later(scheduler)
        results.append({"version": vllm.__version__, "file": module.__file__, **drive(scheduler)})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
