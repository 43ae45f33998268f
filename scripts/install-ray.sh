#!/usr/bin/env bash
# Installs the KubeRay operator by Helm, copies the image to Minikube, and applies a RayCluster that
# `paceline job render` writes. May be run again: what exists already stays as it is.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PROFILE="${PROFILE:-paceline}"
OPERATOR_NAMESPACE="${OPERATOR_NAMESPACE:-ray-system}"
OPERATOR_VERSION="${OPERATOR_VERSION:-1.7.0}"
NAMESPACE="${NAMESPACE:-paceline}"
NAME="${NAME:-paceline}"
IMAGE="${IMAGE:-$LOCAL_IMAGE}"
LOAD_IMAGE="${LOAD_IMAGE:-auto}"
NUM_WORKERS="${NUM_WORKERS:-2}"
MANIFEST="${MANIFEST:-}"
PACELINE="${PACELINE:-paceline}"
TIMEOUT="${TIMEOUT:-600s}"
CHARTS="https://ray-project.github.io/kuberay-helm/"

usage() {
  cat <<EOF
usage: install-ray.sh [flags]   Each flag is also a variable; the flag wins.
  --profile NAME             kubectl context (and minikube profile)   PROFILE             [$PROFILE]
  --operator-namespace NAME  where the operator goes                  OPERATOR_NAMESPACE  [$OPERATOR_NAMESPACE]
  --operator-version X.Y.Z   KubeRay chart                            OPERATOR_VERSION    [$OPERATOR_VERSION]
  --namespace NAME           where the RayCluster goes                NAMESPACE           [$NAMESPACE]
  --name NAME                what the RayCluster is called            NAME                [$NAME]
  --image NAME:TAG           image with paceline and Ray              IMAGE               [$IMAGE]
  --load-image               copy the image from docker to minikube   LOAD_IMAGE          [$LOAD_IMAGE: if minikube has the profile]
  --no-load-image            the nodes pull the image
  --num-workers N            worker pods, at most 3                   NUM_WORKERS         [$NUM_WORKERS]
  --manifest FILE            apply this instead of rendering one      MANIFEST            [$MANIFEST]
  --timeout TIME             longest wait for one thing               TIMEOUT             [$TIMEOUT]
  --dry-run                  print the commands, and run none         DRY_RUN             [$DRY_RUN]
PACELINE names the paceline command that renders [$PACELINE].
EOF
}

while [[ $# -gt 0 ]]; do
  case "$1" in
    --profile) value_of "$1" $#; PROFILE="$2"; shift 2 ;;
    --operator-namespace) value_of "$1" $#; OPERATOR_NAMESPACE="$2"; shift 2 ;;
    --operator-version) value_of "$1" $#; OPERATOR_VERSION="$2"; shift 2 ;;
    --namespace) value_of "$1" $#; NAMESPACE="$2"; shift 2 ;;
    --name) value_of "$1" $#; NAME="$2"; shift 2 ;;
    --image) value_of "$1" $#; IMAGE="$2"; shift 2 ;;
    --load-image) LOAD_IMAGE=yes; shift ;;
    --no-load-image) LOAD_IMAGE=no; shift ;;
    --num-workers) value_of "$1" $#; NUM_WORKERS="$2"; shift 2 ;;
    --manifest) value_of "$1" $#; MANIFEST="$2"; shift 2 ;;
    --timeout) value_of "$1" $#; TIMEOUT="$2"; shift 2 ;;
    --dry-run) DRY_RUN=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) fail "there is no flag $1" "see install-ray.sh --help" ;;
  esac
done
number num_workers "$NUM_WORKERS"

need kubectl "https://kubernetes.io/docs/tasks/tools"
need helm "https://helm.sh/docs/intro/install"
if [[ -z "$MANIFEST" ]]; then
  need "$PACELINE" "pip install paceline, or name a file by --manifest"
elif [[ ! -r "$MANIFEST" ]]; then
  fail "cannot read $MANIFEST" "name a file such as examples/ray/raycluster.yaml"
fi
if [[ "$LOAD_IMAGE" == auto ]]; then
  LOAD_IMAGE=no
  if [[ "$DRY_RUN" == yes ]] || { command -v minikube >/dev/null 2>&1 && has_profile; }; then LOAD_IMAGE=yes; fi
fi
if [[ "$LOAD_IMAGE" == yes ]]; then need minikube "https://minikube.sigs.k8s.io/docs/start"; fi

kube() { kubectl --context "$PROFILE" "$@"; }
helm_() { helm --kube-context "$PROFILE" "$@"; }
if [[ "$DRY_RUN" == no ]] && ! kube get nodes >/dev/null 2>&1; then
  fail "the cluster of context $PROFILE does not answer" "run scripts/setup-minikube.sh, or name another by --profile"
fi

