"""Rules about the Python code that the container runs: its imports against what is installed (41).

The packages that a distribution brings are listed by hand for the usual ones. A module is missed only where
every requirement is read, no installed distribution is listed to bring it, and the base is a known one.
"""

import ast
import posixpath
import re
import sys
from collections.abc import Iterator

from packaging.version import Version

from paceline.images.lint.matrix import wheels
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.container.imports import entry_file, imports_of
from paceline.images.lint.rules.container.script import start_of
from paceline.images.lint.rules.packages.nvcc import NO_COMPILER
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import StageView, stage_views

NO_MODULE = Pattern(
    number=41,
    id="module-not-installed",
    what="The code that the container runs imports a module, or calls a program, that no step installs.",
    fix="only reported: the package that has it",
)
NO_PYTHON = Pattern(
    number=41,
    id="code-for-another-python",
    what="The code has syntax or imports of another Python than the image has.",
    fix="only reported: the Python that the code needs",
)
PATTERNS = (NO_MODULE, NO_PYTHON)
# Modules by the distribution that has them, where the names differ.
_DISTRIBUTION = {
    "yaml": "pyyaml",
    "cv2": "opencv-python",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "hydra": "hydra-core",
    "pytorch_lightning": "pytorch-lightning",
    "flash_attn": "flash-attn",
    "huggingface_hub": "huggingface-hub",
    "sentence_transformers": "sentence-transformers",
    "bs4": "beautifulsoup4",
    "dotenv": "python-dotenv",
    "attr": "attrs",
    "tensorboardX": "tensorboardx",
    "torch_geometric": "torch-geometric",
}
_NUMERIC = "numpy"
_HUB = "huggingface-hub pyyaml tqdm requests packaging fsspec filelock"
_TORCH = "jinja2 networkx sympy fsspec filelock typing-extensions triton setuptools"
# Modules that common distributions install, directly or by dependencies.
_BRINGS = {
    "torch": _TORCH,
    "torchvision": f"torch numpy pillow {_TORCH}",
    "torchaudio": f"torch {_TORCH}",
    "transformers": f"{_HUB} numpy regex tokenizers safetensors",
    "tokenizers": _HUB,
    "accelerate": f"torch {_TORCH} {_HUB} numpy psutil safetensors",
    "datasets": f"{_HUB} numpy pandas pyarrow dill xxhash multiprocess aiohttp",
    "evaluate": f"{_HUB} numpy pandas pyarrow dill xxhash datasets",
    "peft": f"torch {_TORCH} {_HUB} numpy psutil transformers accelerate safetensors tokenizers regex",
    "trl": f"torch {_TORCH} {_HUB} numpy psutil transformers accelerate datasets pandas pyarrow "
    "safetensors rich tokenizers regex",
    "diffusers": f"{_HUB} numpy pillow regex safetensors",
    "deepspeed": f"torch {_TORCH} numpy psutil tqdm packaging pydantic einops ninja hjson msgpack",
    "bitsandbytes": f"torch {_TORCH} numpy packaging",
    "timm": f"torch torchvision {_TORCH} {_HUB} numpy pillow safetensors",
    "lightning": f"torch {_TORCH} torchmetrics pytorch-lightning numpy pyyaml tqdm packaging requests "
    "aiohttp",
    "pytorch-lightning": f"torch {_TORCH} torchmetrics numpy pyyaml tqdm packaging requests aiohttp",
    "torchmetrics": f"torch {_TORCH} numpy packaging",
    "sentence-transformers": f"torch {_TORCH} transformers {_HUB} scikit-learn scipy pillow numpy regex "
    "tokenizers safetensors joblib",
    "scikit-learn": "numpy scipy joblib threadpoolctl",
    "scipy": _NUMERIC,
    "pandas": "numpy python-dateutil pytz tzdata six",
    "matplotlib": "numpy pillow packaging python-dateutil",
    "seaborn": "matplotlib numpy pandas pillow",
    "opencv-python": _NUMERIC,
    "opencv-python-headless": "numpy opencv-python",
    "albumentations": "numpy scipy opencv-python pyyaml pydantic",
    "wandb": "click requests pyyaml protobuf psutil platformdirs pydantic sentry-sdk gitpython packaging",
    "mlflow": "requests pyyaml packaging numpy pandas scipy scikit-learn matplotlib pyarrow flask "
    "sqlalchemy click "
    "jinja2 protobuf gunicorn graphene docker gitpython cloudpickle",
    "tensorboard": "numpy protobuf grpcio markdown werkzeug packaging pillow",
    "hydra-core": "omegaconf pyyaml packaging",
    "omegaconf": "pyyaml",
    "einops": "",
    "tqdm": "",
    "numpy": "",
    "pyyaml": "",
    "requests": "urllib3 certifi idna charset-normalizer",
    "pillow": "",
    "safetensors": "",
    "sentencepiece": "",
    "protobuf": "",
    "psutil": "",
    "regex": "",
    "rich": "pygments",
    "click": "",
    "ninja": "",
    "packaging": "",
    "wheel": "",
    "setuptools": "",
    "pip": "",
    "uv": "",
    "flash-attn": f"torch {_TORCH} einops",
    "xformers": f"torch {_TORCH} numpy",
    "huggingface-hub": "pyyaml tqdm requests packaging fsspec filelock",
    "pyarrow": "",
    "webdataset": "numpy pyyaml braceexpand",
    "tiktoken": "regex requests",
    "torchdata": f"torch {_TORCH} requests",
    "jsonlines": "attrs",
    "boto3": "",
    "fire": "",
    "six": "",
    "nvidia-ml-py": "",
    "tensorboardx": "numpy protobuf packaging",
}
# Modules that others seldom bring; each with the distributions that do.
_SELDOM = {
    "wandb": "composer mosaicml llm-foundry simpletransformers",
    "mlflow": "",
    "hydra-core": "fairseq nemo-toolkit",
    "omegaconf": "hydra-core fairseq fvcore detectron2 nemo-toolkit pytorch-lightning lightning",
    "peft": "trl unsloth optimum llamafactory axolotl ms-swift",
    "trl": "unsloth llamafactory axolotl ms-swift",
    "deepspeed": "llm-foundry axolotl",
    "accelerate": "peft trl unsloth llamafactory axolotl ms-swift lm-eval",
    "datasets": "evaluate trl unsloth llamafactory axolotl ms-swift lm-eval sentence-transformers setfit "
    "optimum",
    "transformers": "peft trl sentence-transformers vllm sglang unsloth llamafactory axolotl ms-swift "
    "optimum lm-eval "
    "setfit auto-gptq autoawq open-clip-torch bertopic flair llama-index simpletransformers outlines",
    "bitsandbytes": "unsloth axolotl",
    "flash-attn": "",
    "timm": "open-clip-torch segmentation-models-pytorch effdet",
    "evaluate": "lm-eval setfit",
    "einops": "flash-attn timm-nightly vllm x-transformers deepspeed mamba-ssm lightly vit-pytorch "
    "open-clip-torch",
    "tensorboard": "tensorflow nemo-toolkit ultralytics detectron2 fvcore mmengine yolox",
    "lightning": "",
    "pytorch-lightning": "lightning nemo-toolkit pytorch-forecasting pyannote-audio anomalib",
    "torchmetrics": "lightning pytorch-lightning",
    "sentencepiece": "xformers vllm sglang llamafactory axolotl unsloth transformers",
    "torchvision": "timm ultralytics open-clip-torch torchgeo monai facenet-pytorch kornia lpips easyocr "
    "segmentation-models-pytorch vllm xformers detectron2 openmim pytorch-fid torchxrayvision",
    "torchaudio": "speechbrain demucs pyannote-audio torchcrepe vllm",
    "albumentations": "",
    "webdataset": "nemo-toolkit open-clip-torch",
    "scikit-learn": "",
    "opencv-python": "",
    "scikit-image": "",
    "seaborn": "ultralytics",
    "matplotlib": "",
    "pandas": "",
}
_PROGRAMS = {
    "torchrun": "torch",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "lightning": "lightning",
    "huggingface-cli": "huggingface-hub",
}
# Modules of the standard library: the first Python that has them, and the first that has not.
_ADDED = {"tomllib": "3.11", "zoneinfo": "3.9", "graphlib": "3.9"}
_REMOVED = {"imp": "3.12", "asynchat": "3.12", "asyncore": "3.12", "smtpd": "3.12"}
_REMOVED |= dict.fromkeys(
    ["cgi", "cgitb", "crypt", "imghdr", "pipes", "sndhdr", "telnetlib", "uu", "xdrlib", "nntplib"], "3.13"
)
_FAMILIES = ("python", "debian", "ubuntu", "cuda", "pytorch")
_OF_PYTORCH = frozenset(
    {"torch", "torchvision", "torchaudio", "numpy", "pillow", "pyyaml", "tqdm", "requests", "psutil"}
)
_TOOLS_OF_APT = re.compile(
    r"^python3?(?:\.\d+)?-(?:pip|dev|venv|setuptools|wheel|distutils|minimal|full|apt|software-properties)$"
)


