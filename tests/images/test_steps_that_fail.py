"""Steps that fail for what the image lacks: programs, files, users, commands that are not separated."""

import pytest
from tests.images.cases import TODAY
from tests.images.seeded import project_of

from paceline.images.lint.check import apply_fixes, check
from paceline.images.lint.project import Level, Target

TARGET = Target(today=TODAY)
APT = "RUN apt-get update && apt-get install -y"
SLIM = "FROM python:3.12-slim\n"
UBUNTU = f"FROM ubuntu:22.04\n{APT} python3 python3-pip git curl\n"
DEVEL = f"FROM nvidia/cuda:12.4.1-devel-ubuntu22.04\n{APT} python3 python3-pip\n"
TORCH = "FROM pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime\n"
PYG = "https://data.pyg.org/whl"
DLC = "763104351884.dkr.ecr.us-east-1.amazonaws.com"

# (finding, Dockerfile)
BROKEN = [
    ("no-such-program", f"{SLIM}RUN git clone https://github.com/a/b\n"),
    ("no-such-program", f"{SLIM}RUN wget https://x.org/weights.bin\n"),
    ("no-such-program", f"{SLIM}{APT} curl\nRUN curl -O https://x.org/a.zip && unzip a.zip\n"),
    ("no-such-program", f"{SLIM}RUN sudo apt-get update\n"),
    ("no-such-program", f"{SLIM}COPY . /app\nWORKDIR /app\nRUN make\n"),
    ("no-such-program", f"{DEVEL}COPY . /app\nRUN cd /app && cmake .\n"),
    ("no-such-program", "FROM ubuntu:22.04\nRUN apt-get update && add-apt-repository ppa:x/y\n"),
    ("no-such-program", f"{UBUNTU}RUN python -m pip install numpy\n"),
    ("no-such-program", f'{UBUNTU}COPY . /app\nCMD ["python", "/app/train.py"]\n'),
    ("no-such-program", f"{SLIM}HEALTHCHECK CMD curl -f http://localhost:8080 || exit 1\n"),
    ("no-build-tools", f"{DEVEL}RUN pip3 install git+https://github.com/huggingface/transformers\n"),
    ("wrong-package-manager", "FROM python:3.12-alpine\nRUN apt-get update\n"),
    ("wrong-package-manager", f"{SLIM}RUN apk add --no-cache git\n"),
    ("wrong-package-manager", "FROM ubuntu:22.04\nRUN yum install -y git\n"),
    ("wrong-package-manager", "FROM registry.access.redhat.com/ubi9/ubi\nRUN apt-get update\n"),
    ("not-on-path", f"{UBUNTU}RUN curl -LsSf https://astral.sh/uv/install.sh | sh\nRUN uv venv /v\n"),
    (
        "not-on-path",
        f"{UBUNTU}RUN curl -sSL https://install.python-poetry.org | python3 -\nRUN poetry install\n",
    ),
    ("not-on-path", f"{UBUNTU}RUN curl https://sh.rustup.rs -sSf | sh -s -- -y\nRUN cargo build\n"),
    ("no-gpu-in-build", f"{DEVEL}RUN nvidia-smi\n"),
    ("no-gpu-in-build", f"{TORCH}RUN python -c 'import torch; assert torch.cuda.is_available()'\n"),
    ("no-such-user", f'{SLIM}USER trainer\nCMD ["python"]\n'),
    ("uv-without-environment", f"{SLIM}RUN pip install uv\nRUN uv pip install six\n"),
    ("file-not-copied", f"{SLIM}COPY requirements.txt /app/\nRUN pip install -r requirements.txt\n"),
    ("file-not-copied", f"{SLIM}WORKDIR /app\nCOPY . /src\nRUN pip install -r requirements.txt\n"),
    ("file-not-copied", f"{SLIM}WORKDIR /app\nCOPY . .\nRUN pip install -r /apps/requirements.txt\n"),
    ("file-not-copied", f"{SLIM}WORKDIR /app\nRUN python setup.py install\nCOPY . .\n"),
    ("file-not-copied", f"{SLIM}WORKDIR /app\nRUN bash install.sh\nCOPY . .\n"),
    ("file-not-copied", f"{SLIM}COPY . /app\nRUN cd /application && pip install .\n"),
    (
        "file-not-copied",
        f"{UBUNTU}RUN git clone https://github.com/a/b.git && cd b\nRUN pip3 install -r requirements.txt\n",
    ),
    ("file-not-copied", "FROM x/y:1\nRUN pip install -r requirements.txt\nCOPY . .\n"),
    ("file-not-copied", f"{SLIM}WORKDIR /app\nRUN ./venv/bin/pip install six\nCOPY . .\n"),
    ("system-package-gone", f"FROM ubuntu:22.04\n{APT} python3.10.12\n"),
    ("commands-run-together", f"{SLIM}RUN apt-get update \\\n    apt-get install -y git\n"),
    ("commands-run-together", f"{SLIM}RUN pip install numpy \\\n    pip install scipy\n"),
    ("commented-out", f"{SLIM}RUN pip install numpy # arrays \\\n    && pip install scipy\n"),
    ("missing-argument", f"{SLIM}ENV HF_HOME = /cache\n"),
    ("no-shell", f'{SLIM}ENV PORT=80\nCMD ["python", "-m", "http.server", "$PORT"]\n'),
    ("no-shell", f'{SLIM}CMD ["cd /app && python train.py"]\n'),
    ("no-shell", f'{SLIM}CMD ["source", "/v/bin/activate", "&&", "python", "train.py"]\n'),
    ("no-such-stage", f"{SLIM}COPY --from=builder /v /v\n"),
    ("no-such-option", f"{SLIM}RUN pip install torch=2.6.0\n"),
    ("no-such-option", f"{SLIM}RUN pip install torch == 2.6.0\n"),
    ("no-such-option", f"{TORCH}RUN pip uninstall torch\n"),
    (
        "argument-out-of-scope",
        "FROM nvidia/cuda:12.4.1-devel-ubuntu22.04\nARG CUDA_VERSION=12.1\nRUN echo cu$CUDA_VERSION\n",
    ),
    ("base-ended", f"FROM ubuntu:lunar\n{APT} git\n"),
    ("base-ended", "FROM nvidia/cuda:11.2.0-cudnn8-runtime\n"),
    ("base-ended", "FROM nvidia/cuda:11.7.0-devel-ubuntu22.04\n"),
    ("setup-too-old", "FROM python:3.11\nRUN pip install openai-whisper==20231117\n"),
    ("setup-too-old", f"{UBUNTU}RUN pip3 install -U pip\nRUN pip3 install pytorch-lightning==1.7.7\n"),
    (
        "setup-too-old",
        f"{UBUNTU}RUN pip3 install -U pip\n"
        "RUN pip3 install git+https://github.com/openai/CLIP.git@d50d76daa670286dd6cacf3bcd80b5e4823fc8e1\n",
    ),
    ("base-ended", "FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn8-devel\n"),
    ("base-ended", "FROM python:3.12-slim-buster\n"),
    ("base-ended", "FROM python:3.11-jammy\n"),
    ("needs-nvcc", f"{TORCH}RUN pip install --no-build-isolation mamba-ssm\n"),
    (
        "needs-nvcc",
        f"{TORCH}{APT} git\nRUN git clone https://github.com/a/lietorch && cd lietorch && pip install .\n",
    ),
    (
        "build-isolation",
        f"{DEVEL}RUN pip3 install --upgrade pip\nRUN pip3 install torch==2.5.1\n{APT} git\n"
        "RUN pip3 install git+https://github.com/rahul-goel/fused-ssim\n",
    ),
    ("file-not-copied", "FROM nvcr.io/nvidia/pytorch:25.03-py3\nRUN pip install -r requirements.txt\n"),
    ("file-not-copied", "FROM rayproject/ray:2.40.0\nRUN pip install -r requirements.txt\nWORKDIR /serve\n"),
    (
        "file-not-copied",
        "FROM x/y:1\nWORKDIR /app\nCOPY setup.sh /app\nRUN sh setup.sh\nRUN pip install -r requirements.txt\n"
        "COPY requirements.txt /app\n",
    ),
    ("file-not-copied", f"{SLIM}WORKDIR /app\nRUN pip install uv && uv sync\nCOPY pyproject.toml ./\n"),
    ("file-not-copied", f"{SLIM}WORKDIR /app\nRUN pip install poetry\nRUN poetry install\nCOPY . .\n"),
    ("file-not-copied", f"{SLIM}WORKDIR /app\nRUN chmod +x entrypoint.sh\nCOPY entrypoint.sh ./\n"),
    ("script-not-copied", f'{SLIM}WORKDIR /app\nCOPY train.py .\nENTRYPOINT ["python", "run.py"]\n'),
    ("script-not-copied", f"{SLIM}WORKDIR /app\nCOPY start.sh /app/\nCMD bash /app/Start.sh\n"),
    ("not-in-sh", f"{SLIM}ARG V=v1\nRUN echo ${{V//v}}\n"),
    ("not-in-sh", f'{SLIM}ARG V=v1\nRUN echo "${{V:0:3}} ${{V^^}}"\n'),
    ("not-in-sh", "FROM nvcr.io/nvidia/pytorch:25.03-py3\nRUN if [[ -n $V ]]; then echo a; fi\n"),
    ("not-in-sh", f"{TORCH}RUN cat <<< a\n"),
    ("not-in-sh", f"{UBUNTU}RUN set -euo pipefail && echo a | cat\n"),
    ("not-in-sh", f"{UBUNTU}RUN a=(x y) && echo a\n"),
    ("not-in-sh", f"{UBUNTU}RUN mkdir -p /data/{{train,test}}\n"),
    ("not-in-sh", f"{UBUNTU}RUN function f {{ echo a; }} && f\n"),
    ("not-in-sh", f'{SLIM}SHELL ["/bin/bash", "-c"]\nRUN echo a\nSHELL ["/bin/sh", "-c"]\nRUN cat <(ls)\n'),
    ("no-shell", f'{SLIM}ENTRYPOINT ["python", /app/train.py"]\n'),
    ("no-shell", f"{SLIM}CMD ['python', 'train.py']\n"),
    ("no-shell", f'{SLIM}CMD ["python", "train.py"\n'),
    ("no-shell", f"{SLIM}CMD [“python”, “train.py”]\n"),
    (
        "no-shell",
        f'{TORCH}ENTRYPOINT ["torchrun", "--nnodes", "$NNODES", "--master_port=$PORT", "train.py"]\n',
    ),
    ("one-dash", "FROM ubuntu:22.04\nRUN apt-get update && apt-get install -y -no-install-recommends git\n"),
    ("one-dash", f"{SLIM}RUN pip install -no-cache-dir six\n"),
    ("one-dash", f"{SLIM}RUN pip install –no-cache-dir six\n"),
    ("one-dash", f"{UBUNTU}RUN git clone -depth 1 https://github.com/a/b\n"),
    ("kernel-module", f"{DEVEL}RUN cd /efa && ./efa_installer.sh -y -g\n"),
    ("kernel-module", f"{DEVEL}RUN sh NVIDIA-Linux-x86_64-550.54.run --silent\n"),
    (
        "loader-path",
        f"{DEVEL}ENV LD_LIBRARY_PATH=/opt/ofi/lib:$LD_LIBRARY_PATH\n"
        "RUN ./configure --prefix=/opt/ofi/install && make install\n",
    ),
    (
        "loader-path",
        f"{DEVEL}ENV LD_LIBRARY_PATH=/opt/nccl/lib\nRUN cmake -DCMAKE_INSTALL_PREFIX=/opt/nccl/build .\n",
    ),
    ("built-for-another-torch", f"{TORCH}RUN pip install torch-scatter -f {PYG}/torch-2.4.0+cu124.html\n"),
    ("built-for-another-torch", f"{TORCH}RUN pip install torch-scatter -f {PYG}/torch-2.5.0%2Bcu121.html\n"),
    (
        "built-for-another-torch",
        "FROM pytorch/pytorch:1.13.0-cuda11.6-cudnn8-devel\nRUN pip install mmcv-full==1.7.1 "
        "-f https://download.openmmlab.com/mmcv/dist/cu111/torch1.8.0/index.html\n",
    ),
    (
        "built-for-another-torch",
        "FROM python:3.10\nRUN pip install torch==2.4.1\n"
        "RUN pip install dgl -f https://data.dgl.ai/wheels/torch-2.3/cu121/repo.html\n",
    ),
    (
        "built-for-another-torch",
        "FROM continuumio/miniconda3:24.9.2-0\n"
        "RUN conda install -y -c conda-forge --override-channels pytorch==1.10.0 cudatoolkit=11.3\n"
        "RUN pip install pytorch3d -f https://dl.fbaipublicfiles.com/pytorch3d/packaging/wheels/"
        "py38_cu111_pyt190/download.html\n",
    ),
    (
        "needs-nvcc",
        f"FROM nvidia/cuda:12.4.1-runtime-ubuntu22.04\n{APT} git build-essential\nRUN git clone "
        "https://github.com/NVIDIA/nccl-tests.git && cd nccl-tests && make MPI=0\n",
    ),
    (
        "needs-nvcc",
        f"FROM nvidia/cuda:12.4.1-runtime-ubuntu22.04\n{APT} git cmake build-essential\n"
        "COPY . /src\nRUN cd /src && cmake -B build -DGGML_CUDA=ON .\n",
    ),
    (
        "needs-nvcc",
        "FROM python:3.11\nRUN CMAKE_ARGS=-DGGML_CUDA=on pip install llama-cpp-python\n",
    ),
    (
        "build-isolation",
        "FROM nvcr.io/nvidia/pytorch:25.06-py3\nRUN git clone https://github.com/Dao-AILab/flash-attention.git"
        " && cd flash-attention && pip install -e .\n",
    ),
    ("old-libc", "FROM python:3.12-alpine AS base\nRUN pip -V\nFROM base\nRUN pip install torch\n"),
    (
        "numpy-abi",
        "FROM pytorch/pytorch:2.1.0-cuda11.8-cudnn8-runtime\nRUN pip install 'numpy>=2' networkx\n",
    ),
    ("numpy-abi", "FROM pytorch/pytorch:2.1.0-cuda11.8-cudnn8-runtime\nRUN pip install -U numpy\n"),
    ("base-ended", f"FROM {DLC}/pytorch-training:1.10.0-gpu-py38cu113-ubuntu20.04-sagemaker\n"),
    ("base-ended", f"FROM {DLC}/pytorch-training:2.3.0-gpu-py311-ubuntu20.04-ec2\n"),
    ("base-ended", "FROM nvcr.io/nvidia/pytorch:24.13-py3\n"),
    ("base-ended", "FROM nvcr.io/nvidia/pytorch:24.03\n"),
    ("base-ended", "FROM pytorch/pytorch:2.1.0-cuda121-cudnn8-runtime\n"),
    ("base-ended", "FROM pytorch/pytorch:2.1-cuda12.1-cudnn8-runtime\n"),
    ("conda-activate-fails", "FROM docker.1ms.run/continuumio/miniconda3:24.9.2-0\nRUN conda activate a\n"),
    ("conda-activate-fails", "FROM condaforge/miniforge3:24.9.2-0\nRUN mamba activate a && pip -V\n"),
    (
        "no-such-program",
        f"FROM ubuntu:20.04\n{APT} python3-pip\nRUN ln -s /usr/bin/python3.10 /usr/bin/python\n",
    ),
    ("no-such-program", "FROM python:3.11\nRUN python3.10 -m pip install six\n"),
]


