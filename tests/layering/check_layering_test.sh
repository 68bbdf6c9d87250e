#!/usr/bin/env bash
# check_layering.sh must find each thing that it is there to find: one broken file a rule.
set -euo pipefail
check="$(cd "$(dirname "$0")" && pwd)/check_layering.sh"
tree="$(mktemp -d)"
trap 'rm -rf "$tree"' EXIT
failures=0

fail() {
  echo "FAILED: $1" >&2
  failures=$((failures + 1))
}

# expect_found FILE LINE_TEXT WHAT: alone in a tree, a file with this one line must be reported.
expect_found() {
  rm -rf "${tree:?}"/*
  mkdir -p "$tree/$(dirname "$1")"
  printf '// A line before.\n%s\n' "$2" >"$tree/$1"
  if output="$("$check" "$tree")"; then fail "$1 with '$2' passed"; fi
  grep -qF "$1:2: " <<<"$output" || fail "$1 with '$2' was not named with its line: $output"
}

# expect_fine FILE LINE_TEXT
expect_fine() {
  rm -rf "${tree:?}"/*
  mkdir -p "$tree/$(dirname "$1")"
  printf '%s\n' "$2" >"$tree/$1"
  output="$("$check" "$tree")" || fail "$1 with '$2' must pass: $output"
}

expect_found base/x.cc '#include "kernels/page.h"'
expect_found kernels/x.cc '#include "storage/tier.h"'
expect_found kernels/x.h '#include "tests/conformance/x.h"'
expect_found storage/x.cc '#include "service/config.h"'
expect_found storage/policies/x.cc '#include "kernels/page.h"'
expect_found storage/policies/x.cc '#include "storage/tier.h"'
expect_found proto/x.cc '#include "kernels/page.h"'
expect_found proto/wire/x.cc '#include "storage/tier.h"'
expect_found client/x.cc '#include "storage/tier.h"'
expect_found client/x.cc '#include "service/config.h"'
expect_found service/x.cc '#include "client/client.h"'
expect_found kernels/x.cc '#include <cuda_runtime_api.h>'
expect_found kernels/x.cc '#ifdef KVSTOW_HAS_CUDA'
expect_found storage/x.h '#include <rocksdb/db.h>'
expect_found storage/rocks_tier.h '#include "rocksdb/db.h"'
expect_found storage/x.cc '#include <grpcpp/grpcpp.h>'
expect_found kernels/x.cc '#include "kvstow/v1/types.pb.h"'
expect_found client/x.cc '#include <httplib.h>'
expect_found storage/x.cc '#include <prometheus/counter.h>'
expect_found service/x.cc '#include <gtest/gtest.h>'
expect_found storage/x.cc '  #  include <hwy/highway.h>'

expect_fine storage/rocks_tier.cc '#include <rocksdb/db.h>'
expect_fine storage/x.cc '#include "storage/policies/lru.h"'
expect_fine proto/wire/x.cc '#include "kernels/page.h"'
expect_fine client/planner/x.cc '#include "storage/policies/lru.h"'
expect_fine kernels/cuda/x.cc '#include <cuda_runtime_api.h>'
expect_fine service/x.cc '#include "kvstow/v1/types.pb.h"'
expect_fine client/x.cc '#include "kernels/codec.h"'

for case in "base/x.h 200" "base/x.cc 400"; do
  read -r file limit <<<"$case"
  expect_fine "$file" "$(yes '// line' | head -n "$limit")"
  yes '// line' | head -n $((limit + 1)) >"$tree/$file" || true
  if "$check" "$tree" >/dev/null; then fail "$file with $((limit + 1)) lines passed"; fi
done

[ "$failures" -eq 0 ] || { echo "$failures failures" >&2; exit 1; }
echo "every rule bites"
