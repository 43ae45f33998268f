#!/usr/bin/env bash
# Removes what setup-minikube.sh and install-ray.sh have created, and nothing else; a step that fails stops no other.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PROFILE="${PROFILE:-paceline}"
OPERATOR_NAMESPACE="${OPERATOR_NAMESPACE:-ray-system}"
NAMESPACE="${NAMESPACE:-paceline}"
KEEP_MINIKUBE="${KEEP_MINIKUBE:-no}"
DELETE_MINIKUBE="${DELETE_MINIKUBE:-ask}"
TIMEOUT="${TIMEOUT:-60s}"

usage() {
  cat <<EOF
usage: cleanup.sh [flags]   Each flag is also a variable; the flag wins.
  --profile NAME             kubectl context and minikube profile   PROFILE             [$PROFILE]
  --operator-namespace NAME  where the operator is                  OPERATOR_NAMESPACE  [$OPERATOR_NAMESPACE]
  --namespace NAME           where Ray clusters and jobs are        NAMESPACE           [$NAMESPACE]
  --keep-minikube            leave the nodes, and what else runs    KEEP_MINIKUBE       [$KEEP_MINIKUBE]
  --delete-minikube          delete the nodes without a question    DELETE_MINIKUBE     [$DELETE_MINIKUBE, if another created them]
  --timeout TIME             longest wait for one thing             TIMEOUT             [$TIMEOUT]
  --dry-run                  print the commands, and run none       DRY_RUN             [$DRY_RUN]
Nothing outside of this profile is touched. Namespaces, an operator and a Minikube that these scripts did not create stay;
on a terminal you are asked about the Minikube.
EOF
}

while [[ $# -gt 0 ]]; do
  case "$1" in
    --profile) value_of "$1" $#; PROFILE="$2"; shift 2 ;;
    --operator-namespace) value_of "$1" $#; OPERATOR_NAMESPACE="$2"; shift 2 ;;
    --namespace) value_of "$1" $#; NAMESPACE="$2"; shift 2 ;;
    --keep-minikube) KEEP_MINIKUBE=yes; shift ;;
    --delete-minikube) DELETE_MINIKUBE=yes; shift ;;
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
helm_() { helm --kube-context "$PROFILE" -n "$OPERATOR_NAMESPACE" "$@"; }
has_release() { helm_ status kuberay-operator; }
is_own_release() { helm_ status kuberay-operator -o json | grep -F "$RELEASE_DESCRIPTION"; }
is_own_namespace() { [[ "$(kube get namespace "$1" -o 'jsonpath={.metadata.labels.app\.kubernetes\.io/managed-by}')" == "${OURS#*=}" ]]; }
has_ray_objects() {
  local objects
  objects="$(kube get rayjobs.ray.io,rayclusters.ray.io,rayservices.ray.io --all-namespaces -o name)" || return 0
  [[ -n "$objects" ]]
}

# remove KINDS: those of paceline in the namespace.
remove() {
  try "removing $1 of namespace $NAMESPACE" kubectl --context "$PROFILE" -n "$NAMESPACE" delete "$1" \
    -l "app.kubernetes.io/name=paceline,$OURS" --ignore-not-found "--timeout=$TIMEOUT"
}

remove_operator() {
  if ! has helm; then
    say "== helm is not installed, so it has installed nothing"
  elif ! there has_release; then
    say "== there is no KubeRay in namespace $OPERATOR_NAMESPACE"
  elif ! there is_own_release; then
    say "== KubeRay in namespace $OPERATOR_NAMESPACE stays: install-ray.sh did not install it"
  else
    try "removing KubeRay" helm --kube-context "$PROFILE" -n "$OPERATOR_NAMESPACE" uninstall kuberay-operator --wait --timeout "$TIMEOUT"
    # Helm leaves the CRDs. With them go all objects of these kinds, so only if there are none.
    if [[ "$DRY_RUN" == yes ]] || { there kube get crd rayclusters.ray.io && ! has_ray_objects; }; then
      try "removing KubeRay's CRDs" kubectl --context "$PROFILE" delete crd rayclusters.ray.io rayjobs.ray.io rayservices.ray.io \
        raycronjobs.ray.io --ignore-not-found "--timeout=$TIMEOUT"
    fi
  fi
}

in_cluster() {
  local kind space
  for kind in rayjobs rayclusters; do
    # While the operator runs: it removes what belongs to them.
    if there kube get crd "$kind.ray.io"; then remove "$kind.ray.io"; fi
  done
  # A namespace of ours is removed as a whole.
  if there kube get namespace "$NAMESPACE" && ! holds is_own_namespace "$NAMESPACE"; then
    remove services,networkpolicies,rolebindings,roles,serviceaccounts
  fi
  remove_operator
  for space in "$NAMESPACE" "$OPERATOR_NAMESPACE"; do
    if ! there kube get namespace "$space"; then continue; fi
    if there is_own_namespace "$space"; then
      try "removing namespace $space" kubectl --context "$PROFILE" delete namespace "$space" --ignore-not-found "--timeout=$TIMEOUT"
    else
      say "== namespace $space stays: install-ray.sh did not create it"
    fi
  done
}

# Whether the nodes may be deleted: created by setup-minikube.sh, or confirmed.
may_delete() {
  if [[ "$DRY_RUN" == yes || "$DELETE_MINIKUBE" == yes ]] || was_created_here; then return 0; fi
  if [[ ! -t 0 ]]; then return 1; fi
  local answer
  printf 'setup-minikube.sh did not create the Minikube %s. Delete it, with everything in it? [y/N] ' "$PROFILE" >&2
  read -r answer && [[ "$answer" == [yY] || "$answer" == [yY][eE][sS] ]]
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
elif ! there has_profile; then
  say "== minikube has no profile $PROFILE"
elif ! may_delete; then
  say "== the Minikube $PROFILE stays: setup-minikube.sh did not create it. Delete it by: scripts/cleanup.sh --delete-minikube"
else
  failed_inside=(${left[@]+"${left[@]}"})  # the bash of macOS knows no empty lists
  left=()
  try "removing the nodes of profile $PROFILE" minikube delete -p "$PROFILE"
  # With the nodes everything on them is gone, also what could not be removed one by one.
  if [[ "${#left[@]}" -gt 0 ]]; then left+=(${failed_inside[@]+"${failed_inside[@]}"}); fi
fi

if [[ "${#left[@]}" -gt 0 ]]; then
  fail "this is left: $(printf '%s; ' "${left[@]}")" "see the messages above, then run this script again"
fi
finished "clean."
