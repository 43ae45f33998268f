"""Dockerfiles in the styles of well-known projects: what must stay, and what must change exactly so."""

import pytest
from tests.images.cases import TODAY, everything, project_of

from paceline.images.lint.check import apply_fixes, check
from paceline.images.lint.dockerfile import read_dockerfile
from paceline.images.lint.project import Level, Target
from paceline.images.lint.view import stage_views

TARGET = Target(today=TODAY)
PIP = "RUN apt-get update && apt-get install -y python3-pip\n"
DEVEL = f"FROM nvidia/cuda:12.1.1-devel-ubuntu22.04\n{PIP}"
SLIM = "FROM python:3.11-slim\n"
BUSTER = "FROM python:3.8-slim-buster\n"
PYTORCH = "https://download.pytorch.org/whl"

# (what it shows, Dockerfile, requirements.txt): nothing is edited, and nothing is called a problem.
FINE = [
    (
        "the build of torch is completed by a variable, as vLLM does",
        f"FROM nvidia/cuda:13.0.1-devel-ubuntu22.04\n{PIP}ENV CUDA_VERSION=13.0.1\n"
        "RUN python3 -m pip install torch==2.9.1 "
        f"--extra-index-url {PYTORCH}/cu$(echo $CUDA_VERSION | cut -d. -f1,2 | tr -d '.')\n",
        "",
    ),
    (
        "uv is told which build to take",
        "FROM nvidia/cuda:13.0.1-devel-ubuntu22.04\nRUN uv venv /v && uv pip install torch==2.9.1 "
        "--torch-backend=cu130\n",
        "",
    ),
    (
        "uv finds the build by itself",
        "FROM nvidia/cuda:13.0.1-devel-ubuntu22.04\nENV UV_TORCH_BACKEND=auto\n"
        "RUN uv pip install --system torch==2.9.1\n",
        "",
    ),
    (
        "uv's further index is a variable",
        f"FROM nvidia/cuda:12.4.1-devel-ubuntu22.04\nENV UV_EXTRA_INDEX_URL={PYTORCH}/cu124\n"
        "RUN uv pip install --system torch==2.6.0+cu124\n",
        "",
    ),
    (
        "the index is a variable of the command",
        f"FROM python:3.11-slim\nRUN PIP_EXTRA_INDEX_URL={PYTORCH}/cu124 pip install torch==2.6.0+cu124\n",
        "",
    ),
    (
        "another Python, by a variable",
        "ARG V=3.12\nFROM nvidia/cuda:12.8.1-devel-ubuntu20.04\nARG V\n"
        "RUN apt-get update && apt-get install -y python${V} "
        "&& python${V} -m ensurepip\nRUN python3 -m pip install torch==2.7.1\n",
        "",
    ),
    (
        "another Python, by deadsnakes",
        "FROM nvidia/cuda:12.8.1-devel-ubuntu20.04\nRUN apt-get update && apt-get install -y "
        "software-properties-common && add-apt-repository ppa:deadsnakes/ppa\n"
        "RUN pip install torch==2.7.1\n",
        "",
    ),
    (
        "EFA's plugin for NCCL is no second NCCL",
        f"{DEVEL}RUN apt-get update && apt-get install -y curl\n"
        "ENV LD_LIBRARY_PATH=/opt/amazon/efa/lib:/opt/aws-ofi-nccl/lib:$LD_LIBRARY_PATH\n"
        "RUN curl -O https://efa-installer.amazonaws.com/aws-efa-installer-latest.tar.gz && tar xf aws-efa*\n"
        "RUN pip install torch==2.4.1\n",
        "",
    ),
    (
        "NCCL is compiled on purpose",
        f"{DEVEL}RUN apt-get update && apt-get install -y git\n"
        "ENV LD_LIBRARY_PATH=/opt/nccl/build/lib:/usr/local/cuda/lib64\n"
        "RUN git clone https://github.com/NVIDIA/nccl /opt/nccl && make -C /opt/nccl\n"
        "RUN pip install torch==2.4.1\n",
        "",
    ),
    (
        "ready wheels are named in the requirements file, as PyG says",
        f"FROM nvidia/cuda:12.1.1-runtime-ubuntu22.04\n{PIP}COPY requirements.txt .\n"
        "RUN pip install -r requirements.txt\n",
        "--find-links https://data.pyg.org/whl/torch-2.4.0+cu121.html\ntorch==2.4.0\ntorch-scatter\n",
    ),
    (
        "flash-attn without its compiler, on purpose",
        f"FROM nvidia/cuda:12.1.1-runtime-ubuntu22.04\n{PIP}ENV FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE\n"
        "RUN pip install torch==2.4.0\nRUN pip install flash-attn --no-build-isolation\n",
        "",
    ),
    (
        "PEP 668 is answered by a variable of the command",
        "FROM debian:12-slim\nRUN apt-get update && apt-get install -y python3-pip\n"
        "RUN PIP_BREAK_SYSTEM_PACKAGES=1 pip install six\n"
        "RUN export PIP_BREAK_SYSTEM_PACKAGES=1 && pip install attrs\n",
        "",
    ),
    (
        "three variables before apt-get",
        f"{SLIM}RUN apt-get update && DEBIAN_FRONTEND=noninteractive LC_ALL=C TZ=UTC apt-get install -y git\n"
        "RUN pip install git+https://github.com/a/b\n",
        "",
    ),
    (
        "system packages from a file",
        f"{SLIM}COPY list .\nRUN xargs -a list apt-get install -y\n"
        "RUN pip install git+https://github.com/a/b opencv-python\n",
        "",
    ),
    (
        "system packages from a command",
        f"{SLIM}COPY list .\nRUN apt-get install -y $(cat list)\n"
        "RUN pip install git+https://github.com/a/b opencv-python\n",
        "",
    ),
    (
        "system packages from an argument",
        f"{SLIM}ARG EXTRA\nRUN apt-get install -y $EXTRA\n"
        "RUN pip install git+https://github.com/a/b psycopg2\n",
        "",
    ),
    (
        "system packages from a script",
        f"{SLIM}COPY tools/deps.sh /tmp/\nRUN bash /tmp/deps.sh\n"
        "RUN pip install git+https://github.com/a/b\n",
        "",
    ),
    (
        "constraints are copied with the code",
        f"{SLIM}WORKDIR /app\nCOPY . .\nRUN pip install -r requirements.txt -c constraints.txt\n",
        "six\n",
    ),
    (
        "wheels are copied with the code",
        f"{SLIM}WORKDIR /app\nCOPY . .\nRUN pip install --no-index --find-links=wheels -r requirements.txt\n",
        "six\n",
    ),
    (
        "constraints by a variable",
        f"{SLIM}WORKDIR /app\nENV PIP_CONSTRAINT=/app/constraints.txt\nCOPY . .\n"
        "RUN pip install -r requirements.txt\n",
        "torch==2.2.2\npandas\n",
    ),
    (
        "switches and names that tell of a secret are none",
        f"{SLIM}ENV HF_HUB_DISABLE_IMPLICIT_TOKEN=1 TOKEN_LIMIT=2048 SECRET_NAME=prod/db\n",
        "",
    ),
    (
        "numpy is in the framework's image",
        "FROM pytorch/pytorch:2.2.2-cuda12.1-cudnn8-runtime\nRUN pip install torch==2.2.2 pandas\n",
        "",
    ),
    (
        "an ended Debian asks the archive",
        f"{BUSTER}RUN sed -i s/deb.debian.org/archive.debian.org/ /etc/apt/sources.list && apt-get update "
        "&& apt-get install -y git\n",
        "",
    ),
    (
        "one branch of a condition has another torch",
        f"{DEVEL}ARG NIGHTLY\nRUN pip install torch==2.6.0 torchvision==0.21.0\n"
        'RUN if [ -n "$NIGHTLY" ]; then pip install torchvision==0.22.0 torch==2.4.0+cu128; '
        "else pip install opencv-python; fi\n",
        "",
    ),
    (
        "a test before the command",
        f'{SLIM}ARG DEV\nRUN [ -z "$DEV" ] || pip install sklearn\n'
        'RUN test -n "$DEV" && pip install psycopg2 || true\n',
        "",
    ),
    (
        "apt knows pip by its short name",
        "FROM ubuntu:22.04\nRUN apt -y update\nRUN apt -y install pip ffmpeg\nRUN pip install six\n",
        "",
    ),
    (
        "a variable holds several system packages",
        f'{SLIM}ARG DEPS="gcc \\\n portaudio19-dev"\n'
        "RUN apt-get update && apt-get install -y ${DEPS}\nRUN pip install pyaudio\n",
        "",
    ),
    (
        "the requirements are rewritten before they are installed",
        f"{SLIM}COPY requirements.txt .\nRUN sed -i '/torch/d' requirements.txt\n"
        "RUN pip install -r requirements.txt\n",
        "torch==2.6.0+cu124\ntorchvision==0.20.1\n",
    ),
    (
        "an argument that is only shown",
        'ARG BASE=python:3.11-slim\nFROM $BASE\nRUN echo "Base image is $BASE"\n',
        "",
    ),
    (
        "torch of NVIDIA's image is taken away first",
        "FROM nvcr.io/nvidia/pytorch:24.05-py3\nRUN pip uninstall -y torch torchvision\n"
        f"RUN pip install torch==2.4.0 --index-url {PYTORCH}/cu124\n",
        "",
    ),
    (
        "another CUDA major where nothing is compiled",
        f"FROM nvidia/cuda:11.8.0-runtime-ubuntu22.04\n{PIP}RUN pip install torch==2.6.0\n",
        "",
    ),
    (
        "uv is told the build, and the pin says it too",
        f"{SLIM}RUN pip install uv && uv pip install --system torch==2.6.0+cu124 --torch-backend=cu124\n",
        "",
    ),
    (
        "the detection packages leave CUDA out where no GPU is",
        f"FROM nvidia/cuda:12.1.1-runtime-ubuntu22.04\n{PIP}RUN pip install torch==2.4.0\n"
        "RUN apt-get update && apt-get install -y g++ && pip install --no-build-isolation torch-scatter\n",
        "",
    ),
]


