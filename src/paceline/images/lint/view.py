"""The view of a build that the rules share: what each stage installs, in which order, on which base."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from packaging.version import Version

from paceline.images.lint.bases import Base, read_base
from paceline.images.lint.dependency_files import (
    NAMES,
    PackageSpec,
    RequirementFile,
    conda_packages,
    conda_spec,
    is_manifest,
    read_file,
)
from paceline.images.lint.dockerfile import Dockerfile, Instruction, Stage, read_dockerfile, substituted
from paceline.images.lint.installs import (
    PipInstall,
    Removal,
    SystemInstall,
    installs,
    pip_installs,
    system_installs,
)
from paceline.images.lint.matrix import TorchRow, build_from_index, matrix
from paceline.images.lint.project import Kind, Project, Source, Target

_INDEX_NAMES = ("index-url", "extra-index-url", "find-links", "index", "default-index")
_INDEX_VARIABLES = (
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "UV_INDEX",
    "UV_FIND_LINKS",
)
_WRITERS = frozenset(
    [
        "sed",
        "awk",
        "grep",
        "cp",
        "mv",
        "echo",
        "cat",
        "tee",
        "compile",
        "export",
        "pip-compile",
        "patch",
        "freeze",
    ]
)
_ONLY_UV = re.compile(r"^https://astral\.sh/uv/|/uv-installer\.sh$")  # it installs nothing but uv
_LOCAL_CUDA = re.compile(r"^cu(\d{2})(\d)$")
_ASSIGNED = re.compile(r"^([A-Za-z_]\w*)=(.*)$", re.S)


class Installed(NamedTuple):
    """One package, and the command that installs it."""

    spec: PackageSpec
    by: PipInstall


@dataclass(frozen=True)
class StageView:
    """One stage, with all stages and the base below it."""

    project: Project
    docker: Dockerfile
    stage: Stage
    base: Base
    files: dict[str, RequirementFile]
    target: Target

    @property
    def is_last(self) -> bool:
        return self.stage.number == len(self.docker.stages) - 1

    @cached_property
    def steps(self) -> list[Instruction]:
        return [step for stage in self.docker.chain(self.stage) for step in stage.instructions]

    @cached_property
    def variables(self) -> dict[str, str]:
        return self.docker.variables(self.stage)

    @cached_property
    def _installs(self) -> list[PipInstall | Removal]:
        """Installs of this stage and of those below it, in order."""
        installed: list[PipInstall | Removal] = []
        for stage in self.docker.chain(self.stage):
            for step in stage.instructions:
                values = self.docker.variables(stage, step.first)
                installed += installs(self.docker.path, self.docker.text, step, values)
        return installed

    @cached_property
    def pip(self) -> list[PipInstall]:
        """The commands of pip and uv pip, of this stage and of those below it, in order."""
        installed = [
            install for install in self._installs if isinstance(install, PipInstall) and install.is_pip
        ]
        return [install for install in installed if not install.is_conditional]

    @cached_property
    def commands_of_pip(self) -> list[PipInstall]:
        """Every unconditional installation of this very stage, those of uv sync and poetry among them."""
        installed = [
            install
            for install in self._installs
            if isinstance(install, PipInstall) and not install.is_conditional
        ]
        return [install for install in installed if id(install.instruction) in self.own_steps]

    @cached_property
    def has_conditional(self) -> bool:
        """Some command may install more, or nothing: what is missing cannot be determined."""
        return any(isinstance(install, PipInstall) and install.is_conditional for install in self._installs)

    @cached_property
    def removed(self) -> frozenset[str]:
        """Packages that `pip uninstall` removes at some point, including those of the base."""
        removals = [install.names for install in self._installs if isinstance(install, Removal)]
        return frozenset(name for names in removals for name in names)

    @cached_property
    def system(self) -> list[SystemInstall]:
        return [install for step in self.steps for install in system_installs(step)]

    @cached_property
    def system_packages(self) -> frozenset[str]:
        values = self.variables
        texts = (substituted(word.text, values) for install in self.system for word in install.packages)
        return frozenset(word.partition("=")[0] for text in texts for word in text.split())

    @cached_property
    def packages_where_it_runs(self) -> frozenset[str]:
        """System packages of the stages that copy from this one, and of this one where none does."""
        later = [stage for stage in self.docker.stages[self.stage.number + 1 :] if self._takes_from(stage)]
        chains = [self.docker.chain(step) for step in later or [self.stage]]
        steps = [step for chain in chains for stage in chain for step in stage.instructions]
        listed = [
            word.text for step in steps for install in system_installs(step) for word in install.packages
        ]
        texts = (substituted(text, self.variables) for text in listed)
        return frozenset(word.partition("=")[0] for text in texts for word in text.split())

    def _takes_from(self, other: Stage) -> bool:
        names = {str(self.stage.number), self.stage.name}
        copies = any((step.flag("from") or "").lower() in names for step in other.instructions)
        return copies or other.parent == self.stage.number

    @cached_property
    def are_packages_known(self) -> bool:
        """Whether all system packages are known: not if a file, a variable or a user's script adds some."""
        for stage in self.docker.stages:
            values = self.docker.variables(stage)
            for step in stage.instructions:
                argv = [word for command in step.commands for word in command.texts]
                listed = [word for install in system_installs(step) for word in install.packages]
                if any(word.endswith(".sh") and not _ONLY_UV.search(word) for word in argv) or (
                    "xargs" in argv and "install" in argv
                ):
                    return False
                if any(re.search(r"[$`]", substituted(word.text, values)) for word in listed):
                    return False
        return True

    def environment(self, by: PipInstall) -> dict[str, str]:
        """The variables of a command: of ARG and ENV, and those that its step sets before it."""
        values = self.docker.variables(self.stage, by.instruction.first)
        for command in by.instruction.commands:
            for word in command.words:
                match = _ASSIGNED.match(word.text)
                if match is not None and word.start < by.program[0].start:
                    values[match[1]] = substituted(match[2], values)
        return values

    def uses_of(self, path: str) -> int:
        """Number of commands of all stages that install from this file."""
        steps = [(stage, step) for stage in self.docker.stages for step in stage.instructions]
        commands = [
            by
            for stage, step in steps
            for by in pip_installs(
                self.docker.path, self.docker.text, step, self.docker.variables(stage, step.first)
            )
        ]
        return sum(path in [file.path for file in self.files_of(by)] for by in commands)

    @cached_property
    def installed(self) -> list[Installed]:
        packages: list[Installed] = []
        for by in self._installs:
            if isinstance(by, Removal):
                packages = [package for package in packages if package.spec.name not in by.names]
            elif not by.is_conditional:
                packages += [Installed(spec, by) for spec in self.specs_by(by)]
        return packages

    @cached_property
    def own(self) -> list[Installed]:
        """Packages that this stage itself installs."""
        own_steps = {id(step) for step in self.stage.instructions}
        return [package for package in self.installed if id(package.by.instruction) in own_steps]

    @cached_property
    def own_steps(self) -> frozenset[int]:
        """The ids of the instructions of this very stage."""
        return frozenset(id(step) for step in self.stage.instructions)

    def specs_by(self, by: PipInstall) -> Iterator[PackageSpec]:
        """Packages that a command requests on this Python; a marker that cannot be evaluated excludes."""
        for spec in (*by.specs, *(spec for file in self.files_of(by) for spec in file.specs)):
            if spec.is_meant_for(self.python):
                yield spec

    def files_of(self, by: PipInstall) -> list[RequirementFile]:
        """The requirement files and manifests of a command, and those that they name."""
        files = self._manifests(by)
        waiting = [self.path_in_context(by, name) for name in by.values("requirement")]
        waiting += [option.value for file in files for option in file.options if option.name == "requirement"]
        while waiting:
            path = waiting.pop(0)
            file = None if self._is_rewritten(by, _tail(path)) else self.file_named(path)
            if file is not None and file not in files:
                files.append(file)
                waiting += [option.value for option in file.options if option.name == "requirement"]
        return files

    def _is_rewritten(self, by: PipInstall, name: str) -> bool:
        """Another step has changed or made the file: its text in the context is not what is installed."""
        for step in self.steps:
            if step.first > by.instruction.first:
                break
            if step.word == "COPY" and step.flag("from") is not None and _tail(step.values[-1]) == name:
                return True
            for command in step.commands:
                writes = bool(_WRITERS & {_tail(word) for word in command.texts})
                if writes and command is not by.command and any(name in word for word in command.texts):
                    return True
        return False

    def _manifests(self, by: PipInstall) -> list[RequirementFile]:
        """pyproject.toml and its like of the folders that a command installs, unless without dependencies."""
        if "--no-deps" in by.flags:
            return []
        targets = [spec.text for spec in by.specs if spec.is_url] + by.values("editable")
        folders = [re.sub(r"\[[^\]]*\]$", "", target) for target in targets] if by.is_pip else ["."]
        files = []
        for folder in folders:
            if folder.startswith(".") and "://" not in folder:
                parts = [part for part in folder.split("/") if part not in ("", ".")]
                paths = ["/".join([*parts, name]) for name in NAMES]
                files += [self.files[path] for path in paths if path in self.files]
        return files

    def path_in_context(self, by: PipInstall, path: str) -> str:
        """Source path of a file of the image, if a COPY or a mount renamed it."""
        mounts = [dict(part.partition("=")[::2] for part in flag.split(",")) for flag in by.instruction.flags]
        for mount in mounts:
            if mount.get("target", mount.get("dst")) == path and "source" in mount:
                return mount["source"]
        for step in reversed(self.steps):
            if step.word not in ("COPY", "ADD") or step.flag("from") is not None or len(step.values) != 2:
                continue
            source, goal = step.values
            if (
                not goal.endswith(("/", "."))
                and _tail(goal) == _tail(path) != _tail(source)
                and "." in _tail(goal)
            ):
                return source
        return path

    def file_named(self, path: str) -> RequirementFile | None:
        """The file of the context that a path in the image means: by the longest tail, if only one has it."""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        for count in range(len(parts), 0, -1):
            tail = "/".join(parts[-count:])
            same = [f for f in self.files.values() if f.path == tail or f.path.endswith(f"/{tail}")]
            if len(same) == 1:
                return same[0]
            exact = [file for file in same if file.path == tail]
            if exact:
                return exact[0]
        return None

    def find(self, *names: str) -> Installed | None:
        """The last requested package, because it is the one that stays."""
        matching = [package for package in self.installed if package.spec.name in names]
        return matching[-1] if matching else None

    def indexes(self, package: Installed) -> list[str]:
        """Every address that a command may take packages from, but the usual one."""
        files = self.files_of(package.by)
        values = [o.value for file in files for o in file.options if o.name in _INDEX_NAMES]
        before = self.environment(package.by)
        texts = [before[name] for name in _INDEX_VARIABLES if name in before]
        return package.by.values(*_INDEX_NAMES) + values + [word for text in texts for word in text.split()]

    def source(self, path: str) -> Source:
        return Source(path, self.project.text(path))

    @property
    def dockerfile(self) -> Source:
        return Source(self.docker.path, self.docker.text)

    @property
    def kind(self) -> Kind:
        """Target of the image; by default, a base image of NVIDIA implies GPU."""
        if self.target.kind is not Kind.UNKNOWN:
            return self.target.kind
        return Kind.GPU if self.base.cuda is not None or self.target.arch is not None else Kind.UNKNOWN

    @cached_property
    def words(self) -> list[str]:
        """Every word of every command of the stage and of those below it, and of its shell."""
        argv = [word for step in self.steps for command in step.commands for word in command.texts]
        return argv + [value for step in self.steps if step.word == "SHELL" for value in step.values]

    @cached_property
    def has_own_python(self) -> bool:
        """Whether it has a Python other than the base's: conda, another version, a venv, uv's."""
        argv = set(self.words)
        other = any(re.search(r"^python(3\.\d+|\$[\w{}]+)(-\w+)?$|^pyenv$|deadsnakes", w) for w in argv)
        return other or self._uv_chooses or self.has_conda

    @cached_property
    def _uv_chooses(self) -> bool:
        """uv takes the base's Python if it fits, unless another version is requested."""
        argv = set(self.words)
        is_there = any(w.endswith("uv") for w in argv) and bool(argv & {"venv", "python", "sync"})
        keeps = self.base.family == "python" and not self._named_pythons
        return is_there and not (keeps and ".python-version" not in self.project.names)

    @cached_property
    def has_conda(self) -> bool:
        """Then conda decides which Python there is, and may bring libraries and compilers."""
        named = re.compile(r"conda|(?:^|/|micro)mamba(?:$|[/.]|forge|3)|Mambaforge|[Mm]iniforge")
        return any(named.search(word) for word in [*self.words, self.base.name])

    @cached_property
    def _named_pythons(self) -> frozenset[str]:
        """Versions requested of apt, uv, pyenv or conda, such as 3.11."""
        versions: set[str] = set()
        for step in self.steps:
            values = self.docker.variables(self.stage, step.first)
            for command in step.commands:
                versions |= _pythons_in([substituted(word, values) for word in command.texts])
        for name in ("UV_PYTHON", "PYENV_VERSION"):
            versions |= set(re.findall(r"^(?:python)?(3\.\d+)", self.variables.get(name, "")))
        if self.has_conda:
            texts = [source.text for source in self.files.values() if source.path.endswith(("yml", "yaml"))]
            ranges = [conda_packages(text).get("python", "") for text in texts]
            versions |= {
                version for spec_range in ranges for version in re.findall(r"=\s*(3\.\d+)", spec_range)
            }
        return frozenset(versions)

    @property
    def python(self) -> str | None:
        """The Python that pip installs for; None if not certain."""
        if not self.has_own_python:
            return self.base.python
        return next(iter(self._named_pythons)) if len(self._named_pythons) == 1 else None

    @cached_property
    def torch(self) -> "Torch | None":
        package = self.find("torch")
        if package is None or package.spec.is_url:
            return None
        pin = package.spec.pin
        return Torch(package, pin, None if pin is None else matrix().row(pin), _build(self, package, pin))


