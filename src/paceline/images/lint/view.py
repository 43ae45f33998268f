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
    Asked,
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

    asked: Asked
    by: PipInstall


@dataclass(frozen=True)
class Place:
    """One stage, with all that it stands on."""

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
        return [step for one in self.docker.chain(self.stage) for step in one.instructions]

    @cached_property
    def variables(self) -> dict[str, str]:
        return self.docker.variables(self.stage)

    @cached_property
    def _installs(self) -> list[PipInstall | Removal]:
        """Of this stage and of those below it, in order."""
        found: list[PipInstall | Removal] = []
        for one in self.docker.chain(self.stage):
            for step in one.instructions:
                values = self.docker.variables(one, step.first)
                found += installs(self.docker.path, self.docker.text, step, values)
        return found

    @cached_property
    def pip(self) -> list[PipInstall]:
        """The commands of pip and uv pip, of this stage and of those below it, in order."""
        found = [one for one in self._installs if isinstance(one, PipInstall) and one.is_pip]
        return [one for one in found if not one.is_conditional]

    @cached_property
    def commands_of_pip(self) -> list[PipInstall]:
        """Every unconditional installation of this very stage, those of uv sync and poetry among them."""
        found = [one for one in self._installs if isinstance(one, PipInstall) and not one.is_conditional]
        return [one for one in found if id(one.instruction) in self.own_steps]

    @cached_property
    def has_conditional(self) -> bool:
        """Some command may install more, or nothing: what is missing cannot be told."""
        return any(isinstance(one, PipInstall) and one.is_conditional for one in self._installs)

    @cached_property
    def removed(self) -> frozenset[str]:
        """What `pip uninstall` takes away at some point: a base's own package, too."""
        found = [one.names for one in self._installs if isinstance(one, Removal)]
        return frozenset(name for names in found for name in names)

    @cached_property
    def system(self) -> list[SystemInstall]:
        return [found for step in self.steps for found in system_installs(step)]

    @cached_property
    def system_packages(self) -> frozenset[str]:
        values = self.variables
        said = (substituted(word.text, values) for one in self.system for word in one.packages)
        return frozenset(word.partition("=")[0] for text in said for word in text.split())

    @cached_property
    def packages_where_it_runs(self) -> frozenset[str]:
        """System packages of the stages that copy from this one, and of this one where none does."""
        later = [one for one in self.docker.stages[self.stage.number + 1 :] if self._takes_from(one)]
        chains = [self.docker.chain(one) for one in later or [self.stage]]
        steps = [step for chain in chains for one in chain for step in one.instructions]
        listed = [word.text for step in steps for one in system_installs(step) for word in one.packages]
        said = (substituted(text, self.variables) for text in listed)
        return frozenset(word.partition("=")[0] for text in said for word in text.split())

    def _takes_from(self, other: Stage) -> bool:
        names = {str(self.stage.number), self.stage.name}
        copies = any((step.flag("from") or "").lower() in names for step in other.instructions)
        return copies or other.parent == self.stage.number

    @cached_property
    def are_packages_known(self) -> bool:
        """Not where a list in a file, a variable or a script of one's own says what else the system gets."""
        for stage in self.docker.stages:
            values = self.docker.variables(stage)
            for step in stage.instructions:
                words = [word for command in step.commands for word in command.texts]
                listed = [word for one in system_installs(step) for word in one.packages]
                if any(word.endswith(".sh") and not _ONLY_UV.search(word) for word in words) or (
                    "xargs" in words and "install" in words
                ):
                    return False
                if any(re.search(r"[$`]", substituted(word.text, values)) for word in listed):
                    return False
        return True

    def environment(self, by: PipInstall) -> dict[str, str]:
        """The variables that a command sees: of ARG and ENV, and those that its own step sets before it."""
        values = self.docker.variables(self.stage, by.instruction.first)
        for command in by.instruction.commands:
            for word in command.words:
                found = _ASSIGNED.match(word.text)
                if found is not None and word.start < by.program[0].start:
                    values[found[1]] = substituted(found[2], values)
        return values

    def uses_of(self, path: str) -> int:
        """How many commands of all stages install from this file?"""
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
        found: list[Installed] = []
        for by in self._installs:
            if isinstance(by, Removal):
                found = [one for one in found if one.asked.name not in by.names]
            elif not by.is_conditional:
                found += [Installed(asked, by) for asked in self.asked_by(by)]
        return found

    @cached_property
    def own(self) -> list[Installed]:
        """What this very stage installs."""
        mine = {id(step) for step in self.stage.instructions}
        return [one for one in self.installed if id(one.by.instruction) in mine]

    @cached_property
    def own_steps(self) -> frozenset[int]:
        """The ids of the instructions of this very stage."""
        return frozenset(id(step) for step in self.stage.instructions)

    def asked_by(self, by: PipInstall) -> Iterator[Asked]:
        """What a command asks for on this Python; a marker that cannot be judged says no."""
        for one in (*by.asked, *(asked for file in self.files_of(by) for asked in file.asked)):
            if one.is_meant_for(self.python):
                yield one

    def files_of(self, by: PipInstall) -> list[RequirementFile]:
        """The requirement files and manifests of a command, and those that they name."""
        found = self._manifests(by)
        waiting = [self.path_in_context(by, said) for said in by.values("requirement")]
        waiting += [one.value for file in found for one in file.options if one.name == "requirement"]
        while waiting:
            path = waiting.pop(0)
            file = None if self._is_rewritten(by, _tail(path)) else self.file_named(path)
            if file is not None and file not in found:
                found.append(file)
                waiting += [one.value for one in file.options if one.name == "requirement"]
        return found

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
        said = [one.text for one in by.asked if one.is_url] + by.values("editable")
        folders = [re.sub(r"\[[^\]]*\]$", "", one) for one in said] if by.is_pip else ["."]
        found = []
        for folder in folders:
            if folder.startswith(".") and "://" not in folder:
                parts = [part for part in folder.split("/") if part not in ("", ".")]
                paths = ["/".join([*parts, name]) for name in NAMES]
                found += [self.files[path] for path in paths if path in self.files]
        return found

    def path_in_context(self, by: PipInstall, path: str) -> str:
        """Where a file of the image comes from, if a COPY or a mount gave it another name."""
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
        """The last one asked for, because it is what stays."""
        found = [one for one in self.installed if one.asked.name in names]
        return found[-1] if found else None

    def indexes(self, one: Installed) -> list[str]:
        """Every address that a command may take packages from, but the usual one."""
        files = self.files_of(one.by)
        values = [o.value for file in files for o in file.options if o.name in _INDEX_NAMES]
        before = self.environment(one.by)
        said = [before[name] for name in _INDEX_VARIABLES if name in before]
        return one.by.values(*_INDEX_NAMES) + values + [word for text in said for word in text.split()]

    def source(self, path: str) -> Source:
        return Source(path, self.project.text(path))

    @property
    def dockerfile(self) -> Source:
        return Source(self.docker.path, self.docker.text)

    @property
    def kind(self) -> Kind:
        """Where it shall run; without a word from the user, an image of NVIDIA's says GPU."""
        if self.target.kind is not Kind.UNKNOWN:
            return self.target.kind
        return Kind.GPU if self.base.cuda is not None or self.target.arch is not None else Kind.UNKNOWN

    @cached_property
    def words(self) -> list[str]:
        """Every word of every command of the stage and of those below it, and of its shell."""
        said = [word for step in self.steps for command in step.commands for word in command.texts]
        return said + [value for step in self.steps if step.word == "SHELL" for value in step.values]

    @cached_property
    def has_own_python(self) -> bool:
        """A Python that the base's name does not tell of: conda, another version, a venv, uv's."""
        words = set(self.words)
        other = any(re.search(r"^python(3\.\d+|\$[\w{}]+)(-\w+)?$|^pyenv$|deadsnakes", w) for w in words)
        return other or self._uv_chooses or self.has_conda

    @cached_property
    def _uv_chooses(self) -> bool:
        """uv takes the base's Python where it fits, unless another version is asked for."""
        words = set(self.words)
        is_there = any(w.endswith("uv") for w in words) and bool(words & {"venv", "python", "sync"})
        keeps = self.base.family == "python" and not self._named_pythons
        return is_there and not (keeps and ".python-version" not in self.project.names)

    @cached_property
    def has_conda(self) -> bool:
        """Then conda decides which Python there is, and may bring libraries and compilers."""
        named = re.compile(r"conda|(?:^|/|micro)mamba(?:$|[/.]|forge|3)|Mambaforge|[Mm]iniforge")
        return any(named.search(word) for word in [*self.words, self.base.name])

    @cached_property
    def _named_pythons(self) -> frozenset[str]:
        """Versions that apt, uv, pyenv or conda are asked for, such as 3.11."""
        found: set[str] = set()
        for step in self.steps:
            values = self.docker.variables(self.stage, step.first)
            for command in step.commands:
                found |= _pythons_in([substituted(word, values) for word in command.texts])
        for name in ("UV_PYTHON", "PYENV_VERSION"):
            found |= set(re.findall(r"^(?:python)?(3\.\d+)", self.variables.get(name, "")))
        if self.has_conda:
            texts = [one.text for one in self.files.values() if one.path.endswith(("yml", "yaml"))]
            said = [conda_packages(text).get("python", "") for text in texts]
            found |= {version for one in said for version in re.findall(r"=\s*(3\.\d+)", one)}
        return frozenset(found)

    @property
    def python(self) -> str | None:
        """The Python that pip installs for, where it is certain."""
        if not self.has_own_python:
            return self.base.python
        return next(iter(self._named_pythons)) if len(self._named_pythons) == 1 else None

    @cached_property
    def torch(self) -> "Torch | None":
        found = self.find("torch")
        if found is None or found.asked.is_url:
            return None
        pin = found.asked.pin
        return Torch(found, pin, None if pin is None else matrix().row(pin), _build(self, found, pin))


