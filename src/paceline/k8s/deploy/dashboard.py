"""The objects of a dashboard: a Deployment, its Service, its network policy.

It shows the runs that are on a claim, and can do nothing to them: the volume is mounted read-only, and the
token that opens the page is a file from a Secret. There is one pod and no disruption budget: a budget for one
pod either blocks draining its node or has no effect. See docs/guides/coordinator.md.
"""

from dataclasses import dataclass

from paceline.k8s.deploy import service
from paceline.k8s.deploy import service as kustomize
from paceline.k8s.render.pod import Object
from paceline.plan.codec import Json

PORT = 8642
RUNS = "/runs"
SECRET = "/token"
KEY = "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    namespace: str
    image: str
    claim: str  # holds the run folders
    token_secret: str
    name: str = "paceline-dashboard"
    path: str = ""  # on the claim; empty: its top
    cpu: str = "100m"
    memory: str = "512Mi"
    pull_secret: str | None = None
    from_namespaces: tuple[str, ...] = ()  # their pods may reach it, such as an ingress controller's
    hosts: tuple[str, ...] = ()  # more names by which browsers call it

    @property
    def host(self) -> str:
        return f"{self.name}.{self.namespace}.svc"


def render(options: Dashboard) -> dict[str, Object]:
    """Manifests by file name, in order of creation."""
    return {
        "service.yaml": _service(options),
        "networkpolicy.yaml": _policy(options),
        "deployment.yaml": _deployment(options),
    }


def kustomization(options: Dashboard) -> Object:
    return kustomize.kustomization(options.namespace, render(options))


def secret_commands(options: Dashboard) -> list[str]:
    """Commands that create the token; it is never on a command line, where others could read it."""
    make = "python -c 'import secrets; print(secrets.token_urlsafe(24))'"
    create = f"kubectl -n {options.namespace} create secret generic {options.token_secret}"
    return [f"(umask 077; {make} > token)", f"{create} --from-file={KEY}=token"]


def access_commands(options: Dashboard) -> list[str]:
    return [
        f"kubectl -n {options.namespace} port-forward service/{options.name} {PORT}:{PORT}",
        f'open "http://localhost:{PORT}/?token=$(cat token)"',
    ]


def labels(options: Dashboard) -> Object:
    return service.labels("dashboard", options.name)


def _head(options: Dashboard, version: str, kind: str) -> Object:
    return service.object_head("dashboard", options.name, options.namespace, version, kind)


def _service(options: Dashboard) -> Object:
    """On the dashboard's own port: a request must name a host and a port that it allows."""
    return {
        **_head(options, "v1", "Service"),
        "spec": {
            "type": "ClusterIP",
            "selector": labels(options),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }


def _policy(options: Dashboard) -> Object:
    """Ingress: the namespaces that the user named; `kubectl port-forward` bypasses it. Egress: none."""
    spaces: list[Json] = [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
        for name in options.from_namespaces
    ]
    port: list[Json] = [{"port": PORT, "protocol": "TCP"}]
    allowed: list[Json] = [{"from": spaces, "ports": port}] if spaces else []
    return {
        **_head(options, "networking.k8s.io/v1", "NetworkPolicy"),
        "spec": {
            "podSelector": {"matchLabels": labels(options)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": allowed,
            "egress": [],
        },
    }


def _deployment(options: Dashboard) -> Object:
    return {
        **_head(options, "apps/v1", "Deployment"),
        "spec": {
            "replicas": 1,
            # A volume may attach to one node only: the old pod is removed before the new one starts.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels(options)},
            "template": {"metadata": {"labels": labels(options)}, "spec": _pod(options)},
        },
    }


def _pod(options: Dashboard) -> Object:
    # Read by the group alone: a token that others could read is refused.
    token: Object = {"secretName": options.token_secret, "defaultMode": 0o440, "items": [_item()]}
    return {
        **service.restricted_pod(options.pull_secret),
        "containers": [_container(options)],
        "volumes": [
            {"name": "runs", "persistentVolumeClaim": {"claimName": options.claim, "readOnly": True}},
            {"name": "token", "secret": token},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }


def _item() -> Object:
    return {"key": KEY, "path": KEY}


def _container(options: Dashboard) -> Object:
    # Its page and all else need the token, which a probe has not.
    answers: Object = {"httpGet": {"path": "/healthz", "port": "http"}, "timeoutSeconds": 5}
    return {
        "name": "dashboard",
        "image": options.image,
        "imagePullPolicy": "IfNotPresent",
        # Its address, which it prints, has the token in it; anyone who may read logs could read it there.
        "command": ["sh", "-c", 'exec "$0" "$@" > /dev/null', "paceline"],
        "args": list(arguments(options)),
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": service.resource_requirements(options.cpu, options.memory),
        "startupProbe": {**answers, "periodSeconds": 2, "failureThreshold": 60},
        "livenessProbe": {**answers, "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**answers, "periodSeconds": 5},
        "securityContext": dict(service.CONTAINER_SECURITY),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            _runs(options),
            {"name": "token", "mountPath": SECRET, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _runs(options: Dashboard) -> Object:
    part: Object = {"subPath": options.path} if options.path else {}
    return {"name": "runs", "mountPath": RUNS, **part, "readOnly": True}


def arguments(options: Dashboard) -> list[str]:
    """Arguments of `paceline`."""
    argv = ["dashboard", RUNS, "--host", "0.0.0.0", "--port", str(PORT), "--readonly"]
    argv += ["--token-file", f"{SECRET}/{KEY}"]
    for name in (options.host, *options.hosts):
        argv += ["--name", name]
    return argv
