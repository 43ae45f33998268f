# syntax=docker/dockerfile:1
# The image of Ray clusters that train with paceline: head, workers and submitter use the same one.
#   scripts/build-ray-image.sh --tag 1
# BASE is python-slim, or rayproject/ray:X.Y.Z: both give a user of id 1000, which the manifests expect.
ARG BASE=python:3.11-slim
FROM ${BASE}

ARG RAY_VERSION=2.60.0
ARG EXTRAS=ray
# Such as https://download.pytorch.org/whl/cpu, for torch without CUDA.
ARG PIP_EXTRA_INDEX_URL=
USER root
# KubeRay's probes of head and workers call wget.
RUN apt-get update \
 && apt-get install -y --no-install-recommends wget ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && (getent passwd 1000 >/dev/null || useradd --create-home --uid 1000 paceline) \
 && install -d -o 1000 -g "$(getent passwd 1000 | cut -d: -f4)" /workspace

WORKDIR /src
# What changes seldom first, so that a change of our code reuses the layer with torch and Ray.
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
RUN mkdir -p src/paceline && touch src/paceline/__init__.py \
 && pip install --no-cache-dir --constraint constraints.txt "ray[default,train]==${RAY_VERSION}" ".[${EXTRAS}]" \
 && pip uninstall --yes paceline
COPY src ./src
RUN pip install --no-cache-dir --no-deps . \
 && python -c "import ray, sys; sys.exit(ray.__version__ != '${RAY_VERSION}')" \
 && paceline --version

ENV RAY_USAGE_STATS_ENABLED=0 \
    PYTHONUNBUFFERED=1 \
    HOME=/workspace
WORKDIR /workspace
USER 1000
CMD ["paceline", "--help"]
