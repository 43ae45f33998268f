"""Rules about variables that the image sets: PATH, CUDA's folder and architectures, visible GPUs (39)."""

import posixpath
import re
from collections.abc import Iterator
from difflib import get_close_matches

from packaging.version import Version

from paceline.images.lint.dockerfile import Instruction, argument_values, env_values, substituted
from paceline.images.lint.project import Finding, Kind, Level
from paceline.images.lint.rules.commands import NO_STAGE, SCOPE
from paceline.images.lint.rules.extensions import compiled
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import Place

PATH = Pattern(
    number=39,
    id="path-overwritten",
    what="ENV PATH leaves out the PATH of the base: the programs of the system are not found any more.",
    fix="only reported: `:$PATH` at the end",
)
FOLDER = Pattern(
    number=39,
    id="cuda-folder",
    what="CUDA_HOME names the folder of another CUDA than the image has: nvcc is not found.",
    fix="only reported: `/usr/local/cuda`",
)
ARCH = Pattern(
    number=39,
    id="arch-list",
    what="TORCH_CUDA_ARCH_LIST has an architecture that the CUDA of the image cannot compile for.",
    fix="only reported: the architectures that it can",
)
HIDDEN = Pattern(
    number=39,
    id="gpu-hidden",
    what="A variable of the image hides the GPUs or leaves out their compute libraries.",
    fix="only reported: leave it out, and choose GPUs where the job starts",
)
OFFLINE = Pattern(
    number=39,
    id="offline-download",
    what="A step downloads from the Hugging Face Hub after ENV has switched its network off.",
    fix="only reported: set the variable behind the download",
)
PATTERNS = (PATH, FOLDER, ARCH, HIDDEN, OFFLINE)
_NAMED = re.compile(r"^(?:Kepler|Maxwell|Pascal|Volta|Turing|Ampere|Ada|Hopper|Blackwell)(?:\+\w+)?$", re.I)
_CAPABILITY = re.compile(r"^(\d{1,2}\.\d)[af]?(?:\+PTX)?$")
# The first CUDA that compiles for an architecture, and the first that does not any more.
_SINCE = {"8.0": "11.0", "8.6": "11.1", "8.7": "11.4", "8.9": "11.8", "9.0": "11.8"}
_SINCE |= {"10.0": "12.8", "10.1": "12.8", "12.0": "12.8", "10.3": "12.9", "12.1": "12.9", "11.0": "13.0"}
_UNTIL = {"3.0": "11.0", "3.2": "11.0", "3.5": "12.0", "3.7": "12.0"}
_UNTIL |= dict.fromkeys(["5.0", "5.2", "5.3", "6.0", "6.1", "6.2", "7.0", "7.2"], "13.0")
_BY_BUILDKIT = re.compile(r"^(?:TARGET|BUILD)(?:PLATFORM|OS|ARCH|VARIANT)$")
_DOWNLOADS = re.compile(
    r"from_pretrained\(|snapshot_download\(|hf_hub_download\(|load_dataset\(|(?:huggingface-cli|hf) download"
)


def _settings(place: Place) -> Iterator[tuple[Instruction, str, str]]:
    for step in place.stage.instructions:
        for name, value in env_values(step).items() if step.word == "ENV" else ():
            yield step, name, value


def path_overwritten(place: Place) -> Iterator[Finding]:
    for step, name, value in _settings(place):
        folders = value.strip("\"'").split(":")
        if name != "PATH" or "$" in value or {"/bin", "/usr/bin"} & set(folders):
            continue
        later = [
            one for one in place.stage.instructions if one.first > step.first and one.word in ("RUN", "CMD")
        ]
        named = [c for one in later for c in one.commands if "/" not in c.texts[0]]
        if later and (named or later[-1].word == "CMD"):
            yield PATH.found(
                place,
                step,
                f"PATH becomes {value} alone: the programs in /usr/bin and /bin are not found",
                f"ENV PATH={value}",
                f"write ENV PATH={value}:$PATH",
            )