has_repository() { helm repo list 2>/dev/null | grep -q "$CHARTS"; }
has_operator() {
  helm_ -n "$OPERATOR_NAMESPACE" list --deployed --filter '^kuberay-operator$' | grep -q "kuberay-operator-$OPERATOR_VERSION"
}
has_release() { helm_ -n "$OPERATOR_NAMESPACE" status kuberay-operator; }
is_own_release() { helm_ -n "$OPERATOR_NAMESPACE" status kuberay-operator -o json | grep -F "$RELEASE_DESCRIPTION"; }
local_id() { docker image inspect --format '{{.Id}}' "$IMAGE" 2>/dev/null; }
# has_image ID: whether minikube has an image of this name whose id starts so.
has_image() {
  minikube -p "$PROFILE" image ls --format json | grep -o '{[^{}]*}' | grep -F "$IMAGE\"" | grep -F "\"id\":\"$1" >/dev/null
}
has_cluster() { kube -n "$NAMESPACE" get raycluster "$NAME"; }
is_unchanged() { has_cluster && kube -n "$NAMESPACE" diff -f "$1"; }

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# namespace NAME [LABEL...]: a namespace that cleanup.sh recognizes as ours.
namespace() {
  local name="$1" label
  shift
  local file="$work/namespace-$name.yaml"
  printf 'apiVersion: v1\nkind: Namespace\nmetadata:\n  name: %s\n  labels:\n' "$name" >"$file"
  for label in "$OURS" "$@"; do printf '    %s: %s\n' "${label%%=*}" "${label#*=}" >>"$file"; done
  step "creating namespace $name" kubectl --context "$PROFILE" create -f "$file"
}

if holds has_operator; then
  say "== KubeRay $OPERATOR_VERSION is there already"
else
  if holds has_release && ! holds is_own_release; then
    fail "namespace $OPERATOR_NAMESPACE has a KubeRay of another version, which this script did not install" \
      "keep it by --operator-version X.Y.Z (helm -n $OPERATOR_NAMESPACE list), or upgrade it by helm"
  fi
  if ! holds has_repository; then
    step "adding the charts of KubeRay" helm repo add kuberay "$CHARTS"
  fi
  step "looking for new charts" helm repo update kuberay
  if ! holds kube get namespace "$OPERATOR_NAMESPACE"; then namespace "$OPERATOR_NAMESPACE"; fi
  step "installing KubeRay $OPERATOR_VERSION" helm --kube-context "$PROFILE" upgrade --install kuberay-operator \
    kuberay/kuberay-operator --version "$OPERATOR_VERSION" -n "$OPERATOR_NAMESPACE" --wait --timeout "$TIMEOUT" \
    --description "$RELEASE_DESCRIPTION"
fi

is_new_image=no
if [[ "$LOAD_IMAGE" == yes ]]; then
  id=""
  if [[ "$DRY_RUN" == no ]] && ! id="$(local_id)" && ! has_image ""; then
    fail "docker has no image $IMAGE" "run scripts/build-ray-image.sh, or name another image by --image"
  fi
  # By id: an image that was built again has the same name. Without one in docker, minikube's own is used.
  if holds has_image "${id#sha256:}"; then
    say "== minikube has $IMAGE already"
  else
    step "copying $IMAGE to every node" minikube -p "$PROFILE" image load "$IMAGE"
    is_new_image=yes
  fi
fi

# Pod Security only warns here: a manifest of your own is not refused.
if ! holds kube get namespace "$NAMESPACE"; then namespace "$NAMESPACE" pod-security.kubernetes.io/warn=restricted; fi

if [[ -z "$MANIFEST" ]]; then
  MANIFEST="$work/raycluster.yaml"
  render=("$PACELINE" job render --quiet --target raycluster --name "$NAME" --image "$IMAGE"
    --namespace "$NAMESPACE" --num-workers "$NUM_WORKERS" --resizable 1:3 --node-port --rbac --network-policy)
  if [[ "$DRY_RUN" == yes ]]; then
    step "rendering the RayCluster" "${render[@]}"
  else
    say "== rendering the RayCluster"
    "${render[@]}" >"$MANIFEST" || fail "paceline could not render the RayCluster" "see its message above"
  fi
fi
if [[ "$is_new_image" == yes ]] && holds has_cluster; then
  # Its pods run the former image, and nothing in the manifest says so.
  step "deleting RayCluster $NAME, which has the former image" \
    kubectl --context "$PROFILE" -n "$NAMESPACE" delete raycluster "$NAME" "--timeout=$TIMEOUT"
fi
if holds is_unchanged "$MANIFEST"; then
  say "== RayCluster $NAME exists already and is unchanged"
else
  step "applying RayCluster $NAME" kubectl --context "$PROFILE" -n "$NAMESPACE" apply -f "$MANIFEST"
fi
step "waiting for the head and the workers (kubectl -n $NAMESPACE get pods says what they wait for)" \
  kubectl --context "$PROFILE" -n "$NAMESPACE" wait --for=condition=RayClusterProvisioned "raycluster/$NAME" "--timeout=$TIMEOUT"
if [[ "$DRY_RUN" == yes ]]; then
  say "dry run: nothing was done"
  exit 0
fi
say "ready. The dashboard is at port 30265 of a node: minikube -p $PROFILE service -n $NAMESPACE $NAME-node-port --url"
say "It asks for the token of the cluster: kubectl -n $NAMESPACE get secret $NAME -o jsonpath='{.data.auth_token}' | base64 -d"
say "Next: scripts/run-benchmark.sh --profile $PROFILE"
