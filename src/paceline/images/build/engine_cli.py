"""Command lines of the container engines: the argv of every operation for docker, podman and buildah.

No argument is ever a secret: secrets go by a file that only this user can read, or by stdin.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.images.build.engine import Engine, EngineKind


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    context: Path
    dockerfile: Path
    tags: tuple[str, ...]
    arguments: tuple[str, ...] = ()  # NAME=VALUE for ARG
    secrets: tuple[str, ...] = ()  # id=NAME,src=FILE for RUN --mount=type=secret
    labels: tuple[str, ...] = ()  # NAME=VALUE
    platform: str | None = None
    target: str | None = None
    pull: bool = False
    cache: str | None = None  # a repository that keeps layers between machines
    network: str | None = None
    insecure: bool = False
    mark: str | None = None  # a name by which leftovers of this build are known


def build_argv(engine: Engine, options: BuildOptions) -> list[str]:
    argv = [engine.path, *_BUILD[engine.kind]]
    if engine.has_buildx:
        argv = [engine.path, "buildx", "build", "--load", "--progress", "plain"]
    argv += ["--file", str(options.dockerfile)]
    for tag in options.tags:
        argv += ["--tag", tag]
    for argument in options.arguments:
        argv += ["--build-arg", argument]
    for secret in options.secrets:
        argv += ["--secret", secret]
    for label in options.labels:
        argv += ["--label", label]
    for flag, value in (
        ("--platform", options.platform),
        ("--target", options.target),
        ("--network", options.network),
    ):
        if value is not None:
            argv += [flag, value]
    if options.pull:
        argv.append("--pull")
    if options.insecure and engine.kind is not EngineKind.DOCKER:
        argv.append("--tls-verify=false")
    if options.mark is not None and engine.kind is not EngineKind.DOCKER:
        argv += ["--add-host", f"{options.mark}:127.0.0.1"]
    return [*argv, *_cache(engine, options.cache), str(options.context)]


_BUILD = {
    EngineKind.DOCKER: ("build",),
    EngineKind.PODMAN: ("build", "--layers", "--force-rm"),
    EngineKind.BUILDAH: ("build", "--layers", "--force-rm"),
}


def _cache(engine: Engine, cache: str | None) -> list[str]:
    if cache is None:
        return []
    if engine.has_buildx:
        # ECR and others take a cache only in the form of an image.
        form = "mode=max,image-manifest=true,oci-mediatypes=true"
        return [
            "--cache-from",
            f"type=registry,ref={cache}",
            "--cache-to",
            f"type=registry,ref={cache},{form}",
        ]
    # podman and buildah keep layers in a repository by the same two flags; plain docker only reads one.
    if engine.kind is EngineKind.DOCKER:
        return ["--cache-from", cache]
    return ["--cache-from", cache, "--cache-to", cache]


def run_argv(
    engine: Engine,
    image: str,
    command: Sequence[str],
    *,
    name: str,
    mounts: Sequence[str] = (),
    variables: Sequence[str] = (),
    network: str = "none",
    gpus: str | None = None,
) -> list[str]:
    """Run `command` in a container of this name, which is removed at its end; stdin is passed on."""
    program, *rest = command
    argv = [engine.path, "run", "--rm", "--interactive", "--name", name, "--network", network]
    if engine.kind is EngineKind.PODMAN:
        argv.append("--log-driver=none")
    for mount in mounts:
        argv += ["--volume", mount]
    for variable in variables:
        argv += ["--env", variable]
    if gpus is not None:
        argv += (
            ["--gpus", gpus] if engine.kind is EngineKind.DOCKER else ["--device", f"nvidia.com/gpu={gpus}"]
        )
    return [*argv, "--entrypoint", program, image, *rest]


def push_argv(engine: Engine, name: str, *, digest_file: Path, auth_file: Path, insecure: bool) -> list[str]:
    if engine.kind is EngineKind.DOCKER:  # reads DOCKER_CONFIG, and prints the digest in its last line
        return [engine.path, "push", name]
    argv = [engine.path, "push", "--digestfile", str(digest_file), "--authfile", str(auth_file)]
    return [*argv, f"--tls-verify={'false' if insecure else 'true'}", name]


def tag_argv(engine: Engine, image: str, name: str) -> list[str]:
    return [engine.path, "tag", image, name]


def inspect_argv(engine: Engine, image: str) -> list[str]:
    """Prints JSON: a list of docker and podman, an object of buildah."""
    if engine.kind is EngineKind.BUILDAH:
        return [engine.path, "inspect", "--type", "image", image]
    return [engine.path, "image", "inspect", image]


# podman and buildah print `STEP 2/8: RUN …`, docker `Step 2/8 : RUN …`, BuildKit `#9 [build 2/8] RUN …` and
# `#9 DONE 0.7s`.

_STEP = re.compile(r"^(?:\[\d+/\d+\] )?(?:STEP|Step) (\d+)/(\d+) ?: (.*)$")
_STAGE = re.compile(r"^#(\d+) \[(?:([\w.-]+) )?(\d+)/(\d+)\] (.*)$")
_ENDED = re.compile(r"^#(\d+) (DONE|CACHED|ERROR)(?: (\d+(?:\.\d+)?)s)?")
_CACHED = re.compile(r"^--> Using cache|^ ---> Using cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    number: int
    of: int
    what: str
    stage: str = ""

    def __str__(self) -> str:
        stage = f"{self.stage} " if self.stage else ""
        return f"{stage}step {self.number} of {self.of}: {self.what}"


class ProgressParser:
    """Parser of one log, line by line: returns progress for the user, and nothing for other lines."""

    def __init__(self) -> None:
        self._by_vertex: dict[str, Progress] = {}
        self._now: Progress | None = None

    @property
    def now(self) -> Progress | None:
        """The step at which the log is."""
        return self._now

    def read(self, line: str) -> str | None:
        if match := _STEP.match(line):
            self._now = Progress(number=int(match[1]), of=int(match[2]), what=_short(match[3]))
            return str(self._now)
        if match := _STAGE.match(line):
            self._now = Progress(
                number=int(match[3]), of=int(match[4]), what=_short(match[5]), stage=match[2] or ""
            )
            self._by_vertex[match[1]] = self._now
            return str(self._now)
        if (match := _ENDED.match(line)) and match[1] in self._by_vertex:
            step = self._by_vertex[match[1]]
            took = f" in {match[3]} s" if match[3] else ""
            return f"step {step.number} of {step.of} {_ENDINGS[match[2]]}{took}"
        if self._now is not None and _CACHED.match(line):
            return f"step {self._now.number} of {self._now.of} is cached"
        return None


_ENDINGS = {"DONE": "done", "CACHED": "is cached", "ERROR": "failed"}


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 100 else flat[:97] + "…"
