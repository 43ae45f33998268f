"""What does every pod of ours carry, whichever kind of object it belongs to?

Strict by default: a pod passes Pod Security "restricted", has no API token, and
takes every secret by reference. `relaxed` says in words what `compat` gives up.
"""

from paceline.kube.intent import Intent, Profile, Size
from paceline.kube.well_known import GPU
from paceline.plan.codec import Json

Object = dict[str, Json]

USER = 1000  # of our image, and of rayproject's
GRACE_S = 120  # time for a last checkpoint after SIGTERM


def labels(intent: Intent) -> Object:
    """One selector finds every object of a job, of whatever kind."""
    return {
        "app.kubernetes.io/name": "paceline",
        "app.kubernetes.io/instance": intent.name,
        "app.kubernetes.io/managed-by": "paceline",
    }


def metadata(intent: Intent, name: str) -> Object:
    where: Object = {} if intent.namespace is None else {"namespace": intent.namespace}
    return {"name": name, **where, "labels": labels(intent)}


def pod(intent: Intent, containers: list[Object], more: Object, *, needs_api: bool = False) -> Object:
    """A pod template with `more` fields. `needs_api`: something in it talks to Kubernetes by a token."""
    secrets: Object = {}
    if intent.pull_secret is not None:
        secrets = {"imagePullSecrets": [{"name": intent.pull_secret}]}
    return {
        # A mesh's sidecar breaks the connections of workers to each other.
        "metadata": {"labels": labels(intent), "annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": {
            **({} if needs_api else {"automountServiceAccountToken": False}),
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_S,
            "securityContext": pod_security(intent),
            **secrets,
            **more,
            "containers": list(containers),
        },
    }


def container(intent: Intent, name: str, asked: Object, **more: Json) -> Object:
    """`asked` is its resources."""
    variables: list[Json] = [{"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}]
    for one in intent.secrets:
        reference: Object = {"secretKeyRef": {"name": one.secret, "key": one.key}}
        variables.append({"name": one.name, "valueFrom": reference})
    return {
        "name": name,
        "image": intent.image,
        "imagePullPolicy": "IfNotPresent",
        **more,
        "env": variables,
        "resources": asked,
        **container_security(intent),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def resources(size: Size) -> Object:
    """Requests equal limits: Ray reads them to know what it has, and devices must."""
    asked: Object = {"cpu": str(size.cpus), "memory": size.memory}
    if size.gpus:
        asked[GPU] = str(size.gpus)
    return {"requests": dict(asked), "limits": dict(asked)}


def gpu_toleration(size: Size) -> Object:
    """Nodes with GPUs are usually kept free of everybody who does not say this."""
    if not size.gpus:
        return {}
    return {"tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]}


def pod_security(intent: Intent) -> Object:
    seccomp: Object = {"seccompProfile": {"type": "RuntimeDefault"}}
    if intent.profile is Profile.COMPAT:
        return seccomp
    user: Object = {"runAsNonRoot": True, "runAsUser": USER, "fsGroup": USER}
    return {**user, "fsGroupChangePolicy": "OnRootMismatch", **seccomp}


def container_security(intent: Intent) -> Object:
    if intent.profile is Profile.COMPAT:
        return {}
    return {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}


def relaxed(profile: Profile) -> list[str]:
    """What a profile gives up, in words."""
    if profile is Profile.STRICT:
        return []
    return [
        "containers may run as root (no runAsNonRoot, no runAsUser)",
        "programs in them may gain privileges (no allowPrivilegeEscalation: false)",
        "they keep the default capabilities (no drop: [ALL])",
        "so a namespace that enforces Pod Security restricted refuses these pods",
    ]
