#!/usr/bin/env bash
# Installs Chromium from the distribution's packages; nothing to do where it is there already.
set -euo pipefail

if [ -x /usr/bin/chromium ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "chromium.sh: no apt-get here; install a Chromium that ends up as /usr/bin/chromium" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
options=(-o Acquire::Retries=5 -o DPkg::Lock::Timeout=300 -y --no-install-recommends)
for attempt in 1 2 3 4; do
    if "${as_root[@]}" apt-get -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300 update -qq &&
        "${as_root[@]}" apt-get "${options[@]}" -qq install chromium fonts-dejavu-core; then
        exit 0
    fi
    echo "chromium.sh: attempt $attempt failed" >&2
    sleep $((attempt * 10))
done
echo "chromium.sh: Chromium could not be installed" >&2
exit 1
