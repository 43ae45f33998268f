"""CloudFormation template evaluation: the resources that the template would create.

Only the few intrinsic functions that the template uses are implemented. The result has the form of
`read_back`, so that it can be compared with what another tool has created: no emulator keeps all of it.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml
from tests.aws_build.read_back import ACCOUNT, object_rule, project, tags
from tests.fixtures.processes.command import ROOT

TEMPLATE = ROOT / "infra" / "cloudformation" / "template.yaml"
PARAMETERS = ROOT / "infra" / "cloudformation" / "parameters.json"
_GONE = object()  # AWS::NoValue: as if it had not been written
_PSEUDO = {
    "AWS::AccountId": ACCOUNT,
    "AWS::Region": "us-east-1",
    "AWS::Partition": "aws",
    "AWS::NoValue": _GONE,
}


class _Loader(yaml.SafeLoader):
    pass


def _function(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        value: Any = loader.construct_scalar(node)
    else:
        assert isinstance(node, yaml.SequenceNode)
        value = loader.construct_sequence(node, deep=True)
    return {f"!{suffix}": value}


_Loader.add_multi_constructor("!", _function)


def load() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load(TEMPLATE.read_text(), Loader=_Loader)  # noqa: S506 - a SafeLoader
    return loaded


def parameters(**others: str) -> dict[str, str]:
    """Those of the file, with these instead."""
    listed = {each["ParameterKey"]: each["ParameterValue"] for each in json.loads(PARAMETERS.read_text())}
    return {**listed, **others}


def says(chosen: Mapping[str, str]) -> dict[str, Any]:
    """All that comes of it, as `read_back` would tell it."""
    made = _Made(load(), chosen)
    bucket, images = (made.properties(key) for key in ("Artifacts", "Images"))
    rules = bucket.get("LifecycleConfiguration", {}).get("Rules", [])
    results = {
        "buckets": {
            bucket["BucketName"]: {
                "versioning": bucket["VersioningConfiguration"]["Status"],
                "encryption": [
                    rule["ServerSideEncryptionByDefault"]
                    for rule in bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
                ],
                "public access": bucket["PublicAccessBlockConfiguration"],
                "policy": made.properties("ArtifactsPolicy")["PolicyDocument"],
                "lifecycle": [object_rule({"ID": rule.pop("Id"), **rule}) for rule in rules],
                "tags": tags(bucket["Tags"]),
            }
        },
        "repositories": {
            images["RepositoryName"]: {
                "url": made.attribute("Images.RepositoryUri"),
                "tag mutability": images["ImageTagMutability"],
                "scan on push": images["ImageScanningConfiguration"]["ScanOnPush"],
                "encryption": images["EncryptionConfiguration"]["EncryptionType"],
                "lifecycle": json.loads(images["LifecyclePolicy"]["LifecyclePolicyText"]),
                "tags": tags(images["Tags"]),
            }
        },
        "log groups": {
            logs["LogGroupName"]: {"days": logs["RetentionInDays"], "tags": tags(logs["Tags"])}
            for logs in made.of_type("AWS::Logs::LogGroup")
        },
        "roles": {role["RoleName"]: _role(role) for role in made.of_type("AWS::IAM::Role")},
        "projects": {
            build["Name"]: project(_as_codebuild_says(build))
            for build in made.of_type("AWS::CodeBuild::Project")
        },
        "topics": {topic["TopicName"]: _topic(made, topic) for topic in made.of_type("AWS::SNS::Topic")},
        "rules": {rule["Name"]: _rule(rule) for rule in made.of_type("AWS::Events::Rule")},
    }
    # As it came over the network: no tuples.
    through: dict[str, Any] = json.loads(json.dumps(results))
    return through


def _role(role: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "trust": role["AssumeRolePolicyDocument"],
        "policies": {policy["PolicyName"]: policy["PolicyDocument"] for policy in role["Policies"]},
        "attached": role.get("ManagedPolicyArns", []),
        "tags": tags(role["Tags"]),
    }


def _topic(made: "_Made", topic: Mapping[str, Any]) -> dict[str, Any]:
    arn = _topic_arn(topic["TopicName"])
    (policy,) = (
        item["PolicyDocument"] for item in made.of_type("AWS::SNS::TopicPolicy") if arn in item["Topics"]
    )
    subscriptions = [item for item in made.of_type("AWS::SNS::Subscription") if item["TopicArn"] == arn]
    return {
        "policy": policy,
        "subscriptions": [[item["Protocol"], item["Endpoint"]] for item in subscriptions],
        "tags": tags(topic["Tags"]),
    }


def _topic_arn(name: str) -> str:
    return f"arn:aws:sns:us-east-1:{ACCOUNT}:{name}"


def _rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "schedule": rule.get("ScheduleExpression"),
        "pattern": rule.get("EventPattern"),
        "state": rule["State"],
        "description": rule["Description"],
        "targets": rule["Targets"],
        "tags": tags(rule["Tags"]),
    }


def _as_codebuild_says(build: Mapping[str, Any]) -> dict[str, Any]:
    """CloudFormation's words begin with a capital, CodeBuild's do not."""
    small: dict[str, Any] = _uncapitalised(build)
    small["source"]["buildspec"] = small["source"].pop("buildSpec")
    if "triggers" in small:
        small["webhook"] = small.pop("triggers")
    return small


def _uncapitalised(value: Any) -> Any:
    if isinstance(value, dict):
        return {key[0].lower() + key[1:]: _uncapitalised(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_uncapitalised(inner) for inner in value]
    return value


class _Made:
    """A template with its parameters filled in."""

    def __init__(self, template: Mapping[str, Any], chosen: Mapping[str, str]) -> None:
        self._template = template
        types = {key: row["Type"] for key, row in template["Parameters"].items()}
        self._values: dict[str, Any] = dict(_PSEUDO)
        self._values |= {
            key: int(value) if types[key] == "Number" else value for key, value in chosen.items()
        }

    def properties(self, key: str) -> Any:
        return self._carried_out(self._template["Resources"][key]["Properties"])

    def of_type(self, kind: str) -> list[Any]:
        resources = self._template["Resources"].items()
        return [
            self.properties(key)
            for key, row in resources
            if row["Type"] == kind and ("Condition" not in row or self._holds(row["Condition"]))
        ]

    def attribute(self, path: str) -> str:
        key, _, attribute = path.partition(".")
        name = self._ref(key)
        match attribute, self._template["Resources"][key]["Type"]:
            case "Arn", "AWS::S3::Bucket":
                return f"arn:aws:s3:::{name}"
            case "Arn", "AWS::ECR::Repository":
                return f"arn:aws:ecr:us-east-1:{ACCOUNT}:repository/{name}"
            case "RepositoryUri", "AWS::ECR::Repository":
                return f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/{name}"
            case "Arn", "AWS::IAM::Role":
                return f"arn:aws:iam::{ACCOUNT}:role/{name}"
            case "Arn", "AWS::CodeBuild::Project":
                return f"arn:aws:codebuild:us-east-1:{ACCOUNT}:project/{name}"
        raise AssertionError(f"what is {path}?")

    def _ref(self, key: str) -> Any:
        if key in self._values:
            return self._values[key]
        properties = self._template["Resources"][key]["Properties"]
        names = [
            word
            for word in ("BucketName", "RepositoryName", "RoleName", "LogGroupName", "TopicName", "Name")
            if word in properties
        ]
        name = self._carried_out(properties[names[0]])
        return _topic_arn(name) if names[0] == "TopicName" else name

    def _holds(self, condition: Any) -> bool:
        match condition:
            case str():
                return self._holds(self._template["Conditions"][condition])
            case {"!Condition": str(name)}:
                return self._holds(name)
            case {"!And": list(inner)}:
                return all(self._holds(one) for one in inner)
            case {"!Not": [inner]}:
                return not self._holds(inner)
            case {"!Equals": [left, right]}:
                return str(self._carried_out(left)) == str(self._carried_out(right))
        raise AssertionError(f"what is {condition}?")

    def _carried_out(self, value: Any) -> Any:
        match value:
            case {"!Ref": str(key)}:
                return self._ref(key)
            case {"!GetAtt": str(path)}:
                return self.attribute(path)
            case {"!If": [condition, yes, no]}:
                return self._carried_out(yes if self._holds(condition) else no)
            case {"!Sub": str(text)}:
                return re.sub(r"\$\{([^}]+)\}", lambda result: str(self._named(result[1])), text)
            case dict():
                results = {key: self._carried_out(inner) for key, inner in value.items()}
                return {key: inner for key, inner in results.items() if inner is not _GONE}
            case list():
                return [self._carried_out(inner) for inner in value]
        return value

    def _named(self, name: str) -> Any:
        return self.attribute(name) if "." in name else self._ref(name)
