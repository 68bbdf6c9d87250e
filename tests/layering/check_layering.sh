#!/usr/bin/env bash
# Checks who includes whom, that nobody does so in a circle, where third-party headers are, how long functions
# are, and how many public methods a class has. docs/README.md draws the picture that this enforces.
#
#   check_layering.sh ROOT     prints file:line: what is wrong, and fails when there is anything
set -euo pipefail
cd "${1:?usage: check_layering.sh ROOT}"

folders=()
for folder in base kernels storage proto service client tests; do
  [ -d "$folder" ] && folders+=("$folder")
done
mapfile -t files < <(find "${folders[@]}" -type f \
  \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) | LC_ALL=C sort)
[ "${#files[@]}" -gt 0 ] || { echo "there are no sources under $PWD" >&2; exit 1; }

awk '
BEGIN {
  # Our own folders and rooms: what files under the first may include, as prefixes of paths. The longest
  # first counts. A room may include itself and the rooms that stand before it in its folder.
  may["base/"] = "base/"
  rooms("kernels/", "page recipe entropy transform quantize calibration importance methods codec device cuda",
        "base/")
  rooms("service/", "access keys spaces events ops remote pages operators transports api",
        "base/ kernels/ storage/ proto/")
  may["service/"] = "base/ kernels/ storage/ proto/ service/"  # what puts the server together
  records = "base/ storage/segment.h storage/record.h"
  storage = records " kernels/ storage/tier.h storage/catalog.h"
  may["storage/"] = storage
  may["storage/tiers/"] = storage " storage/tiers/"
  may["storage/seal/"] = "base/ storage/segment.h storage/record.h storage/seal/"
  may["storage/disk/"] = storage " storage/seal/ storage/disk/"
  may["storage/store/"] = storage " storage/store/ storage/tiers/ storage/policies/"
  may["storage/store/residency/"] = records " storage/policies/ storage/store/residency/"  # it cannot do I/O
  may["storage/store/movement/"] = storage " storage/store/residency/ storage/store/movement/"
  may["storage/store/cooling/"] = may["storage/store/movement/"] " storage/store/cooling/"
  may["storage/policies/"] = "base/ storage/policies/"
  may["storage/trace/"] = "base/ storage/policies/ storage/trace/"
  may["proto/"] = "base/ proto/"
  may["proto/wire/"] = "base/ kernels/ proto/"
  values = "client/client_options.h client/layer_put.h client/page_buffer.h client/pages.h client/spaces.h"
  rooms("client/", "payload connection transport batch", "base/ kernels/ proto/ " values)
  library = values " client/client.h client/key_chain.h client/page_columns.h"
  may["client/"] = may["client/batch/"] " " library  # what puts the client together
  may["client/case/"] = "base/ kernels/ client/case/"
  may["client/planner/"] = "base/ kernels/ storage/policies/ storage/trace/ client/planner/"
  may["client/python/"] = "base/ kernels/ client/python/ " library
  may["client/cli/"] = may["client/planner/"] " proto/ client/case/ client/cli/ " library
  may["tests/"] = "base/ kernels/ storage/ proto/ service/ client/ tests/"
  split("base/ kernels/ storage/ proto/ service/ client/ tests/", folders, " ")

  # Third-party headers: a pattern of the header, a pattern of the files that may include it.
  rule("^(cuda|cublas|cufft|curand|nvml|nvtx|cub/|thrust/|cooperative_groups)", "^(tests/)?kernels/cuda/")
  rule("^rocksdb/", "^(storage/disk/rocks_[a-z_]*\\.cc$|tests/(storage|fault|bench)/)")
  rule("^(grpc/|grpc\\+\\+/|grpcpp/|google/|kvstow/v1/)|\\.pb\\.h$",
       "^(service|client|proto|tests/(adversary|service|client|integration|fault|proto|bench))/")
  rule("^(httplib\\.h|prometheus/)", "^(service|tests/(service|integration|fault))/")
  rule("^(CLI/|CLI11)", "^(service|client|tests)/")
  rule("^nlohmann/", "^(service|client|tests|storage/trace)/")
  rule("^zlib\\.h", "^(kernels|storage/trace|tests)/")
  rule("^(hwy/|dnnl|oneapi/|Eigen/)", "^(kernels|client|tests)/")
  rule("^xxh", "^(base|service|tests/(base|service))/")
  rule("^openssl/", "^(base|service|proto/wire/tls_|tests/(base|service|proto)/)|^tests/bench/tls_")
  rule("^hiredis/", "^(service/remote/redis_|tests/service/remote/|tests/bench/remote_)")
  rule("^zmq\\.h", "^(service/events|tests/service/events)/")
  rule("^spdlog/", "^(base|tests/base)/")
  rule("^nanobind/", "^client/python/")
  rule("^benchmark/", "^tests/bench/")
  rule("^(gtest|gmock)/", "^tests/")

  # Classes that have more than 20 public methods: each is one table of counters, one index, or one front.
  split("Client Metrics PageIndex Residency", wide, " ")
  for (i in wide) may_be_wide[wide[i]] = 1
}
function rule(header, file) { header_of[++rules] = header; file_of[rules] = file }
function rooms(folder, names, below,    list, n, i) {
  n = split(names, list, " ")
  for (i = 1; i <= n; i++) {
    below = below " " folder list[i] "/"
    may[folder list[i] "/"] = below
  }
}
function ours(path,    i) {
  for (i in folders) if (index(path, folders[i]) == 1) return 1
  return 0
}
function may_include(path,    list, n, i) {
  n = split(may[here], list, " ")
  for (i = 1; i <= n; i++) if (index(path, list[i]) == 1) return 1
  return 0
}
function complain(line, text) { print FILENAME ":" line ": " text; bad++ }
function room(path,    best, prefix) {
  best = ""
  for (prefix in may)
    if (index(path, prefix) == 1 && length(prefix) > length(best)) best = prefix
  return best
}
# A function at the margin, or a method within a class, from the line that names it to its brace.
function too_long(line, first) {
  if (line - first + 1 > 60 && here != "tests/")
    complain(first, "a function of " (line - first + 1) " lines: split it at 60")
}
FNR == 1 { here = room(FILENAME); outer = inner = named = method = 0; class = "" }
/^[ \t]*#[ \t]*include/ {
  path = $0
  sub(/^[ \t]*#[ \t]*include[ \t]*[<"]/, "", path)
  sub(/[>"].*$/, "", path)
  if (ours(path) && !may_include(path))
    complain(FNR, here " must not include " path " (it may include: " may[here] ")")
  for (i = 1; i <= rules; i++)
    if (path ~ header_of[i] && FILENAME !~ file_of[i])
      complain(FNR, path " belongs only in files that match " file_of[i])
}
/^[ \t]*#[ \t]*(if|ifdef|ifndef|elif)/ && /CUDA|NVCC/ && FILENAME !~ /^kernels\/cuda\// {
  complain(FNR, "a CUDA macro in C++: CMake chooses the file instead (kernels/CMakeLists.txt)")
}
/^[A-Za-z].*[({,]$/ && !/^(namespace|class|struct|enum|union|extern|using|constexpr|inline constexpr)/ {
  if (!outer && !named) named = FNR
}
/\{$/ && named && !outer { outer = named }
/;$/ && !outer { named = 0 }
/^}/ { if (outer) too_long(FNR, outer); outer = named = 0 }
/^  [A-Za-z~].*\(.*[{,(]$/ && !outer && !/^  (return|if|for|while|switch)/ { if (!inner && !method) method = FNR }
/\{$/ && method && !inner { inner = method }
/;$/ && !inner { method = 0 }
/^  }/ { if (inner) too_long(FNR, inner); inner = method = 0 }
# Constructors, operators and deleted methods do not count.
/^class .*\{$/ {
  class = $0
  sub(/^class (KVSTOW[^ ]* )?/, "", class)
  sub(/[ :{<].*/, "", class)
  first = FNR
  open = methods = 0
}
/^ (public|protected|private):/ { open = /public/ }
/^  [A-Za-z].*\(/ && class && open && !/^  (friend|using|explicit|static_assert)|operator|= delete/ {
  if (index($0, "  " class "(") != 1) methods++
}
/^};/ {
  if (class && methods > 20 && here != "tests/" && !may_be_wide[class])
    complain(first, "a class of " methods " public methods: split it at 20")
  class = ""
}
END {
  if (bad) { print bad " of the rules of the tree broken"; exit 1 }
}' "${files[@]}"

# A unit is a header with its source, and their parts that are compiled for SIMD. Known circle: policies and
# their factory.
circles="$(grep -HoE '^#include "[a-z_]+/[^"]+"' "${files[@]}" 2>/dev/null |
  grep -vE '^tests/|^storage/policies/' |
  sed -E 's/:#include "/ /; s/"$//; s/\.(h|cc|cu|cuh|inc)( |$)/\2/g; s/(-inl|_reference|(_raw|_turned)?_simd)( |$)/\3/g' |
  awk '$1 != $2' | tsort 2>&1 >/dev/null || true)"
if [ -n "$circles" ]; then
  echo "files include each other in a circle:" >&2
  sed 's/^tsort: //' <<<"$circles" >&2
  exit 1
fi
echo "${#files[@]} files keep the layers"
