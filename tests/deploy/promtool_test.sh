#!/bin/sh
# The alert rules and their tests, by promtool. Exit code 77, skipped: there is no promtool (scripts/setup unpacks one).
#   promtool_test.sh PROJECT
set -eu
promtool="$1/build/tools/promtool"
[ -x "$promtool" ] || promtool="$(command -v promtool)" || exit 77
"$promtool" check rules "$1/deploy/prometheus/alerts.yml"
"$promtool" check config --syntax-only "$1/deploy/prometheus/prometheus.yml"
"$promtool" test rules "$1/tests/deploy/alerts_test.yml"
