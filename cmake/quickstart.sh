#!/bin/sh
# sh cmake/quickstart.sh report    builds the fidelity report and runs it: build/report/report.json and report.html
# sh cmake/quickstart.sh check     builds everything and runs the tests, also under sanitizers and with nvcc if present
# Installs what is missing, through apt and nothing else; what is there is left alone.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
jobs=$(nproc 2>/dev/null || echo 2)

say() { printf 'kvant: %s\n' "$*"; }
fail() { say "$*" >&2; exit 1; }

usage() { sed -n '2,4s/^# //p' "$0"; }

compiler() {
  for name in ${CXX:+"$CXX"} c++ g++ clang++; do
    if command -v "$name" >/dev/null 2>&1; then echo "$name"; return; fi
  done
}

# has_header FILE: the compiler finds it, or a package of CMAKE_PREFIX_PATH may bring it (CMake has the last word).
has_header() {
  [ -n "${CMAKE_PREFIX_PATH:-}" ] && return
  cxx=$(compiler)
  [ -n "$cxx" ] || return
  printf '#if !__has_include(<%s>)\n#error\n#endif\n' "$1" | "$cxx" -std=c++20 -x c++ -E - >/dev/null 2>&1
}

# missing_packages: what apt would have to bring for this run.
missing_packages() {
  [ -n "$(compiler)" ] || echo g++
  command -v cmake >/dev/null 2>&1 || echo cmake
  command -v ninja >/dev/null 2>&1 || echo ninja-build
  has_header nlohmann/json.hpp || echo nlohmann-json3-dev
  [ "$1" = check ] || return 0
  has_header catch2/catch.hpp || has_header catch2/catch_all.hpp || echo catch2
  has_header benchmark/benchmark.h || echo libbenchmark-dev
}

install_missing() {
  packages=$(missing_packages "$1" | tr '\n' ' ')
  [ -n "$packages" ] || return 0
  if ! command -v apt-get >/dev/null 2>&1; then
    say "not found here: $packages(Debian's names); there is no apt-get to install them, going on without"
    return 0
  fi
  as_root=
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || fail "not found: $packages; install them as root: apt-get install $packages"
    as_root=sudo
  fi
  say "installing with apt: $packages"
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q update
  # shellcheck disable=SC2086  # one word for each package
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install $packages
}

require_cmake() {
  version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
  oldest=$(printf '3.25.1\n%s\n' "$version" | sort -V | head -n 1)
  [ "$oldest" = 3.25.1 ] || fail "CMake 3.25.1 or later is needed, $(command -v cmake) is $version"
}

build() {
  say "preset $1: configure and build"
  cmake --preset "$1" ${2:+"$2"}
  cmake --build --preset "$1" -j "$jobs"
}

test_preset() {
  build "$@"
  say "preset $1: tests"
  ctest --preset "$1" -j "$jobs"
}

find_nvcc() {
  for name in ${CUDACXX:+"$CUDACXX"} nvcc "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    if command -v "$name" >/dev/null 2>&1; then command -v "$name"; return; fi
  done
}

report() {
  install_missing report
  require_cmake
  rm -f build/report/report.json build/report/report.html
  build report
  say "running the report"
  build/report/examples/report/report --out build/report
  for file in build/report/report.json build/report/report.html; do
    [ -s "$file" ] || fail "the report wrote no $file"
  done
  say "the report is in build/report/report.json and build/report/report.html"
}

check() {
  install_missing check
  require_cmake
  test_preset check
  test_preset asan
  nvcc=$(find_nvcc)
  if [ -z "$nvcc" ]; then
    say "SKIPPED: preset cuda, there is no nvcc on this machine; everything else passed"
    return
  fi
  release=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\).*/\1/p')
  if [ "${release:-0}" -lt 12 ]; then
    say "SKIPPED: preset cuda, $nvcc is older than 12.0 and knows no C++20; everything else passed"
    return
  fi
  test_preset cuda "-DCMAKE_CUDA_COMPILER=$nvcc"
}

case "${1:-}" in
  report | check) "$1" ;;
  *) usage; exit 2 ;;
esac
