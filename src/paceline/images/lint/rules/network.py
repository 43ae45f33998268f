"""Rules about the network between nodes, and about what a container cannot install: kernel modules (31)."""

import posixpath
import re
from collections.abc import Iterator

from paceline.images.lint.bases import read_base
from paceline.images.lint.dockerfile import Instruction, env_values, substituted
from paceline.images.lint.installs import conditional_commands
from paceline.images.lint.project import Finding, Level
from paceline.images.lint.rules.pattern import Pattern
from paceline.images.lint.view import StageView

EFA = Pattern(
    number=31,
    id="no-efa",
    what="The image is configured for EFA between nodes, but no step installs libfabric and its plugin for "
    "NCCL.",
    fix="only reported: EFA's installer, or a base that has it",
)
MODULE = Pattern(
    number=31,
    id="kernel-module",
    what="An installer builds a kernel module or a driver, which belong to the host: in a build it fails.",
    fix="only reported: the installer's option that leaves the module out",
)
LOADER = Pattern(
    number=31,
    id="loader-path",
    what="LD_LIBRARY_PATH names another folder than the one that a library was installed to.",
    fix="only reported: the folder below the prefix",
)
INTERFACE = Pattern(
    number=31,
    id="fixed-interface",
    what="The image fixes the network interface (NCCL_SOCKET_IFNAME): hosts with other names fail.",
    fix="only reported: set it where the job starts, or exclude (`^docker0,lo`)",
    level=Level.WARNING,
)
PATTERNS = (EFA, MODULE, LOADER, INTERFACE)


_INSTALLS_EFA = re.compile(r"efa[-_]installer|ofi[-_]nccl|libfabric|/amazon/(?:efa|ofi)", re.I)
_EFA_SETTING = re.compile(
    r"\b(?:FI_PROVIDER=[\"']?efa|FI_EFA_\w+=|OFI_NCCL_\w+=|NCCL_NET(?:_PLUGIN)?=[\"']?\S*ofi)", re.I
)
# A comment that states the network, not one about its absence or about another image.
_EFA_REMARK = re.compile(
    r"\b(?:over|via|through|with|uses?|using|on|for)\s+(?:the\s+)?(?:AWS\s+|Amazon\s+)?EFA\b"
    r"|\bEFA[- ](?:enabled|ready|support)",
    re.I,
)
_NO_REMARK = re.compile(
    r"\b(?:no|not|non|without|instead|disable[ds]?|unless|optional|todo|see|mount|host|n't)\b", re.I
)


def no_efa(view: StageView) -> Iterator[Finding]:
    if not view.is_last or view.base.family in ("dlc", "ngc") or "efa" in view.base.reference.lower():
        return
    if not view.base.family or not view.are_packages_known or _may_have_efa(view):
        return
    statement = next(_efa_statements(view), None)
    if statement is not None:
        step, text = statement
        yield EFA.finding(
            view,
            step,
            "NCCL is configured to use EFA, but the image has no libfabric and no plugin: `No EFA "
            "provider`, or sockets instead",
            text[:140],
            "run EFA's installer (aws-efa-installer) in the image, or use a base that has it",
        )


def _may_have_efa(view: StageView) -> bool:
    """Whether a command installs it, or a copy from another stage or image may contain it."""
    if any(_INSTALLS_EFA.search(word) for word in view.words):
        return True
    for step in view.steps:
        name = step.flag("from") if step.word in ("COPY", "ADD") else None
        if name is None:
            continue
        stages = [stage for stage in view.docker.stages if name.lower() in (stage.name, str(stage.number))]
        texts = [word for stage in stages for s in stage.instructions for c in s.commands for word in c.texts]
        bases = [view.docker.chain(stage)[0].base for stage in stages] or [name]
        unknown = any(
            not read_base(base).family or read_base(base).family in ("dlc", "ngc") for base in bases
        )
        copied = " ".join(step.values)
        if _INSTALLS_EFA.search(" ".join([*texts, copied])) or (unknown and not _NOT_EFA.search(copied)):
            return True
    return False


_NOT_EFA = re.compile(r"(?:venv|/uvx?\b|site-packages|/wheels?\b|/app\b)")


def _efa_statements(view: StageView) -> Iterator[tuple[Instruction, str]]:
    """Places where the image refers to EFA: ENV, LABEL, its start and the script of it, a comment."""
    for step in view.steps:
        values = env_values(step) if step.word in ("ENV", "LABEL") else {}
        for name, value in values.items():
            if _is_for_efa(name, value) if step.word == "ENV" else _is_efa_label(name, value):
                yield step, f"{step.word} {name}={value}"
        if step.word in ("CMD", "ENTRYPOINT"):
            text = " ".join(step.values)
            if _EFA_SETTING.search(text):
                yield step, f"{step.word} {text}"
            for script in view.project.code:
                name = posixpath.basename(script.path)
                setting = _EFA_SETTING.search(script.text) if name.endswith(".sh") and name in text else None
                if setting is not None:
                    yield step, f"{script.path}: {setting[0]}"
    for line in view.docker.text.splitlines():
        remark = line.strip()
        if remark.startswith("#") and _EFA_REMARK.search(remark) and not _NO_REMARK.search(remark):
            yield view.stage.origin, remark


def _is_efa_label(name: str, value: str) -> bool:
    stated = re.search(r"\befa\b", f"{name} {value}".replace("_", " "), re.I) is not None
    return stated and not re.search(r"\b(?:false|no|none|off|0|without|disabled)\b", value, re.I)