def installed_names(view: StageView) -> tuple[set[str], bool] | None:
    """Every distribution of every stage, with what it brings, and whether all of them are usual ones."""
    names: set[str] = set()
    for other in stage_views(view.project, view.target):
        if (
            other.has_conda
            or other.has_conditional
            or not other.base.family
            or other.base.family not in _FAMILIES
        ):
            return None
        if any(re.match(r"python3?-", p) and not _TOOLS_OF_APT.match(p) for p in other.system_packages):
            return None
        if not other.are_packages_known or any(
            c.texts[0].endswith((".sh", "make")) for s in other.steps for c in s.commands
        ):
            return None
        for by in [*other.pip, *other.commands_of_pip]:
            unread = [
                p for p in by.values("requirement") if other.file_named(other.path_in_context(by, p)) is None
            ]
            folders = [a for a in by.specs if not a.name] or by.values("editable")
            if unread or (folders and not other.files_of(by)) or (not by.is_pip and not other.files_of(by)):
                return None
            files = other.files_of(by)
            if any(f.path.endswith(("setup.py", "setup.cfg")) and not f.specs for f in files) or by.values(
                "extra", "group"
            ):
                return None
            if not by.is_pip and re.search(
                r"dependency-groups|optional-dependencies|\[tool\.poetry", "".join(f.text for f in files)
            ):
                return None
        if any(_is_written(word) for word in other.words):
            return None
        names |= {
            package.spec.name
            for package in other.installed
            if not any(_has_extras(package.spec.text) for _ in (0,))
        }
        if any(
            _has_extras(package.spec.text) or not package.spec.name or package.spec.is_url
            for package in other.installed
        ):
            return None
        if other.base.family == "pytorch":
            names |= _OF_PYTORCH
    are_known = all(name in _BRINGS or name in wheels().packages for name in names)
    dependencies = {dependency for name in names for dependency in _BRINGS.get(name, "").split()}
    return names | dependencies, are_known and all(name in _BRINGS for name in names)


