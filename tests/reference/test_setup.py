"""What a start resolves to: pages, pools, seats, refusals, with the figures of measured boxes."""

from __future__ import annotations

import pytest

from evenhand.engines.reference.config import UsageError
from evenhand.engines.reference.dialects import dialect as find
from evenhand.engines.reference.options import OptionError, Options, bytes_of, convert, parse
from evenhand.engines.reference.resolve import Refused

from .helpers import MODELS, Bench, prompt, request, setup_of

BIG, SMALL, TINY, DENSE = (str(MODELS / name) for name in ("27b-hybrid", "4b-hybrid", "tiny-hybrid", "tiny-dense"))
DEPTH_8 = ("--speculative-config", '{"method":"mtp","num_speculative_tokens":8}')
GIB = 1 << 30
VERBATIM = (
    "server: fatal: To serve 32 concurrent sequences, 43.40 GiB of recurrent (Mamba/GDN) state is needed, which is larger than "
    "the available 38.70 GiB. Speculative decoding widens that state to 9 snapshot slots per sequence "
    "(num_speculative_tokens=8 + 1), so it costs 9x the non-speculative state. Reduce --max-num-seqs, lower "
    "num_speculative_tokens, or run without speculative decoding."
)


def cpp(*argv: str, **options: object):  # type: ignore[no-untyped-def]
    shared = ("--model", BIG, "--max-model-len", "4096", "--block-size", "32", "--max-num-seqs", "32", *DEPTH_8)
    return setup_of(*shared, *argv, dialect="vllm.cpp", **options)


def test_two_pools_refuse_32_seats_at_depth_8() -> None:
    with pytest.raises(Refused) as caught:
        cpp("--num-blocks", "7488", state_bytes="38.70 GiB")
    refused = caught.value
    assert refused.needed == 46_600_814_592
    told = find("vllm.cpp").refusal(refused, None)  # type: ignore[arg-type]
    assert (told.lines, told.exit_code) == ([VERBATIM], 1)


@pytest.mark.parametrize(("seats", "starts"), [(16, True), (28, True), (29, False)])
def test_fewer_seats_fit_the_second_pool(seats: int, starts: bool) -> None:
    argv = ("--model", BIG, "--block-size", "32", "--num-blocks", "7488", "--max-num-seqs", str(seats), *DEPTH_8)
    if starts:
        setup = setup_of(*argv, dialect="vllm.cpp", state_bytes="38.70 GiB")
        assert (setup.rules.seats, setup.state_slots, setup.pool_blocks) == (seats, 9 * seats, 7488)
    else:
        with pytest.raises(Refused):
            setup_of(*argv, dialect="vllm.cpp", state_bytes="38.70 GiB")


def run_32(setup) -> Bench:  # type: ignore[no-untyped-def]
    bench = Bench(setup.rules, 1)
    bench.state = setup.state()
    for key in range(32):
        bench.add(request(prompt(512, key), 64, f"r{key}"))
    return bench.run()


def test_one_pool_of_the_same_bytes_runs_all_32() -> None:
    setup = cpp("--num-blocks", "7488", pools="unified", state_bytes="38.70 GiB")
    assert (setup.pool_blocks, setup.rules.block_tokens) == (1050, 832)
    bench = run_32(setup)
    assert bench.state.totals.peak_running == 32
    assert bench.state.totals.finished["length"] == 32
    assert bench.state.totals.preemptions == 0


def test_288_pages_run_at_most_10_and_queue_the_rest() -> None:
    setup = cpp("--num-blocks", "7488", pools="unified")
    assert (setup.pool_blocks, setup.rules.seats) == (288, 32)
    bench = run_32(setup)
    assert bench.state.totals.peak_running == 10
    assert bench.state.totals.finished["length"] == 32
    assert bench.state.pool.used == 0


def test_seat_ceiling_of_the_smaller_pool_is_13() -> None:
    assert cpp("--num-blocks", "3072").rules.seats == 13


@pytest.mark.parametrize(
    ("model", "depth", "state", "cache", "align", "block", "padding"),
    [
        (BIG, 15, "float16", "auto", 16, 480, 1.27),
        (BIG, 7, "float16", "auto", 16, 448, 3.23),
        (BIG, 7, "float16", "int8_per_token_head", 16, 864, 1.09),
        (BIG, 3, "float16", "fp8", 16, 832, 0.48),
        (BIG, 8, "float32", "auto", 16, 832, 1.09),
        (SMALL, 0, "auto", "auto", 16, 272, 1.49),
        (SMALL, 3, "auto", "auto", 16, 288, 2.86),
        (TINY, 0, "float32", "auto", 128, 256, 91.04),
    ],
)
def test_boot_lines(model: str, depth: int, state: str, cache: str, align: int, block: int, padding: float) -> None:
    argv = ["--model", model, "--block-size", str(align), "--mamba-ssm-cache-dtype", state, "--kv-cache-dtype", cache]
    argv += ["--max-model-len", "4096", "--num-gpu-blocks-override", "900", "--enable-prefix-caching"]
    if depth:
        argv += ["--speculative-config", f'{{"method":"mtp","num_speculative_tokens":{depth}}}']
    setup = setup_of(*argv)
    assert setup.rules.block_tokens == block
    assert round(100 * setup.padding, 2) == padding