@pytest.mark.parametrize(("docker", "requirements"), [pytest.param(*rest, id=name) for name, *rest in FINE])
def test_what_is_meant_so_is_left_alone(docker: str, requirements: str) -> None:
    project = project_of(docker, requirements_txt=requirements)
    assert apply_fixes(project, TARGET).project == project
    assert [finding.id for finding in check(project, TARGET) if finding.level is Level.PROBLEM] == []


# (what it shows, Dockerfile, requirements.txt): it is a problem, and a person must decide how to fix it.
TOLD = [
    (
        "pip of an environment that only this step has",
        f"{DEVEL}RUN python3 -m venv /v && . /v/bin/activate && pip install torch==2.4.0 flash-attn\n",
        "",
    ),
    ("pip of conda's environment", f"{DEVEL}RUN conda run -n e pip install torch==2.4.0 flash-attn\n", ""),
    ("pip into a folder", f"{DEVEL}RUN pip install --target /deps torch==2.4.0 flash-attn\n", ""),
    (
        "two stages install from the file",
        f"{DEVEL}RUN pip install -r requirements.txt\n{DEVEL}RUN pip install -r requirements.txt\n",
        "torch==2.4.0\nflash-attn\n",
    ),
    (
        "a remark stands between the words",
        f"{DEVEL}RUN pip install torch==2.4.0 \\\n    # quick attention\n    flash-attn\n",
        "",
    ),
    (
        "a requirement on two lines",
        f"{SLIM}COPY requirements.txt .\nRUN pip install -r requirements.txt\n",
        "torch==2.2.2 \\\n  ; python_version > '3.8'\npandas\n",
    ),
    (
        "dnf's system has no neighbour",
        "FROM nvidia/cuda:11.8.0-devel-rockylinux8\nRUN pip3 install torch==2.4.1\n"
        "RUN pip3 install flash-attn --no-build-isolation\n",
        "",
    ),
    (
        "Python 3.6 was never made for the new Debian",
        "FROM python:3.6-slim-buster\nRUN apt-get update && apt-get install -y git\n",
        "",
    ),
    (
        "for which CUDA an unpinned torch is built is not known",
        f"FROM nvidia/cuda:13.0.1-runtime-ubuntu22.04\nRUN pip install torch --index-url {PYTORCH}/cpu\n",
        "",
    ),
]


