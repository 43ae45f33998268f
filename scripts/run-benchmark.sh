#!/usr/bin/env bash
# Runs the baseline, then distributed training, on the head of the Ray cluster; copies the results out,
# verifies their checksums, and compares them.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PROFILE="${PROFILE:-paceline}"
NAMESPACE="${NAMESPACE:-paceline}"
NAME="${NAME:-paceline}"
NUM_WORKERS="${NUM_WORKERS:-2}"
EPOCHS="${EPOCHS:-3}"
BATCH_SIZE="${BATCH_SIZE:-64}"
DATA="${DATA:-}"
SUBSET="${SUBSET:-}"
OUT="${OUT:-benchmark-results}"
REMOTE="${REMOTE:-/tmp/paceline-benchmark}"
# One command that does both, or (BASELINE and DISTRIBUTED) one for each. They run in a shell on the head, in the
# folder REMOTE, and leave baseline_results.json and ray_results_<N>workers.json there.
BENCHMARK="${BENCHMARK:-}"
BASELINE="${BASELINE:-}"
DISTRIBUTED="${DISTRIBUTED:-}"

usage() {
  cat <<EOF
usage: run-benchmark.sh [flags]   Each flag is also a variable; the flag wins.
  --profile NAME     kubectl context                       PROFILE      [$PROFILE]
  --namespace NAME   where the RayCluster is               NAMESPACE    [$NAMESPACE]
  --name NAME        what the RayCluster is called         NAME         [$NAME]
  --num-workers N    workers of the distributed run        NUM_WORKERS  [$NUM_WORKERS]
  --epochs N         passes over the data                  EPOCHS       [$EPOCHS]
  --batch-size N     samples of one step, of all workers   BATCH_SIZE   [$BATCH_SIZE]
  --data WHERE       CIFAR-10 on the head, or synthetic    DATA         [${DATA:-it is fetched there, once}]
  --subset N         so many training images only          SUBSET       [${SUBSET:-all}]
  --out DIR          where results go on this machine      OUT          [$OUT]
  --dry-run          print the commands, and run none      DRY_RUN      [$DRY_RUN]
Variables only: BENCHMARK, a command that does both [paceline benchmark keras …]; or BASELINE and DISTRIBUTED, one
for each; REMOTE, the folder on the head [$REMOTE].
EOF
}

while [[ $# -gt 0 ]]; do
  case "$1" in
    --profile) value_of "$1" $#; PROFILE="$2"; shift 2 ;;
    --namespace) value_of "$1" $#; NAMESPACE="$2"; shift 2 ;;
    --name) value_of "$1" $#; NAME="$2"; shift 2 ;;
    --num-workers) value_of "$1" $#; NUM_WORKERS="$2"; shift 2 ;;
    --epochs) value_of "$1" $#; EPOCHS="$2"; shift 2 ;;
    --batch-size) value_of "$1" $#; BATCH_SIZE="$2"; shift 2 ;;
    --data) value_of "$1" $#; DATA="$2"; shift 2 ;;
    --subset) value_of "$1" $#; SUBSET="$2"; shift 2 ;;
    --out) value_of "$1" $#; OUT="$2"; shift 2 ;;
    --dry-run) DRY_RUN=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) fail "there is no flag $1" "see run-benchmark.sh --help" ;;
  esac
done
number num_workers "$NUM_WORKERS"
number epochs "$EPOCHS"
number batch_size "$BATCH_SIZE"
[[ -z "$SUBSET" ]] || number subset "$SUBSET"
if [[ -n "$BASELINE" && -z "$DISTRIBUTED" ]] || [[ -z "$BASELINE" && -n "$DISTRIBUTED" ]]; then
  fail "only one of BASELINE and DISTRIBUTED is set" "set both, or neither"
fi
fetch=no
is_default=no
if [[ -z "$BENCHMARK" && -z "$BASELINE" ]]; then
  is_default=yes
  BENCHMARK="paceline benchmark keras --num-workers $NUM_WORKERS --epochs $EPOCHS --batch-size $BATCH_SIZE"
  if [[ -n "$DATA" ]]; then BENCHMARK+=" --data '$DATA'"; else fetch=yes; fi
  if [[ -n "$SUBSET" ]]; then BENCHMARK+=" --subset $SUBSET"; fi
  BENCHMARK+=" --out ."
