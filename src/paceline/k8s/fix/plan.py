"""Plan of fixes, from the findings of a check and the request, in order of execution.

Only problems are fixed, never notes. An unsafe fix becomes a command for a person.
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
    is_read_only: bool = False  # for jobs; an upload writes to it, too
    storage_class: str | None = None


def namespace_manifest(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": dict(PACELINE_LABELS)},
    }


def claim_manifest(request: ClaimRequest, space: str) -> Object:
    storage: Object = {} if request.storage_class is None else {"storageClassName": request.storage_class}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _about(request.name, space),
        "spec": {
            "accessModes": list(_modes(request)),
            **storage,
            "resources": {"requests": {"storage": request.size}},
        },
    }


def _modes(request: ClaimRequest) -> list[str]:
    if request.is_read_only:
        return ["ReadOnlyMany", "ReadWriteMany"]
    return ["ReadWriteMany"] if request.is_shared else ["ReadWriteOnce"]


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
    """Runtime for torch in one namespace: a TrainJob sets image, command and size."""
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
    metadata = _about(RUNTIME, space)
    metadata["labels"] = {**PACELINE_LABELS, "trainer.kubeflow.org/framework": "torch"}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": metadata,
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
    """Requests of the user in addition to the findings of the check."""

    claims: tuple[ClaimRequest, ...] = ()
    account: str | None = None
    target: Target = Target.JOB
    image: str | None = None  # of the runtime
    hf_token: str | None = None
    only: tuple[str, ...] = ()  # empty: all of NAMES


def plan_fixes(seen: Snapshot, findings: Sequence[Finding], request: FixRequest) -> list[Fix]:
    wrong = [finding for finding in findings if finding.level in (Level.PROBLEM, Level.WARNING)]
    cures = {finding.cure: finding for finding in wrong if finding.cure}
    fixes = [*_namespace(seen, cures), *_requested(seen, request)]
    if "runtime" in cures:
        fixes.append(_runtime(seen, cures["runtime"], request))
    installs = [fix for name in _CHARTS if name in cures for fix in _install(seen, name, cures[name])]
    addons = [fix for finding in wrong for fix in _addon(finding)]
    hands = [
        _by_hand(finding)
        for finding in wrong
        if finding.cure == "" and finding.command and not _covered(finding, addons)
    ]
    # Two findings may name one command, and what is typed once is enough.
    everything = list({(fix.name, fix.what): fix for fix in [*fixes, *installs, *addons, *hands]}.values())
    return [fix for fix in everything if not request.only or fix.name in request.only]


def finished_helpers(pods: Sequence[Object]) -> list[Fix]:
    """`pods`: those with the labels of transfer/helper.py. One that is at work is left alone."""
    return [
        Fix(
            name="helpers",
            what=f"remove Pod {name_of(pod)}, a finished transfer pod",
            why="it occupies a volume and quota",
            action=RemovePod({"apiVersion": "v1", "kind": "Pod", **pod}),
        )
        for pod in pods
        if mapping(pod, "status").get("phase") in ("Succeeded", "Failed")
    ]


def _namespace(seen: Snapshot, cures: dict[str, Finding]) -> Iterator[Fix]:
    if "namespace" in cures:
        yield _create("namespace", namespace_manifest(seen.namespace), cures["namespace"].what)


def _requested(seen: Snapshot, request: FixRequest) -> Iterator[Fix]:
    existing = {name_of(claim) for claim in seen.of("persistentvolumeclaims")}
    for claim in request.claims:
        if claim.name not in existing:
            yield _create(
                "claim", claim_manifest(claim, seen.namespace), "it was requested, and does not exist"
            )
    if request.hf_token is not None:
        secret = hugging_face_secret(request.hf_token, seen.namespace)
        yield _create("secret", secret, "it was requested: the token of your login on this machine")
    if request.account is not None:
        for manifest in identity_manifests(request.account, seen.namespace, request.target):
            yield _create(
                "rights", manifest, f"{request.account} must be able to run a {request.target.value}"
            )


def _runtime(seen: Snapshot, finding: Finding, request: FixRequest) -> Fix:
    if request.image is None:  # Trainer's chart installs its own runtimes
        return Fix(
            name="trainer", what=_installs(TRAINER.deployed), why=finding.what, action=Install(TRAINER)
        )
    return _create("runtime", runtime_manifest(request.image, seen.namespace), finding.what)


def _install(seen: Snapshot, name: str, finding: Finding) -> Iterator[Fix]:
    chart = _CHARTS[name]
    against = {"gpu-plugin": why_no_gpu_plugin, "efa-plugin": why_no_efa_plugin}.get(name)
    reason = "" if against is None else against(seen)
    if reason:
        message = f"{finding.what}; nothing is installed: {reason}"
        yield Fix(name="by-hand", what=message, why=finding.why, action=ByHand(finding.command))
        return
    yield Fix(name=name, what=_installs(chart.deployed), why=finding.what, action=Install(chart))


def _addon(finding: Finding) -> Iterator[Fix]:
    if finding.addon is not None:
        addon = finding.addon
        verb = f"update {addon.name} from {addon.before}" if addon.before else f"install {addon.name}"
        message = f"{verb} to {addon.version}" if addon.before else f"{verb} {addon.version}"
        where = f"as an add-on of {addon.cluster}"
        yield Fix(name="addon", what=f"{message}, {where}", why=finding.what, action=ChangeAddon(addon))


def _covered(finding: Finding, addons: Sequence[Fix]) -> bool:
    """Whether a planned fix covers the finding, so that no command for a person is needed."""
    names = [fix.action.wanted.name for fix in addons if isinstance(fix.action, ChangeAddon)]
    return any(f"--addon-name {name}" in finding.command for name in names)


def _by_hand(finding: Finding) -> Fix:
    return Fix(name="by-hand", what=finding.what, why=finding.why, action=ByHand(finding.command))


def _create(name: str, manifest: Object, why: str) -> Fix:
    return Fix(name=name, what=f"create {object_label(manifest)}", why=why, action=Create(manifest))


def _installs(chart: str) -> str:
    return f"install {chart} for the whole cluster"
