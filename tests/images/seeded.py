"""Healthy images and the faults that are seeded into them: one change each, with the finding it must lead to.

A fault is a replacement of text in one file. `HEALTHY` has no problem; each of `FAULTS` has one, by its id.
"""

from dataclasses import dataclass

from paceline.images.lint.project import Project, Source

APT = "RUN apt-get update && apt-get install -y --no-install-recommends"
CLEAN = "rm -rf /var/lib/apt/lists/*"
TORCH_INDEX = "https://download.pytorch.org/whl"

# name: {path: text}
HEALTHY: dict[str, dict[str, str]] = {
    "cuda-devel": {
        "Dockerfile": (
            "ARG CUDA=12.4.1\n"
            "FROM nvidia/cuda:${CUDA}-devel-ubuntu22.04\n"
            "ENV DEBIAN_FRONTEND=noninteractive\n"
            f"{APT} python3 python3-dev python3-pip git && {CLEAN}\n"
            "WORKDIR /app\n"
            "COPY requirements.txt .\n"
            "RUN pip3 install --no-cache-dir -r requirements.txt\n"
            "RUN pip3 install --no-cache-dir ninja packaging wheel\n"
            "RUN pip3 install --no-cache-dir --no-build-isolation flash-attn==2.7.4.post1\n"
            "COPY . .\n"
            'CMD ["torchrun", "--nproc-per-node=8", "train.py"]\n'
        ),
        "requirements.txt": "torch==2.6.0\ntorchvision==0.21.0\ntransformers==4.49.0\nnumpy>=1.26,<3\n",
    },
    "slim-service": {
        "Dockerfile": (
            "FROM python:3.11-slim AS build\n"
            f"{APT} git gcc && {CLEAN}\n"
            "RUN python -m venv /venv\n"
            "ENV PATH=/venv/bin:$PATH\n"
            "WORKDIR /src\n"
            "COPY pyproject.toml ./\n"
            "COPY src ./src\n"
            'RUN pip install --no-cache-dir . "scikit-learn>=1.4,<2"\n'
            "FROM python:3.11-slim\n"
            f"{APT} libgomp1 curl && {CLEAN}\n"
            "COPY --from=build /venv /venv\n"
            "ENV PATH=/venv/bin:$PATH\n"
            "USER 1000\n"
            'ENTRYPOINT ["python", "-m", "service"]\n'
        ),
        "pyproject.toml": (
            '[project]\nname = "service"\nversion = "1"\ndependencies = [\n  "lightgbm==4.5.0",\n'
            '  "pandas==2.2.3",\n  "opencv-python-headless==4.10.0.84",\n]\n'
        ),
    },
    "torch-index": {
        "Dockerfile": (
            "FROM python:3.10-slim-bookworm\n"
            "ARG TORCH=2.4.1\n"
            f"RUN pip install --no-cache-dir torch==${{TORCH}} --index-url {TORCH_INDEX}/cu121\n"
            "RUN pip install --no-cache-dir torchvision==0.19.1 "
            f"--index-url {TORCH_INDEX}/cu121\n"
            "COPY requirements/train.txt /tmp/train.txt\n"
            "RUN pip install --no-cache-dir -r /tmp/train.txt\n"
            "WORKDIR /work\n"
            "COPY . /work\n"
            'CMD ["python", "train.py"]\n'
        ),
        "requirements/train.txt": "accelerate==0.34.2\ndatasets\nnumpy==1.26.4\nscipy==1.13.1\n",
    },
    "vllm-server": {
        "Dockerfile": (
            "FROM nvidia/cuda:12.8.1-runtime-ubuntu22.04\n"
            f"{APT} python3-pip python3-dev gcc && {CLEAN}\n"
            "RUN pip3 install --no-cache-dir vllm==0.10.0\n"
            'ENTRYPOINT ["python3", "-m", "vllm.entrypoints.openai.api_server"]\n'
        ),
    },
    "uv-sync": {
        "Dockerfile": (
            "FROM python:3.12-slim\n"
            "COPY --from=ghcr.io/astral-sh/uv:0.7 /uv /bin/uv\n"
            f"{APT} git && {CLEAN}\n"
            "WORKDIR /app\n"
            "COPY pyproject.toml uv.lock ./\n"
            "RUN uv sync --frozen --no-install-project\n"
            "COPY . .\n"
            "RUN uv sync --frozen\n"
            'CMD ["uv", "run", "train.py"]\n'
        ),
        "pyproject.toml": (
            '[project]\nname = "t"\nversion = "1"\nrequires-python = ">=3.12"\ndependencies = [\n'
            '  "torch==2.6.0",\n  "torchvision==0.21.0",\n  "transformers>=4.49",\n]\n'
        ),
    },
    "efa": {
        "Dockerfile": (
            "FROM nvidia/cuda:12.8.1-devel-ubuntu22.04\n"
            f"{APT} python3-pip curl ca-certificates && {CLEAN}\n"
            "RUN curl -O https://efa-installer.amazonaws.com/aws-efa-installer-1.38.0.tar.gz"
            " && tar xf aws-efa-installer-1.38.0.tar.gz && cd aws-efa-installer"
            " && ./efa_installer.sh -y -g --skip-kmod\n"
            "ENV FI_PROVIDER=efa LD_LIBRARY_PATH=/opt/amazon/efa/lib:$LD_LIBRARY_PATH\n"
            "RUN pip3 install --no-cache-dir torch==2.7.1\n"
            'CMD ["torchrun", "--nnodes=4", "--nproc-per-node=8", "train.py"]\n'
        ),
    },
    "pytorch-image": {
        "Dockerfile": (
            "FROM pytorch/pytorch:2.5.1-cuda12.4-cudnn9-devel\n"
            f"{APT} git && {CLEAN}\n"
            "WORKDIR /workspace\n"
            "COPY environment.txt .\n"
            "RUN pip install --no-cache-dir -r environment.txt\n"
            "RUN pip install --no-cache-dir --no-build-isolation causal-conv1d==1.4.0\n"
        ),
        "environment.txt": "transformers==4.46.3\ntokenizers==0.20.3\n",
    },
}


