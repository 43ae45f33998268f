"""Publish an image: log in everywhere, create repositories, push once, copy, and verify by digest.

Nothing is sent before every destination has accepted the login. The first destination receives the push;
every other tag, region and registry receives a copy of the same digest, and each digest is verified.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.core import clock
from paceline.core.errors import MissingPackageError
from paceline.core.redaction import redact
from paceline.images.build.engine import CommandResult, Engine, EngineKind, run_command, stream
from paceline.images.build.engine_cli import push_argv, tag_argv
from paceline.images.push.errors import DigestError, NoRegistryError, PushError, classify_push_error
from paceline.images.push.references import (
    Commit,
    EcrDestination,
    RegistryDestination,
    tags_for,
    validate_tag,
)
from paceline.images.push.registry import Login, LoginFile, Registry, find_login, login_file
from paceline.images.revision import ImageIdentity, commit_of, identify, revision_text, version_tags

# Engines compress layers while they push, so an image's local digest is not comparable: the digest that the
# push reports must equal the registry's. Copies to further destinations are made from the first, registry to
# registry, so that they have the same digest; without skopeo the engine pushes again, and the digests are
# compared.

_DIGEST_LINE = re.compile(r"digest: (sha256:[0-9a-f]{64})")
_TIMEOUT_S = 3600.0
_TAGGED_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageReference:
    """One tag in one repository of one registry."""

    registry: Registry
    repository: str
    tag: str

    @property
    def name(self) -> str:
        return f"{self.registry.host}/{self.repository}:{self.tag}"


def push_reference(engine: Engine, image: str, goal: ImageReference, logins: LoginFile) -> str:
    """The digest that the push reports. Raises what the registry refused."""
    tagged = run_command(tag_argv(engine, image, goal.name), timeout_s=_TAGGED_S)
    if not tagged.is_well:
        last = " ".join(tagged.errors.strip().splitlines()[-1:]) or f"no response within {_TAGGED_S:g} s"
        raise PushError(
            f"{engine.name} cannot tag {image} as {goal.name}: {redact(last)}",
            f"build it first: paceline image build --tag {image}",
        )
    with tempfile.TemporaryDirectory(prefix="paceline-push-") as temp_dir:
        file = Path(temp_dir) / "digest"
        argv = push_argv(
            engine, goal.name, digest_file=file, auth_file=logins.path, insecure=goal.registry.is_plain
        )
        more = logins.for_docker if engine.kind is EngineKind.DOCKER else None
        done = stream(argv, timeout_s=_TIMEOUT_S, on_line=lambda _: None, more=more)
        if not done.is_well:
            raise _refused(done, done.text, goal)
        digest = file.read_text("utf-8").strip() if file.exists() else ""
    if not digest:
        digests = _DIGEST_LINE.findall(done.text)
        digest = digests[-1] if digests else ""
    if not digest:
        raise DigestError(f"the push of {goal.name} reported no digest", "push again, or upgrade the engine")
    return digest


def copy_reference(
    engine: Engine, image: str, first: ImageReference, digest: str, goal: ImageReference, logins: LoginFile
) -> str:
    """The digest at the further place."""
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        return push_reference(engine, image, goal, logins)
    source = f"docker://{first.registry.host}/{first.repository}@{digest}"
    argv = [skopeo, "copy", "--all", "--preserve-digests", "--authfile", str(logins.path)]
    argv += [f"--src-tls-verify={_boolean(not first.registry.is_plain)}"]
    argv += [f"--dest-tls-verify={_boolean(not goal.registry.is_plain)}", source, f"docker://{goal.name}"]
    done = run_command(argv, timeout_s=_TIMEOUT_S)
    if not done.is_well:
        raise _refused(done, done.errors or done.text, goal)
    return digest


def _refused(done: CommandResult, output: str, goal: ImageReference) -> PushError:
    if done.was_too_slow:
        return NoRegistryError(
            f"{goal.name} did not appear within {_TIMEOUT_S:g} s",
            "push again: existing layers are not sent twice",
        )
    return classify_push_error(output, goal.name)


def _boolean(is_true: bool) -> str:
    return "true" if is_true else "false"


def verify_digest(goal: ImageReference, digest: str, digests: dict[str, str]) -> None:
    """Require that the registry's own answer and the `digests` of other sources equal this digest."""
    seen = {"the push": digest, "the registry": goal.registry.digest(goal.repository, goal.tag), **digests}
    if len(set(seen.values())) > 1:
        reports = ", ".join(f"{source}: {reported}" for source, reported in seen.items())
        raise DigestError(
            f"{goal.name} differs from what was sent: {reports}",
            "another client may have pushed the same tag; push again",
        )


Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest:
    image: str
    places: tuple[RegistryDestination | EcrDestination, ...]
    folder: Path  # a repository that may have version tags for the image's commit
    strategies: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    version: str | None = None
    regions: tuple[str, ...] = ()  # for destinations at Amazon without a region
    endpoints: Mapping[str, str] | None = None  # by region; "" for every region
    login: Login | None = None  # for plain registries; None: the user's own
    create: bool = True
    immutable: bool = False
    cross_account: bool = False
    insecure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationResult:
    name: str
    digest: str
    how: str  # pushed, or copied
    verified_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult:
    image: str
    engine: Engine
    digest: str
    sent: tuple[DestinationResult, ...]
    made: tuple[str, ...]  # repositories
    ended_at_s: float  # Unix time
    identity: ImageIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A checked destination: its login is valid, its repository exists."""

    registry: Registry
    login: Login | None
    repository: str
    tags_move: bool
    was_made: bool = False
    second_opinion: Callable[[str], str] | None = None  # a tag's digest by another way


def push_image(engine: Engine, request: PushRequest, notify: Notify) -> PushResult:
    with _ready(request, notify) as places:
        identity = identify(engine, request.image)
        tags = _tags(request, places, identity, notify)
        goals = [
            (ImageReference(registry=p.registry, repository=p.repository, tag=tag), p)
            for p in places
            for tag in tags
        ]
        logins = {p.registry.host: p.login for p in places if p.login is not None}
        with login_file(logins) as file:
            first = goals[0][0]
            notify(f"pushing {request.image} to {first.name}")
            digest = push_reference(engine, request.image, first, file)
            sent = [_proved(first, goals[0][1], digest, "pushed")]
            for goal, place in goals[1:]:
                notify(f"copying it to {goal.name}")
                with _reporting_partial_push(sent):
                    _copied(engine, request.image, first, digest, goal, file)
                    sent.append(_proved(goal, place, digest, "copied"))
        created = tuple(f"{p.registry.host}/{p.repository}" for p in places if p.was_made)
    return PushResult(
        image=request.image,
        engine=engine,
        digest=digest,
        sent=tuple(sent),
        made=created,
        ended_at_s=clock.unix_now_s(),
        identity=identity,
    )


@contextmanager
def _reporting_partial_push(sent: Sequence[DestinationResult]) -> Iterator[None]:
    """One place that fails does not take back what others have."""
    try:
        yield
    except PushError as error:
        pushed = ", ".join(destination.name for destination in sent)
        raise type(error)(f"{error.what}; already pushed and verified: {pushed}", error.hint) from error


def _copied(
    engine: Engine, image: str, first: ImageReference, digest: str, goal: ImageReference, logins: LoginFile
) -> None:
    got = copy_reference(engine, image, first, digest, goal, logins)
    if got != digest:
        raise DigestError(
            f"{goal.name} has {got}, but {first.name} has {digest}",
            "install skopeo: copies then have the digest of the first repository",
        )


def _proved(goal: ImageReference, place: _Ready, digest: str, how: str) -> DestinationResult:
    digests = {} if place.second_opinion is None else {"DescribeImages": place.second_opinion(goal.tag)}
    verify_digest(goal, digest, digests)
    return DestinationResult(name=goal.name, digest=digest, how=how, verified_by=("registry", *digests))


def _tags(
    request: PushRequest, places: Sequence[_Ready], identity: ImageIdentity | None, notify: Notify
) -> list[str]:
    strategies = request.strategies or (() if request.tags else ("auto",))
    commit = _built_commit(request, identity, notify) if strategies else None
    may_move = all(place.tags_move for place in places)
    computed = tags_for(strategies, commit=commit, version=request.version, may_move=may_move)
    return [validate_tag(tag) for tag in dict.fromkeys([*request.tags, *computed])]


def _built_commit(request: PushRequest, identity: ImageIdentity | None, notify: Notify) -> Commit | None:
    """The commit in the image's label, with the version tags that the folder's repository has for it."""
    built = None if identity is None else identity.commit
    if built is None:
        return None
    head = commit_of(request.folder)
    if head is not None and revision_text(head) != revision_text(built):
        notify(
            f"{request.image} was built from {revision_text(built)}, and {request.folder} is at "
            f"{revision_text(head)}: tags name what was built"
        )
    return replace(built, tags=version_tags(request.folder, built.sha))


@contextmanager
def _ready(request: PushRequest, notify: Notify) -> Iterator[list[_Ready]]:
    """All destinations, checked; their connections are closed afterwards."""
    opened: list[Callable[[], None]] = []
    try:
        ready: list[_Ready] = []
        for place in request.places:
            if isinstance(place, RegistryDestination):
                ready.append(_plain(place, request, notify))
                continue
            for region in [place.region] if place.region is not None else (request.regions or (None,)):
                ready.append(_ecr(place, region, request, opened, notify))
        yield ready
    finally:
        for close in opened:
            close()


def _plain(place: RegistryDestination, request: PushRequest, notify: Notify) -> _Ready:
    login = request.login or find_login(place.host)
    registry = Registry(place.host, login, insecure=request.insecure)
    registry.check_login(place.repository)
    notify(f"{place.host}: {'login accepted' if login is not None else 'no login required'}")
    return _Ready(registry=registry, login=login, repository=place.repository, tags_move=True)


def _ecr(
    place: EcrDestination,
    region: str | None,
    request: PushRequest,
    opened: list[Callable[[], None]],
    notify: Notify,
) -> _Ready:
    try:
        from paceline.images.push.ecr import Ecr
    except ModuleNotFoundError as missing:
        raise MissingPackageError(
            "boto3 is not installed", "install it: pip install 'paceline[aws]'"
        ) from missing
    endpoints = request.endpoints or {}
    ecr = Ecr(region, endpoints.get(region or "") or endpoints.get(""))
    opened.append(ecr.close)
    account = ecr.check_account(place.account, may_differ=request.cross_account)
    login = ecr.login()
    repository = ecr.repository(place.repository, create=request.create, immutable=request.immutable)
    registry = Registry(repository.host, login, insecure=repository.is_plain)
    registry.check_login(repository.name)
    how = "was created" if repository.was_made else "exists"
    notify(f"Amazon ECR, account {account}, {ecr.region}: {repository.name} {how}")
    return _Ready(
        registry=registry,
        login=login,
        repository=repository.name,
        tags_move=repository.tags_move,
        was_made=repository.was_made,
        second_opinion=lambda tag: ecr.digest(repository.name, tag),
    )
