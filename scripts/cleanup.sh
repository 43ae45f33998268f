#!/usr/bin/env bash
# How does everything go away again? Step by step, whatever of it is there; a step that fails stops no other.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PROFILE="${PROFILE:-paceline}"
OPERATOR_NAMESPACE="${OPERATOR_NAMESPACE:-ray-system}"
NAMESPACE="${NAMESPACE:-paceline}"
KEEP_MINIKUBE="${KEEP_MINIKUBE:-no}"
TIMEOUT="${TIMEOUT:-60s}"

usage() {
  cat <<EOF
usage: cleanup.sh [flags]   Each flag is also a variable; the flag wins.
  --profile NAME             kubectl context and minikube profile   PROFILE             [$PROFILE]
  --operator-namespace NAME  where the operator is                  OPERATOR_NAMESPACE  [$OPERATOR_NAMESPACE]
  --namespace NAME           where Ray clusters and jobs are        NAMESPACE           [$NAMESPACE]
  --keep-minikube            leave the nodes, and what else runs    KEEP_MINIKUBE       [$KEEP_MINIKUBE]
  --timeout TIME             longest wait for one thing             TIMEOUT             [$TIMEOUT]
  --dry-run                  print the commands, and run none       DRY_RUN             [$DRY_RUN]
Nothing outside of this profile is touched.
EOF
}

while [[ $# -gt 0 ]]; do
  case "$1" in
    --profile) value_of "$1" $#; PROFILE="$2"; shift 2 ;;
    --operator-namespace) value_of "$1" $#; OPERATOR_NAMESPACE="$2"; shift 2 ;;
    --namespace) value_of "$1" $#; NAMESPACE="$2"; shift 2 ;;
    --keep-minikube) KEEP_MINIKUBE=yes; shift ;;
    --timeout) value_of "$1" $#; TIMEOUT="$2"; shift 2 ;;
    --dry-run) DRY_RUN=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) fail "there is no flag $1" "see cleanup.sh --help" ;;
  esac
done

left=()

# try WHAT COMMAND...: what fails is remembered, and told at the end.
try() {
  local what="$1"
  shift
  if [[ "$DRY_RUN" == yes ]]; then
    step "$what" "$@"
    return 0
  fi
  say "== $what"
  "$@" || left+=("$what")
}

has() { [[ "$DRY_RUN" == yes ]] || command -v "$1" >/dev/null 2>&1; }
there() { [[ "$DRY_RUN" == yes ]] || "$@" >/dev/null 2>&1; }
kube() { kubectl --context "$PROFILE" "--request-timeout=$TIMEOUT" "$@"; }
has_release() { helm --kube-context "$PROFILE" -n "$OPERATOR_NAMESPACE" status kuberay-operator; }
has_profile() { minikube profile list -o json 2>/dev/null | grep -q "\"Name\":\"$PROFILE\""; }

in_cluster() {
  local kind
  for kind in rayjobs rayclusters; do
    if there kube get crd "$kind.ray.io"; then
      # While the operator is there: it removes what belongs to them.
      try "removing $kind of namespace $NAMESPACE" kubectl --context "$PROFILE" -n "$NAMESPACE" delete "$kind.ray.io" --all \
        --ignore-not-found "--timeout=$TIMEOUT"
    fi
  done
  if ! has helm; then
    say "== helm is not installed, so it has installed nothing"
  elif there has_release; then
    try "removing KubeRay" helm --kube-context "$PROFILE" -n "$OPERATOR_NAMESPACE" uninstall kuberay-operator --wait --timeout "$TIMEOUT"
  else
    say "== there is no KubeRay in namespace $OPERATOR_NAMESPACE"
  fi
  local space
  for space in "$NAMESPACE" "$OPERATOR_NAMESPACE"; do
    if [[ "$space" != default && "$space" != kube-* ]] && there kube get namespace "$space"; then
      try "removing namespace $space" kubectl --context "$PROFILE" delete namespace "$space" --ignore-not-found "--timeout=$TIMEOUT"
    fi
  done
}

if ! has kubectl; then
  say "== kubectl is not installed, so nothing in a cluster can be removed by it"
elif there kube get nodes; then
  in_cluster
else
  say "== no cluster answers in context $PROFILE"
fi

if [[ "$KEEP_MINIKUBE" == yes ]]; then
  say "== the nodes stay (profile $PROFILE)"
elif ! has minikube; then
  say "== minikube is not installed, so it runs nothing"
elif there has_profile; then
  failed_inside=(${left[@]+"${left[@]}"})  # the bash of macOS knows no empty lists
  left=()
  try "removing the nodes of profile $PROFILE" minikube delete -p "$PROFILE"
  # With the nodes everything on them is gone, also what could not be removed one by one.
  if [[ "${#left[@]}" -gt 0 ]]; then left+=(${failed_inside[@]+"${failed_inside[@]}"}); fi
else
  say "== minikube has no profile $PROFILE"
fi

if [[ "${#left[@]}" -gt 0 ]]; then
  fail "this is left: $(printf '%s; ' "${left[@]}")" "see the messages above, then run this script again"
fi
finished "clean."
