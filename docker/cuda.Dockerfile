# The image of workers with NVIDIA GPUs. The wheel of torch brings CUDA, cuDNN and NCCL with it: a base with CUDA
# would bring them twice. The host needs a driver for CUDA 13 (580 or newer) and the NVIDIA container toolkit.
#   pip wheel --no-deps --wheel-dir dist .
#   paceline image build . --dockerfile docker/cuda.Dockerfile --target gpu --tag paceline:cuda
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
# Such as [ray,k8s,gpu].
ARG EXTRAS=[gpu]
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /build
COPY constraints.txt dist/*.whl ./
RUN pip install --no-cache-dir --constraint constraints.txt "$(ls paceline-*.whl)${EXTRAS}"

FROM ${BASE}
RUN useradd --create-home --uid 1000 paceline \
 && install -d -o 1000 -g 1000 /workspace /data /runs
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN paceline --version
WORKDIR /workspace
USER 1000
ENTRYPOINT ["paceline"]
CMD ["--help"]
