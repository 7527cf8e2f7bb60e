#!/bin/sh
# Builds, tests and benches the kernels on a machine with a GPU: sh bench/gpu/run.sh [FOLDER FOR RESULTS] [COMMIT]
# Leaves h200.json there: {"machine": {...}, "rows": [...]}.
set -eu
cd "$(dirname -- "$0")/../.."
out=${1:-build/gpu}
commit=${2:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
mkdir -p "$out" build/gpu
flags="-std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -Iinclude -Ikernels"
catch2=$(printf '#include <catch2/catch_all.hpp>\n' | c++ -x c++ -E - >/dev/null 2>&1 && echo "-lCatch2Main -lCatch2" || echo "-lCatch2WithMain")

# shellcheck disable=SC2086  # words
nvcc $flags -Itests tests/gpu/decode.cu -o build/gpu/test_decode $catch2 &
# shellcheck disable=SC2086
nvcc $flags -Ibench bench/gpu/decode.cu -o build/gpu/bench_decode
wait $!
build/gpu/test_decode
build/gpu/bench_decode build/gpu/rows.json

query() { nvidia-smi --query-gpu="$1" --format=csv,noheader | head -n 1; }
{
  printf '{"machine": {"device": "%s", "driver": "%s", "clocks": "%s sm, %s memory", "commit": "%s", "date": "%s"},\n' \
    "$(query name)" "$(query driver_version)" "$(query clocks.max.sm)" "$(query clocks.max.mem)" "$commit" "$(date -u +%F)"
  printf '"rows": '
  cat build/gpu/rows.json
  printf '}\n'
} > "$out/h200.json"
