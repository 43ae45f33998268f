"""Rules about misspelt names: system packages, packages of PyPI, pages of PyTorch's index (25, 28).

A name is judged by the names it is near to: it is a problem where it is no known name itself and differs from
a well-known one by a single letter, or where it is listed as the name of another system or of no package.
"""

import re
from collections.abc import Iterable, Iterator

from paceline.images.lint.bases import catalog
from paceline.images.lint.installs import system_installs
from paceline.images.lint.matrix import wheels
from paceline.images.lint.project import Change, Finding, edits_of
from paceline.images.lint.rules.packages.package_names import NAME
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.rules.system import GONE
from paceline.images.lint.view import StageView

PAGE = Pattern(
    number=25,
    id="no-such-index",
    what="The address of PyTorch's index names a build that does not exist, such as `cu12.4` or `cu122`.",
    fix="only reported: the builds that exist",
)
PATTERNS = (PAGE,)
# Names of other systems, of programs and of libraries without their version: apt has no package of that name.
_NO_PACKAGE = {
    "build-essentials": "build-essential",
    "gcc-c++": "g++",
    "python3-devel": "python3-dev",
    "python-devel": "python3-dev",
    "openssl-devel": "libssl-dev",
    "openssl-dev": "libssl-dev",
    "libffi-devel": "libffi-dev",
    "zlib-devel": "zlib1g-dev",
    "zlib-dev": "zlib1g-dev",
    "libaio-devel": "libaio-dev",
    "mesa-libGL": "libgl1",
    "libsndfile": "libsndfile1",
    "libgomp": "libgomp1",
    "libsm": "libsm6",
    "libxext": "libxext6",
    "libxrender": "libxrender1",
    "libgl": "libgl1",
    "libGL": "libgl1",
    "libjpeg": "libjpeg-dev",
    "libpng": "libpng-dev",
    "libssl": "libssl-dev",
    "libffi": "libffi-dev",
    "libaio": "libaio-dev",
    "libibverbs": "libibverbs1",
    "libnuma": "libnuma1",
    "libnccl": "libnccl2",
    "nccl": "libnccl2",
    "cudnn": "",
    "nvcc": "",
    "ninja": "ninja-build",
    "openmpi": "openmpi-bin",
    "openssh": "openssh-client",
    "python-pip3": "python3-pip",
    "python3pip": "python3-pip",
    "aws-cli": "awscli",
    "gpg2": "gnupg",
    "certificates": "ca-certificates",
    "pkgconfig": "pkg-config",
    "sndfile": "libsndfile1",
    "libblas": "libblas3",
    "libopenblas": "libopenblas0",
    "iputils": "iputils-ping",
    "ps": "procps",
    "top": "procps",
    "hdf5": "libhdf5-dev",
    "hdf5-devel": "libhdf5-dev",
    "libstdc++": "libstdc++6",
    "ffmpeg-dev": "ffmpeg",
    "git-lsf": "git-lfs",
}
_SYSTEM_NAMES = (
    "build-essential",
    "ca-certificates",
    "software-properties-common",
    "python3-pip",
    "python3-dev",
    "python3-venv",
    "python3-setuptools",
    "openssh-server",
    "openssh-client",
    "libopenmpi-dev",
    "openmpi-bin",
    "libglib2.0-0",
    "libsndfile1",
    "libgomp1",
    "ninja-build",
    "pkg-config",
    "ffmpeg",
    "locales",
    "tzdata",
    "gnupg",
    "rsync",
    "libaio-dev",
    "libibverbs-dev",
    "libibverbs1",
    "librdmacm1",
    "ibverbs-providers",
    "numactl",
    "libnuma-dev",
    "infiniband-diags",
    "libjpeg-dev",
    "libpng-dev",
    "libssl-dev",
    "libffi-dev",
    "zlib1g-dev",
    "libxrender1",
    "libxext6",
    "cmake",
    "unzip",
    "procps",
    "iproute2",
    "net-tools",
    "git-lfs",
    "libnccl2",
    "libnccl-dev",
    "libcudnn8",
    "cuda-toolkit",
    "nano",
    "htop",
    "tmux",
)
_PYPI_NAMES = (
    "transformers",
    "accelerate",
    "datasets",
    "deepspeed",
    "pytorch-lightning",
    "lightning",
    "torchvision",
    "torchaudio",
    "torchmetrics",
    "huggingface-hub",
    "tensorboard",
    "tokenizers",
    "safetensors",
    "sentencepiece",
    "diffusers",
    "bitsandbytes",
    "flash-attn",
    "xformers",
    "scikit-learn",
    "matplotlib",
    "albumentations",
    "opencv-python",
    "opencv-python-headless",
    "webdataset",
    "hydra-core",
    "omegaconf",
    "wandb",
    "mlflow",
    "einops",
    "evaluate",
    "peft",
    "optuna",
    "numpy",
    "pandas",
    "protobuf",
    "requests",
    "pyarrow",
    "scipy",
)
_BUILD = re.compile(
    r"download\.pytorch\.org/whl/(?!nightly|test|lts|torch|rocm|cpu|xpu|preview|cpu-)(\w[\w.]*)/?$"
)


