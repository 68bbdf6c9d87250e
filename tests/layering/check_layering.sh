#!/usr/bin/env bash
# Checks who includes whom, where third-party headers are, and how long files are. docs/README.md
# draws the picture that this enforces.
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
  # Our own folders: what files under the first may include. The longest prefix counts, on both sides.
  may["base/"] = "base/"
  may["kernels/"] = "base/ kernels/"
  may["storage/"] = "base/ kernels/ storage/ storage/policies/ storage/trace/"
  may["storage/policies/"] = "base/ storage/policies/"
  may["storage/trace/"] = "base/ storage/policies/ storage/trace/"
  may["proto/"] = "base/ proto/"
  may["proto/wire/"] = "base/ kernels/ proto/ proto/wire/"
  may["service/"] = "base/ kernels/ storage/ storage/policies/ storage/trace/ proto/ proto/wire/ service/"
  may["client/"] = "base/ kernels/ proto/ proto/wire/ client/ storage/policies/ storage/trace/"
  may["tests/"] = "base/ kernels/ storage/ storage/policies/ storage/trace/ proto/ proto/wire/ service/ client/ tests/"

  # Third-party headers: a pattern of the header, a pattern of the files that may include it.
  rule("^(cuda|cublas|cufft|curand|nvml|nvtx|cub/|thrust/|cooperative_groups)", "^kernels/cuda/")
  rule("^rocksdb/", "^(storage/[a-z_]*rocks[a-z_]*\\.cc$|tests/(storage|fault|bench)/)")
  rule("^(grpc/|grpc\\+\\+/|grpcpp/|google/|kvstow/v1/)|\\.pb\\.h$",
       "^(service|client|proto|tests/(adversary|service|client|integration|fault|proto|bench))/")
  rule("^(httplib\\.h|prometheus/)", "^(service|tests/(service|integration|fault))/")
  rule("^(CLI/|CLI11)", "^(service|client|tests)/")
  rule("^nlohmann/", "^(service|client|tests|storage/trace)/")
  rule("^zlib\\.h", "^(kernels|storage/trace|tests)/")
  rule("^(hwy/|dnnl|oneapi/|Eigen/)", "^(kernels|client|tests)/")
  rule("^(xxh|openssl/)", "^(base|service|tests/(base|service))/")
  rule("^spdlog/", "^(base|tests/base)/")
  rule("^benchmark/", "^tests/bench/")
  rule("^(gtest|gmock)/", "^tests/")
}
function rule(header, file) { header_of[++rules] = header; file_of[rules] = file }
function complain(line, text) { print FILENAME ":" line ": " text; bad++ }
function room(path,    best, prefix) {
  best = ""
  for (prefix in may)
    if (index(path, prefix) == 1 && length(prefix) > length(best)) best = prefix
  return best
}
function end_of_file() {
  if (name == "") return
  # Tests are lists of cases and may be longer; a conformance suite is tests, though it is a header.
  limit = name ~ /^tests\// ? 500 : (name ~ /\.(h|cuh)$/ ? 200 : 400)
  if (lines > limit) {
    print name ":" lines ": longer than " limit " lines: split it"
    bad++
  }
}
FNR == 1 { end_of_file(); name = FILENAME; here = room(name) }
{ lines = FNR }
/^[ \t]*#[ \t]*include/ {
  path = $0
  sub(/^[ \t]*#[ \t]*include[ \t]*[<"]/, "", path)
  sub(/[>"].*$/, "", path)
  there = room(path)
  if (there != "" && index(" " may[here] " ", " " there " ") == 0)
    complain(FNR, here " must not include " path " (it may include: " may[here] ")")
  for (i = 1; i <= rules; i++)
    if (path ~ header_of[i] && FILENAME !~ file_of[i])
      complain(FNR, path " belongs only in files that match " file_of[i])
}
/^[ \t]*#[ \t]*(if|ifdef|ifndef|elif)/ && /CUDA|NVCC/ && FILENAME !~ /^kernels\/cuda\// {
  complain(FNR, "a CUDA macro in C++: CMake chooses the file instead (kernels/CMakeLists.txt)")
}
END {
  end_of_file()
  if (bad) { print bad " of the rules of the tree broken"; exit 1 }
}' "${files[@]}"
echo "${#files[@]} files keep the layers"