@pytest.mark.parametrize(("docker", "requirements"), [pytest.param(*rest, id=name) for name, *rest in TOLD])
def test_what_only_a_person_can_decide_is_reported_and_left_alone(docker: str, requirements: str) -> None:
    project = project_of(docker, requirements_txt=requirements)
    assert apply_fixes(project, TARGET).project == project
    assert [finding for finding in check(project, TARGET) if finding.level is Level.PROBLEM]


# (what it shows, Dockerfile, what becomes of it)
APART = (
    "RUN pip install setuptools wheel packaging ninja \\\n && pip install --no-build-isolation flash-attn\n"
)
FIXED = [
    (
        "the last word of continued lines",
        f"{DEVEL}RUN pip install torch==2.4.0 \\\n    flash-attn\nCOPY a b\n",
        f"{DEVEL}RUN pip install torch==2.4.0\n{APART}COPY a b\n",
    ),
    (
        "a word between continued lines",
        f"{DEVEL}RUN pip install \\\n    torch==2.4.0 \\\n    flash-attn \\\n    six\nCOPY a b\n",
        f"{DEVEL}RUN pip install \\\n    torch==2.4.0 \\\n    six\n{APART}COPY a b\n",
    ),
    (
        "one folder of several",
        f"{DEVEL}ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64:/opt/cudnn/lib:$LD_LIBRARY_PATH\n"
        "RUN pip install torch==2.4.1\n",
        f"{DEVEL}ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64:$LD_LIBRARY_PATH\nRUN pip install torch==2.4.1\n",
    ),
    (
        "a patch release that was never made for the new Debian",
        "FROM python:3.8.5-slim-buster\nRUN apt-get update && apt-get install -y git\n",
        "FROM python:3.8-slim-bookworm\nRUN apt-get update && apt-get install -y git\n",
    ),
    (
        "a release candidate of Python",
        "FROM python:3.13.0rc1-slim\nRUN pip install torch==2.2.2 'numpy<2'\n",
        "FROM python:3.12-slim\nRUN pip install torch==2.2.2 'numpy<2'\n",
    ),
    (
        "quotes inside of quotes",
        f"{SLIM}RUN pip install transformers==4.38.0 'tokenizers==0.19.1;python_version>=\"3.8\"'\n",
        f"{SLIM}RUN pip install transformers==4.38.0 'tokenizers>=0.14,<0.19;python_version>=\"3.8\"'\n",
    ),
    (
        "Windows' line ends, a mark before the first byte, no end of the last line",
        "\ufeffFROM python:3.11-slim\r\nRUN pip install torch==2.6.0 torchvision==0.20.1 \\\r\n # x\r\n"
        " pandas\r\nUSER 1",
        "\ufeffFROM python:3.11-slim\r\nRUN pip install torch==2.6.0 torchvision==0.21.0 \\\r\n # x\r\n"
        " pandas\r\nUSER 1",
    ),
]