@pytest.mark.parametrize(("finding", "docker"), BROKEN)
def test_a_step_that_must_fail_is_a_problem(finding: str, docker: str) -> None:
    findings = check(project_of({"Dockerfile": docker}), TARGET)
    assert finding in [finding.id for finding in findings if finding.level is Level.PROBLEM]


# Images like the broken ones, which are built: the same program, file or user is there after all.
FINE = [
    "FROM python:3.12\nRUN git clone https://github.com/a/b && cd b && pip install -r requirements.txt\n",
    f"{SLIM}{APT} git-lfs\nRUN git clone https://github.com/a/b\n",
    f"{SLIM}RUN which git || true\nRUN git --version || echo none\n",
    f"{UBUNTU}RUN ln -s /usr/bin/python3 /usr/bin/python\nRUN python -m pip install numpy\n",
    f"FROM ubuntu:22.04\n{APT} python-is-python3 python3-pip\nRUN python -m pip -V\n",
    f"{UBUNTU}RUN make --version\n",  # by the packages that python3-pip recommends
    f"{DEVEL}COPY . /app\nRUN cd /app && make\n",
    f"{SLIM}COPY --from=busybox:1 /bin/wget /usr/bin/wget\nRUN wget https://x.org/weights.bin\n",
    f"{UBUNTU}RUN curl -LsSf https://astral.sh/uv/install.sh | sh\nENV PATH=/root/.local/bin:$PATH\n"
    "RUN uv venv /v\n",
    f"{UBUNTU}RUN curl -LsSf https://astral.sh/uv/install.sh | sh && ~/.local/bin/uv venv /v\n",
    f"{SLIM}COPY --from=ghcr.io/astral-sh/uv:0.9 /uv /bin/uv\nRUN uv pip install --system six\n",
    f"{SLIM}RUN pip install uv && uv venv /v\nENV VIRTUAL_ENV=/v\nRUN uv pip install six\n",
    f'{SLIM}RUN useradd -m trainer\nUSER trainer\nCMD ["python"]\n',
    f'{SLIM}USER 1000:1000\nCMD ["python"]\n',
    f"{SLIM}WORKDIR /app\nCOPY requirements.txt /app\nRUN pip install -r requirements.txt\n",
    f"{SLIM}COPY requirements.txt /tmp/r.txt\nRUN cd /tmp && pip install -r r.txt\n",
    f"{SLIM}ARG AT=/app\nCOPY . ${{AT}}\nWORKDIR ${{AT}}\nRUN python setup.py install\n",
    f"{SLIM}RUN --mount=type=bind,source=.,target=/src cd /src && pip install -r requirements.txt\n",
    "FROM x/y:1\nCOPY . /somewhere\nRUN pip install -r requirements.txt\n",
    f"{SLIM}RUN python -m venv /opt/venv && /opt/venv/bin/pip install six\n",
    f"{SLIM}WORKDIR /app\nRUN pip install uv && uv venv\nRUN .venv/bin/python -V\n",
    f"{SLIM}RUN echo six > r.txt && pip install -r r.txt\n",
    f"{SLIM}RUN pip install numpy \\\n    # arrays\n    && pip install scipy\n",
    f"{SLIM}RUN echo 'a # b' \\\n    && pip install scipy\n",
    f'{SLIM}ENTRYPOINT ["sh", "-c", "exec python -m http.server $PORT"]\n',
    f"{SLIM}RUN <<EOF\napt-get update\napt-get install -y \\\n    git \\\n\napt-get clean\nEOF\n",
    f"{TORCH}RUN pip uninstall -y torch\n",
    "FROM python:3.11\nENV PIP_CONSTRAINT=/c.txt\nRUN pip install openai-whisper==20231117\n",
    f"{UBUNTU}RUN pip3 install -U 'pip<24.1'\nRUN pip3 install pytorch-lightning==1.7.7\n",
    f"{DEVEL}ARG CUDA_VERSION\nRUN echo $CUDA_VERSION\n",
    f"{TORCH}COPY pyproject.toml /\nRUN pip install poetry && poetry install --no-root\n",
    "FROM x/y:1\nRUN sh setup.sh\nRUN pip install -r requirements.txt\n",
    "FROM x/y:1\nRUN git clone https://x.org/a .\nRUN pip install -r requirements.txt\nCOPY . .\n",
    f"{SLIM}RUN pip install uv && uv init\nRUN uv sync\n",
    f'{SLIM}WORKDIR /app\nCOPY requirements.txt .\nCMD ["python", "train.py"]\n',  # mounted at the start
    f'{SLIM}WORKDIR /app\nCOPY train.py src ./\nCMD ["python", "run.py"]\n',
    f'{SLIM}ARG V=v1\nSHELL ["/bin/bash", "-o", "pipefail", "-c"]\nRUN [[ -n ${{V//v}} ]]\n',
    "FROM python:3.12-alpine\nARG V=v1\nRUN echo ${V//v}\n",
    f"{SLIM}ARG V=v1\nRUN echo '${{V//v}}' \"[[ a ]]\" && echo ${{V:-a,b}} ${{V%%.*}} ${{V##*/}}\n",
    f"{SLIM}RUN bash -c 'if [[ -n a ]]; then echo b; fi'\n",
    f'{SLIM}RUN [ -f /x ] || echo "a", "b"\n',
    f'{SLIM}RUN [ "a" = "a" ]\n',
    f'{SLIM}ENTRYPOINT ["/start.sh", "$NNODES"]\n',
    f"{SLIM}RUN pip install -qU six\nRUN apt-get update -qq && apt-get install -yqq git\n",
    f"{TORCH}RUN pip uninstall torch --y\n",
    f"{DEVEL}COPY efa /efa\nRUN cd /efa && ./efa_installer.sh -y -g --skip-kmod\n",
    f"{DEVEL}ENV LD_LIBRARY_PATH=/opt/x/install/lib:/opt/x/lib\nRUN ./configure --prefix=/opt/x/install\n",
    f"{DEVEL}ENV NCCL_SOCKET_IFNAME=^docker0,lo\n",
    f"{TORCH}RUN pip install torch-scatter -f {PYG}/torch-2.5.0+cu124.html\n",
    f"{TORCH}RUN pip install -r unknown.txt || true\nRUN pip install torch-scatter -f https://x.org/torch-1.9\n",
    f"FROM nvidia/cuda:12.4.1-devel-ubuntu22.04\n{APT} git\nRUN git clone https://github.com/NVIDIA/nccl-tests"
    " && cd nccl-tests && make\n",
    f"FROM nvidia/cuda:12.4.1-runtime-ubuntu22.04\n{APT} git cmake build-essential\n"
    "COPY . /src\nRUN cd /src && cmake -B build -DGGML_CUDA=OFF .\n",
    "FROM nvcr.io/nvidia/pytorch:25.06-py3\nRUN git clone https://github.com/Dao-AILab/flash-attention.git"
    " && cd flash-attention && pip install --no-build-isolation -e .\n",
    "FROM pytorch/pytorch:2.1.0-cuda11.8-cudnn8-runtime\nRUN pip install numpy 'numpy<2'\n",
    f"FROM {DLC}/pytorch-training:2.3.0-gpu-py311-cu121-ubuntu20.04-ec2\n",
    f"FROM {DLC}/pytorch-inference:2.3.0-cpu-py311-ubuntu20.04-sagemaker-v1.8\n",
    f"FROM {DLC}/pytorch-training:2.3.0-gpu-py311\n",
    "FROM nvcr.io/nvidia/pytorch:24.03-py3-igpu\n",
    "FROM condaforge/miniforge3:24.9.2-0\nRUN . /opt/conda/etc/profile.d/conda.sh && conda activate a\n",
    f"FROM ubuntu:20.04\n{APT} python3-pip python3.9\nRUN ln -s /usr/bin/python3.9 /usr/bin/python\n",
    "FROM python:3.11\nRUN ln -s /usr/local/bin/python3.11 /usr/local/bin/python3.10\n",
]


