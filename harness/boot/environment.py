"""The environment of an engine: what it gets, what of it may be recorded, and how secrets are kept out of both.

An engine's environment is built, not inherited: an allow-list of what programs need to run, then what the harness and the
scenario set. Proxy settings are not on it: engines talk to themselves on 127.0.0.1 and would do so through the proxy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

RECORDED_PREFIXES = ("VLLM_", "SGLANG_", "VT_", "CUDA_", "NCCL_", "TORCH", "TRITON", "PYTORCH_")
"""Variables that decide what an engine does: passed on and recorded."""

_PASSED_PREFIXES = (
    *RECORDED_PREFIXES,
    *(
        "LC_",
        "NVIDIA_",
        "HF_",
        "HUGGINGFACE_",
        "TRANSFORMERS_",
        "TOKENIZERS_",
        "XDG_",
        "SSL_CERT",
        "OMP_",
        "MKL_",
        "KMP_",
        "GOMP_",
    ),
    *(
        "OPENBLAS_",
        "NUMBA_",
        "CUDNN_",
        "CUBLAS_",
        "NVTE_",
        "FLASHINFER_",
        "TVM_",
        "UCX_",
        "ROCM_",
        "HIP_",
        "HSA_",
        "ROCR_",
        "RAY_",
    ),
)
_PASSED_NAMES = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP", "TERM"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "CC", "CXX"),
    )
)

_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:token|key|secret|password|passwd|pass|auth|credentials?|apikey)(?:$|[_-])", re.IGNORECASE
)
_HARMLESS = re.compile(r"(?:\d{1,6}|true|false|yes|no|none|null|on|off)?", re.IGNORECASE)
HIDDEN = "<redacted>"

# Every repetition is bounded: logs are hostile, and a pattern must not take quadratic time on one long line.
# Keys as they look, wherever they stand
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}"
    r"|nvapi-[\w-]{16,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,1024}\.eyJ[\w-]{8,4096}\.[\w-]+)"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{8,}")
_URL_USER = re.compile(r"\b([A-Za-z]\w{1,20}://)[^\s/@:'\"]{0,256}:[^\s/@'\"]{1,256}@")
# name = value in command lines, Python and JSON: --api-key X, hf_token='X', "api_key": ["X"]
_NAMED = re.compile(
    r"""(?ix) (?P<name> ["']? (?:--)? \b (?:[\w-]{0,40}[_-])? (?: (?:hf|access|auth|refresh)[_-]?token
        | api[_-]?keys? | secret(?:[_-]?key)? | secret[_-]?access[_-]?key | password | passwd | private[_-]?key) ["']? )
        (?P<between> \s*[=:]\s* | (?<=[a-z]) \s+ (?=[^\s=:|]) )
        (?P<value> \[[^\]\n]{0,4096}\] | "(?:[^"\\\n]|\\.){0,4096}" | '(?:[^'\\\n]|\\.){0,4096}' | [^\s,;&)}\]"']+ )"""
)
_EMPTY = re.compile(r"""(?i)["'\[\]]*(?:none|null|true|false|<redacted>)?["'\[\]]*""")


def secret_name(name: str) -> bool:
    """Whether a variable or an option of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def _hide(found: re.Match[str]) -> str:
    name, between, value = found["name"], found["between"], found["value"]
    # "--api-key X" is a pair, "password file" in a sentence is not
    if between.isspace() and not name.startswith("--"):
        return found[0]
    if _EMPTY.fullmatch(value) or value.startswith("--"):
        return found[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{between}{quote}{HIDDEN}{quote}"


_RULES: tuple[tuple[tuple[str, ...], re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (
        ("hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "nvapi-", "akia", "aiza", "eyj"),
        _SHAPES,
        HIDDEN,
    ),
    (
        (
            *("secret", "password", "passwd"),
            *(f"{who}{dash}token" for who in ("hf", "access", "auth", "refresh") for dash in ("", "_", "-")),
            *(f"{who}{dash}key" for who in ("api", "private") for dash in ("", "_", "-")),
        ),
        _NAMED,
        _hide,
    ),
    (("bearer", "basic"), _BEARER, rf"\1\2{HIDDEN}"),
    (("://",), _URL_USER, rf"\1{HIDDEN}@"),
)
"""Words without which a pattern finds nothing are looked for first: the usual text has none and becomes ten times cheaper."""


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without tokens, keys and passwords: known ones (`secrets`), what looks like one, and what is named like one."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= 6:
            text = text.replace(secret, HIDDEN)
    low = text.lower()
    for hints, pattern, shown in _RULES:
        if any(hint in low for hint in hints):
            text = pattern.sub(shown, text)
    return text


def redact_argv(argv: Sequence[str], secrets: Iterable[str] = ()) -> list[str]:
    """A command line fit for the record."""
    known = tuple(secrets)
    shown: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, value = word.partition("=")
        if hide_next and not word.startswith("--"):
            shown.append(HIDDEN)
        elif equals and name.startswith("-") and secret_name(name) and not _HARMLESS.fullmatch(value):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(redact(word, known))
        hide_next = word.startswith("--") and not equals and secret_name(word)
    return shown


def secrets_of(*environments: Mapping[str, str]) -> list[str]:
    """Values of variables that are named like secrets: they are searched for in logs and arguments."""
    found = {value for env in environments for name, value in env.items() if secret_name(name)}
    return sorted(value for value in found if len(value) >= 6 and not _HARMLESS.fullmatch(value))


def child_env(extra: Mapping[str, str], base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment of an engine: allow-listed variables of `base` (ours), then `extra` as it is.

    Where `extra` brings a proxy, 127.0.0.1 is kept out of it.
    """
    base = os.environ if base is None else base
    env = {name: value for name, value in base.items() if name in _PASSED_NAMES or name.startswith(_PASSED_PREFIXES)}
    env.setdefault("PATH", os.defpath)
    env["PYTHONUNBUFFERED"] = "1"  # a log that lags behind hides why a child died
    env.update(extra)
    if any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in extra):
        for name in ("NO_PROXY", "no_proxy"):
            hosts = [host for host in env.get(name, "").split(",") if host]
            env[name] = ",".join(dict.fromkeys([*hosts, "127.0.0.1", "localhost", "::1"]))
    return env


def recorded_env(env: Mapping[str, str], names: Iterable[str] = (), secrets: Iterable[str] = ()) -> dict[str, str]:
    """What of `env` goes into the row: `names` (the scenario's and the adapter's) and those that decide what an engine does."""
    wanted = set(names)
    known = tuple(secrets)
    return {
        name: HIDDEN if secret_name(name) and not _HARMLESS.fullmatch(value) else redact(value, known)
        for name, value in sorted(env.items())
        if name in wanted or name.startswith(RECORDED_PREFIXES)
    }