def _pythons_in(words: list[str]) -> set[str]:
    found = {one[1] for word in words if (one := re.fullmatch(r"python(3\.\d+)(?:-\w+)?", word))}
    for word, behind in zip(words, [*words[1:], ""], strict=True):
        if word in ("--python", "-p", "install") and re.fullmatch(r"(?:cpython-?)?3\.\d+(\.\d+)?", behind):
            found |= set(re.findall(r"3\.\d+", behind)[:1])
    joined = [word.partition("=")[2] for word in words if word.startswith("--python=")]
    found |= {one[0] for word in joined if (one := re.match(r"3\.\d+", word))}
    if any(re.search(r"(?:conda|mamba)$", word) for word in words):
        specs = [conda_spec(word) for word in words]
        found |= {v for name, said in specs if name == "python" for v in re.findall(r"=\s*(3\.\d+)", said)}
    return found


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
        """The CUDA of the wheel: as its build says, or as the matrix knows it; None: none, or unknown."""
        if self.build is not None:
            found = _LOCAL_CUDA.match(self.build)
            return Version(f"{found[1]}.{found[2]}") if found else None
        return None if self.row is None else self.row.cuda


def _build(place: Place, found: Installed, pin: Version | None) -> str | None:
    if pin is not None and pin.local is not None:
        return pin.local
    backends = [
        *found.by.values("torch-backend"),
        *(value for name, value in place.environment(found.by).items() if name == "UV_TORCH_BACKEND"),
    ]
    return build_from_index(backends if found.by.is_uv else (), place.indexes(found))


def places(project: Project, target: Target) -> list[Place]:
    docker = read_dockerfile(project.dockerfile, project.text(project.dockerfile))
    files = {
        one.path: read_file(one.path, one.text)
        for one in project.files
        if one.path != project.dockerfile and (one.path.endswith((".txt", ".in")) or is_manifest(one.path))
    }
    return [
        Place(
            project=project,
            docker=docker,
            stage=stage,
            base=read_base(docker.chain(stage)[0].base),
            files=files,
            target=target,
        )
        for stage in docker.stages
    ]
