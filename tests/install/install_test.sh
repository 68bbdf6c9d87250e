#!/usr/bin/env bash
# Installs a build into a folder of its own, builds a worker against that alone, and runs it.
#
#   install_test.sh BUILD
set -euo pipefail
build="${1:?usage: install_test.sh BUILD}"
here="$(cd "$(dirname "$0")" && pwd)"
work="$(mktemp -d)"
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; wait; rm -rf "$work"' EXIT

prefix="$work/prefix"
DESTDIR= cmake --install "$build" --prefix "$prefix" >"$work/log" || { cat "$work/log"; exit 1; }
for file in bin/kvstow bin/kvstowd lib/systemd/system/kvstowd.service etc/kvstow/kvstowd.conf \
  share/kvstow/proto/kvstow/v1/kv_cache.proto; do
  [ -e "$prefix/$file" ] || { echo "$file is not installed"; exit 1; }
done

cmake -G Ninja -S "$here/worker" -B "$work/worker" -DCMAKE_PREFIX_PATH="$prefix" \
  -DKVSTOW_HEADERS="$prefix/include/kvstow" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --build "$work/worker" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }

address="unix:$work/socket"
"$prefix/bin/kvstowd" --listen "$address" --http-listen off --host-bytes 64MiB 2>"$work/server" &
server=$!
"$work/worker/worker" "$address" || { cat "$work/server"; exit 1; }
"$prefix/bin/kvstow" spaces --server "$address"
