"""Amazon ECR by boto3: account, registry login, repositories, and the digest of a tag.

boto3's default credential chain applies.
"""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, InvalidRegionError, NoRegionError

from paceline.core.errors import ImageOptionError, Problem
from paceline.images.push.errors import (
    LoginExpiredError,
    NoRepositoryError,
    PushError,
    WrongAccountError,
    classify_push_error,
)
from paceline.images.push.references import lifecycle_policy
from paceline.images.push.registry import Login

_CLIENT_CONFIG = Config(
    connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 3, "mode": "standard"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    name: str
    host: str
    is_plain: bool  # plain HTTP: an emulator
    was_made: bool
    tags_move: bool


class Ecr:
    """One region. `endpoint` is another server than Amazon's, which is the registry too."""

    def __init__(self, region: str | None, endpoint: str | None = None) -> None:
        try:
            with _translated_errors("Amazon ECR"):
                session = boto3.Session(region_name=region)
                self._ecr = session.client("ecr", endpoint_url=endpoint, config=_CLIENT_CONFIG)
                self._sts = session.client("sts", endpoint_url=endpoint, config=_CLIENT_CONFIG)
        except PushError as error:
            if isinstance(error.__cause__, NoRegionError | InvalidRegionError):
                problem = "no AWS region is set" if region is None else f"{region!r} is not an AWS region"
                hint = "use --region, or set AWS_REGION"
                raise ImageOptionError([Problem(problem, hint, "--region")]) from error
            raise
        self.region = str(self._ecr.meta.region_name)
        self._endpoint = endpoint
        self._owner: dict[str, str] = {}

    def close(self) -> None:
        self._ecr.close()
        self._sts.close()

    def account(self) -> str:
        """Account of the credentials. Raises if there are none, or if they have expired."""
        with _translated_errors(f"Amazon ({self.region})"):
            return str(self._sts.get_caller_identity()["Account"])

    def check_account(self, account: str | None, *, may_differ: bool) -> str:
        """The account of the registry; one other than the caller's only if `may_differ`."""
        ours = self.account()
        if account is None or account == ours:
            return ours
        if not may_differ:
            raise WrongAccountError(
                f"the credentials belong to account {ours}, but the repository to account {account}",
                "use that account's profile (AWS_PROFILE), or use --cross-account if it allows pushes from "
                "this one",
            )
        self._owner = {"registryId": account}
        return account

    def login(self) -> Login:
        with _translated_errors(f"Amazon ECR ({self.region})"):
            (given,) = self._ecr.get_authorization_token()["authorizationData"][:1]
        user, _, password = base64.b64decode(given["authorizationToken"]).decode().partition(":")
        if not password:
            raise LoginExpiredError("Amazon ECR returned a login without a password", "try again")
        return Login(user, password)

    def repository(self, name: str, *, create: bool, immutable: bool) -> Repository:
        """Found, or made: scanned on push, encrypted, with rules that never take a release."""
        repository = self._find(name)
        if repository is None and not create:
            raise NoRepositoryError(
                f"there is no repository {name} in {self.region}", "leave out --no-create to create it"
            )
        if repository is not None:
            return self._described(repository, was_made=False)
        try:
            return self._described(self._made(name, immutable=immutable), was_made=True)
        except PushError as error:
            if "RepositoryAlreadyExists" not in str(error.__cause__):
                raise
            return self._described(self._find(name), was_made=False)  # another push made it meanwhile

    def _made(self, name: str, *, immutable: bool) -> Any:  # Any: boto3 has no types
        with _translated_errors(f"Amazon ECR ({self.region})(create {name})"):
            created = self._ecr.create_repository(
                repositoryName=name,
                imageTagMutability="IMMUTABLE" if immutable else "MUTABLE",
                imageScanningConfiguration={"scanOnPush": True},
                encryptionConfiguration={"encryptionType": "AES256"},
                tags=[{"Key": "made-by", "Value": "paceline"}],
                **self._owner,
            )["repository"]
            self._ecr.put_lifecycle_policy(
                repositoryName=name, lifecyclePolicyText=lifecycle_policy(), **self._owner
            )
        return created

    def digest(self, name: str, tag: str) -> str:
        with _translated_errors(f"Amazon ECR ({self.region})(read {name}:{tag})"):
            query = {"repositoryName": name, "imageIds": [{"imageTag": tag}], **self._owner}
            (image,) = self._ecr.describe_images(**query)["imageDetails"]
        return str(image["imageDigest"])

    def _find(self, name: str) -> Any:  # Any: boto3 has no types
        try:
            with _translated_errors(f"Amazon ECR ({self.region})"):
                (repository,) = self._ecr.describe_repositories(repositoryNames=[name], **self._owner)[
                    "repositories"
                ]
                return repository
        except NoRepositoryError:
            return None

    def _described(self, description: Any, *, was_made: bool) -> Repository:  # Any: boto3 has no types
        address = str(description["repositoryUri"]).partition("/")[0]
        other = None if self._endpoint is None else urlsplit(self._endpoint)
        return Repository(
            name=str(description["repositoryName"]),
            host=address if other is None else other.netloc,
            is_plain=other is not None and other.scheme == "http",
            was_made=was_made,
            tags_move=not str(description.get("imageTagMutability", "")).startswith("IMMUTABLE"),
        )


@contextmanager
def _translated_errors(where: str) -> Iterator[None]:
    """Translate errors of boto3 to errors with hints for the user."""
    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        raise classify_push_error(f"error: {code}: {error}", where) from error
    except BotoCoreError as error:
        raise classify_push_error(f"error: {type(error).__name__}: {error}", where) from error
