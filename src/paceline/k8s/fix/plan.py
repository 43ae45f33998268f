"""Plan of fixes, from the findings of a check and from what was asked for, in order of execution.

Only what is wrong is mended: a note is no reason to write. What cannot be done safely is a command to read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.k8s.charts import EFA_PLUGIN, GPU_PLUGIN, KUBERAY, TRAINER
from paceline.k8s.check.devices import why_no_efa_plugin, why_no_gpu_plugin
from paceline.k8s.check.findings import Finding, Level
from paceline.k8s.check.snapshot import Snapshot, name_of
from paceline.k8s.fix.actions import ByHand, ChangeAddon, Create, Fix, Install, RemovePod, object_label
from paceline.k8s.objects import mapping
from paceline.k8s.rbac import all_rights_for, role_and_binding
from paceline.k8s.render.pod import USER, Object
from paceline.k8s.spec.job import Target

MANAGED_BY = "app.kubernetes.io/managed-by"
PACELINE_LABELS: Object = {"app.kubernetes.io/name": "paceline", MANAGED_BY: "paceline"}
RUNTIME = "paceline-torch"
HF_SECRET = "hf-token"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    name: str
    size: str
    is_shared: bool = False  # written to by several nodes
    is_read_only: bool = False  # by jobs; whoever fills it writes to it, too
    storage_class: str | None = None


def namespace_manifest(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": dict(PACELINE_LABELS)},
    }


def claim_manifest(asked: ClaimRequest, space: str) -> Object:
    storage: Object = {} if asked.storage_class is None else {"storageClassName": asked.storage_class}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _about(asked.name, space),
        "spec": {
            "accessModes": list(_modes(asked)),
            **storage,
            "resources": {"requests": {"storage": asked.size}},
        },
    }


def _modes(asked: ClaimRequest) -> list[str]:
    if asked.is_read_only:
        return ["ReadOnlyMany", "ReadWriteMany"]
    return ["ReadWriteMany"] if asked.is_shared else ["ReadWriteOnce"]


def hugging_face_secret(token: str, space: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _about(HF_SECRET, space),
        "type": "Opaque",
        "stringData": {"token": token},
    }


def identity_manifests(account: str, space: str, target: Target) -> list[Object]:
    """An account, and a role that lets it run, follow and remove jobs of one kind in one namespace."""
    name = f"paceline-{target.value}"
    subject: Object = {"kind": "ServiceAccount", "name": account, "namespace": space}
    role, binding = role_and_binding(name, all_rights_for(target.resource), space, subject)
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _about(account, space)},
        {**role, "metadata": _about(name, space)},
        {**binding, "metadata": _about(f"{name}-{account}", space)},
    ]


def runtime_manifest(image: str, space: str) -> Object:
    """For torch, in one namespace: a TrainJob says image, command and size itself."""
    user: Object = {"runAsNonRoot": True, "runAsUser": USER, "fsGroup": USER}
    secure: Object = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    sizes: Object = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    pod: Object = {
        "automountServiceAccountToken": False,
        "securityContext": {**user, "seccompProfile": {"type": "RuntimeDefault"}},
        "restartPolicy": "Never",
        "containers": [{"name": "node", "image": image, "resources": sizes, "securityContext": secure}],
    }
    step: Object = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    job: Object = {"metadata": step, "spec": {"backoffLimit": 0, "template": {"spec": pod}}}
    about = _about(RUNTIME, space)
    about["labels"] = {**PACELINE_LABELS, "trainer.kubeflow.org/framework": "torch"}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": about,
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}},
        },
    }


def _about(name: str, space: str) -> Object:
    return {"name": name, "namespace": space, "labels": dict(PACELINE_LABELS)}


NAMES = (
    *("namespace", "claim", "secret", "rights", "runtime", "helpers"),
    *("kuberay", "trainer", "gpu-plugin", "efa-plugin", "addon", "by-hand"),
)
_CHARTS = {"kuberay": KUBERAY, "trainer": TRAINER, "gpu-plugin": GPU_PLUGIN, "efa-plugin": EFA_PLUGIN}


@dataclass(frozen=True, slots=True, kw_only=True)
class FixRequest:
    """What the user wants beside what the check finds."""

    claims: tuple[ClaimRequest, ...] = ()
    account: str | None = None
    target: Target = Target.JOB
    image: str | None = None  # of the runtime
    hf_token: str | None = None
    only: tuple[str, ...] = ()  # empty: all of NAMES


def plan_fixes(seen: Snapshot, findings: Sequence[Finding], asked: FixRequest) -> list[Fix]:
    wrong = [one for one in findings if one.level in (Level.PROBLEM, Level.WARNING)]
    cures = {one.cure: one for one in wrong if one.cure}
    found = [*_namespace(seen, cures), *_asked(seen, asked)]
    if "runtime" in cures:
        found.append(_runtime(seen, cures["runtime"], asked))
    installs = [fix for name in _CHARTS if name in cures for fix in _install(seen, name, cures[name])]
    addons = [fix for one in wrong for fix in _addon(one)]
    hands = [_by_hand(one) for one in wrong if one.cure == "" and one.command and not _covered(one, addons)]
    # Two findings may name one command, and what is typed once is enough.
    everything = list({(fix.name, fix.what): fix for fix in [*found, *installs, *addons, *hands]}.values())
    return [fix for fix in everything if not asked.only or fix.name in asked.only]


def finished_helpers(pods: Sequence[Object]) -> list[Fix]:
    """`pods`: those with the labels of transfer/helper.py. One that is at work is left alone."""
    return [
        Fix(
            name="helpers",
            what=f"remove Pod {name_of(pod)}, which carried files and has ended",
            why="it holds a volume and a place in the quota",
            action=RemovePod({"apiVersion": "v1", "kind": "Pod", **pod}),
        )
        for pod in pods
        if mapping(pod, "status").get("phase") in ("Succeeded", "Failed")
    ]


def _namespace(seen: Snapshot, cures: dict[str, Finding]) -> Iterator[Fix]:
    if "namespace" in cures:
        yield _create("namespace", namespace_manifest(seen.namespace), cures["namespace"].what)


def _asked(seen: Snapshot, asked: FixRequest) -> Iterator[Fix]:
    there = {name_of(one) for one in seen.of("persistentvolumeclaims")}
    for claim in asked.claims:
        if claim.name not in there:
            yield _create(
                "claim", claim_manifest(claim, seen.namespace), "it was asked for, and is not there"
            )
    if asked.hf_token is not None:
        secret = hugging_face_secret(asked.hf_token, seen.namespace)
        yield _create("secret", secret, "it was asked for: the token of your login on this machine")
    if asked.account is not None:
        for one in identity_manifests(asked.account, seen.namespace, asked.target):
            yield _create("rights", one, f"{asked.account} shall run a {asked.target.value}")


def _runtime(seen: Snapshot, finding: Finding, asked: FixRequest) -> Fix:
    if asked.image is None:  # Trainer's own runtimes come with its chart
        return Fix(
            name="trainer", what=_installs(TRAINER.deployed), why=finding.what, action=Install(TRAINER)
        )
    return _create("runtime", runtime_manifest(asked.image, seen.namespace), finding.what)


def _install(seen: Snapshot, name: str, finding: Finding) -> Iterator[Fix]:
    chart = _CHARTS[name]
    against = {"gpu-plugin": why_no_gpu_plugin, "efa-plugin": why_no_efa_plugin}.get(name)
    reason = "" if against is None else against(seen)
    if reason:
        what = f"{finding.what}; nothing is installed: {reason}"
        yield Fix(name="by-hand", what=what, why=finding.why, action=ByHand(finding.command))
        return
    yield Fix(name=name, what=_installs(chart.deployed), why=finding.what, action=Install(chart))


def _addon(finding: Finding) -> Iterator[Fix]:
    if finding.addon is not None:
        wanted = finding.addon
        verb = f"update {wanted.name} from {wanted.before}" if wanted.before else f"install {wanted.name}"
        what = f"{verb} to {wanted.version}" if wanted.before else f"{verb} {wanted.version}"
        where = f"as an add-on of {wanted.cluster}"
        yield Fix(name="addon", what=f"{what}, {where}", why=finding.what, action=ChangeAddon(wanted))


def _covered(finding: Finding, addons: Sequence[Fix]) -> bool:
    """What is planned need not be typed by a person as well."""
    names = [fix.action.wanted.name for fix in addons if isinstance(fix.action, ChangeAddon)]
    return any(f"--addon-name {name}" in finding.command for name in names)


def _by_hand(finding: Finding) -> Fix:
    return Fix(name="by-hand", what=finding.what, why=finding.why, action=ByHand(finding.command))


def _create(name: str, manifest: Object, why: str) -> Fix:
    return Fix(name=name, what=f"create {object_label(manifest)}", why=why, action=Create(manifest))


def _installs(chart: str) -> str:
    return f"install {chart} for the whole cluster"
