"""Parameter sets of the tests, spelled for CloudFormation, the script and Terraform."""

from collections.abc import Mapping

SOURCE = "https://github.com/example/train.git"
# Everything otherwise than it is by itself. Old versions are kept for ever, because Terraform's provider
# waits a minute for the rule that deletes them.
OTHER: Mapping[str, str] = {
    "Name": "team-vision",
    "SourceUrl": SOURCE,
    "SourceBranch": "release/2.x",
    "ImageDir": "services/train",
    "ComputeType": "BUILD_GENERAL1_LARGE",
    "TimeoutMinutes": "90",
    "LogDays": "14",
    "OldVersionDays": "0",
    "KeepImages": "7",
    "TagMutability": "IMMUTABLE",
    "Webhook": "true",
    "PullRequests": "true",
    "Alerts": "true",
    "AlertEmail": "team@example.com",
    "Nightly": "true",
    "NightlySchedule": "rate(12 hours)",
}


def as_flags(choices: Mapping[str, str]) -> list[str]:
    """--source-url URL …; what is true or false becomes a switch."""
    flags: list[str] = []
    for name, value in choices.items():
        flag = _split(name, "-")
        flags += (
            [f"--{'' if value == 'true' else 'no-'}{flag}"]
            if value in ("true", "false")
            else [f"--{flag}", value]
        )
    return flags


def as_variables(choices: Mapping[str, str]) -> dict[str, str]:
    """source_url = URL …"""
    return {_split(name, "_"): value for name, value in choices.items()}


def _split(name: str, by: str) -> str:
    return "".join(f"{by}{sign.lower()}" if sign.isupper() else sign for sign in name).lstrip(by)
