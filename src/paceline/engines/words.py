"""What is each engine told? The words of every command, and nothing else: three engines, one meaning.

No word is ever a secret: those go by a file that only this user can read, or by stdin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.engines.engine import Engine, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildWish:
    context: Path
    dockerfile: Path
    tags: tuple[str, ...]
    arguments: tuple[str, ...] = ()  # NAME=VALUE for ARG
    secrets: tuple[str, ...] = ()  # id=NAME,src=FILE for RUN --mount=type=secret
    platform: str | None = None
    target: str | None = None
    pull: bool = False
    cache: str | None = None  # a repository that keeps layers between machines
    network: str | None = None
    insecure: bool = False
    mark: str | None = None  # a name by which leftovers of this build are known


def build_words(engine: Engine, wish: BuildWish) -> list[str]:
    words = [engine.path, *_BUILD[engine.kind]]
    if engine.has_buildx:
        words = [engine.path, "buildx", "build", "--load", "--progress", "plain"]
    words += ["--file", str(wish.dockerfile)]
    for tag in wish.tags:
        words += ["--tag", tag]
    for argument in wish.arguments:
        words += ["--build-arg", argument]
    for secret in wish.secrets:
        words += ["--secret", secret]
    for flag, value in (
        ("--platform", wish.platform),
        ("--target", wish.target),
        ("--network", wish.network),
    ):
        if value is not None:
            words += [flag, value]
    if wish.pull:
        words.append("--pull")
    if wish.insecure and engine.kind is not Kind.DOCKER:
        words.append("--tls-verify=false")
    if wish.mark is not None and engine.kind is not Kind.DOCKER:
        words += ["--add-host", f"{wish.mark}:127.0.0.1"]
    return [*words, *_cache(engine, wish.cache), str(wish.context)]


_BUILD = {
    Kind.DOCKER: ("build",),
    Kind.PODMAN: ("build", "--layers", "--force-rm"),
    Kind.BUILDAH: ("build", "--layers", "--force-rm"),
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
    if engine.kind is Kind.DOCKER:
        return ["--cache-from", cache]
    return ["--cache-from", cache, "--cache-to", cache]


def run_words(
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
    """Run `command` in a container of this name, which goes away when it ends; stdin is handed on."""
    program, *rest = command
    words = [engine.path, "run", "--rm", "--interactive", "--name", name, "--network", network]
    if engine.kind is Kind.PODMAN:
        words.append("--log-driver=none")
    for mount in mounts:
        words += ["--volume", mount]
    for variable in variables:
        words += ["--env", variable]
    if gpus is not None:
        words += ["--gpus", gpus] if engine.kind is Kind.DOCKER else ["--device", f"nvidia.com/gpu={gpus}"]
    return [*words, "--entrypoint", program, image, *rest]


def push_words(engine: Engine, name: str, *, digest_file: Path, auth_file: Path, insecure: bool) -> list[str]:
    if engine.kind is Kind.DOCKER:  # reads DOCKER_CONFIG, and says the digest in its last line
        return [engine.path, "push", name]
    words = [engine.path, "push", "--digestfile", str(digest_file), "--authfile", str(auth_file)]
    return [*words, f"--tls-verify={'false' if insecure else 'true'}", name]


def tag_words(engine: Engine, image: str, name: str) -> list[str]:
    return [engine.path, "tag", image, name]


def inspect_words(engine: Engine, image: str) -> list[str]:
    if engine.kind is Kind.BUILDAH:
        return [engine.path, "inspect", "--type", "image", "--format", "{{.FromImageID}}", image]
    return [engine.path, "image", "inspect", "--format", "{{.Id}} {{.Size}}", image]