def _has_extras(text: str) -> bool:
    return re.match(r"^[\w.-]+\s*\[", text) is not None


def _is_written(word: str) -> bool:
    return (
        re.search(r"setup\.py$|^(?:mim|pixi|pdm|pipenv|easy_install|poetry)$|Makefile|^\$\(|`", word)
        is not None
    )


def module_not_installed(view: StageView) -> Iterator[Finding]:
    start = start_of(view)
    known = None if start is None else installed_names(view)
    if start is None or known is None:
        return
    installed, all_usual = known
    for argv in start.commands:
        called = [word for word in argv[:2] if word != "exec"][:1]
        package = _PROGRAMS.get(called[0]) if called else None
        if package is not None and package not in installed and not _brings(package, installed):
            yield NO_MODULE.finding(
                view,
                start.step,
                f"no step installs {package}, which has the program {called[0]}: `{called[0]}: not found`",
                " ".join(argv)[:120],
                f"install {package}",
            )
            return
    for path, name, line in imports_of(view, start):
        package = _DISTRIBUTION.get(name, name.replace("_", "-").lower())
        is_seldom = package in _SELDOM
        if package in installed or not (is_seldom or package in _BRINGS) or _brings(package, installed):
            continue
        if not all_usual and not (
            is_seldom and package not in ("scikit-learn", "opencv-python", "matplotlib", "pandas")
        ):
            continue
        yield NO_MODULE.finding(
            view,
            start.step,
            f"{path}:{line} imports {name}, and no step installs {package}: `No module named '{name}'`",
            f"{path}:{line}: import {name}",
            f"add {package} to the requirements",
            level=Level.PROBLEM,
        )
        return


