"""Rules about variables that the image sets: PATH, CUDA's folder and architectures, visible GPUs (39)."""

import posixpath
import re
from collections.abc import Iterator
from difflib import get_close_matches

from packaging.version import Version

from paceline.images.lint.dockerfile import Instruction, argument_values, env_values, substituted
from paceline.images.lint.project import Finding, Kind, Level
from paceline.images.lint.rules.commands import NO_STAGE, SCOPE
from paceline.images.lint.rules.packages.nvcc import compiled
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import StageView

PATH = Pattern(
    number=39,
    id="path-overwritten",
    what="ENV PATH leaves out the PATH of the base: the programs of the system are no longer found.",
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
    what="A step downloads from the Hugging Face Hub after ENV has disabled its network access.",
    fix="only reported: set the variable after the download",
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


def _settings(view: StageView) -> Iterator[tuple[Instruction, str, str]]:
    for step in view.stage.instructions:
        for name, value in env_values(step).items() if step.word == "ENV" else ():
            yield step, name, value


def path_overwritten(view: StageView) -> Iterator[Finding]:
    for step, name, value in _settings(view):
        folders = value.strip("\"'").split(":")
        if name != "PATH" or "$" in value or {"/bin", "/usr/bin"} & set(folders):
            continue
        later = [
            instruction
            for instruction in view.stage.instructions
            if instruction.first > step.first and instruction.word in ("RUN", "CMD")
        ]
        named = [c for step in later for c in step.commands if "/" not in c.texts[0]]
        if later and (named or later[-1].word == "CMD"):
            yield PATH.finding(
                view,
                step,
                f"PATH becomes {value} alone: the programs in /usr/bin and /bin are not found",
                f"ENV PATH={value}",
                f"write ENV PATH={value}:$PATH",
            )


def cuda_folder(view: StageView) -> Iterator[Finding]:
    base = view.base
    if base.cuda is None or base.family not in ("cuda", "pytorch"):
        return
    for step, name, value in _settings(view):
        match = re.fullmatch(
            r"/usr/local/cuda-(\d+)\.(\d+)/?", substituted(value.strip("\"'"), view.variables)
        )
        if name not in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDACXX") or match is None:
            continue
        other = f"{match[1]}.{match[2]}"
        installs = re.compile(rf"cuda[\w-]*-{match[1]}-{match[2]}|cuda[-_]{re.escape(other)}")
        if (base.cuda.major, base.cuda.minor) == (int(match[1]), int(match[2])):
            continue
        if any(
            installs.search(word)
            for instruction in view.steps
            for word in [*instruction.values, *view.words]
            if instruction is not step
        ):
            continue
        yield FOLDER.finding(
            view,
            step,
            f"{name} is {value}, and {base.reference} has CUDA {base.cuda}: `nvcc: No such file or "
            "directory`",
            f"ENV {name}={value}; FROM {base.reference}",
            f"write ENV {name}=/usr/local/cuda",
            level=Level.PROBLEM if base.flavour == "devel" else Level.WARNING,
        )


def arch_list(view: StageView) -> Iterator[Finding]:
    cuda = view.base.cuda
    minor = None if cuda is None else Version(f"{cuda.major}.{cuda.minor}")
    is_built = any(compiled(view, package) for package in view.own) or view.base.flavour == "devel"
    for step, name, value in _settings(view):
        if name != "TORCH_CUDA_ARCH_LIST" or "$" in value or not is_built:
            continue
        for part in re.split(r"[ ;,]+", value.strip("\"' ")):
            why = _why_not(part, minor)
            if why:
                yield ARCH.finding(
                    view,
                    step,
                    f"{why}: the compilation of extensions fails",
                    f"{name}={value}; FROM {view.base.reference}",
                    "name capabilities as torch does, such as 8.0;9.0, that this CUDA supports",
                )
                break


def _why_not(part: str, cuda: Version | None) -> str:
    if not part or _NAMED.match(part) or part.lower() in ("all", "common", "native"):
        return ""
    match = _CAPABILITY.match(part)
    if match is None:
        return f"`{part}` is not a capability: `Unknown CUDA arch ({part})`"
    since = _SINCE.get(match[1])
    until = _UNTIL.get(match[1])
    if cuda is not None and since is not None and cuda < Version(since):
        return f"nvcc of CUDA {cuda} does not support {match[1]}, which needs CUDA {since} or later"
    if cuda is not None and until is not None and cuda >= Version(until):
        return f"nvcc of CUDA {cuda} no longer supports {match[1]}, whose last CUDA is {until}"
    return ""


def gpu_hidden(view: StageView) -> Iterator[Finding]:
    torch = view.torch
    on_gpu = view.kind is Kind.GPU or view.base.family in ("pytorch", "cuda", "ngc")
    if not view.is_last or not on_gpu or (torch is not None and torch.build == "cpu"):
        return
    for step, name, value in _settings(view):
        plain = value.strip("\"' ").lower()
        hides = name == "CUDA_VISIBLE_DEVICES" and plain in ("", "-1", "none", "nodevfiles")
        hides |= name == "NVIDIA_VISIBLE_DEVICES" and plain in ("none", "void")
        parts = set(plain.split(","))
        lacks = name == "NVIDIA_DRIVER_CAPABILITIES" and plain != "" and not parts & {"all", "compute"}
        if (hides or lacks) and "$" not in value:
            yield HIDDEN.finding(
                view,
                step,
                f"{name}={value} leaves the container without compute libraries: torch finds no GPU"
                if lacks
                else f"{name}={value} hides every GPU: `torch.cuda.is_available()` is False",
                f"ENV {name}={value}",
                "write compute,utility" if lacks else "leave it out",
            )


def offline_download(view: StageView) -> Iterator[Finding]:
    for step in view.stage.instructions:
        if step.word != "RUN":
            continue
        values = view.docker.variables(view.stage, step.first)
        off = [
            n
            for n in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
            if values.get(n, "").lower() in ("1", "true", "yes")
        ]
        text = step.values[0] if step.values else ""
        if off and _DOWNLOADS.search(text) and "local_files_only" not in text and f"{off[0]}=" not in text:
            yield OFFLINE.finding(
                view,
                step,
                f"{off[0]}=1 is set above: the download fails, `offline mode is enabled`",
                text.strip()[:120],
                f"put ENV {off[0]}=1 after this step",
            )


def origin_variables(view: StageView) -> Iterator[Finding]:
    """A variable in FROM must be an ARG above the first FROM: one of a stage is not seen."""
    declared = {name for step in view.docker.arguments for name in argument_values(step)}
    written = view.stage.base_written
    used = re.findall(r"\$\{?(\w+)", written)
    for name in used:
        if name in declared or _BY_BUILDKIT.match(name) or re.search(rf"\$\{{{name}:?[-+]", written):
            continue
        yield SCOPE.finding(
            view,
            view.stage.origin,
            f"{name} is not declared above the first FROM: it is empty here, regardless of --build-arg",
            f"FROM {written}",
            f"add `ARG {name}=…` above the first FROM",
        )


def misspelt_stage(view: StageView) -> Iterator[Finding]:
    names = [stage.name for stage in view.docker.stages[: view.stage.number] if stage.name is not None]
    base = view.stage.base
    if view.stage.parent is not None or re.search(r"[/:@$]", base) or base == "scratch":
        return
    near = get_close_matches(base.lower(), names, n=1, cutoff=0.75)
    if near and len(base) > 3:
        yield NO_STAGE.finding(
            view,
            view.stage.origin,
            f"no stage before this one is called {base}: it is interpreted as an image, which does not exist",
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


def variable_of_another_stage(view: StageView) -> Iterator[Finding]:
    """ARG and ENV of a stage end with it: a later stage that does not begin with it sees neither."""
    chain = view.docker.chain(view.stage)
    if not view.base.family:
        return
    own = {n for s in view.steps for n in (*argument_values(s), *env_values(s)) if s.word in ("ARG", "ENV")}
    outside = {n for step in view.docker.arguments for n in argument_values(step)}
    earlier = [stage for stage in view.docker.stages[: view.stage.number] if stage not in chain]
    theirs = {
        n
        for step in earlier
        for s in step.instructions
        if s.word in ("ARG", "ENV")
        for n in (argument_values(s) if s.word == "ARG" else env_values(s))
    }
    lost = {n for n in theirs - own - outside if not _OF_EVERY_BASE.match(n)}
    for step in view.stage.instructions:
        text = step.values[0] if step.word == "RUN" and step.values and not step.is_json else ""
        for match in _NEEDS_VALUE.finditer(text) if lost else ():
            name = match[1] or match[2]
            if name in lost and not re.search(rf"\b{name}=|\bread {name}|for {name} ", text):
                yield SCOPE.finding(
                    view,
                    step,
                    f"{name} is set in another stage alone: in this one ${name} is empty",
                    posixpath.basename(match[0].strip()) or match[0].strip(),
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