fi

need kubectl "https://kubernetes.io/docs/tasks/tools"
need sha256sum "install coreutils"
kube() { kubectl --context "$PROFILE" -n "$NAMESPACE" "$@"; }

if [[ "$DRY_RUN" == yes ]]; then
  head="HEAD-POD"
else
  say "== looking for the head of RayCluster $NAME"
  head="$(kube get pods -l "ray.io/cluster=$NAME,ray.io/node-type=head" --field-selector=status.phase=Running \
    -o 'jsonpath={.items[*].metadata.name}')" || fail "the cluster of context $PROFILE does not answer" "run scripts/setup-minikube.sh"
  head="${head%% *}"
  [[ -n "$head" ]] || fail "RayCluster $NAME has no head that runs in namespace $NAMESPACE" \
    "run scripts/install-ray.sh, or see: kubectl -n $NAMESPACE get pods"
fi

# on_head WHAT COMMAND: in a shell there, in the folder of the results.
on_head() {
  step "$1" kubectl --context "$PROFILE" -n "$NAMESPACE" exec "$head" -c ray-head -- \
    env "EPOCHS=$EPOCHS" "BATCH_SIZE=$BATCH_SIZE" "NUM_WORKERS=$NUM_WORKERS" RAY_ADDRESS=auto \
    sh -c "mkdir -p '$REMOTE' && cd '$REMOTE' && $2"
}

on_head "making room for results" "rm -f -- *.json"
if [[ "$is_default" == yes ]]; then
  packages="import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, (\"tensorflow\", \"tf_keras\", \"ray\"))))"
  STEP_HINT="build it with them, then install it: scripts/build-ray-image.sh --extras $EXTRAS && scripts/install-ray.sh" \
    on_head "looking for TensorFlow, tf-keras and Ray in the image" "python3 -c '$packages'"
fi
if [[ "$fetch" == yes ]]; then
  on_head "getting CIFAR-10, 170 MB, once" "paceline data fetch cifar10"
fi
if [[ -n "$BASELINE" ]]; then
  on_head "baseline: one process" "$BASELINE"
  on_head "distributed: $NUM_WORKERS workers" "$DISTRIBUTED"
else
  on_head "baseline, then $NUM_WORKERS workers" "$BENCHMARK"
fi
# The benchmark compares by itself; for commands of your own it is done here, by the same formulas.
on_head "comparing" "test -f comparison.json || python3 -c '
import json
base = json.load(open(\"baseline_results.json\"))
many = json.load(open(\"ray_results_${NUM_WORKERS}workers.json\"))
speedup = base[\"training_time_seconds\"] / many[\"training_time_seconds\"]
lost = base.get(\"test_accuracy\", 0) - many.get(\"test_accuracy\", 0)
told = {\"speedup\": speedup, \"efficiency\": speedup / $NUM_WORKERS, \"num_workers\": $NUM_WORKERS, \"accuracy_lost\": lost}
json.dump(told, open(\"comparison.json\", \"w\"), indent=2)
'"

if [[ "$DRY_RUN" == yes ]]; then
  step "copying the results" kubectl --context "$PROFILE" -n "$NAMESPACE" exec "$head" -c ray-head -- tar cf - -C "$REMOTE" .
  say "dry run: nothing was done"
  exit 0
fi
say "== copying the results to $OUT"
mkdir -p "$OUT"
# A stream of tar, because `kubectl cp` may end early and call it success. So the sums are compared too.
kube exec "$head" -c ray-head -- tar cf - -C "$REMOTE" . | tar xf - -C "$OUT" ||
  fail "the results could not be copied from $head" "they are still there, in $REMOTE; run this script again"
kube exec "$head" -c ray-head -- sh -c "cd '$REMOTE' && sha256sum -- *.json" | (cd "$OUT" && sha256sum --check --quiet -) ||
  fail "what arrived in $OUT is not what is on $head" "run this script again"
[[ -f "$OUT/comparison.json" ]] || fail "there is no comparison.json among the results" "see $OUT for what there is"
say "results are in $OUT:"
cat "$OUT/comparison.json"
