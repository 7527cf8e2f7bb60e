#!/bin/sh
# Builds, tests and benches the kernels on a machine with a GPU: sh bench/gpu/run.sh [FOLDER FOR RESULTS] [COMMIT]
# The tests run twice, the second time (without the long ones) from PTX for compute_80: the code of older GPUs, cp.async.
# Leaves h200.json there: {"machine": {...}, "rows": [...]}.
set -eu
cd "$(dirname -- "$0")/../.."
out=${1:-build/gpu}
commit=${2:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
mkdir -p "$out" build/gpu
flags="-std=c++20 -O3 -Iinclude -Ikernels"
tuned="-gencode=arch=compute_90a,code=sm_90a"
older="-gencode=arch=compute_80,code=compute_80"
catch2=$(printf '#include <catch2/catch_all.hpp>\n' | c++ -x c++ -E - >/dev/null 2>&1 && echo "-lCatch2Main -lCatch2" || echo "-lCatch2WithMain")
tests="append merge commit prefill decode"
benches="decode append write"

builds=""
for name in $tests; do
  # shellcheck disable=SC2086  # words
  nvcc $flags $tuned -Itests "tests/gpu/$name.cu" -o "build/gpu/test_$name" $catch2 &
  builds="$builds $!"
  # shellcheck disable=SC2086
  nvcc $flags $older -Itests "tests/gpu/$name.cu" -o "build/gpu/test_${name}_compute_80" $catch2 &
  builds="$builds $!"
done
for name in $benches; do
  # shellcheck disable=SC2086
  nvcc $flags $tuned -Ibench "bench/gpu/$name.cu" -o "build/gpu/bench_$name" &
  builds="$builds $!"
done
for build in $builds; do wait "$build"; done

failed=""
for name in $tests; do
  echo "== test_$name"
  "build/gpu/test_$name" || failed="$failed $name"
  echo "== test_${name}_compute_80"
  "build/gpu/test_${name}_compute_80" "~[long]" || failed="$failed ${name}_compute_80"
done
rows=""
for name in $benches; do
  echo "== bench_$name"
  "build/gpu/bench_$name" "build/gpu/$name.json"
  rows="$rows build/gpu/$name.json"
done
if python3 -c 'import torch' 2>/dev/null; then
  echo "== sdpa.py"
  if python3 bench/gpu/sdpa.py build/gpu/sdpa.json; then
    rows="$rows build/gpu/sdpa.json"
  else
    failed="$failed sdpa"
  fi
else
  echo "== no PyTorch here: sdpa.py left out"
fi

query() { nvidia-smi --query-gpu="$1" --format=csv,noheader | head -n 1; }
{
  printf '{"machine": {"device": "%s", "driver": "%s", "clocks": "%s sm, %s memory", "commit": "%s", "date": "%s"},\n' \
    "$(query name)" "$(query driver_version)" "$(query clocks.max.sm)" "$(query clocks.max.mem)" "$commit" "$(date -u +%F)"
  printf '"rows": [\n'
  first=yes
  for file in $rows; do  # each is an array, a bracket on the first and on the last line
    [ "$first" = yes ] || printf ',\n'
    sed '1d;$d' "$file"
    first=no
  done
  printf ']}\n'
} > "$out/h200.json"
if [ -n "$failed" ]; then
  echo "failed:$failed" >&2
  exit 1
fi
