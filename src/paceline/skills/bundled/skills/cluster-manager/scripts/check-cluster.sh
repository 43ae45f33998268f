#!/usr/bin/env bash
# Check what a cluster can run, and print the findings as JSON. Read-only.
# Usage: check-cluster.sh [OPTION]...
# Exit codes are those of paceline; 4 if it is not installed.
set -euo pipefail

if ! command -v paceline >/dev/null 2>&1; then
  echo "error: paceline is not on PATH" >&2
  echo "hint: pip install 'paceline[k8s]', or activate the environment that has it" >&2
  exit 4
fi

exec paceline cluster check --json "$@"
