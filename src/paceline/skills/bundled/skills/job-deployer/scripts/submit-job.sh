#!/usr/bin/env bash
# Submit the job in FILE, follow it for five minutes, and print the result as JSON; log lines go to stderr.
# Usage: submit-job.sh FILE [OPTION]...
# Exit codes are those of paceline; 4 if it is not installed.
set -euo pipefail

if ! command -v paceline >/dev/null 2>&1; then
  echo "error: paceline is not on PATH" >&2
  echo "hint: pip install 'paceline[k8s]', or activate the environment that has it" >&2
  exit 4
fi

if [ "$#" -lt 1 ]; then
  echo "usage: submit-job.sh FILE [OPTION]..." >&2
  exit 2
fi
file=$1
shift
exec paceline job submit "$file" --json "$@"
