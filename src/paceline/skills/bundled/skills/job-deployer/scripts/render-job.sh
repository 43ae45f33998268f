#!/usr/bin/env bash
# Render a job into FILE with the options of `paceline job render`, validate it, and print the result as JSON.
# Usage: render-job.sh FILE OPTION... [-- SCRIPT [ARGUMENT]...]
# Exit codes are those of paceline; 4 if it is not installed.
set -euo pipefail

if ! command -v paceline >/dev/null 2>&1; then
  echo "error: paceline is not on PATH" >&2
  echo "hint: pip install 'paceline[k8s]', or activate the environment that has it" >&2
  exit 4
fi

if [ "$#" -lt 2 ]; then
  echo "usage: render-job.sh FILE OPTION... [-- SCRIPT [ARGUMENT]...]" >&2
  exit 2
fi
file=$1
shift
# A failed rendering leaves no file and no half of one.
trap 'rm -f "$file.part"' EXIT
paceline job render "$@" >"$file.part"
mv "$file.part" "$file"
paceline job validate "$file" --json