@pytest.mark.parametrize(("docker", "expected"), [pytest.param(*rest, id=name) for name, *rest in FIXED])
def test_a_fix_is_exactly_this(docker: str, expected: str) -> None:
    after = apply_fixes(project_of(docker), TARGET).project
    assert everything(after) == expected
    words = [
        step.word for stage in read_dockerfile("Dockerfile", expected).stages for step in stage.instructions
    ]
    assert len(words) == sum(
        line.startswith(("RUN", "COPY", "ENV", "USER")) for line in expected.splitlines()
    )


def test_a_folder_of_one_s_own_may_need_the_cudnn_of_the_base() -> None:
    project = project_of(
        "FROM nvidia/cuda:12.1.1-cudnn8-runtime-ubuntu22.04\nCOPY . .\n"
        "RUN pip install torch==2.4.1 && pip install .\n"
    )
    assert apply_fixes(project, TARGET).project == project
    assert "second-cudnn" in [finding.id for finding in check(project, TARGET)]


def test_another_build_of_torch_is_not_had_by_another_base() -> None:
    docker = f"RUN pip install torch==2.2.2+cu118 --index-url {PYTORCH}/cu118\n"
    project = project_of(f"FROM pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime\n{docker}")
    assert apply_fixes(project, TARGET).project == project


@pytest.mark.parametrize(
    ("arch", "torch", "is_problem"),
    [
        ("sm_89", "1.13.1", False),  # code for sm_80 runs there
        ("sm_86", "1.13.1", False),
        ("sm_90", "1.13.1", True),
        ("sm_120", "2.6.0", True),
    ],
)
def test_code_of_an_earlier_minor_of_the_same_architecture_is_enough(
    arch: str, torch: str, is_problem: bool
) -> None:
    project = project_of(f"FROM python:3.10-slim\nRUN pip install torch=={torch} 'numpy<2'\n")
    findings = check(project, Target(today=TODAY, arch=arch))
    assert ("gpu-too-new" in [finding.id for finding in findings]) is is_problem


@pytest.mark.parametrize(
    ("docker", "python"),
    [
        ("FROM python:3.11-slim\nRUN pip install six\n", "3.11"),
        ("FROM nvidia/cuda:12.4.1-base-ubuntu22.04\nRUN pip install six\n", "3.10"),
        (
            "FROM ubuntu:22.04\nARG V=3.12\nRUN add-apt-repository ppa:d && apt install python${V}\n",
            "3.12",
        ),
        ("FROM ubuntu:22.04\nRUN uv venv --python 3.13 /v\n", "3.13"),
        (
            "FROM condaforge/miniforge3\nRUN conda create -y -n e python=3.9\nRUN pip install six\n",
            "3.9",
        ),
        ("FROM python:3.12-slim\nRUN uv sync --frozen\n", "3.12"),
        ("FROM ubuntu:22.04\nRUN apt install python3.9 python3.11\n", None),
    ],
)
def test_the_python_is_the_one_of_the_image(docker: str, python: str | None) -> None:
    assert stage_views(project_of(docker), TARGET)[-1].python == python
