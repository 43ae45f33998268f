#!/usr/bin/env bash
# Build an image with known fixes, and print the result as JSON; the full log is in reports/.
# Usage: build-image.sh DIR IMAGE [OPTION]...
# Exit codes are those of paceline; 4 if it is not installed.
set -euo pipefail

if ! command -v paceline >/dev/null 2>&1; then
  echo "error: paceline is not on PATH" >&2
  echo "hint: pip install 'paceline[image]', or activate the environment that has it" >&2
  exit 4
fi

if [ "$#" -lt 2 ]; then
  echo "usage: build-image.sh DIR IMAGE [OPTION]..." >&2
  exit 2
fi
dir=$1
image=$2
shift 2
exec paceline image build "$dir" --tag "$image" --report reports --json "$@"