@pytest.mark.parametrize(("depth", "tokens", "concurrency"), [(0, 238_795, 3.6437), (3, 242_725, 3.7037)])
def test_pool_of_the_h200_box(depth: int, tokens: int, concurrency: float) -> None:
    argv = ["--model", SMALL, "--max-model-len", "65536", "--num-gpu-blocks-override", "900", "--enable-prefix-caching"]
    if depth:
        argv += ["--speculative-config", f'{{"method":"mtp","num_speculative_tokens":{depth}}}']
    setup = setup_of(*argv)
    assert setup.pool_tokens == tokens
    assert round(setup.concurrency, 4) == concurrency


def test_vllm_refuses_a_pool_without_room_for_one_request() -> None:
    with pytest.raises(Refused) as caught:
        setup_of("--model", DENSE, "--max-model-len", "8192", "--num-gpu-blocks-override", "24", "--block-size", "16")
    told = find("vllm").refusal(caught.value, None)  # type: ignore[arg-type]
    assert told.exit_code == 1
    text = next(line for line in told.lines if line.startswith("ValueError"))
    assert "max seq len (8192)" in text
    assert "estimated maximum model length is 384." in text


def test_sglang_clamps_seats_to_its_state_slots() -> None:
    argv = ("--model-path", BIG, "--context-length", "8192", "--max-running-requests", "32", "--speculative-algorithm", "MTP")
    setup = setup_of(*argv, "--speculative-num-draft-tokens", "9", dialect="sglang", memory_bytes="60 GiB")
    assert setup.rules.depth == 8
    assert setup.rules.seats == setup.state_slots // 5 == 12
    assert any(
        "max_running_requests is capped to 12 by the mamba state cache" in line for line in find("sglang").boot_lines(setup, 1)
    )


def test_sglang_refuses_without_a_single_slot() -> None:
    argv = ("--model-path", BIG, "--context-length", "8192", "--speculative-algorithm", "MTP")
    with pytest.raises(Refused) as caught:
        setup_of(*argv, "--speculative-num-draft-tokens", "9", dialect="sglang", memory_bytes="4 GiB")
    told = find("sglang").refusal(caught.value, None)  # type: ignore[arg-type]
    assert told.exit_code == 137
    assert any("state cache is too small to serve any requests." in line for line in told.lines)
    assert told.lines[-1].endswith("Received sigquit from a child process. It usually means the child failed.")


def test_prefix_caching_off_turns_align_off() -> None:
    setup = setup_of("--model", TINY, "--mamba-cache-mode", "align", "--no-enable-prefix-caching")
    assert not setup.rules.aligned
    assert not setup.rules.caching


def test_depth_is_counted_as_each_engine_counts_it() -> None:
    for dialect, argv in (
        ("vllm", ("--model", TINY, "--speculative-config", '{"method":"ngram","num_speculative_tokens":7}')),
        ("sglang", ("--model-path", TINY, "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8")),
        ("vllm.cpp", ("--model", TINY, "--num-blocks", "4096", "--speculative-config", '{"num_speculative_tokens":7}')),
    ):
        assert setup_of(*argv, dialect=dialect).rules.depth == 7, dialect


def test_an_old_build_does_not_know_speculation() -> None:
    argv = ("--model", TINY, *DEPTH_8)
    with pytest.raises(UsageError, match="--speculative-config"):
        setup_of(*argv, dialect="vllm.cpp", build="2026-07")
    told = find("vllm.cpp").usage_error("--speculative-config", "usage: ...")
    assert told.lines[0] == "server: unknown argument '--speculative-config'"
    assert told.exit_code == 2


def test_options_are_checked_in_one_sentence() -> None:
    with pytest.raises(OptionError, match="key 'nul_gap_fix' is not known"):
        convert({"nul_gap_fix": True})
    with pytest.raises(OptionError, match="neither JSON nor KEY=VALUE"):
        parse(["whatever"])
    with pytest.raises(OptionError, match="is no size"):
        bytes_of("many")


def test_options_merge_and_nest() -> None:
    options = parse(['{"clock":{"base_s":0.01}}', "clock.factor=2", "faults.plant_token=7", "dialect=sglang"])
    assert options.clock.base_s == 0.01
    assert options.clock.factor == 2
    assert options.faults.plant_token == 7
    assert options.dialect == "sglang"
    assert Options().clock.step_s(100, 10) == pytest.approx(0.003 + 100 * 2e-6 + 10 * 2e-5)
    assert bytes_of("14.625 GiB") == int(14.625 * GIB)