@pytest.mark.parametrize("docker", FINE)
def test_what_is_there_after_all_is_no_problem(docker: str) -> None:
    project = project_of({"Dockerfile": docker})
    assert [finding.id for finding in check(project, TARGET) if finding.level is Level.PROBLEM] == []
    assert apply_fixes(project, TARGET).project == project


# Likely mistakes that some builder, base or option makes good.
LIKELY = [
    (
        "numpy-abi",
        "FROM python:3.11\nCOPY unknown.txt .\nRUN pip install -r unknown.txt\n"
        "RUN pip install torch==2.2.2 torchvision==0.17.2\n",
    ),
    ("goal-is-no-folder", f"{SLIM}COPY a.py b.py /app\n"),
    ("no-such-program", f"{SLIM}{APT} some-unknown-tool\nRUN git clone https://github.com/a/b\n"),
    ("no-such-option", f"{SLIM}RUN pip uninstall something\n"),
    ("build-isolation", f"{TORCH}{APT} git\nRUN pip install git+https://github.com/rahul-goel/fused-ssim\n"),
    ("fixed-interface", f"{DEVEL}ENV NCCL_SOCKET_IFNAME=eth0\n"),
    ("not-in-sh", f"{SLIM}RUN pip install six &> /dev/null\n"),
]


@pytest.mark.parametrize(("finding", "docker"), LIKELY)
def test_a_likely_failure_is_a_warning(finding: str, docker: str) -> None:
    findings = check(project_of({"Dockerfile": docker}), TARGET)
    assert [item.level for item in findings if item.id == finding] == [Level.WARNING]
