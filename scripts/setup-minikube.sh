#!/usr/bin/env bash
# Starts a Minikube of two nodes, with metrics-server and storage that works on more than one node.
# May be run again: what exists already stays as it is.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PROFILE="${PROFILE:-paceline}"
NODES="${NODES:-2}"
CPUS="${CPUS:-4}"
MEMORY="${MEMORY:-8g}"
DRIVER="${DRIVER:-docker}"
TIMEOUT="${TIMEOUT:-300s}"

usage() {
  cat <<EOF
usage: setup-minikube.sh [flags]   Each flag is also a variable; the flag wins.
  --profile NAME   minikube profile, and kubectl context   PROFILE  [$PROFILE]
  --nodes N        nodes                                   NODES    [$NODES]
  --cpus N         CPUs of a node                          CPUS     [$CPUS]
  --memory SIZE    memory of a node, such as 8g            MEMORY   [$MEMORY]
  --driver NAME    what minikube runs nodes in             DRIVER   [$DRIVER]
  --timeout TIME   longest wait for one thing, as 300s     TIMEOUT  [$TIMEOUT]
  --dry-run        print the commands, and run none        DRY_RUN  [$DRY_RUN]
EOF
}

while [[ $# -gt 0 ]]; do
  case "$1" in
    --profile) value_of "$1" $#; PROFILE="$2"; shift 2 ;;
    --nodes) value_of "$1" $#; NODES="$2"; shift 2 ;;
    --cpus) value_of "$1" $#; CPUS="$2"; shift 2 ;;
    --memory) value_of "$1" $#; MEMORY="$2"; shift 2 ;;
    --driver) value_of "$1" $#; DRIVER="$2"; shift 2 ;;
    --timeout) value_of "$1" $#; TIMEOUT="$2"; shift 2 ;;
    --dry-run) DRY_RUN=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) fail "there is no flag $1" "see setup-minikube.sh --help" ;;
  esac
done
number nodes "$NODES"
number cpus "$CPUS"

need minikube "https://minikube.sigs.k8s.io/docs/start"
need kubectl "https://kubernetes.io/docs/tasks/tools"
if [[ "$DRIVER" == docker ]]; then
  need docker "https://docs.docker.com/get-docker, or use --driver"
  if [[ "$DRY_RUN" == no ]] && ! docker info >/dev/null 2>&1; then
    fail "docker does not answer" "start it (systemctl start docker), and let your user use it (docker info)"
  fi
fi

kube() { kubectl --context "$PROFILE" "$@"; }

# Also after a failure and Ctrl-C: cleanup.sh deletes the profile without a question if it has this mark.
mark_as_created() {
  local mark
  if mark="$(created_mark)"; then : >"$mark"; fi
}

# Every node of the profile is running; a stopped one, or none at all, is not.
all_nodes_run() {
  local states
  states="$(minikube -p "$PROFILE" status --format '{{.Host}}' 2>/dev/null)" || return 1
  [[ "$(grep -c '^Running$' <<<"$states")" -ge "$NODES" ]]
}

is_default_class() {
  local said
  said="$(kube get storageclass "$1" -o 'jsonpath={.metadata.annotations.storageclass\.kubernetes\.io/is-default-class}')"
  [[ "$said" == true ]]
}

if holds all_nodes_run; then
  say "== $NODES nodes run already (profile $PROFILE)"
else
  if [[ "$DRY_RUN" == no ]]; then
    if ! has_profile; then
      trap mark_as_created EXIT
    elif ! was_created_here; then
      say "== minikube profile $PROFILE exists: its addons and default storage class are changed, its size is not"
    fi
  fi
  step "starting $NODES nodes with $CPUS CPUs and $MEMORY each" \
    minikube start -p "$PROFILE" --nodes "$NODES" --cpus "$CPUS" --memory "$MEMORY" --driver "$DRIVER"
fi
step "waiting for the nodes" kubectl --context "$PROFILE" wait --for=condition=Ready nodes --all "--timeout=$TIMEOUT"

if holds kube -n kube-system get deployment metrics-server; then
  say "== metrics-server is there already"
else
  step "turning metrics-server on" minikube -p "$PROFILE" addons enable metrics-server
fi

# minikube's own storage class makes volumes on the first node only, and pods of the second never start.
if holds kube get storageclass csi-hostpath-sc; then
  say "== storage for several nodes is there already"
else
  step "turning snapshots on, which the storage needs" minikube -p "$PROFILE" addons enable volumesnapshots
  step "turning storage for several nodes on" minikube -p "$PROFILE" addons enable csi-hostpath-driver
fi
if [[ "$DRY_RUN" == yes ]] || holds is_default_class standard; then
  step "turning the storage class off that knows one node only" minikube -p "$PROFILE" addons disable default-storageclass
  step "turning its provisioner off" minikube -p "$PROFILE" addons disable storage-provisioner
fi
if holds is_default_class csi-hostpath-sc; then
  say "== csi-hostpath-sc is the default already"
else
  step "making csi-hostpath-sc the default" kubectl --context "$PROFILE" patch storageclass csi-hostpath-sc \
    -p '{"metadata":{"annotations":{"storageclass.kubernetes.io/is-default-class":"true"}}}'
fi
step "waiting for metrics-server" \
  kubectl --context "$PROFILE" -n kube-system rollout status deployment/metrics-server "--timeout=$TIMEOUT"
finished "ready. Next: scripts/install-ray.sh --profile $PROFILE"