def misspelt_system_package(view: StageView) -> Iterator[Finding]:
    if not view.base.apt_system(view.target.today) and view.base.family not in ("pytorch", "ngc"):
        return
    real = {*_SYSTEM_NAMES, *catalog().packages_gone}
    for step in view.stage.instructions:
        for install in system_installs(step):
            for word in install.packages if install.tool == "apt" else ():
                if word.text.endswith(","):
                    yield GONE.finding(
                        view,
                        step,
                        f"the comma is part of the name `{word.text}`: `Unable to locate package`",
                        f"{word.text} on {view.base.reference}",
                        "separate the packages with spaces",
                    )
                    continue
                is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9.+-]+", word.text) is not None
                is_short = len(word.text) < 8 or word.text.startswith(("python", "lib"))
                meant = _NO_PACKAGE.get(
                    word.text, "" if is_short or word.text in real else near(word.text, _SYSTEM_NAMES)
                )
                if not is_plain or (not meant and word.text not in _NO_PACKAGE):
                    continue
                edits = edits_of(view.dockerfile, [Change(word.start, word.end, meant)])
                yield GONE.finding(
                    view,
                    step,
                    f"there is no system package {word.text}: `Unable to locate package`",
                    f"{word.text} on {view.base.reference}",
                    f"install {meant}" if meant else f"leave it out: apt has no package for {word.text}",
                    edits if meant and not step.is_json else (),
                )


# Real packages with names close to a well-known name.
_REAL = frozenset(
    {"dataset", "transformer", "tokenizer", "lightening", "pandas3", "panda", "request", "scify"}
)


def misspelt_package(view: StageView) -> Iterator[Finding]:
    known = {*_PYPI_NAMES, *wheels().packages, *_REAL}
    for package in view.own:
        name = package.spec.name
        if not name or name in known or package.spec.is_url or view.indexes(package):
            continue
        meant = near(name, _PYPI_NAMES)
        if meant and len(name) > 4 and name.rstrip("s") != meant.rstrip("s"):
            yield NAME.finding(
                view,
                package.spec,
                f"{name} is not {meant}: pip finds no such package, or an unrelated one",
                package.spec.text,
                f"use {meant}",
            )


def no_such_index(view: StageView) -> Iterator[Finding]:
    builds = sorted(
        {f"cu{build}" for row in wheels().cuda_builds.values() for build in row}, key=lambda b: int(b[2:])
    )
    newest = int(builds[-1][2:])
    for by in view.commands_of_pip:
        options = [
            o.value
            for f in view.files_of(by)
            for o in f.options
            if o.name in ("index-url", "extra-index-url")
        ]
        for address in [*by.values("index-url", "extra-index-url", "index", "default-index"), *options]:
            match = _BUILD.search(address)
            if match is None or "$" in address or match[1] in builds:
                continue
            exact = re.fullmatch(r"cu(\d{3})", match[1])
            if (exact is not None and int(exact[1]) > newest) or re.fullmatch(
                r"cu(?:75|80|90|91|92|10[0-2]|11[0-7])", match[1]
            ):
                continue
            yield PAGE.finding(
                view,
                by.instruction,
                f"PyTorch's index has no page {match[1]}: `No matching distribution found`, or 403",
                address,
                f"use one of {', '.join(builds[-6:])}",
            )
            break


def near(name: str, known: Iterable[str]) -> str:
    """The known name that differs by one letter dropped, added, changed or exchanged; "" where none does."""
    return next(
        (candidate for candidate in known if candidate != name and is_one_letter_off(name, candidate)), ""
    )


def is_one_letter_off(name: str, other: str) -> bool:
    if (
        len(other) < 5
        or abs(len(name) - len(other)) > 1
        or re.sub(r"\D", "", name) != re.sub(r"\D", "", other)
    ):
        return False
    start = 0
    while start < min(len(name), len(other)) and name[start] == other[start]:
        start += 1
    a = name[start:]
    b = other[start:]
    if len(a) != len(b):
        longer, shorter = (a, b) if len(a) > len(b) else (b, a)
        return longer[1:] == shorter and longer not in ("s", "x")
    return a[1:] == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])


RULES = (misspelt_system_package, misspelt_package, no_such_index)
