#!/usr/bin/env bash
# Builds the image of the Ray cluster by docker buildx, with a registry as cache of its layers.
# Without a registry the image is for a laptop: the name that install-ray.sh loads, and torch without CUDA.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

REGISTRY="${REGISTRY:-}"
TAG="${TAG:-}"
BASE="${BASE:-python:3.11-slim}"
RAY_VERSION="${RAY_VERSION:-2.60.0}"
PLATFORM="${PLATFORM:-linux/amd64}"
EXTRA_INDEX="${EXTRA_INDEX:-}"
CPU_TORCH="https://download.pytorch.org/whl/cpu"
PUSH="${PUSH:-no}"
LOGIN="${LOGIN:-none}"
AWS_PROFILE="${AWS_PROFILE:-}"
AWS_REGION="${AWS_REGION:-}"

usage() {
  cat <<EOF
usage: build-ray-image.sh [flags]   Each flag is also a variable; the flag wins.
  --registry HOST      such as <account>.dkr.ecr.<region>.amazonaws.com   REGISTRY     [${REGISTRY:-none: local only}]
  --repository NAME    of the image in the registry                       REPOSITORY   [$REPOSITORY]
  --tag TAG            of the image                                       TAG          [$LOCAL_TAG; with a registry the commit]
  --base IMAGE         what it starts from, or rayproject/ray:X.Y.Z       BASE         [$BASE]
  --ray-version X.Y.Z  Ray in the image                                   RAY_VERSION  [$RAY_VERSION]
  --extras LIST        extras of paceline, such as ray,keras              EXTRAS       [$EXTRAS]
  --platform P         what it is built for                               PLATFORM     [$PLATFORM]
  --extra-index URL    more packages                                      EXTRA_INDEX  [${EXTRA_INDEX:-without a registry $CPU_TORCH}]
  --push               push it; else it stays in the local docker         PUSH         [$PUSH]
  --login ecr          log in to ECR first, with the AWS CLI              LOGIN        [$LOGIN]
  --aws-profile NAME   for --login ecr                                    AWS_PROFILE  [$AWS_PROFILE]
  --aws-region NAME    for --login ecr                                    AWS_REGION   [$AWS_REGION]
  --dry-run            print the commands, and run none                   DRY_RUN      [$DRY_RUN]
With a registry, layers are kept in and taken from <registry>/<repository>:buildcache.
EOF
}

while [[ $# -gt 0 ]]; do
  case "$1" in
    --registry) value_of "$1" $#; REGISTRY="$2"; shift 2 ;;
    --repository) value_of "$1" $#; REPOSITORY="$2"; shift 2 ;;
    --tag) value_of "$1" $#; TAG="$2"; shift 2 ;;
    --base) value_of "$1" $#; BASE="$2"; shift 2 ;;
    --ray-version) value_of "$1" $#; RAY_VERSION="$2"; shift 2 ;;
    --extras) value_of "$1" $#; EXTRAS="$2"; shift 2 ;;
    --platform) value_of "$1" $#; PLATFORM="$2"; shift 2 ;;
    --extra-index) value_of "$1" $#; EXTRA_INDEX="$2"; shift 2 ;;
    --push) PUSH=yes; shift ;;
    --login) value_of "$1" $#; LOGIN="$2"; shift 2 ;;
    --aws-profile) value_of "$1" $#; AWS_PROFILE="$2"; shift 2 ;;
    --aws-region) value_of "$1" $#; AWS_REGION="$2"; shift 2 ;;
    --dry-run) DRY_RUN=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) fail "there is no flag $1" "see build-ray-image.sh --help" ;;
  esac
done
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [[ "$PUSH" == yes && -z "$REGISTRY" ]]; then fail "there is no registry to push to" "add --registry HOST"; fi
if [[ "$LOGIN" != none && "$LOGIN" != ecr ]]; then fail "login is '$LOGIN', but it must be ecr or none" "see --help"; fi
if [[ "$LOGIN" == ecr && (-z "$REGISTRY" || -z "$AWS_REGION") ]]; then
  fail "a login to ECR needs a registry and a region" "add --registry HOST --aws-region NAME"
fi
need docker "https://docs.docker.com/get-docker"
if [[ "$DRY_RUN" == no ]] && ! docker buildx version >/dev/null 2>&1; then
  fail "docker has no buildx" "https://docs.docker.com/go/buildx"
fi
if [[ -z "$REGISTRY" ]]; then
  TAG="${TAG:-$LOCAL_TAG}"
  EXTRA_INDEX="${EXTRA_INDEX:-$CPU_TORCH}"
fi
if [[ -z "$TAG" ]]; then
  TAG="$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null)" || fail "there is no commit to name the image after" "add --tag 1"
fi

if [[ "$LOGIN" == ecr ]]; then
  need aws "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html"
  aws=(aws --region "$AWS_REGION")
  if [[ -n "$AWS_PROFILE" ]]; then aws+=(--profile "$AWS_PROFILE"); fi
  if [[ "$DRY_RUN" == yes ]]; then
    step "logging in" "${aws[@]}" ecr get-login-password
  else
    say "== logging in to $REGISTRY"
    # By a pipe: the password is in no argument and no file.
    "${aws[@]}" ecr get-login-password | docker login --username AWS --password-stdin "$REGISTRY" >/dev/null ||
      fail "the login to $REGISTRY failed" "see: aws sts get-caller-identity"
  fi
fi

name="${REGISTRY:+$REGISTRY/}$REPOSITORY"
build=(docker buildx build --file "$root/docker/ray.Dockerfile" --platform "$PLATFORM" --tag "$name:$TAG"
  --build-arg "BASE=$BASE" --build-arg "RAY_VERSION=$RAY_VERSION" --build-arg "EXTRAS=$EXTRAS")
if [[ -n "$EXTRA_INDEX" ]]; then build+=(--build-arg "PIP_EXTRA_INDEX_URL=$EXTRA_INDEX"); fi
if [[ -n "$REGISTRY" ]]; then
  build+=(--cache-from "type=registry,ref=$name:buildcache")
fi
if [[ "$PUSH" == yes ]]; then
  # image-manifest and oci-mediatypes: ECR takes a cache in no other form.
  build+=(--cache-to "type=registry,ref=$name:buildcache,mode=max,image-manifest=true,oci-mediatypes=true" --push)
else
  build+=(--load)
fi
step "building $name:$TAG" "${build[@]}" "$root"
next=""
if [[ -z "$REGISTRY" ]]; then next=". Next: scripts/setup-minikube.sh, then scripts/install-ray.sh"; fi
if [[ "$name:$TAG" != "$LOCAL_IMAGE" && -n "$next" ]]; then next+=" --image $name:$TAG"; fi
finished "built $name:$TAG$next"
