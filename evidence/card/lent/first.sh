#!/bin/bash
# The first call, about four and a half minutes: smoke, exact, timing, and the tests that need a device.
# Needs .card and .card0 in the checkout there. Each stage is a process of its own, with a limit of its own.
set -uo pipefail

export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TORCHINDUCTOR_CACHE_DIR=/tmp/inductor OMP_NUM_THREADS=8
export PYTHONPATH=/tmp/site:$PWD/src:$PWD
export GIT_DIR=$PWD/.card/git GIT_WORK_TREE=$PWD
device=${DEVICE:-cuda} tiny=${TINY:-} python=${PYTHON:-python3}
mkdir -p "$OUT"

cp -r .card0 /tmp/card0 &
$python -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .card/wheels/*.whl || exit 1
command -v nvidia-smi > /dev/null && nvidia-smi --query-gpu=name,driver_version,memory.used,temperature.gpu --format=csv,noheader

stage() {  # name, seconds
  echo "== $1 at ${SECONDS} s"
  timeout $(($2 + 30)) $python -W ignore -m evidence.card "$1" --device "$device" $tiny --seconds "$2" --output "$OUT" > "/tmp/$1.log" 2>&1
  echo "exit $?"
  tail -n 3 "/tmp/$1.log" | cut -c1-300
}

stage smoke "${SMOKE:-45}"
stage exact "${EXACT:-60}"
stage timing "${TIMING:-110}"
if [ -z "$tiny" ] && [ -d tests/cuda ]; then
  echo "== tests at ${SECONDS} s"
  timeout "${TESTS:-50}" $python -m pytest -q -p no:cacheprovider -m cuda tests/cuda > "$OUT/tests.log" 2>&1
  tail -n 5 "$OUT/tests.log"
fi
wait
echo "== end at ${SECONDS} s"
grep -ho '"error": "[^"]*"' "$OUT"/*.json | sort | uniq -c | sort -rn | head -20
for name in smoke exact timing; do tail -c 100000 "/tmp/$name.log"; done > "$OUT/call1.log"
ls -l "$OUT" /tmp/card0 | head -12