def cuda_folder(place: Place) -> Iterator[Finding]:
    base = place.base
    if base.cuda is None or base.family not in ("cuda", "pytorch"):
        return
    for step, name, value in _settings(place):
        found = re.fullmatch(
            r"/usr/local/cuda-(\d+)\.(\d+)/?", substituted(value.strip("\"'"), place.variables)
        )
        if name not in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDACXX") or found is None:
            continue
        other = f"{found[1]}.{found[2]}"
        installs = re.compile(rf"cuda[\w-]*-{found[1]}-{found[2]}|cuda[-_]{re.escape(other)}")
        if (base.cuda.major, base.cuda.minor) == (int(found[1]), int(found[2])):
            continue
        if any(
            installs.search(word)
            for one in place.steps
            for word in [*one.values, *place.words]
            if one is not step
        ):
            continue
        yield FOLDER.found(
            place,
            step,
            f"{name} is {value}, and {base.reference} has CUDA {base.cuda}: `nvcc: No such file or "
            "directory`",
            f"ENV {name}={value}; FROM {base.reference}",
            f"write ENV {name}=/usr/local/cuda",
            level=Level.PROBLEM if base.flavour == "devel" else Level.WARNING,
        )


def arch_list(place: Place) -> Iterator[Finding]:
    cuda = place.base.cuda
    minor = None if cuda is None else Version(f"{cuda.major}.{cuda.minor}")
    is_built = any(compiled(place, one) for one in place.own) or place.base.flavour == "devel"
    for step, name, value in _settings(place):
        if name != "TORCH_CUDA_ARCH_LIST" or "$" in value or not is_built:
            continue
        for part in re.split(r"[ ;,]+", value.strip("\"' ")):
            why = _why_not(part, minor)
            if why:
                yield ARCH.found(
                    place,
                    step,
                    f"{why}: the compilation of extensions fails",
                    f"{name}={value}; FROM {place.base.reference}",
                    "name capabilities as torch does, such as 8.0;9.0, that this CUDA knows",
                )
                break


def _why_not(part: str, cuda: Version | None) -> str:
    if not part or _NAMED.match(part) or part.lower() in ("all", "common", "native"):
        return ""
    found = _CAPABILITY.match(part)
    if found is None:
        return f"`{part}` is no capability: `Unknown CUDA arch ({part})`"
    since, until = _SINCE.get(found[1]), _UNTIL.get(found[1])
    if cuda is not None and since is not None and cuda < Version(since):
        return f"nvcc of CUDA {cuda} does not know {found[1]}, which began with CUDA {since}"
    if cuda is not None and until is not None and cuda >= Version(until):
        return f"nvcc of CUDA {cuda} has no {found[1]} any more, which ended with CUDA {until}"
    return ""


def gpu_hidden(place: Place) -> Iterator[Finding]:
    torch = place.torch
    on_gpu = place.kind is Kind.GPU or place.base.family in ("pytorch", "cuda", "ngc")
    if not place.is_last or not on_gpu or (torch is not None and torch.build == "cpu"):
        return
    for step, name, value in _settings(place):
        plain = value.strip("\"' ").lower()
        hides = name == "CUDA_VISIBLE_DEVICES" and plain in ("", "-1", "none", "nodevfiles")
        hides |= name == "NVIDIA_VISIBLE_DEVICES" and plain in ("none", "void")
        parts = set(plain.split(","))
        lacks = name == "NVIDIA_DRIVER_CAPABILITIES" and plain != "" and not parts & {"all", "compute"}
        if (hides or lacks) and "$" not in value:
            yield HIDDEN.found(
                place,
                step,
                f"{name}={value} leaves the container without compute libraries: torch finds no GPU"
                if lacks
                else f"{name}={value} hides every GPU: `torch.cuda.is_available()` is False",
                f"ENV {name}={value}",
                "write compute,utility" if lacks else "leave it out",
            )


