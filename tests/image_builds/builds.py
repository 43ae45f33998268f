"""Builds that fail for a known reason, with the line of the log that shows it; tests really build them."""

from dataclasses import dataclass

HEAD = "FROM python:3.11-slim-bookworm\nWORKDIR /app\nCOPY requirements.txt .\n"
PIP = "RUN pip install --no-cache-dir -r requirements.txt\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    name: str
    pattern: int  # its number in docs/reference/image-checks.md
    dockerfile: str
    requirements: str = ""
    signature: str  # what the engine's log says when it is built as it is
    works: str  # a program that runs in the fixed image


FAILING = (
    Failing(
        name="torch-and-its-sisters",
        pattern=2,
        dockerfile=HEAD + PIP,
        requirements="torch==2.6.0\ntorchvision==0.20.1\n",
        signature=r"torchvision 0\.20\.1 depends on torch==2\.5\.1",
        works="import torch, torchvision",
    ),
    Failing(
        name="externally-managed",
        pattern=10,
        dockerfile=f"FROM localhost/managed:1\nWORKDIR /app\nCOPY requirements.txt .\n{PIP}",
        requirements="requests==2.32.3\n",
        signature="error: externally-managed-environment",
        works="import requests",
    ),
    Failing(
        name="build-isolation",
        pattern=9,
        dockerfile=HEAD + PIP,
        requirements="torch==2.6.0\nflash-attn==2.7.4\n",
        signature="No module named 'torch'",
        works="import flash_attn",
    ),
    Failing(
        name="no-git",
        pattern=12,
        dockerfile=HEAD + PIP,
        requirements="git+file:///srv/extra.git\n",
        signature="Cannot find command 'git'",
        works="import extra",
    ),
    Failing(
        name="no-compiler",
        pattern=12,
        dockerfile=HEAD + PIP,
        requirements="needs-gcc==1.0\n",
        signature="Failed building wheel for needs-gcc",
        works="import needs_gcc",
    ),
    Failing(
        name="no-libgl",
        pattern=11,
        dockerfile=HEAD + PIP + 'RUN python -c "import cv2"\n',
        requirements="opencv-python==4.10.0.84\n",
        signature=r"libGL\.so\.1: cannot open shared object file",
        works="import cv2",
    ),
    Failing(
        name="numpy-2",
        pattern=4,
        dockerfile=HEAD + PIP + 'RUN python -c "import torch"\n',
        requirements="torch==2.1.2\nnumpy\n",
        signature=r"compiled using NumPy 1\.x",
        works="import torch",
    ),
    Failing(
        name="tokenizers",
        pattern=17,
        dockerfile=HEAD + PIP,
        requirements="transformers==4.44.2\ntokenizers==0.21.1\n",
        signature=r"transformers 4\.44\.2 depends on tokenizers",
        works="import transformers",
    ),
    Failing(
        name="base-is-gone",
        pattern=13,
        dockerfile=HEAD.replace("python:3.11-slim-bookworm", "nvidia/cuda:12.1.0-runtime-ubuntu22.04") + PIP,
        requirements="requests==2.32.3\n",
        signature="manifest unknown",
        works="import requests",
    ),
)