def _brings(package: str, installed: set[str]) -> bool:
    providers = {
        "opencv-python": "opencv-python-headless opencv-contrib-python opencv-contrib-python-headless "
        "ultralytics"
    }
    listed = f"{_SELDOM.get(package, '')} {providers.get(package, '')}".split()
    return any(provider in installed for provider in listed)


def local_module_missing(view: StageView) -> Iterator[Finding]:
    """A module of the context that is not copied with the file that imports it."""
    start = start_of(view)
    paths = view.project.paths
    if start is None or paths is None or start.files.is_open or start.files.below:
        return
    if any(package.spec.text.startswith(".") for package in view.installed) or any(
        by.values("editable") for by in view.pip
    ):
        return
    if any(not by.is_pip for by in view.commands_of_pip):
        return
    entry = entry_file(start)
    directory = posixpath.dirname(entry[1]) if entry is not None else ""
    for path, name, line in imports_of(view, start):
        module_path = posixpath.join(directory, name)
        is_known = f"{module_path}.py" in paths or f"{module_path}/__init__.py" in paths
        if is_known and name not in sys.stdlib_module_names and not name.startswith("_"):
            yield NO_MODULE.finding(
                view,
                start.step,
                f"{path}:{line} imports {name}, which is in the context and is not copied: `No module "
                f"named '{name}'`",
                f"{module_path}.py" if f"{module_path}.py" in paths else f"{module_path}/",
                f"COPY {module_path}.py too" if f"{module_path}.py" in paths else f"COPY {module_path} too",
            )
            return


def code_for_another_python(view: StageView) -> Iterator[Finding]:
    start = start_of(view)
    if start is None or view.python is None:
        return
    entry = entry_file(start)
    text = None if entry is None else view.project.code_text(entry[1])
    if text is None or entry is None:
        return
    python = Version(view.python)
    try:
        ast.parse(text, feature_version=(python.major, python.minor))
        why = ""
    except (SyntaxError, ValueError) as error:
        why = f"{entry[1]}:{getattr(error, 'lineno', 1)} is not valid code for Python {python}: `SyntaxError`"
    for path, name, line in [] if why else list(imports_of(view, start)):
        added = _ADDED.get(name)
        removed = _REMOVED.get(name)
        if (added is not None and python < Version(added)) or (
            removed is not None and python >= Version(removed)
        ):
            why = (
                f"{path}:{line} imports {name}, which Python {python} does not have: `No module named "
                f"'{name}'`"
            )
            break
    if why:
        yield NO_PYTHON.finding(
            view,
            start.step,
            why,
            f"{entry[1]}; FROM {view.base.reference}",
            "use a base with the Python that the code needs",
        )


def deepspeed_without_nvcc(view: StageView) -> Iterator[Finding]:
    """DeepSpeed asks nvcc for its version when it is imported, and compiles its operators when it runs."""
    package = view.find("deepspeed")
    base = view.base
    start = start_of(view)
    has_none = base.flavour in ("runtime", "base") or (
        base.family in ("python", "debian", "ubuntu") and base.is_slim
    )
    if package is None or start is None or not has_none or view.has_conda or not view.are_packages_known:
        return
    is_cpu = view.torch is not None and view.torch.build == "cpu"
    if is_cpu or any(
        re.search(r"nvcc|cuda-toolkit|cuda-compiler|DS_ACCELERATOR", word) for word in view.words
    ):
        return
    called = any("deepspeed" in argv[:2] for argv in start.commands)
    imported = any(name == "deepspeed" for _, name, _ in imports_of(view, start))
    if not called and not imported:
        return
    if "DS_ACCELERATOR" in view.variables or any(
        s.flag("from") for s in view.steps if "cuda" in " ".join(s.values)
    ):
        return
    yield NO_COMPILER.finding(
        view,
        package.spec,
        f"deepspeed calls nvcc on import, which {base.reference} does not have: `nvcc: No such file`",
        f"{package.spec.text} on {base.reference}",
        "use the devel image, or install cuda-nvcc of the same CUDA",
    )


RULES = (deepspeed_without_nvcc, module_not_installed, local_module_missing, code_for_another_python)
