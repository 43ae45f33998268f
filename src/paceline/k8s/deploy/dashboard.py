"""The objects of a dashboard: a Deployment, its Service, its network policy.

It shows the runs that are on a claim, and can do nothing to them: the volume is mounted read-only, and the
token that opens the page is a file from a Secret. There is one pod and no budget: a budget for one pod either
keeps a machine from being emptied or says nothing. See docs/guides/deploy.md.
"""

from dataclasses import dataclass

from paceline.k8s.deploy import service
from paceline.k8s.deploy import service as kustomize
from paceline.k8s.render.pod import Object
from paceline.plan.codec import Json

PORT = 8642
RUNS, SECRET, KEY = "/runs", "/token", "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    namespace: str
    image: str
    claim: str  # where the folders of runs are
    token_secret: str
    name: str = "paceline-dashboard"
    path: str = ""  # on the claim; empty: its top
    cpu: str = "100m"
    memory: str = "512Mi"
    pull_secret: str | None = None
    from_namespaces: tuple[str, ...] = ()  # whose pods may reach it, such as an ingress controller's
    hosts: tuple[str, ...] = ()  # more names by which browsers call it

    @property
    def host(self) -> str:
        return f"{self.name}.{self.namespace}.svc"


def render(asked: Dashboard) -> dict[str, Object]:
    """By the name of its file, in the order in which they must exist."""
    return {
        "service.yaml": _service(asked),
        "networkpolicy.yaml": _policy(asked),
        "deployment.yaml": _deployment(asked),
    }


def kustomization(asked: Dashboard) -> Object:
    return kustomize.kustomization(asked.namespace, render(asked))


def secret_commands(asked: Dashboard) -> list[str]:
    """What makes the token; it is never on a command line, where others could read it."""
    make = "python -c 'import secrets; print(secrets.token_urlsafe(24))'"
    create = f"kubectl -n {asked.namespace} create secret generic {asked.token_secret}"
    return [f"(umask 077; {make} > token)", f"{create} --from-file={KEY}=token"]


def access_commands(asked: Dashboard) -> list[str]:
    return [
        f"kubectl -n {asked.namespace} port-forward service/{asked.name} {PORT}:{PORT}",
        f'open "http://localhost:{PORT}/?token=$(cat token)"',
    ]


def labels(asked: Dashboard) -> Object:
    return service.labels("dashboard", asked.name)


def _head(asked: Dashboard, version: str, kind: str) -> Object:
    return service.object_head("dashboard", asked.name, asked.namespace, version, kind)


def _service(asked: Dashboard) -> Object:
    """On the port that the page has: a request must name a host and a port that it knows."""
    return {
        **_head(asked, "v1", "Service"),
        "spec": {
            "type": "ClusterIP",
            "selector": labels(asked),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }


def _policy(asked: Dashboard) -> Object:
    """In: whom the user named; `kubectl port-forward` comes by another way. Out: nobody, it reads files."""
    spaces: list[Json] = [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
        for name in asked.from_namespaces
    ]
    port: list[Json] = [{"port": PORT, "protocol": "TCP"}]
    allowed: list[Json] = [{"from": spaces, "ports": port}] if spaces else []
    return {
        **_head(asked, "networking.k8s.io/v1", "NetworkPolicy"),
        "spec": {
            "podSelector": {"matchLabels": labels(asked)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": allowed,
            "egress": [],
        },
    }


def _deployment(asked: Dashboard) -> Object:
    return {
        **_head(asked, "apps/v1", "Deployment"),
        "spec": {
            "replicas": 1,
            # A volume of one machine cannot be at two: the old pod goes before the new one comes.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels(asked)},
            "template": {"metadata": {"labels": labels(asked)}, "spec": _pod(asked)},
        },
    }


def _pod(asked: Dashboard) -> Object:
    # Read by the group alone: a token that others could read is refused.
    token: Object = {"secretName": asked.token_secret, "defaultMode": 0o440, "items": [_item()]}
    return {
        **service.restricted_pod(asked.pull_secret),
        "containers": [_container(asked)],
        "volumes": [
            {"name": "runs", "persistentVolumeClaim": {"claimName": asked.claim, "readOnly": True}},
            {"name": "token", "secret": token},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }


def _item() -> Object:
    return {"key": KEY, "path": KEY}


def _container(asked: Dashboard) -> Object:
    # Its page and all else need the token, which a probe has not.
    answers: Object = {"httpGet": {"path": "/healthz", "port": "http"}, "timeoutSeconds": 5}
    return {
        "name": "dashboard",
        "image": asked.image,
        "imagePullPolicy": "IfNotPresent",
        # It prints its address with the token in it, and whoever may read logs could read it there.
        "command": ["sh", "-c", 'exec "$0" "$@" > /dev/null', "paceline"],
        "args": list(arguments(asked)),
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": service.resource_requirements(asked.cpu, asked.memory),
        "startupProbe": {**answers, "periodSeconds": 2, "failureThreshold": 60},
        "livenessProbe": {**answers, "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**answers, "periodSeconds": 5},
        "securityContext": dict(service.CONTAINER_SECURITY),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            _runs(asked),
            {"name": "token", "mountPath": SECRET, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _runs(asked: Dashboard) -> Object:
    part: Object = {"subPath": asked.path} if asked.path else {}
    return {"name": "runs", "mountPath": RUNS, **part, "readOnly": True}


def arguments(asked: Dashboard) -> list[str]:
    """What follows `paceline`."""
    words = ["dashboard", RUNS, "--host", "0.0.0.0", "--port", str(PORT), "--readonly"]
    words += ["--token-file", f"{SECRET}/{KEY}"]
    for name in (asked.host, *asked.hosts):
        words += ["--name", name]
    return words
