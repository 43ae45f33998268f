# Shared by all scripts here: defaults, messages, and how a command is run. It is sourced, never run.
# shellcheck shell=bash disable=SC2034  # variables are used where this is sourced
set -euo pipefail

DRY_RUN="${DRY_RUN:-no}"
# What build-ray-image.sh builds, install-ray.sh loads and deploys, and run-benchmark.sh uses.
REPOSITORY="${REPOSITORY:-paceline-ray}"
LOCAL_TAG=1
LOCAL_IMAGE="$REPOSITORY:$LOCAL_TAG"
EXTRAS="${EXTRAS:-ray,keras}"  # keras: `paceline benchmark keras` needs TensorFlow
# On what these scripts create. cleanup.sh removes a namespace or an operator only with this sign.
OURS="app.kubernetes.io/managed-by=paceline"
RELEASE_DESCRIPTION="installed by paceline scripts/install-ray.sh"

say() { printf '%s\n' "$*" >&2; }

# fail WHAT HINT: print one message and exit.
fail() {
  printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
  exit 1
}

# need PROGRAM HINT: called before anything starts.
need() {
  if [[ "$DRY_RUN" == yes ]]; then return 0; fi
  command -v "$1" >/dev/null 2>&1 || fail "$1 is not installed, or not on PATH" "$2"
}

# step WHAT COMMAND...: print WHAT, run COMMAND, and stop if it fails. A dry run only prints COMMAND.
# STEP_HINT replaces the hint of a failure.
step() {
  local what="$1"
  shift
  if [[ "$DRY_RUN" == yes ]]; then
    printf '+'
    printf ' %q' "$@"
    printf '\n'
    return 0
  fi
  say "== $what"
  "$@" || fail "$what failed (exit code $?): $*" \
    "${STEP_HINT:-fix the problem shown above, then run this script again: it continues at this step}"
}

# holds COMMAND...: whether COMMAND succeeds. A dry run assumes that nothing exists yet.
holds() {
  if [[ "$DRY_RUN" == yes ]]; then return 1; fi
  "$@" >/dev/null 2>&1
}

# finished WORDS...: the last line of a script.
finished() {
  if [[ "$DRY_RUN" == yes ]]; then say "dry run: nothing was done"; else say "$@"; fi
}

# value_of FLAG COUNT: fails unless FLAG is followed by a value.
value_of() {
  [[ "$2" -ge 2 ]] || fail "$1 has no value" "write one behind $1, or see --help"
}

# number NAME VALUE: fails unless VALUE is a whole number of at least 1.
number() {
  [[ "$2" =~ ^[1-9][0-9]*$ ]] || fail "$1 is '$2', but it must be a whole number from 1" "see --help"
}

has_profile() { minikube profile list -o json 2>/dev/null | grep "\"Name\":\"$PROFILE\"" >/dev/null; }

# The file that says that setup-minikube.sh created the profile; `minikube delete` removes it with the profile.
# Fails if the profile has no folder.
created_mark() {
  local home
  for home in "${MINIKUBE_HOME:-}" "${MINIKUBE_HOME:+$MINIKUBE_HOME/.minikube}" "$HOME/.minikube"; do
    if [[ -n "$home" && -d "$home/profiles/$PROFILE" ]]; then
      printf '%s' "$home/profiles/$PROFILE/created-by-paceline"
      return 0
    fi
  done
  return 1
}

was_created_here() {
  local mark
  mark="$(created_mark)" && [[ -e "$mark" ]]
}
