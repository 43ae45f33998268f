"""Which errors do container images cause? E7: looking into them, and sending them."""

from paceline.errors import ExitCode
from paceline.explained.row import Row

_IN = "paceline.engines.refusals:"

ROWS = (
    Row(
        "E701",
        ExitCode.TRAINING_FAILED,
        "paceline.engines.container:ProbeError",
        "the image could not be looked into",
        ("there is no Python in it", "an entrypoint that does something else", "another processor"),
        ("run it by hand: docker run --rm IMAGE python -V", "raise --timeout"),
        "demo:latest was still at it after 60 s",
    ),
    Row(
        "E710",
        ExitCode.TRAINING_FAILED,
        f"{_IN}PushError",
        "the image could not be sent, for a reason that nobody has a name for",
        ("see what the engine says",),
        ("try again", "push it by hand to see all: docker push IMAGE"),
        "the push of demo:latest failed",
    ),
    Row(
        "E711",
        ExitCode.NO_LOGIN,
        f"{_IN}LoginExpiredError",
        "there are no credentials for the registry, or they have expired",
        ("ECR's logins last 12 hours", "docker login was for another registry"),
        ("log in again, as the fix says",),
        "your authorization token has expired",
    ),
    Row(
        "E712",
        ExitCode.FORBIDDEN,
        f"{_IN}ForbiddenError",
        "the registry knows who asks, and says no",
        ("a user without the right to push", "a repository of somebody else"),
        ("ask its owner for the right to push",),
        "denied: user dev may not push",
    ),
    Row(
        "E713",
        ExitCode.TAG_TAKEN,
        f"{_IN}TagTakenError",
        "another image has this tag, and tags of this repository do not move",
        ("the version was not raised",),
        ("push under a new tag",),
        "tag 1.0 exists already and is immutable",
    ),
    Row(
        "E714",
        ExitCode.WRONG_ACCOUNT,
        f"{_IN}WrongAccountError",
        "the credentials are of another AWS account than the repository",
        ("another profile than you think",),
        ("aws sts get-caller-identity", "set AWS_PROFILE"),
        "the credentials are of account 1, the repository of 2",
    ),
    Row(
        "E715",
        ExitCode.NO_REPOSITORY,
        f"{_IN}NoRepositoryError",
        "ECR makes no repository by itself",
        ("a misspelt name or another region",),
        ("add --create", "or make it in the console"),
        "the repository demo does not exist",
    ),
    Row(
        "E716",
        ExitCode.UNREACHABLE,
        f"{_IN}NoRegistryError",
        "the registry does not answer, or is none",
        ("a wrong host", "no network", "plain HTTP where TLS is asked for"),
        ("curl https://HOST/v2/",),
        "registry.local does not answer: no such host",
    ),
    Row(
        "E717",
        ExitCode.GATE_FAILED,
        f"{_IN}DigestError",
        "what the registry holds is not what was sent",
        ("somebody else pushed the same tag at that moment", "a proxy that changes what passes"),
        ("push again; use the digest, not the tag",),
        "the registry has sha256:a…, and sha256:b… was sent",
    ),
)