def offline_download(place: Place) -> Iterator[Finding]:
    for step in place.stage.instructions:
        if step.word != "RUN":
            continue
        values = place.docker.variables(place.stage, step.first)
        off = [
            n
            for n in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
            if values.get(n, "").lower() in ("1", "true", "yes")
        ]
        text = step.values[0] if step.values else ""
        if off and _DOWNLOADS.search(text) and "local_files_only" not in text and f"{off[0]}=" not in text:
            yield OFFLINE.found(
                place,
                step,
                f"{off[0]}=1 is set above: the download fails, `offline mode is enabled`",
                text.strip()[:120],
                f"put ENV {off[0]}=1 behind this step",
            )


def origin_variables(place: Place) -> Iterator[Finding]:
    """A variable in FROM must be an ARG above the first FROM: one of a stage is not seen."""
    declared = {name for step in place.docker.arguments for name in argument_values(step)}
    written = place.stage.base_written
    used = re.findall(r"\$\{?(\w+)", written)
    for name in used:
        if name in declared or _BY_BUILDKIT.match(name) or re.search(rf"\$\{{{name}:?[-+]", written):
            continue
        yield SCOPE.found(
            place,
            place.stage.origin,
            f"{name} is not declared above the first FROM: it is empty here, whatever --build-arg says",
            f"FROM {written}",
            f"add `ARG {name}=…` above the first FROM",
        )


def misspelt_stage(place: Place) -> Iterator[Finding]:
    names = [one.name for one in place.docker.stages[: place.stage.number] if one.name is not None]
    base = place.stage.base
    if place.stage.parent is not None or re.search(r"[/:@$]", base) or base == "scratch":
        return
    near = get_close_matches(base.lower(), names, n=1, cutoff=0.75)
    if near and len(base) > 3:
        yield NO_STAGE.found(
            place,
            place.stage.origin,
            f"no stage before this one is called {base}: it is taken for an image, which does not exist",
            f"FROM {base}; stages: {', '.join(names)}",
            f"write FROM {near[0]}",
        )


_OF_EVERY_BASE = re.compile(
    r"^(?:PATH|HOME|PWD|USER|SHELL|TERM|LANG|LC_\w+|HOSTNAME|PYTHON\w*|CUDA\w*|NV\w*|NCCL\w*|LD_LIBRARY_PATH|TARGET\w+|BUILD\w+"
    r"|CONDA\w*|PYTORCH\w*|TORCH_HOME|https?_proxy|HTTPS?_PROXY|no_proxy|DEBIAN_FRONTEND)$"
)
_NEEDS_VALUE = re.compile(
    r"[=<>~]=\$\{?(\w+)\}?(?:$|[\s\"'])|(?:/|-b |--branch[= ]|cu)\$\{?(\w+)\}?(?:[\s\"'/.]|$)"
)


def variable_of_another_stage(place: Place) -> Iterator[Finding]:
    """ARG and ENV of a stage end with it: a later stage that does not begin with it sees neither."""
    chain = place.docker.chain(place.stage)
    if not place.base.family:
        return
    mine = {n for s in place.steps for n in (*argument_values(s), *env_values(s)) if s.word in ("ARG", "ENV")}
    outside = {n for step in place.docker.arguments for n in argument_values(step)}
    earlier = [one for one in place.docker.stages[: place.stage.number] if one not in chain]
    theirs = {
        n
        for one in earlier
        for s in one.instructions
        if s.word in ("ARG", "ENV")
        for n in (argument_values(s) if s.word == "ARG" else env_values(s))
    }
    lost = {n for n in theirs - mine - outside if not _OF_EVERY_BASE.match(n)}
    for step in place.stage.instructions:
        text = step.values[0] if step.word == "RUN" and step.values and not step.is_json else ""
        for found in _NEEDS_VALUE.finditer(text) if lost else ():
            name = found[1] or found[2]
            if name in lost and not re.search(rf"\b{name}=|\bread {name}|for {name} ", text):
                yield SCOPE.found(
                    place,
                    step,
                    f"{name} is set in another stage alone: in this one ${name} is empty",
                    posixpath.basename(found[0].strip()) or found[0].strip(),
                    f"add `ARG {name}` with its value to this stage",
                )
                return


RULES = (
    origin_variables,
    misspelt_stage,
    variable_of_another_stage,
    path_overwritten,
    cuda_folder,
    arch_list,
    gpu_hidden,
    offline_download,
)
