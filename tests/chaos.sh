#!/bin/sh
# N random kills (default 100): signal, victim and moment by chance, against runs on the embedded engine. Each run is then judged and
# finished with --resume. Prints what survived, what was lost and what could not be judged or resumed; exits 1 unless all are 0.
#   tests/chaos.sh [N] [SEED]
here=$(cd "$(dirname "$0")" && pwd)
python=$here/../.venv/bin/python
[ -x "$python" ] || python=python3
exec "$python" "$here/e2e/chaos.py" "$@"
