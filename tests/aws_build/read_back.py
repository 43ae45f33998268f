"""Attributes of AWS resources, read back by boto3 and normalised for comparison.

All attributes that CloudFormation, the script and Terraform set are read. Account numbers, the order of tags
and values that a service sets by default are normalised; nothing else.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any  # boto3's answers have no types

from tests.fixtures.aws.emulator import Cloud

ACCOUNT = "ACCOUNT"
# What CodeBuild assumes where nothing is said: one way says it, another does not.
_ASSUMED = {
    "insecureSsl": False,
    "reportBuildStatus": False,
    "encryptionDisabled": False,
    "overrideArtifactName": False,
    "s3Logs": {"status": "DISABLED"},
    "gitSubmodulesConfig": {"fetchSubmodules": False},
}


def read_back(cloud: Cloud) -> dict[str, Any]:
    """All of it, by kind and name: also resources that should not exist."""
    account = cloud.client("sts").get_caller_identity()["Account"]
    results = {
        "buckets": _buckets(cloud),
        "repositories": _repositories(cloud),
        "log groups": _log_groups(cloud),
        "roles": _roles(cloud),
        "projects": _projects(cloud),
        "topics": _topics(cloud),
        "rules": _rules(cloud),
    }
    evened: dict[str, Any] = json.loads(json.dumps(results, default=str).replace(account, ACCOUNT))
    return evened


def _buckets(cloud: Cloud) -> dict[str, Any]:
    s3 = cloud.client("s3")
    return {bucket["Name"]: _bucket(s3, bucket["Name"]) for bucket in s3.list_buckets()["Buckets"]}


def _bucket(s3: Any, name: str) -> dict[str, Any]:
    encryption = s3.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"]["Rules"]
    rules = _unless_none(lambda: s3.get_bucket_lifecycle_configuration(Bucket=name)["Rules"])
    return {
        "versioning": s3.get_bucket_versioning(Bucket=name)["Status"],
        "encryption": [rule["ApplyServerSideEncryptionByDefault"] for rule in encryption],
        "public access": s3.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"],
        "policy": json.loads(s3.get_bucket_policy(Bucket=name)["Policy"]),
        "lifecycle": [object_rule(rule) for rule in rules],
        "tags": tags(_unless_none(lambda: s3.get_bucket_tagging(Bucket=name)["TagSet"])),
    }


def _unless_none(read: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """S3 calls it an error that there are no tags, or no rules."""
    from botocore.exceptions import ClientError

    try:
        return read()
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("NoSuchLifecycleConfiguration", "NoSuchTagSet"):
            raise
        return []


def object_rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    """A prefix may be written in two places."""
    prefix = rule.get("Filter", {}).get("Prefix", rule.get("Prefix", ""))
    return {
        **{key: value for key, value in rule.items() if key not in ("Filter", "Prefix")},
        "Prefix": prefix,
    }


def _repositories(cloud: Cloud) -> dict[str, Any]:
    ecr = cloud.client("ecr")
    return {
        repository["repositoryName"]: {
            "url": repository["repositoryUri"],
            "tag mutability": repository["imageTagMutability"],
            "scan on push": repository["imageScanningConfiguration"]["scanOnPush"],
            "encryption": repository["encryptionConfiguration"]["encryptionType"],
            "lifecycle": json.loads(
                ecr.get_lifecycle_policy(repositoryName=repository["repositoryName"])["lifecyclePolicyText"]
            ),
            "tags": tags(ecr.list_tags_for_resource(resourceArn=repository["repositoryArn"])["tags"]),
        }
        for repository in ecr.describe_repositories()["repositories"]
    }


def _log_groups(cloud: Cloud) -> dict[str, Any]:
    logs = cloud.client("logs")
    return {
        group["logGroupName"]: {
            "days": group.get("retentionInDays"),
            "tags": logs.list_tags_log_group(logGroupName=group["logGroupName"])["tags"],
        }
        for group in logs.describe_log_groups()["logGroups"]
    }


def _roles(cloud: Cloud) -> dict[str, Any]:
    iam = cloud.client("iam")
    return {role["RoleName"]: _role(iam, role["RoleName"]) for role in iam.list_roles()["Roles"]}


def _role(iam: Any, name: str) -> dict[str, Any]:
    policies = iam.list_role_policies(RoleName=name)["PolicyNames"]
    return {
        "trust": iam.get_role(RoleName=name)["Role"]["AssumeRolePolicyDocument"],
        "policies": {
            policy: iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"]
            for policy in policies
        },
        "attached": iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"],
        "tags": tags(iam.list_role_tags(RoleName=name)["Tags"]),
    }


def _projects(cloud: Cloud) -> dict[str, Any]:
    codebuild = cloud.client("codebuild")
    names = codebuild.list_projects()["projects"]
    if not names:
        return {}
    return {item["name"]: project(item) for item in codebuild.batch_get_projects(names=names)["projects"]}


def project(values: Mapping[str, Any]) -> dict[str, Any]:
    """What CodeBuild, or a template in CodeBuild's words, says of a project."""
    kept = ("description", "serviceRole", "sourceVersion", "timeoutInMinutes", "queuedTimeoutInMinutes")
    environment = dict(values["environment"])
    variables = environment.pop("environmentVariables")
    return {
        **{key: values.get(key) for key in kept},
        **{key: _block_values(values.get(key)) for key in ("source", "artifacts", "cache", "logsConfig")},
        "environment": environment,
        "variables": {each["name"]: (each["type"], each["value"]) for each in variables},
        # One of the groups must match, by all of its filters: neither has an order.
        "webhook": sorted(
            sorted((each["type"], each["pattern"]) for each in group)
            for group in (values.get("webhook") or {}).get("filterGroups", [])
        ),
        "pull request policy": _pull_request_policy(values.get("webhook") or {}),
        "tags": tags(values["tags"]),
    }


