# What every script here shares: how it talks, fails, and runs a command. Sourced, never run.
# shellcheck shell=bash
set -euo pipefail

DRY_RUN="${DRY_RUN:-no}"

say() { printf '%s\n' "$*" >&2; }

# fail WHAT HINT: one clear message, then the end.
fail() {
  printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
  exit 1
}

# need PROGRAM HINT: before anything starts.
need() {
  if [[ "$DRY_RUN" == yes ]]; then return 0; fi
  command -v "$1" >/dev/null 2>&1 || fail "$1 is not installed, or not on PATH" "$2"
}

# step WHAT COMMAND...: says it, runs it, and stops with its name if it fails. Dry: only says it.
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
  "$@" || fail "$what failed (exit code $?): $*" "mend what it says above, then run this script again: it goes on where it was"
}

# holds COMMAND...: is it so already? A dry run assumes that nothing is there yet.
holds() {
  if [[ "$DRY_RUN" == yes ]]; then return 1; fi
  "$@" >/dev/null 2>&1
}

# finished WORDS...: the last line; a dry run has done nothing.
finished() {
  if [[ "$DRY_RUN" == yes ]]; then say "dry run: nothing was done"; else say "$@"; fi
}

# value_of FLAG COUNT: fails unless a value stands behind the flag.
value_of() {
  [[ "$2" -ge 2 ]] || fail "$1 has no value" "write one behind $1, or see --help"
}

# number NAME VALUE: fails unless it is a whole number of at least 1.
number() {
  [[ "$2" =~ ^[1-9][0-9]*$ ]] || fail "$1 is '$2', but it must be a whole number from 1" "see --help"
}
