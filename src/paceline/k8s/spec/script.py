"""A training script of a job: shipped in a ConfigMap, or a file of the image.

A relative path names a local file. It travels in the job's ConfigMap, beside the modules of its folder that
it imports, and is mounted into every pod at /config. An absolute path names a file of the image.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.config.train_config import TrainConfig
from paceline.core.errors import ManifestError, Problem
from paceline.k8s.spec.job import CONFIG, ConfigFile
from paceline.plan import decide
from paceline.training.script import mode_problems, unread_problems
from paceline.training.script_sources import read_sources

_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")  # of a ConfigMap
MAX_BYTES = 512 << 10  # a ConfigMap holds 1 MiB, and the cluster's database keeps every version of it


@dataclass(frozen=True, slots=True, kw_only=True)
class JobScript:
    path: str  # in the pods
    arguments: tuple[str, ...]
    files: tuple[ConfigFile, ...] = ()  # the script first; empty: the image has it
    imports_paceline: bool = False  # as far as its text is known here

    @property
    def command(self) -> tuple[str, ...]:
        return (self.path, *self.arguments)

    @property
    def sha256(self) -> str | None:
        """Of a script that travels; None: it is not known here."""
        return None if not self.files else hashlib.sha256(self.files[0].text.encode()).hexdigest()

    def describe(self) -> str:
        if not self.files:
            return f"{self.path} is started from the image"
        size = sum(len(file.text.encode()) for file in self.files)
        names = ", ".join(file.name for file in self.files)
        return f"shipped in a ConfigMap: {names} ({size:,} bytes), sha256 {self.sha256}"


def read_script(folder: Path, script: Path, arguments: Sequence[str]) -> JobScript:
    """Raises ManifestError for a file that cannot travel."""
    if script.is_absolute():
        return JobScript(path=str(script), arguments=tuple(arguments))
    file = folder / script
    if not file.is_file():
        hint = "name a local file, or one of the image by its absolute path, such as /app/train.py"
        raise ManifestError([Problem(f"there is no file {script} here", hint, "SCRIPT")])
    sources = read_sources(file)
    if sources.packages:
        message = f"{script} imports {', '.join(sources.packages)}, a folder beside it, which cannot travel"
        raise ManifestError([Problem(message, _INTO_THE_IMAGE, "SCRIPT")])
    for name in sources.texts:
        if not _KEY.fullmatch(name):
            message = f"the name {name!r} is no key of a ConfigMap, in which the script travels"
            hint = "rename the file: letters from a to z, digits, '-', '_' and '.'; or copy it into the image"
            raise ManifestError([Problem(message, hint, "SCRIPT")])
    if sources.num_bytes > MAX_BYTES:
        message = (
            f"{script} and its modules are {sources.num_bytes:,} bytes, but at most {MAX_BYTES:,} travel"
        )
        raise ManifestError([Problem(message, _INTO_THE_IMAGE, "SCRIPT")])
    return JobScript(
        path=f"{CONFIG}/{sources.script}",
        arguments=tuple(arguments),
        files=tuple(ConfigFile(name=name, text=text) for name, text in sources.texts.items()),
        imports_paceline=sources.imports("paceline"),
    )


_INTO_THE_IMAGE = "copy it into the image, and name it by its absolute path there, such as -- /app/train.py"


def settings_of_script(config: TrainConfig, script: JobScript) -> TrainConfig:
    """The settings of the run, named after the script. Raises ManifestError for those that it has itself."""
    problems = [*unread_problems(config), *mode_problems(config)]
    if problems:
        raise ManifestError([Problem(problem.what, problem.hint, problem.where) for problem in problems])
    mode = decide.mode_name_of(config)
    name = re.sub(r"[^a-z0-9]+", "-", f"{Path(script.path).stem}-{mode}".lower()).strip("-")
    return replace(config, mode=mode, name=config.name or name)