def _pull_request_policy(webhook: Mapping[str, Any]) -> dict[str, Any]:
    policy = webhook.get("pullRequestBuildPolicy") or {}
    return {name: sorted(value) if isinstance(value, list) else value for name, value in policy.items()}


def _block_values(block: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        key: value
        for key, value in (block or {}).items()
        if not (key in _ASSUMED and _ASSUMED[key] == value) and value not in ("", [], None)
    }


def _topics(cloud: Cloud) -> dict[str, Any]:
    sns = cloud.client("sns")
    return {
        topic["TopicArn"].rpartition(":")[2]: _topic(sns, topic["TopicArn"])
        for topic in sns.list_topics()["Topics"]
    }


def _topic(sns: Any, arn: str) -> dict[str, Any]:
    subscriptions = sns.list_subscriptions_by_topic(TopicArn=arn)["Subscriptions"]
    return {
        "policy": json.loads(sns.get_topic_attributes(TopicArn=arn)["Attributes"]["Policy"]),
        "subscriptions": sorted([row["Protocol"], row["Endpoint"]] for row in subscriptions),
        "tags": tags(sns.list_tags_for_resource(ResourceArn=arn)["Tags"]),
    }


def _rules(cloud: Cloud) -> dict[str, Any]:
    events = cloud.client("events")
    return {
        rule["Name"]: {
            "schedule": rule.get("ScheduleExpression"),
            "pattern": json.loads(rule["EventPattern"]) if rule.get("EventPattern") else None,
            "state": rule["State"],
            "description": rule["Description"],
            "targets": events.list_targets_by_rule(Rule=rule["Name"])["Targets"],
            "tags": tags(events.list_tags_for_resource(ResourceARN=rule["Arn"])["Tags"]),
        }
        for rule in events.list_rules()["Rules"]
    }


def tags(pairs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Services write them as Key and Value, or as key and value; stacks add some of their own."""
    small = [{key.lower(): value for key, value in pair.items()} for pair in pairs]
    return {pair["key"]: pair["value"] for pair in small if not pair["key"].startswith("aws:")}
