"""Broken images and their expected findings, read from the folders of tests/fixtures/images."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from paceline.images.lint.project import Kind, Project, Source, Target

FOLDER = Path(__file__).parent.parent / "fixtures" / "images"
TODAY = date(2026, 11, 15)
# case.yaml says of a folder: `id` (the finding expected: `finding`, where the folder has another name),
# `pattern` (its number), `has` (what the fixed files hold), `proof` (how it is shown to fail: build,
# resolver, import, static), `log` (what a build of it says), `base` and `signature` (for a real build: the
# name in FROM that a base of the test stands in for, and what its log must show).


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    project: Project
    target: Target
    said: dict[str, Any]  # Any: YAML

    @property
    def finding(self) -> str:
        return str(self.said.get("finding", self.said["id"]))

    @property
    def is_fixed(self) -> bool:
        return bool(self.said.get("edits", True))


def cases() -> list[Case]:
    return [_case(file.parent) for file in sorted(FOLDER.glob("*/case.yaml"))]


def case(name: str) -> Case:
    return _case(FOLDER / name)


def _case(folder: Path) -> Case:
    document = yaml.safe_load((folder / "case.yaml").read_text("utf-8"))
    where = document.get("target", {})
    target = Target(
        today=TODAY,
        kind=Kind(where.get("kind", "unknown")),
        arch=where.get("arch"),
        driver=where.get("driver"),
    )
    return Case(folder.name, project_in(folder, frozenset(document.get("names", ()))), target, document)


def project_in(folder: Path, names: frozenset[str] = frozenset()) -> Project:
    files = [path for path in sorted(folder.iterdir()) if path.name == "Dockerfile" or path.suffix == ".txt"]
    return Project(
        files=tuple(Source(file.name, file.read_bytes().decode()) for file in files),
        names=names,
    )


def healthy() -> list[Path]:
    return sorted(file.parent for file in (FOLDER / "healthy").glob("*/Dockerfile"))


def project_of(dockerfile: str, **files: str) -> Project:
    """`requirements_txt="torch"` is the file requirements.txt."""
    named = [Source(name.replace("_txt", ".txt"), text) for name, text in files.items()]
    return Project(files=(Source("Dockerfile", dockerfile), *named))


def everything(project: Project) -> str:
    return "".join(file.text for file in project.files)
