# The image of coordinators and of workers without a GPU.
#   pip wheel --no-deps --wheel-dir dist .
#   paceline image build . --dockerfile docker/cpu.Dockerfile --target cpu --tag localhost/paceline:cpu
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
# torch without CUDA is a tenth of the size; it is not on PyPI.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Such as [ray,k8s].
ARG EXTRAS=
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /build
COPY constraints.txt dist/*.whl ./
RUN pip install --no-cache-dir --extra-index-url "${TORCH_INDEX}" --constraint constraints.txt \
      "$(ls paceline-*.whl)${EXTRAS}"

FROM ${BASE}
RUN useradd --create-home --uid 1000 paceline \
 && install -d -o 1000 -g 1000 /workspace /data /runs
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1
RUN paceline --version
WORKDIR /workspace
USER 1000
ENTRYPOINT ["paceline"]
CMD ["--help"]
