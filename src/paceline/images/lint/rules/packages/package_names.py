"""Rules about packages that the index does not have under the given name (25)."""

import re
from collections.abc import Iterator

from packaging.version import Version

from paceline.images.lint.edits import respelled
from paceline.images.lint.project import Finding
from paceline.images.lint.rules.packages.releases import KNOWN_HOSTS
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import StageView

NAME = Pattern(
    number=25,
    id="wrong-package-name",
    what="The name is not that of the intended package, and its installation fails.",
    fix="the name of the intended package",
)
ONLY_INDEX = Pattern(
    number=25,
    id="not-on-this-index",
    what="`--index-url` names PyTorch's index alone, which does not have the other packages of the command.",
    fix="only reported: a separate command for torch, or `--extra-index-url`",
)
PATTERNS = (
    NAME,
    ONLY_INDEX,
)
_MEANT = {
    "sklearn": "scikit-learn",
    "pytorch": "torch",
    "cv2": "opencv-python-headless",
    "pil": "pillow",
    "skimage": "scikit-image",
    "opencv": "opencv-python-headless",
    "tensorflow-gpu": "tensorflow",
    "yaml": "pyyaml",
}
# Names without a release on PyPI, or without the intended one; the fix is not another name.
_NOT_ON_PYPI = {
    "apex": "NVIDIA's Apex is not on PyPI: install git+https://github.com/NVIDIA/apex",
    "pkg-resources": "pip freeze of Debian names it by mistake: leave it out",
    **dict.fromkeys(
        ["os", "sys", "json", "math", "time", "pickle", "tkinter"], "a part of Python: leave it out"
    ),
}
_STILL_THERE = {"tensorflow-gpu": Version("2.11"), "pytorch": Version("99")}
# Packages often requested with torch that are certainly not on PyTorch's index.
_ONLY_ON_PYPI = frozenset(
    [
        "transformers",
        "accelerate",
        "datasets",
        "diffusers",
        "pandas",
        "scikit-learn",
        "scipy",
        "matplotlib",
        "opencv-python",
        "peft",
        "gradio",
        "opencv-python-headless",
        "fastapi",
        "flask",
        "tensorboard",
        "wandb",
        "lightning",
        "pytorch-lightning",
        "ultralytics",
        "timm",
        "uvicorn",
        "sentencepiece",
        "tokenizers",
        "huggingface-hub",
        "streamlit",
        "mlflow",
        "trl",
        "bitsandbytes",
        "deepspeed",
        "jupyter",
        "einops",
        "sentence-transformers",
        "spacy",
        "nltk",
        "seaborn",
    ]
)


def wrong_package_name(view: StageView) -> Iterator[Finding]:
    for package in view.own:
        advice = _NOT_ON_PYPI.get(package.spec.name)
        is_pypi = all(KNOWN_HOSTS.search(address) for address in view.indexes(package))
        if (
            advice is not None
            and package.spec.requirement is not None
            and not package.spec.is_url
            and is_pypi
        ):
            yield NAME.finding(
                view,
                package.spec,
                f"{package.spec.name} on PyPI is not the intended package, or does not exist",
                package.spec.text,
                advice,
            )
            continue
        meant = _MEANT.get(package.spec.name)
        if meant is None or package.spec.requirement is None or package.spec.is_url:
            continue
        pin = package.spec.pin
        last = _STILL_THERE.get(package.spec.name)
        if pin is not None and (last is None or pin < last) and package.spec.name != "pytorch":
            continue
        if "SKLEARN_ALLOW_DEPRECATED_SKLEARN_PACKAGE_INSTALL" in view.environment(package.by):
            continue
        is_plain = not package.spec.specifier
        yield NAME.finding(
            view,
            package.spec,
            f"{package.spec.name} is not the intended package, and cannot be installed",
            package.spec.text,
            f"use {meant}",
            respelled(view, package.spec, meant) if is_plain else (),
        )


def not_on_this_index(view: StageView) -> Iterator[Finding]:
    for by in view.pip:
        only = by.values("index-url", "default-index")
        more = by.values("extra-index-url", "index", "find-links")
        if len(only) != 1 or more or not re.search(r"download\.pytorch\.org/whl/[\w.]+/?$", only[0]):
            continue
        variables = view.environment(by).keys()
        if variables & {"PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX", "PIP_FIND_LINKS"}:
            continue
        own = [package for package in view.own if package.by is by and package.spec.name in _ONLY_ON_PYPI]
        earlier = {package.spec.name for package in view.installed if package.by is not by}
        missing = [package for package in own if package.spec.name not in earlier]
        options = [option.name for file in view.files_of(by) for option in file.options]
        if missing and "extra-index-url" not in options:
            yield ONLY_INDEX.finding(
                view,
                missing[0].spec,
                f"{missing[0].spec.name} is not on {only[0]}, and no other index is used: "
                "`No matching distribution found`",
                f"--index-url {only[0]}",
                "install torch alone from that index, or name it with --extra-index-url",
            )


RULES = (
    wrong_package_name,
    not_on_this_index,
)