@dataclass(frozen=True, slots=True)
class Fault:
    """`old` becomes `new` in one file of a healthy image; the check must find `id`."""

    name: str
    image: str
    id: str
    path: str
    old: str
    new: str

    def project(self) -> Project:
        text = HEALTHY[self.image][self.path]
        assert self.old in text, f"{self.name}: the healthy image has changed"
        return project_of({**HEALTHY[self.image], self.path: text.replace(self.old, self.new)})


def project_of(files: dict[str, str]) -> Project:
    return Project(files=tuple(Source(path, text) for path, text in files.items()))


def _fault(image: str, id: str, path: str, old: str, new: str) -> Fault:
    return Fault(f"{image}: {id}: {new.strip()[:50] or 'left out'}", image, id, path, old, new)


_D = "Dockerfile"
_R = "requirements.txt"
FAULTS: tuple[Fault, ...] = (
    _fault("cuda-devel", "cuda-major", _D, "CUDA=12.4.1", "CUDA=11.8.0"),
    _fault("cuda-devel", "base-ended", _D, "CUDA=12.4.1", "CUDA=12.4"),
    _fault("cuda-devel", "base-ended", _D, "CUDA=12.4.1", "CUDA=10.2.89"),
    _fault("cuda-devel", "needs-nvcc", _D, "-devel-", "-runtime-"),
    _fault("cuda-devel", "build-isolation", _D, " --no-build-isolation", ""),
    _fault("cuda-devel", "torch-trio", _R, "torchvision==0.21.0", "torchvision==0.20.1"),
    _fault("cuda-devel", "hugging-face-skew", _R, "numpy>=1.26,<3", "tokenizers==0.15.0"),
    _fault("cuda-devel", "no-such-release", _R, "torch==2.6.0", "torch==2.6.1"),
    _fault("cuda-devel", "build-without-index", _R, "torch==2.6.0", "torch==2.6.0+cu124"),
    _fault("cuda-devel", "externally-managed", _D, "ubuntu22.04", "ubuntu24.04"),
    _fault("cuda-devel", "file-not-copied", _D, "COPY requirements.txt .\n", ""),
    _fault("cuda-devel", "apt-fails", _D, "apt-get update && ", ""),
    _fault("cuda-devel", "apt-fails", _D, "install -y ", "install "),
    _fault("cuda-devel", "no-such-program", _D, " python3-pip", ""),
    _fault("cuda-devel", "no-shell", _D, '["torchrun", ', "['torchrun', "),
    _fault(
        "cuda-devel", "torch-comes-later", _D, "COPY requirements.txt .\nRUN pip3", "COPY x .\nRUN true #"
    ),
    _fault("cuda-devel", "unquoted-range", _D, "ninja packaging", "ninja>=1.11 packaging"),
    _fault("cuda-devel", "wrong-package-name", _R, "numpy>=1.26,<3", "sklearn"),
    _fault("cuda-devel", "bound-to-another-torch", _R, "numpy>=1.26,<3", "xformers==0.0.28.post3"),
    _fault("cuda-devel", "missing-library", _R, "numpy>=1.26,<3", "opencv-python==4.10.0.84"),
    _fault("slim-service", "stages-differ", _D, "python:3.11-slim AS", "python:3.12-slim AS"),
    _fault("slim-service", "missing-library", _D, "libgomp1 curl", "curl"),
    _fault("slim-service", "missing-library", "pyproject.toml", "-headless==", "=="),
    _fault("slim-service", "no-such-stage", _D, "--from=build", "--from=buidl"),
    _fault("slim-service", "unquoted-range", _D, '"scikit-learn>=1.4,<2"', "scikit-learn<2"),
    _fault("slim-service", "file-not-copied", _D, "COPY pyproject.toml ./\nCOPY src ./src\n", ""),
    _fault("slim-service", "apt-fails", _D, "USER 1000\n", f"USER 1000\n{APT} vim\n"),
    _fault(
        "slim-service", "not-in-sh", _D, "ENV PATH=/venv/bin:$PATH\nW", "RUN source /venv/bin/activate\nW"
    ),
    _fault("slim-service", "system-package-gone", _D, "libgomp1 curl", "libgomp1 libgl1-mesa-glx"),
    _fault("slim-service", "no-shell", _D, "RUN python -m venv /venv", 'RUN ["python", "-m", "venv", "$V"]'),
    _fault("torch-index", "no-such-release", _D, "cu121\nRUN", "cu128\nRUN"),
    _fault("torch-index", "python-without-wheel", _D, "python:3.10-", "python:3.13-"),
    _fault("torch-index", "argument-out-of-scope", _D, "ARG TORCH=2.4.1\n", ""),
    _fault("torch-index", "not-on-this-index", _D, "torchvision==0.19.1", "torchvision==0.19.1 transformers"),
    _fault(
        "torch-index",
        "sister-unpinned",
        _D,
        f"torchvision==0.19.1 --index-url {TORCH_INDEX}/cu121",
        "torchvision",
    ),
    _fault("torch-index", "old-libc", _D, "python:3.10-slim-bookworm", "python:3.10-alpine"),
    _fault(
        "torch-index",
        "base-ended",
        _D,
        "python:3.10-slim-bookworm\n",
        f"python:3.10-slim-buster\n{APT} git\n",
    ),
    _fault("torch-index", "file-not-copied", _D, "COPY requirements/train.txt /tmp/train.txt\n", ""),
    _fault("vllm-server", "triton-without-compiler", _D, " python3-dev gcc", ""),
    _fault("vllm-server", "base-ended", _D, "12.8.1-runtime", "12.8.1-runtime-cudnn"),
    _fault("vllm-server", "system-package-gone", _D, "python3-dev gcc", "python3.12-dev gcc"),
    _fault("uv-sync", "torch-trio", "pyproject.toml", "torchvision==0.21.0", "torchvision==0.22.0"),
    _fault("uv-sync", "python-without-wheel", "pyproject.toml", "torch==2.6.0", "torch==2.1.2"),
    _fault("uv-sync", "old-libc", _D, "python:3.12-slim", "python:3.12-alpine"),
    _fault(
        "cuda-devel", "unknown-instruction", _D, "RUN pip3 install --no-cache-dir ninja", "pip3 install ninja"
    ),
    _fault("cuda-devel", "missing-argument", _D, "COPY requirements.txt .", "COPY requirements.txt"),
    _fault("cuda-devel", "missing-argument", _D, "devel-ubuntu22.04", "devel-ubuntu22.04 base"),
    _fault("cuda-devel", "swallowed-instruction", _D, "ninja packaging wheel", "ninja packaging wheel \\"),
    _fault("cuda-devel", "shell-syntax", _D, f" && {CLEAN}", f" && && {CLEAN}"),
    _fault("cuda-devel", "shell-syntax", _D, f" && {CLEAN}", " if [ -d /x ]; then true; fi"),
    _fault("cuda-devel", "shell-syntax", _D, f" && {CLEAN}", ' && echo "done'),
    _fault("cuda-devel", "base-ended", _D, "nvidia/cuda:${CUDA}-devel-ubuntu22.04", "nvidia/cuda"),
    _fault("cuda-devel", "base-ended", _D, "nvidia/cuda:${CUDA}-devel-ubuntu22.04", "ubuntu:23.10"),
    _fault("cuda-devel", "externally-managed", _D, "nvidia/cuda:${CUDA}-devel-ubuntu22.04", "ubuntu:latest"),
    _fault("cuda-devel", "no-such-release", _R, "transformers==4.49.0", "transformers==4.49.9"),
    _fault("cuda-devel", "no-such-release", _D, "ninja packaging", "ninja==latest packaging"),
    _fault("cuda-devel", "no-such-option", _R, "numpy>=1.26,<3", "git+git://github.com/o/r.git@v1"),
    _fault(
        "cuda-devel",
        "get-pip-refuses",
        _D,
        "WORKDIR /app\n",
        f"{APT} python3.8 curl\nRUN curl https://bootstrap.pypa.io/get-pip.py -o get-pip.py && "
        "python3.8 get-pip.py\n",
    ),
    _fault(
        "cuda-devel",
        "conda-terms",
        _D,
        "WORKDIR /app\n",
        "RUN curl -O https://repo.anaconda.com/miniconda/Miniconda3-latest-Linux-x86_64.sh && "
        "bash Miniconda3-latest-Linux-x86_64.sh -b -p /opt/conda\nRUN /opt/conda/bin/conda create -y -n t\n",
    ),
    _fault("cuda-devel", "system-package-gone", _D, "python3-dev", "python3.12-distutils"),
    _fault(
        "vllm-server",
        "old-system-pip",
        _D,
        "RUN pip3 install --no-cache-dir vllm==0.10.0",
        f"FROM ubuntu:18.04\n{APT} python3-pip\nRUN pip3 install opencv-python",
    ),
    _fault("vllm-server", "needs-nvcc", _D, "RUN pip3", "RUN nvcc --version\nRUN pip3"),
    _fault(
        "vllm-server",
        "needs-nvcc",
        _D,
        "RUN pip3",
        "RUN git clone https://github.com/NVIDIA/apex && cd apex && python3 setup.py install --cuda_ext\n"
        "RUN pip3",
    ),
    _fault(
        "vllm-server",
        "needs-nvcc",
        _D,
        "vllm==0.10.0",
        "torch git+https://github.com/NVlabs/tiny-cuda-nn/#subdirectory=bindings/torch",
    ),
    _fault(
        "torch-index", "python-without-wheel", "requirements/train.txt", "datasets", "transformers==5.22.2"
    ),
    _fault("torch-index", "python-without-wheel", "requirements/train.txt", "datasets", "pyyaml==5.4.1"),
    _fault("torch-index", "python-without-wheel", "requirements/train.txt", "datasets", "regex==2019.4.14"),
    _fault(
        "torch-index",
        "python-without-wheel",
        "requirements/train.txt",
        "datasets",
        "https://example.org/x-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
    ),
    _fault(
        "torch-index",
        "python-without-wheel",
        "requirements/train.txt",
        "datasets",
        "https://example.org/x-1.0-cp310-cp310-manylinux_2_38_x86_64.whl",
    ),
    _fault(
        "torch-index",
        "python-without-wheel",
        _D,
        "python:3.10-slim-bookworm",
        "python:3\nRUN pip install -U pip",
    ),
    _fault(
        "torch-index",
        "no-such-release",
        _D,
        "WORKDIR /work\n",
        "RUN pip install mmcv-full==1.7.2 -f https://download.openmmlab.com/mmcv/dist/cu113/torch1.9.0/index.html\n",
    ),
    _fault(
        "torch-index",
        "build-without-index",
        _D,
        f"torch==${{TORCH}} --index-url {TORCH_INDEX}/cu121",
        f"torch==2.4.1+cu121 -f {TORCH_INDEX}/cu118/torch_stable.html",
    ),
    _fault(
        "torch-index",
        "old-libc",
        _D,
        "python:3.10-slim-bookworm\n",
        f"python:3.10-alpine\nRUN pip install torch==2.0.0+cpu -f {TORCH_INDEX}/torch_stable.html\n",
    ),
    _fault("pytorch-image", "repository-key", _D, "2.5.1-cuda12.4-cudnn9", "1.9.0-cuda11.1-cudnn8"),
    _fault("efa", "no-efa", _D, "RUN curl -O https://efa-installer", "RUN true # "),
    _fault("pytorch-image", "no-such-option", _D, "install --no-cache-dir -r", "install -y -r"),
    _fault("pytorch-image", "missing-library", "environment.txt", "tokenizers==0.20.3", "ultralytics"),
    _fault("pytorch-image", "base-ended", _D, "cuda12.4-cudnn9", "cuda11.7-cudnn8"),
    _fault("pytorch-image", "needs-nvcc", _D, "-devel", "-runtime"),
    _fault(
        "pytorch-image", "hugging-face-skew", "environment.txt", "tokenizers==0.20.3", "tokenizers==0.15.2"
    ),
    _fault(
        "pytorch-image", "build-isolation", _D, "--no-build-isolation causal-conv1d==1.4.0", "torch-scatter"
    ),
)

