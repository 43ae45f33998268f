"""How does an image get to where it is used? Logins first, then repositories, one push, copies, all proved.

Nothing is sent before every place has been asked whether it would take it. The first place gets the push;
every other tag, region and registry gets a copy of the same digest, and each is asked for it afterwards.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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


def commit_of(folder: Path) -> Commit | None:
    """None: no git, no repository, or no commit yet."""
    path = shutil.which("git")
    if path is None:
        return None
    git = [path, "-C", str(folder)]
    head = run_command([*git, "rev-parse", "HEAD"])
    if not head.is_well:
        return None
    status = run_command([*git, "status", "--porcelain", "--untracked-files=no"])
    # Where git cannot say, nobody may believe that the image is this commit.
    is_dirty = bool(status.text.strip()) or not status.is_well
    tags = run_command([*git, "tag", "--points-at", "HEAD"]).text.split()
    return Commit(sha=head.text.strip(), is_dirty=is_dirty, tags=tuple(tags))


# Engines compress layers while they push, so an image's local digest says nothing: what the push itself
# reports must be what the registry says. Copies to further places are made from the first one, registry to
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
        last = " ".join(tagged.errors.strip().splitlines()[-1:]) or f"no answer within {_TAGGED_S:g} s"
        raise PushError(
            f"{engine.name} cannot name {image} {goal.name}: {redact(last)}",
            f"build it first: paceline image build --tag {image}",
        )
    with tempfile.TemporaryDirectory(prefix="paceline-push-") as made:
        file = Path(made) / "digest"
        words = push_argv(
            engine, goal.name, digest_file=file, auth_file=logins.path, insecure=goal.registry.is_plain
        )
        more = logins.for_docker if engine.kind is EngineKind.DOCKER else None
        done = stream(words, timeout_s=_TIMEOUT_S, on_line=lambda _: None, more=more)
        if not done.is_well:
            raise _refused(done, done.text, goal)
        said = file.read_text("utf-8").strip() if file.exists() else ""
    if not said:
        found = _DIGEST_LINE.findall(done.text)
        said = found[-1] if found else ""
    if not said:
        raise DigestError(f"the push of {goal.name} reported no digest", "push again; is the engine too old?")
    return said


def copy_reference(
    engine: Engine, image: str, first: ImageReference, digest: str, goal: ImageReference, logins: LoginFile
) -> str:
    """The digest at the further place."""
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        return push_reference(engine, image, goal, logins)
    source = f"docker://{first.registry.host}/{first.repository}@{digest}"
    words = [skopeo, "copy", "--all", "--preserve-digests", "--authfile", str(logins.path)]
    words += [f"--src-tls-verify={_word(not first.registry.is_plain)}"]
    words += [f"--dest-tls-verify={_word(not goal.registry.is_plain)}", source, f"docker://{goal.name}"]
    done = run_command(words, timeout_s=_TIMEOUT_S)
    if not done.is_well:
        raise _refused(done, done.errors or done.text, goal)
    return digest


def _refused(done: CommandResult, said: str, goal: ImageReference) -> PushError:
    if done.was_too_slow:
        return NoRegistryError(
            f"{goal.name} was not there after {_TIMEOUT_S:g} s", "push again: what it has is not sent twice"
        )
    return classify_push_error(said, goal.name)


def _word(is_true: bool) -> str:
    return "true" if is_true else "false"


def verify_digest(goal: ImageReference, digest: str, others: dict[str, str]) -> None:
    """The registry's own answer, and whatever else was asked (`others`), must all be this digest."""
    seen = {"the push": digest, "the registry": goal.registry.digest(goal.repository, goal.tag), **others}
    if len(set(seen.values())) > 1:
        told = ", ".join(f"{who} says {what}" for who, what in seen.items())
        raise DigestError(
            f"{goal.name} is not what was sent: {told}", "somebody else pushed meanwhile? push again"
        )


Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest:
    image: str
    places: tuple[RegistryDestination | EcrDestination, ...]
    folder: Path  # whose commit names the image
    strategies: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    version: str | None = None
    regions: tuple[str, ...] = ()  # for places of Amazon's that name none
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A place that has been asked: its login is good, its repository is there."""

    registry: Registry
    login: Login | None
    repository: str
    tags_move: bool
    was_made: bool = False
    second_opinion: Callable[[str], str] | None = None  # a tag's digest by another way


def push_image(engine: Engine, request: PushRequest, say: Notify) -> PushResult:
    with _ready(request, say) as places:
        tags = _tags(request, places)
        goals = [
            (ImageReference(registry=p.registry, repository=p.repository, tag=tag), p)
            for p in places
            for tag in tags
        ]
        logins = {p.registry.host: p.login for p in places if p.login is not None}
        with login_file(logins) as file:
            first = goals[0][0]
            say(f"pushing {request.image} to {first.name}")
            digest = push_reference(engine, request.image, first, file)
            sent = [_proved(first, goals[0][1], digest, "pushed")]
            for goal, place in goals[1:]:
                say(f"copying it to {goal.name}")
                with _reporting_partial_push(sent):
                    _copied(engine, request.image, first, digest, goal, file)
                    sent.append(_proved(goal, place, digest, "copied"))
        made = tuple(f"{p.registry.host}/{p.repository}" for p in places if p.was_made)
    return PushResult(image=request.image, engine=engine, digest=digest, sent=tuple(sent), made=made)


@contextmanager
def _reporting_partial_push(sent: Sequence[DestinationResult]) -> Iterator[None]:
    """One place that fails does not take back what others have."""
    try:
        yield
    except PushError as error:
        there = ", ".join(one.name for one in sent)
        raise type(error)(f"{error.what}; sent and verified before: {there}", error.hint) from error


def _copied(
    engine: Engine, image: str, first: ImageReference, digest: str, goal: ImageReference, logins: LoginFile
) -> None:
    got = copy_reference(engine, image, first, digest, goal, logins)
    if got != digest:
        raise DigestError(
            f"{goal.name} got {got}, and {first.name} has {digest}",
            "install skopeo: then places are copied from the first, with equal digests",
        )


def _proved(goal: ImageReference, place: _Ready, digest: str, how: str) -> DestinationResult:
    others = {} if place.second_opinion is None else {"DescribeImages": place.second_opinion(goal.tag)}
    verify_digest(goal, digest, others)
    return DestinationResult(name=goal.name, digest=digest, how=how, verified_by=("registry", *others))


def _tags(request: PushRequest, places: Sequence[_Ready]) -> list[str]:
    strategies = request.strategies or (() if request.tags else ("auto",))
    commit = commit_of(request.folder) if strategies else None
    may_move = all(place.tags_move for place in places)
    found = tags_for(strategies, commit=commit, version=request.version, may_move=may_move)
    return [validate_tag(tag) for tag in dict.fromkeys([*request.tags, *found])]


@contextmanager
def _ready(request: PushRequest, say: Notify) -> Iterator[list[_Ready]]:
    """Every place, asked; what was opened for it is closed afterwards."""
    opened: list[Callable[[], None]] = []
    try:
        found: list[_Ready] = []
        for place in request.places:
            if isinstance(place, RegistryDestination):
                found.append(_plain(place, request, say))
                continue
            for region in [place.region] if place.region is not None else (request.regions or (None,)):
                found.append(_ecr(place, region, request, opened, say))
        yield found
    finally:
        for close in opened:
            close()


def _plain(place: RegistryDestination, request: PushRequest, say: Notify) -> _Ready:
    login = request.login or find_login(place.host)
    registry = Registry(place.host, login, insecure=request.insecure)
    registry.check_login(place.repository)
    say(f"{place.host}: {'the login is good' if login is not None else 'it asks for no login'}")
    return _Ready(registry=registry, login=login, repository=place.repository, tags_move=True)


def _ecr(
    place: EcrDestination,
    region: str | None,
    request: PushRequest,
    opened: list[Callable[[], None]],
    say: Notify,
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
    found = ecr.repository(place.repository, create=request.create, immutable=request.immutable)
    registry = Registry(found.host, login, insecure=found.is_plain)
    registry.check_login(found.name)
    how = "was made" if found.was_made else "is there"
    say(f"Amazon ECR, account {account}, {ecr.region}: {found.name} {how}")
    return _Ready(
        registry=registry,
        login=login,
        repository=found.name,
        tags_move=found.tags_move,
        was_made=found.was_made,
        second_opinion=lambda tag: ecr.digest(found.name, tag),
    )