def _is_for_efa(name: str, value: str) -> bool:
    return (
        (name == "FI_PROVIDER" and "efa" in value)
        or name.startswith(("FI_EFA_", "OFI_NCCL_"))
        or (name in ("LD_LIBRARY_PATH", "PATH") and re.search(r"/opt/amazon/(?:efa|ofi)", value) is not None)
        or (name in ("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN") and "ofi" in value.lower())
    )


# Installers by their name, the options that leave the module or the driver out, and the advice.
_INSTALLERS = (
    (
        re.compile(r"(?:^|/)efa_installer\.sh$"),
        re.compile(r"^(?:-[a-z]*k[a-z]*|--skip-kmod)$"),
        "--skip-kmod",
    ),
    (
        re.compile(r"(?:^|/)NVIDIA-Linux-[\w.${}-]+\.run$"),
        re.compile(r"^(?:--no-kernel-modules?|-x|--extract-only|--add-this-kernel)$"),
        "--no-kernel-module",
    ),
    (
        re.compile(r"(?:^|/)mlnxofedinstall$"),
        re.compile(r"^(?:--user-space-only|--without-fw-update-only|--help)$"),
        "--user-space-only",
    ),
)


def kernel_module(view: StageView) -> Iterator[Finding]:
    for step in view.stage.instructions:
        if step.values and "||" in step.values[0]:
            continue
        conditional = conditional_commands(step)
        for command in [command for command in step.commands if id(command) not in conditional]:
            argv = [word for word in command.texts if word not in ("sudo", "bash", "sh")]
            for name, option, advice in _INSTALLERS:
                is_called = bool(argv) and name.search(argv[0]) is not None
                if not is_called or any(option.match(word) or "$" in word for word in argv[1:]):
                    continue
                yield MODULE.finding(
                    view,
                    step,
                    f"{posixpath.basename(argv[0])} installs a kernel module, which a container cannot "
                    "load: its build fails",
                    " ".join(command.texts[:6]),
                    f"add {advice}",
                )


_PREFIX = re.compile(r"(?:--prefix[= ]|-DCMAKE_INSTALL_PREFIX=|\bprefix=)(/[\w./${}-]+)")


def loader_path(view: StageView) -> Iterator[Finding]:
    """A folder of LD_LIBRARY_PATH that is near the prefix of a build, and not the one that it fills."""
    if not view.is_last:
        return
    named = [
        (step, value)
        for step in view.steps
        if step.word == "ENV"
        for name, value in env_values(step).items()
        if name == "LD_LIBRARY_PATH"
    ]
    listed = [(step, _entry(view, entry)) for step, value in named for entry in value.split(":")]
    script = " ".join(value for step in view.steps for value in step.values)
    for prefix in sorted(_prefixes(view)):
        top = "/".join(prefix.split("/")[:3])
        if top.count("/") < 2 or top.split("/")[1] in ("usr", "tmp", "root", "home"):
            continue
        near = [(step, entry) for step, entry in listed if entry == top or entry.startswith(f"{top}/")]
        reached = any(entry == prefix or entry.startswith(f"{prefix}/") for _, entry in near)
        if not near or reached or _is_in_cache(view, prefix):
            continue
        step, entry = near[-1]
        folder = posixpath.dirname(entry)
        # Another command may fill the folder that is named.
        mentioned = [
            text for text in re.findall(rf"{re.escape(top)}[\w./-]*", script) if not _is_within(text, prefix)
        ]
        is_filled = sum(_is_within(text, folder) for text in mentioned) > 1
        if is_filled or folder not in (top, prefix):
            continue
        yield LOADER.finding(
            view,
            step,
            f"the library is installed below {prefix}, and LD_LIBRARY_PATH names {entry}: it is not found, "
            "and without its plugin NCCL falls back to sockets",
            f"LD_LIBRARY_PATH has {entry}; --prefix={prefix}",
            f"write {prefix}/lib",
        )
        return


def _is_in_cache(view: StageView, prefix: str) -> bool:
    """A command names the folder in the configuration of the loader."""
    lines = [part for step in view.steps for text in step.values for part in re.split(r"&&|;|\n", text)]
    return any(prefix in line and re.search(r"ld\.so\.conf|ldconfig", line) for line in lines)


def _prefixes(view: StageView) -> set[str]:
    prefixes: set[str] = set()
    for step in view.steps:
        values = view.docker.variables(view.stage, step.first)
        for text in step.values if step.word == "RUN" else ():
            prefixes |= {substituted(path, values).rstrip("/") for path in _PREFIX.findall(text)}
    return {prefix for prefix in prefixes if "$" not in prefix}


def _entry(view: StageView, text: str) -> str:
    return substituted(text.strip("\"'"), view.variables).rstrip("/")


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def fixed_interface(view: StageView) -> Iterator[Finding]:
    for step in view.stage.instructions:
        values = env_values(step) if step.word == "ENV" else {}
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            value = values.get(name, "")
            if not re.match(r"^=?(?:eth|ens|enp|eno|ib|bond)\w*\d", value):
                continue
            yield INTERFACE.finding(
                view,
                step,
                f"{name}={value} is part of the image: the start fails on hosts whose interface has another "
                "name",
                f"ENV {name}={value}",
                f"set {name} where the job starts, or write ^docker0,lo",
            )


RULES = (no_efa, kernel_module, loader_path, fixed_interface)
