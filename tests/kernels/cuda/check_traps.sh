#!/usr/bin/env bash
# Fails where nvcc put a trap into device code: it does so, without a word, where a kernel calls what
# is only on the host (the address of a constant, for example). The host emulation cannot see it.
#
#   check_traps.sh NVCC SOURCE_ROOT
set -euo pipefail
nvcc="$1" root="$2" failed=0
text="$(mktemp)"
trap 'rm -f "$text"' EXIT
for file in "$root"/kernels/cuda/*/*.cu; do
  "$nvcc" -std=c++20 -O2 -I"$root" -arch=sm_80 --fmad=false --expt-relaxed-constexpr --ptx -o "$text" "$file"
  kernels="$(awk '/\.entry/ { name = $0 } /^[[:space:]]*trap;/ { print name }' "$text" | sort -u)"
  [ -z "$kernels" ] || { printf '%s: a trap in\n%s\n' "$file" "$kernels"; failed=1; }
done
exit "$failed"
