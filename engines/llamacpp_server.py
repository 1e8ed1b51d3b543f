"""llama.cpp's HTTP server through the package xllamacpp, with llama-server's own flags.

Run by file path with the Python of an environment that has xllamacpp; it imports nothing of evenhand. Serves until SIGTERM or
SIGINT.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading


def parse(argv: list[str]) -> argparse.Namespace:
    """The flags of llama-server that the adapter uses."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--alias")
    parser.add_argument("--parallel", type=int, default=1, help="slots")
    parser.add_argument("--ctx-size", type=int, default=0, help="cells over all slots; 0: the model's context")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--cache-type-k")
    parser.add_argument("--cache-type-v")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--n-gpu-layers", type=int, default=0)
    parser.add_argument("--no-cache-prompt", action="store_true")
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--slots", action="store_true")
    parser.add_argument("--props", action="store_true")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Start the server and wait for a signal; 1 with one line when it cannot start."""
    args = parse(argv)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = args.model
        params.hostnames = args.host if isinstance(params.hostnames, str) else [args.host]
        params.port = args.port
        params.n_parallel = args.parallel
        params.n_ctx = args.ctx_size
        params.n_gpu_layers = args.n_gpu_layers
        params.endpoint_metrics, params.endpoint_slots, params.endpoint_props = args.metrics, args.slots, args.props
        params.cache_prompt = not args.no_cache_prompt
        params.warmup = False
        params.ui = False
        if args.alias:
            params.model_alias = {args.alias}
        if args.batch_size:
            params.n_batch = args.batch_size
            params.n_ubatch = min(args.batch_size, params.n_ubatch)
        for name, kind in (("cache_type_k", args.cache_type_k), ("cache_type_v", args.cache_type_v)):
            if kind:
                setattr(params, name, getattr(xllamacpp.ggml_type, f"GGML_TYPE_{kind.upper()}"))
        if args.threads:
            params.cpuparams.n_threads = args.threads
        server = xllamacpp.Server(params)
    except Exception as error:
        print(f"llamacpp-server: fatal: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    print(f"llamacpp-server: listening on {server.listening_address}", flush=True)
    stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
