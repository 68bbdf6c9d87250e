#!/bin/sh
# The systemd unit exposes at most 2.0 of 10 by systemd's own measure, and may write where its settings say that it writes.
# Exit code 77, skipped: there is no systemd-analyze.
#   unit_test.sh PROJECT
set -eu
unit="$1/deploy/kvstowd.service"
conf="$1/deploy/kvstowd.conf"
command -v systemd-analyze >/dev/null || exit 77
systemd-analyze security --offline=true --no-pager --threshold=20 "$unit"

# Under ProtectSystem=strict only these folders take what the server writes: the disk tier, calibrations, the local socket.
grep -qx 'ProtectSystem=strict' "$unit"
grep -qx 'StateDirectory=kvstow' "$unit"
grep -qx 'RuntimeDirectory=kvstow' "$unit"
for key in disk-path calibrations local-socket; do
  grep -qE "^(# )?$key = \"/(var/lib|run)/kvstow(/|\")" "$conf" || {
    echo "$conf: $key is where the unit may not write"
    exit 1
  }
done
