#!/bin/bash
# The second call, about six and a half minutes, within 30 s of the first: training by the plan.
# Needs .card and .card1, and /tmp/card0, which the first call left. First two processes share the rounds of the speed
# run, then the paper's networks train alone. What is finished is archived every 15 s.
set -uo pipefail

export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TORCHINDUCTOR_CACHE_DIR=/tmp/inductor OMP_NUM_THREADS=4
export PYTHONPATH=/tmp/site:$PWD/src:$PWD
export GIT_DIR=$PWD/.card/git GIT_WORK_TREE=$PWD
device=${DEVICE:-cuda} tiny=${TINY:-} python=${PYTHON:-python3}
mkdir -p "$OUT" /tmp/card

[ -d /tmp/site ] || $python -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target /tmp/site .card/wheels/*.whl || exit 1
part0=/tmp/card0
[ -d $part0 ] || part0=.card0
[ -d $part0 ] || { echo "the first part of the images is not here: the machine is not that of the first call"; exit 1; }
touch /tmp/began

training() {  # name, seconds, more arguments
  local name=$1 seconds=$2
  shift 2
  mkdir -p "/tmp/card/$name"
  [ -d evidence/card/training ] && cp -r evidence/card/training "/tmp/card/$name/"
  timeout $((seconds + 25)) $python -W ignore -m evidence.card training --device "$device" $tiny --seconds "$seconds" \
    --output "/tmp/card/$name" --images $part0 .card1 "$@" > "/tmp/card/$name.log" 2>&1
}

archive() {
  for folder in /tmp/card/*/; do
    name=$(basename "$folder")
    (cd "$folder" && find . -type f -newer /tmp/began ! -name '.*' -print0 \
      | tar --null -T - -cJf "/tmp/$name.tmp") && mv "/tmp/$name.tmp" "$OUT/training-$name.tar.xz"
  done 2> /dev/null
}

(while sleep 15; do archive; done) &
archiver=$!
rounds=${ROUNDS:-230}
training 0 "$rounds" --parts headline twelve --process 0 --processes 2 &
one=$!
training 1 "$rounds" --parts headline twelve --process 1 --processes 2 &
two=$!
wait $one $two
echo "== rounds ended at ${SECONDS} s"
training paper "${PAPER:-130}" --parts paper
echo "== end at ${SECONDS} s"
kill $archiver
archive
cat /tmp/card/*.log | cut -c1-400 > "$OUT/call2.log"
tail -n 4 /tmp/card/*.log | cut -c1-300
ls -l "$OUT"