def _pythons_in(argv: list[str]) -> set[str]:
    match = {one[1] for word in argv if (one := re.fullmatch(r"python(3\.\d+)(?:-\w+)?", word))}
    for word, behind in zip(argv, [*argv[1:], ""], strict=True):
        if word in ("--python", "-p", "install") and re.fullmatch(r"(?:cpython-?)?3\.\d+(\.\d+)?", behind):
            match |= set(re.findall(r"3\.\d+", behind)[:1])
    joined = [word.partition("=")[2] for word in argv if word.startswith("--python=")]
    match |= {one[0] for word in joined if (one := re.match(r"3\.\d+", word))}
    if any(re.search(r"(?:conda|mamba)$", word) for word in argv):
        specs = [conda_spec(word) for word in argv]
        match |= {
            v
            for name, spec_range in specs
            if name == "python"
            for v in re.findall(r"=\s*(3\.\d+)", spec_range)
        }
    return match


def _tail(path: str) -> str:
    return path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Torch:
    """The torch that is installed: `build` is cpu, cu118, …, None for PyPI's own, or UNKNOWN."""

    installed: Installed
    pin: Version | None
    row: TorchRow | None
    build: str | None

    @property
    def cuda(self) -> Version | None:
        """The CUDA of the wheel: by its build tag, or by the matrix; None: none, or unknown."""
        if self.build is not None:
            match = _LOCAL_CUDA.match(self.build)
            return Version(f"{match[1]}.{match[2]}") if match else None
        return None if self.row is None else self.row.cuda


def _build(view: StageView, package: Installed, pin: Version | None) -> str | None:
    if pin is not None and pin.local is not None:
        return pin.local
    backends = [
        *package.by.values("torch-backend"),
        *(value for name, value in view.environment(package.by).items() if name == "UV_TORCH_BACKEND"),
    ]
    return build_from_index(backends if package.by.is_uv else (), view.indexes(package))


def stage_views(project: Project, target: Target) -> list[StageView]:
    docker = read_dockerfile(project.dockerfile, project.text(project.dockerfile))
    files = {
        source.path: read_file(source.path, source.text)
        for source in project.files
        if source.path != project.dockerfile
        and (source.path.endswith((".txt", ".in")) or is_manifest(source.path))
    }
    return [
        StageView(
            project=project,
            docker=docker,
            stage=stage,
            base=read_base(docker.chain(stage)[0].base),
            files=files,
            target=target,
        )
        for stage in docker.stages
    ]