_W = "WORKDIR /app\n"
_LAST = 'CMD ["torchrun"'
FAULTS += (
    _fault(
        "cuda-devel",
        "state-lost",
        _D,
        _W,
        f"RUN export MIRROR=https://m\nRUN pip3 install -i $MIRROR six\n{_W}",
    ),
    _fault("cuda-devel", "state-lost", _D, _W, f"RUN PATH=/opt/x/bin:$PATH\n{_W}"),
    _fault(
        "cuda-devel",
        "state-lost",
        _D,
        _W,
        f"RUN git clone https://x/r /r\nRUN cd /r\nRUN pip3 install -e .\n{_W}",
    ),
    _fault("cuda-devel", "state-lost", _D, _W, f"RUN python3 -m venv /v\nRUN . /v/bin/activate\n{_W}"),
    _fault("cuda-devel", "conda-activate-fails", _D, _W, f"RUN conda activate t && python train.py\n{_W}"),
    _fault("cuda-devel", "outside-context", _D, "COPY . .", "COPY ../shared ."),
    _fault("cuda-devel", "outside-context", _D, "COPY . .", "COPY ~/.cache/model /model"),
    _fault("cuda-devel", "outside-context", _D, "COPY . .", "ADD $HOME/data /data"),
    _fault("cuda-devel", "shell-syntax", _D, _W, f'ENV NAME="a b\n{_W}'),
    _fault("cuda-devel", "shell-syntax", _D, _W, f"LABEL a=b c='d\n{_W}"),
    _fault("cuda-devel", "shell-syntax", _D, _W, f"RUN if [ -d /x ]; then \\\n  echo x \\\n  fi\n{_W}"),
    _fault("cuda-devel", "shell-syntax", _D, _W, f"RUN if [[ -d /x && -d /y ]]; then echo x fi\n{_W}"),
    _fault("cuda-devel", "option-without-value", _D, "--no-cache-dir -r requirements.txt", "-e --pre ."),
    _fault("cuda-devel", "option-without-value", _D, "-r requirements.txt", "requests -r"),
    _fault("cuda-devel", "file-as-package", _D, "-r requirements.txt", "requirements.txt"),
    _fault("cuda-devel", "file-as-package", _D, "-r requirements.txt", "-U /app/requirements-dev.lock"),
    _fault("uv-sync", "no-such-option", _D, "uv sync --frozen\n", "uv sync --frozen --system\n"),
    _fault("uv-sync", "no-such-option", _D, "RUN uv sync --frozen\n", "RUN uv pip install --user .\n"),
    _fault("pytorch-image", "apt-fails", _D, "install -y ", "install "),
    _fault(
        "cuda-devel",
        "apt-fails",
        _D,
        "apt-get update && apt-get install -y ",
        "apt-get update && echo y && apt-get install ",
    ),
)
# The same places, written in a way that works: the finding must not appear, not even as a warning.
SILENT: tuple[Fault, ...] = (
    _fault("cuda-devel", "state-lost", _D, _W, f"RUN export A=1 && pip3 install six\n{_W}"),
    _fault("cuda-devel", "state-lost", _D, _W, f"RUN cd /tmp && make\n{_W}"),
    _fault("cuda-devel", "state-lost", _D, _W, f"RUN . /v/bin/activate && pip3 install six\n{_W}"),
    _fault("cuda-devel", "state-lost", _D, _W, f"RUN echo 'export A=1' >> /etc/profile\n{_W}"),
    _fault("cuda-devel", "state-lost", _D, _W, f"RUN A=1 make\n{_W}"),
    _fault(
        "cuda-devel",
        "conda-activate-fails",
        _D,
        _W,
        "RUN . /opt/conda/etc/profile.d/conda.sh && conda activate t\n",
    ),
    _fault(
        "cuda-devel",
        "conda-activate-fails",
        _D,
        _W,
        'SHELL ["/bin/bash", "-lc"]\nRUN conda activate t && python x.py\n',
    ),
    _fault("cuda-devel", "outside-context", _D, "COPY . .", "COPY src/../train.py ./home/x /home/x/"),
    _fault(
        "slim-service", "outside-context", _D, "COPY --from=build /venv", "COPY --from=build /opt/../venv"
    ),
    _fault("cuda-devel", "shell-syntax", _D, _W, "ENV A=it\\'s B=\"it's\" C='\"'\n"),
    _fault(
        "cuda-devel", "shell-syntax", _D, _W, "RUN if [[ -d /x && ( -d /y || -d /z ) ]]; then echo fi; fi\n"
    ),
    _fault(
        "cuda-devel",
        "option-without-value",
        _D,
        "--no-cache-dir -r requirements.txt",
        "-e . --pre -f https://x -U",
    ),
    _fault(
        "cuda-devel", "file-as-package", _D, "-r requirements.txt", "-r requirements.txt -c constraints.txt"
    ),
    _fault("cuda-devel", "file-as-package", _D, "-r requirements.txt", "requirements-parser --log pip.txt"),
    _fault(
        "uv-sync", "no-such-option", _D, "uv sync --frozen\n", "uv pip install --system --no-cache-dir .\n"
    ),
    _fault("slim-service", "stage-not-used", _D, "AS build", "AS build"),
    _fault("slim-service", "stage-not-used", _D, "--from=build", "--from=0"),
    _fault(
        "slim-service",
        "stage-not-used",
        _D,
        "COPY --from=build /venv /venv",
        "RUN --mount=type=bind,from=build,source=/venv,target=/v cp -r /v /venv",
    ),
    _fault("cuda-devel", "apt-fails", _D, "apt-get install -y ", "echo y | apt-get install "),
    _fault("cuda-devel", "apt-fails", _D, "install -y ", "-qq -o APT::Get::Assume-Yes=true install "),
)
# What may work, and is likely a mistake.
WARNED: tuple[Fault, ...] = (
    _fault("cuda-devel", "state-lost", _D, _W, f"RUN export TF_CPP_MIN_LOG_LEVEL=2\n{_W}"),
    _fault(
        "cuda-devel", "option-without-value", _D, "-r requirements.txt", "-f --no-cache -r requirements.txt"
    ),
    _fault("slim-service", "stage-not-used", _D, "COPY --from=build /venv /venv\n", ""),
    _fault("slim-service", "stage-not-used", _D, "python:3.11-slim AS build", "python:3.11-slim"),
)
_GET = "https://raw.githubusercontent.com/pypa/get-pip/main/public/get-pip.py"
_FORGE = "https://github.com/conda-forge/miniforge/releases"
FAULTS += (
    _fault(
        "slim-service",
        "old-libc",
        _D,
        "FROM python:3.11-slim\n",
        "FROM python:3.11-alpine\nRUN pip install demucs\n",
    ),
    _fault("cuda-devel", "wrong-package-name", _R, "numpy>=1.26,<3", "apex"),
    _fault("cuda-devel", "wrong-package-name", _R, "numpy>=1.26,<3", "pkg-resources==0.0.0"),
    _fault(
        "vllm-server",
        "needs-nvcc",
        _D,
        "RUN pip3",
        "RUN pip3 install torch && DS_BUILD_OPS=1 pip3 install deepspeed\nRUN pip3",
    ),
    _fault(
        "vllm-server",
        "needs-nvcc",
        _D,
        "RUN pip3",
        "ENV FORCE_CUDA=1\nRUN pip3 install mmcv-full==1.7.2\nRUN pip3",
    ),
    _fault(
        "cuda-devel", "get-pip-refuses", _D, _W, f"ADD {_GET} /get-pip.py\nRUN python3.8 /get-pip.py\n{_W}"
    ),
    _fault(
        "cuda-devel",
        "get-pip-refuses",
        _D,
        _W,
        f"RUN curl -sS {_GET} -o g/get-pip.py && python3.8 g/get-pip.py\n{_W}",
    ),
    _fault(
        "cuda-devel",
        "system-package-gone",
        _D,
        _W,
        f"RUN curl -LO {_FORGE}/latest/download/Mambaforge-Linux-x86_64.sh\n{_W}",
    ),
    _fault("cuda-devel", "system-package-gone", _D, "python3-dev", "python3-dev nvidia-ml-py3"),
    _fault("slim-service", "system-package-gone", _D, "libgomp1 curl", "libgomp1 python-pil"),
)
SILENT += (
    _fault(
        "slim-service",
        "old-libc",
        _D,
        "FROM python:3.11-slim\n",
        "FROM python:3.11-alpine\nRUN pip install flask\n",
    ),
    _fault(
        "cuda-devel", "wrong-package-name", _R, "numpy>=1.26,<3", "apex @ git+https://github.com/NVIDIA/apex"
    ),
    _fault(
        "vllm-server",
        "needs-nvcc",
        _D,
        "RUN pip3",
        "RUN pip3 install torch && DS_BUILD_OPS=0 pip3 install deepspeed\nRUN pip3",
    ),
    _fault(
        "cuda-devel", "get-pip-refuses", _D, _W, f"ADD {_GET} /get-pip.py\nRUN python3.12 /get-pip.py\n{_W}"
    ),
    _fault(
        "cuda-devel",
        "system-package-gone",
        _D,
        _W,
        f"RUN curl -LO {_FORGE}/latest/download/Miniforge3-Linux-x86_64.sh\n{_W}",
    ),
    _fault("cuda-devel", "system-package-gone", _D, "python3-dev", "python3-dev python3-numpy python3-pil"),
)
_CONDA = (
    "FROM ubuntu:22.04\n"
    "RUN curl -LO https://repo.anaconda.com/miniconda/Miniconda3-latest-Linux-x86_64.sh && "
    "bash Miniconda3-latest-Linux-x86_64.sh -b -p /opt/conda\nENV PATH=/opt/conda/bin:$PATH\n"
)
_VLLM = "RUN pip3 install --no-cache-dir vllm==0.10.0\n"
FAULTS += (
    _fault("vllm-server", "python-without-wheel", _D, _VLLM, f"{_CONDA}RUN pip install torch==2.0.1\n"),
)
SILENT += (
    _fault("vllm-server", "python-without-wheel", _D, _VLLM, f"{_CONDA}RUN pip install torch==2.7.1\n"),
    _fault(
        "vllm-server",
        "python-without-wheel",
        _D,
        _VLLM,
        f"{_CONDA}RUN conda install -y python=3.10\nRUN pip install torch==2.0.1\n",
    ),
)
