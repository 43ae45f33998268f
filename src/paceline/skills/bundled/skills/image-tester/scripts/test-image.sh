#!/usr/bin/env bash
# Test an image in a container without network, and print the checks as JSON.
# LEVEL is quick, standard (the default) or full.
# Usage: test-image.sh IMAGE [LEVEL] [OPTION]...
# Exit codes are those of paceline; 4 if it is not installed.
set -euo pipefail

if ! command -v paceline >/dev/null 2>&1; then
  echo "error: paceline is not on PATH" >&2
  echo "hint: pip install 'paceline[image]', or activate the environment that has it" >&2
  exit 4
fi

if [ "$#" -lt 1 ]; then
  echo "usage: test-image.sh IMAGE [LEVEL] [OPTION]..." >&2
  exit 2
fi
image=$1
shift
level=standard
case "${1:-}" in
quick | standard | full)
  level=$1
  shift
  ;;
esac
exec paceline image test "$image" --level "$level" --report reports --json "$@"
