"""Where does an image go? What a destination says: a registry, a repository, and whether it is Amazon's.

ecr:team/model                                        the account whose credentials these are
123456789012.dkr.ecr.eu-central-1.amazonaws.com/team/model
registry.example.com:5000/team/model
"""

import re
from dataclasses import dataclass

from paceline.errors import ConfigError, ImageWishError, Problem

_ECR_HOST = re.compile(r"^(\d{12})\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.(amazonaws\.com(?:\.cn)?|on\.aws)$")
_REPOSITORY = re.compile(
    r"^[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*$"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPlace:
    host: str
    repository: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EcrPlace:
    repository: str
    account: str | None = None  # None: that of the credentials
    region: str | None = None  # None: the user's own


Place = PlainPlace | EcrPlace


def read_place(text: str) -> Place:
    if text.startswith("ecr:"):
        return EcrPlace(repository=_repository(text.removeprefix("ecr:").strip("/"), text))
    host, slash, rest = text.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        raise _refused(text, "it names no registry")
    if found := _ECR_HOST.match(host):
        return EcrPlace(repository=_repository(rest, text), account=found[1], region=found[2])
    return PlainPlace(host=host, repository=_repository(rest, text))


def _repository(name: str, text: str) -> str:
    if not _REPOSITORY.match(name):
        raise _refused(text, f"{name!r} is no name of a repository; a tag is given by --tag or --tags")
    return name


def checked_tag(tag: str) -> str:
    if not _TAG.fullmatch(tag):
        hint = "letters, digits, dots, dashes and underscores, at most 128 of them"
        raise ImageWishError([Problem(f"{tag!r} is no tag", hint, "--tag")])
    return tag


def _refused(text: str, why: str) -> ConfigError:
    hint = "write HOST[:PORT]/NAME, ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME or ecr:NAME"
    return ImageWishError([Problem(f"{text!r} is no place for an image: {why}", hint, "--to")])


def is_local(host: str) -> bool:
    """Registries on this machine speak plain HTTP, as docker has it too."""
    name = host.rpartition(":")[0] if ":" in host else host
    return name in ("localhost", "[::1]") or re.fullmatch(r"127(\.\d{1,3}){3}", name) is not None
