"""Which container engine is here? docker, podman or buildah: the first that works, or the one asked for."""

import shutil
from dataclasses import dataclass
from enum import Enum

from paceline.engines.process import ask
from paceline.errors import NotReadyError

_INSTALL = "install one, such as: apt-get install podman runc, or start Docker; then --engine NAME"
_LOOKED_S = 60.0  # a busy machine may take its time


class Kind(Enum):
    DOCKER = "docker"
    PODMAN = "podman"
    BUILDAH = "buildah"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    kind: Kind
    path: str
    version: str
    has_buildx: bool = False

    @property
    def name(self) -> str:
        return "docker buildx" if self.has_buildx else self.kind.value


def find_engine(asked: str | None = None) -> Engine:
    """The one asked for, else the first of docker, podman, buildah that answers. Raises NotReadyError."""
    kinds = list(Kind) if asked is None else [Kind(asked)]
    missing = []
    for kind in kinds:
        path = shutil.which(kind.value)
        if path is None:
            missing.append(f"{kind.value} is not installed")
            continue
        found = ask([path, *_VERSION[kind]], timeout_s=_LOOKED_S)
        if found.is_well:
            if kind is Kind.DOCKER and "podman" in ask([path, "--version"], timeout_s=_LOOKED_S).text:
                kind = Kind.PODMAN  # the package podman-docker: that name, and podman behind it
            buildx = kind is Kind.DOCKER and ask([path, "buildx", "version"], timeout_s=_LOOKED_S).is_well
            version = found.text.strip().rpartition(" ")[2]
            return Engine(kind=kind, path=path, version=version, has_buildx=buildx)
        missing.append(f"{kind.value} does not answer: {_last_line(found.errors or found.text)}")
    raise NotReadyError(f"no container engine can be used: {'; '.join(missing)}", _INSTALL)


# docker's client alone builds nothing: its server is asked for.
_VERSION = {
    Kind.DOCKER: ("version", "--format", "{{.Server.Version}}"),
    Kind.PODMAN: ("version", "--format", "{{.Client.Version}}"),
    Kind.BUILDAH: ("--version",),
}


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it says nothing"
