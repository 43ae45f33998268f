"""How does an image get to where it is used? Logins first, then repositories, one push, copies, all proved.

Nothing is sent before every place has been asked whether it would take it. The first place gets the push;
every other tag, region and registry gets a copy of the same digest, and each is asked for it afterwards.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.engines.engine import Engine
from paceline.engines.git import commit_of
from paceline.engines.logins import Login, LoginFile, known_login, login_file
from paceline.engines.names import EcrPlace, PlainPlace, checked_tag
from paceline.engines.refusals import DigestError, PushError
from paceline.engines.registry import Registry
from paceline.engines.sending import Goal, copy, push, verify
from paceline.engines.tags import tags_for
from paceline.errors import MissingPackageError

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest:
    image: str
    places: tuple[PlainPlace | EcrPlace, ...]
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
class Sent:
    name: str
    digest: str
    how: str  # pushed, or copied
    verified_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    image: str
    engine: Engine
    digest: str
    sent: tuple[Sent, ...]
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


def push_image(engine: Engine, request: PushRequest, say: Say) -> Pushed:
    with _ready(request, say) as places:
        tags = _tags(request, places)
        goals = [
            (Goal(registry=p.registry, repository=p.repository, tag=tag), p) for p in places for tag in tags
        ]
        logins = {p.registry.host: p.login for p in places if p.login is not None}
        with login_file(logins) as file:
            first = goals[0][0]
            say(f"pushing {request.image} to {first.name}")
            digest = push(engine, request.image, first, file)
            sent = [_proved(first, goals[0][1], digest, "pushed")]
            for goal, place in goals[1:]:
                say(f"copying it to {goal.name}")
                with _telling_what_is_there(sent):
                    _copied(engine, request.image, first, digest, goal, file)
                    sent.append(_proved(goal, place, digest, "copied"))
        made = tuple(f"{p.registry.host}/{p.repository}" for p in places if p.was_made)
    return Pushed(image=request.image, engine=engine, digest=digest, sent=tuple(sent), made=made)


@contextmanager
def _telling_what_is_there(sent: Sequence[Sent]) -> Iterator[None]:
    """One place that fails does not take back what others have."""
    try:
        yield
    except PushError as error:
        there = ", ".join(one.name for one in sent)
        raise type(error)(f"{error.what}; sent and verified before: {there}", error.hint) from error


def _copied(engine: Engine, image: str, first: Goal, digest: str, goal: Goal, logins: LoginFile) -> None:
    got = copy(engine, image, first, digest, goal, logins)
    if got != digest:
        raise DigestError(
            f"{goal.name} got {got}, and {first.name} has {digest}",
            "install skopeo: then places are copied from the first, with equal digests",
        )


def _proved(goal: Goal, place: _Ready, digest: str, how: str) -> Sent:
    others = {} if place.second_opinion is None else {"DescribeImages": place.second_opinion(goal.tag)}
    verify(goal, digest, others)
    return Sent(name=goal.name, digest=digest, how=how, verified_by=("registry", *others))


def _tags(request: PushRequest, places: Sequence[_Ready]) -> list[str]:
    strategies = request.strategies or (() if request.tags else ("auto",))
    commit = commit_of(request.folder) if strategies else None
    may_move = all(place.tags_move for place in places)
    found = tags_for(strategies, commit=commit, version=request.version, may_move=may_move)
    return [checked_tag(tag) for tag in dict.fromkeys([*request.tags, *found])]


@contextmanager
def _ready(request: PushRequest, say: Say) -> Iterator[list[_Ready]]:
    """Every place, asked; what was opened for it is closed afterwards."""
    opened: list[Callable[[], None]] = []
    try:
        found: list[_Ready] = []
        for place in request.places:
            if isinstance(place, PlainPlace):
                found.append(_plain(place, request, say))
                continue
            for region in [place.region] if place.region is not None else (request.regions or (None,)):
                found.append(_ecr(place, region, request, opened, say))
        yield found
    finally:
        for close in opened:
            close()


def _plain(place: PlainPlace, request: PushRequest, say: Say) -> _Ready:
    login = request.login or known_login(place.host)
    registry = Registry(place.host, login, insecure=request.insecure)
    registry.check_login(place.repository)
    say(f"{place.host}: {'the login is good' if login is not None else 'it asks for no login'}")
    return _Ready(registry=registry, login=login, repository=place.repository, tags_move=True)


def _ecr(
    place: EcrPlace, region: str | None, request: PushRequest, opened: list[Callable[[], None]], say: Say
) -> _Ready:
    try:
        from paceline.engines.ecr_door import Ecr
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
