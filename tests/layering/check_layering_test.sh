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

expect_found base/x.cc '#include "kernels/page/page.h"'
expect_found kernels/x.cc '#include "storage/tier.h"'
expect_found kernels/x.h '#include "tests/conformance/x.h"'
expect_found storage/x.cc '#include "service/ops/config.h"'
expect_found storage/policies/x.cc '#include "kernels/page/page.h"'
expect_found storage/policies/x.cc '#include "storage/tier.h"'
expect_found proto/x.cc '#include "kernels/page/page.h"'
expect_found proto/wire/x.cc '#include "storage/tier.h"'
expect_found client/x.cc '#include "storage/tier.h"'
expect_found client/x.cc '#include "service/ops/config.h"'
expect_found service/x.cc '#include "client/client.h"'
expect_found kernels/x.cc '#include <cuda_runtime_api.h>'
expect_found kernels/x.cc '#ifdef KVSTOW_HAS_CUDA'
expect_found storage/x.h '#include <rocksdb/db.h>'
expect_found storage/disk/rocks_tier.h '#include "rocksdb/db.h"'
expect_found storage/x.cc '#include <grpcpp/grpcpp.h>'
expect_found kernels/x.cc '#include "kvstow/v1/types.pb.h"'
expect_found client/x.cc '#include <httplib.h>'
expect_found storage/x.cc '#include <prometheus/counter.h>'
expect_found service/x.cc '#include <gtest/gtest.h>'
expect_found proto/wire/direct_socket.cc '#include <openssl/ssl.h>'
expect_found client/connection/x.cc '#include <openssl/ssl.h>'
expect_found storage/x.cc '  #  include <hwy/highway.h>'

expect_fine storage/disk/rocks_tier.cc '#include <rocksdb/db.h>'
expect_fine storage/store/x.cc '#include "storage/policies/lru.h"'
expect_fine proto/wire/tls_session.cc '#include <openssl/ssl.h>'
expect_fine proto/wire/x.cc '#include "kernels/page/page.h"'
expect_fine client/planner/x.cc '#include "storage/policies/lru.h"'
expect_fine kernels/cuda/x.cc '#include <cuda_runtime_api.h>'
expect_fine service/x.cc '#include "kvstow/v1/types.pb.h"'
expect_fine client/x.cc '#include "kernels/codec/codec.h"'

# Rooms: what stands before may be included, what stands behind may not.
expect_found kernels/page/x.h '#include "kernels/codec/codec.h"'
expect_found kernels/quantize/x.cc '#include "kernels/methods/run_codec.h"'
expect_found service/pages/x.cc '#include "service/transports/streams.h"'
expect_found service/transports/x.cc '#include "service/server.h"'
expect_found storage/store/x.cc '#include "storage/disk/rocks_tier.h"'
expect_found storage/disk/x.cc '#include "storage/store/tiered_store.h"'
expect_found storage/store/residency/x.h '#include "storage/tier.h"'
expect_found storage/store/residency/x.cc '#include "storage/store/movement/movement.h"'
expect_found storage/store/movement/x.cc '#include "storage/store/cooling/cooling.h"'
expect_found storage/store/cooling/x.h '#include "storage/store/tiered_store.h"'
expect_fine storage/store/cooling/x.cc '#include "storage/store/residency/rooms.h"'
expect_fine kernels/codec/x.h '#include "kernels/page/page.h"'
expect_fine service/server.cc '#include "service/transports/streams.h"'

# long_function HEAD LINES TAIL: a file with a function of so many lines.
long_function() {
  printf '%s\n' "$1"
  yes '  // line' | head -n "$2" || true
  printf '%s\n' "$3"
}
for case in "void F() {|}" "  void F() {|  }"; do
  expect_fine base/x.cc "$(long_function "${case%|*}" 58 "${case#*|}")"
  long_function "${case%|*}" 59 "${case#*|}" >"$tree/base/x.cc"
  if "$check" "$tree" >/dev/null; then fail "a function of 61 lines passed: ${case%|*}"; fi
done

# wide_class METHODS: a class of so many public methods, beside what does not count.
wide_class() {
  printf '%s\n' "class Wide final {" " public:" "  explicit Wide(int n);" "  Wide(const Wide&) = delete;" "  ~Wide();"
  yes '  void F(int x,' | head -n "$1" || true
  printf '%s\n' " private:" "  void G();" "};"
}
expect_fine base/x.h "$(wide_class 20)"
wide_class 21 >"$tree/base/x.h"
if output="$("$check" "$tree")"; then fail "a class of 21 public methods passed"; fi
grep -qF "base/x.h:1: a class of 21" <<<"$output" || fail "the wide class was not named: $output"

# Circles: of headers through a source file, and none where a part is compiled for SIMD.
rm -rf "${tree:?}"/*
mkdir -p "$tree/base"
echo '#include "base/b.h"' >"$tree/base/a.cc"
echo '#include "base/a.h"' >"$tree/base/b.h"
if output="$("$check" "$tree" 2>&1)"; then fail "a circle passed"; fi
grep -qF 'base/b' <<<"$output" || fail "the circle was not named: $output"
mv "$tree/base/a.cc" "$tree/base/b_simd.cc"
"$check" "$tree" >/dev/null || fail "a source may include its header"

[ "$failures" -eq 0 ] || { echo "$failures failures" >&2; exit 1; }
echo "every rule bites"
