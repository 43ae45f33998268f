#!/usr/bin/env bash
# Push an image, verify its digest, and print the result as JSON.
# REPOSITORY is a name in Amazon ECR, such as fsdp, or HOST/NAME of another registry.
# Usage: push-image.sh IMAGE REPOSITORY [OPTION]...
# Exit codes are those of paceline; 4 if it is not installed.
set -euo pipefail

if ! command -v paceline >/dev/null 2>&1; then
  echo "error: paceline is not on PATH" >&2
  echo "hint: pip install 'paceline[image,aws]', or activate the environment that has it" >&2
  exit 4
fi

if [ "$#" -lt 2 ]; then
  echo "usage: push-image.sh IMAGE REPOSITORY [OPTION]..." >&2
  exit 2
fi
image=$1
repository=$2
shift 2
host=${repository%%/*}
case "$host" in
*.* | *:* | localhost) destination=$repository ;;
*) destination=ecr:$repository ;;
esac
exec paceline image push "$image" --to "$destination" --report reports --json "$@"
