"""`python -m evenhand.engines.reference`: start the embedded engine in the foreground."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time

import msgspec

from evenhand.engines.reference.config import EngineConfig, UsageError, read_flags, usage
from evenhand.engines.reference.dialects import dialect as find_dialect
from evenhand.engines.reference.dialects.base import Dialect, Words
from evenhand.engines.reference.model import ModelError
from evenhand.engines.reference.options import OptionError, Options, parse
from evenhand.engines.reference.resolve import Refused, resolve

PROBE_LOG = "EVENHAND_PROBE_LOG"
"""Where to write the rows of the in-engine probe."""
SWITCH = "EVENHAND_REF_FAST"
"""Environment variable that is read once at start and shows in the effective configuration."""


def main(argv: list[str]) -> int:
    """Parse, resolve, serve. The exit code is the dialect's own."""
    references = [argv[i + 1] for i, word in enumerate(argv[:-1]) if word == "--reference"]
    references += [word.partition("=")[2] for word in argv if word.startswith("--reference=")]
    try:
        options = parse(references)
    except OptionError as err:
        return _end(Words(lines=[f"evenhand reference engine: {err}"], exit_code=2))
    dialect = find_dialect(options.dialect)
    flags = dialect.flags(options)
    text = usage(dialect.program, flags)
    if "--help" in argv or "-h" in argv:
        print(text, end="")
        return 0
    if "--version" in argv:
        print(options.version or dialect.version)
        return 0
    try:
        values, _ = read_flags(argv, flags)
        if "model" not in values:
            raise UsageError("--model is required")
        probe_log = os.environ.get(PROBE_LOG)
        if probe_log and options.probe_log is None:
            options = msgspec.structs.replace(options, probe_log=probe_log)
        values["fast"] = os.environ.get(SWITCH) == "1"
        config = dialect.config(values, options, os.environ)
    except (UsageError, OptionError, msgspec.ValidationError) as err:
        return _end(dialect.usage_error(str(err), text))
    return _start(dialect, options, config)


def _start(dialect: Dialect, options: Options, config: EngineConfig) -> int:
    for name in os.environ:
        if name.startswith("EVENHAND_REF_") and name != SWITCH:
            print(f"WARNING Unknown environment variable detected: {name}", flush=True)
    faults = options.faults
    if faults.boot_delay_s:
        time.sleep(faults.boot_delay_s)
    if faults.boot_text is not None:
        return _end(Words(lines=faults.boot_text.splitlines(), exit_code=faults.boot_exit_code))
    try:
        setup = resolve(config, defaults=dialect.defaults)
    except Refused as refused:
        return _end(dialect.refusal(refused, config))
    except (ModelError, OptionError) as err:
        return _end(Words(lines=[f"ValueError: {err}"], exit_code=1))
    if faults.grandchild:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    import uvloop

    from evenhand.engines.reference.server import Server, log

    log("evenhand reference engine: a reference model, not a measurement", *dialect.boot_lines(setup, os.getpid()))

    async def serve() -> int:
        server = Server(setup, dialect)
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        return await server.serve()

    return uvloop.run(serve())


def _end(told: Words) -> int:
    sys.stdout.flush()
    for line in told.lines:
        print(line, file=sys.stderr)
    sys.stderr.flush()
    if told.exit_code == 137:
        os.kill(os.getpid(), signal.SIGKILL)
    return told.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
