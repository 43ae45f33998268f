"""How is an add-on of EKS installed or changed, and how is that taken back? By EKS itself, and waited for."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from paceline.app.fix_record import Record, Step
from paceline.errors import NotReadyError
from paceline.kube.checks.eks_facts import Addon, AddonWanted

if TYPE_CHECKING:
    from paceline.cluster.eks_door import Aws


def addon_there(aws: "Aws", wanted: AddonWanted) -> Addon | None:
    from paceline.cluster.eks_door import AbsentError
    from paceline.cluster.eks_look import addon_of

    try:
        return addon_of(aws, wanted.cluster, wanted.name)
    except AbsentError:
        return None


def is_as_wanted(aws: "Aws", wanted: AddonWanted) -> bool:
    found = addon_there(aws, wanted)
    return found is not None and found.version == wanted.version and found.status in ("ACTIVE", "UPDATING")


def change_addon(aws: "Aws", name: str, wanted: AddonWanted, record: Record) -> None:
    """Raises AwsError; what was written down until then can be undone. Settings of others are preserved."""
    before = addon_there(aws, wanted)
    step = Step(
        name=name,
        verb="addon",
        object=wanted.name,
        cluster=wanted.cluster,
        region=wanted.region,
        version="" if before is None else before.version,
        wanted=wanted.version,
    )
    number = record.begin(step, None if before is None else asdict(before))
    asked = {"clusterName": wanted.cluster, "addonName": wanted.name, "addonVersion": wanted.version}
    if before is None:
        aws.ask("eks", "create_addon", **asked, resolveConflicts="NONE")
    else:
        aws.ask("eks", "update_addon", **asked, resolveConflicts="PRESERVE")
    aws.wait_for_addon(wanted.cluster, wanted.name, "addon_active")
    after = addon_there(aws, wanted)
    record.end(number, replace(step, state="done"), None if after is None else asdict(after))


def take_back_addon(aws: "Aws | None", step: Step) -> str:
    """To the version before; or away, if there was none. Why not; empty: it is."""
    if aws is None:
        hint = f"say --eks {step.cluster} --region {step.region}"
        raise NotReadyError(f"add-on {step.object} is Amazon's, and nobody said how to reach it", hint)
    here = AddonWanted(cluster=step.cluster, region=step.region, name=step.object, version=step.version)
    found = addon_there(aws, here)
    if found is None or found.version == step.version:
        return ""  # it never came to be, or somebody was quicker
    if step.wanted and found.version != step.wanted:
        return f"add-on {step.object} is {found.version}, and this fix made {step.wanted}"
    asked = {"clusterName": step.cluster, "addonName": step.object}
    if not step.version:
        aws.ask("eks", "delete_addon", **asked)
        aws.wait_for_addon(step.cluster, step.object, "addon_deleted")
        return ""
    aws.ask("eks", "update_addon", **asked, addonVersion=step.version, resolveConflicts="PRESERVE")
    aws.wait_for_addon(step.cluster, step.object, "addon_active")
    return ""
