#!/usr/bin/env bash
# Check a Dockerfile and its requirements, and print the findings as JSON. Files stay as they are.
# Usage: check-image.sh [DIR] [OPTION]...
# Exit codes are those of paceline; 4 if it is not installed.
set -euo pipefail

if ! command -v paceline >/dev/null 2>&1; then
  echo "error: paceline is not on PATH" >&2
  echo "hint: pip install 'paceline[image]', or activate the environment that has it" >&2
  exit 4
fi

exec paceline image check --json "$@"
