"""Metrics of a job: the pod that serves `/metrics`, and the PodMonitor by which Prometheus finds it.

The process that writes the run folder serves them: rank 0, or the command of the run. Every request carries
a token, which is a file of a Secret in the pod; a PodMonitor names the same Secret. Prometheus without its
operator finds the pod by the `prometheus.io/` annotations (examples/deploy/monitoring).
"""

from paceline.k8s.kinds import POD_MONITOR
from paceline.k8s.render.pod import Object, labels, metadata
from paceline.k8s.spec.job import METRICS, JobSpec, MetricsSpec, Profile, Rendezvous, Target
from paceline.plan.codec import Json

PORT_NAME = "metrics"
SERVES = "paceline.dev/metrics"  # label of pods that serve metrics
FIRST = "first"  # one pod, or that with index 0 of a Job whose pods have one template
ANY = "any"  # rank 0 may be in any pod
INDEX = "batch.kubernetes.io/job-completion-index"
_SCRAPE_INTERVAL = "5s"


def serving(intent: JobSpec, template: Object, *, which: str = FIRST) -> Object:
    """The pod template, with the port, the token and the annotations if the job serves metrics."""
    metrics = intent.metrics
    if metrics is None:
        return template
    about = _mapping(template, "metadata")
    spec = _mapping(template, "spec")
    container, *others = _list(spec, "containers")
    assert isinstance(container, dict), "a container is a mapping"
    mount: Object = {"name": PORT_NAME, "mountPath": METRICS, "readOnly": True}
    port: Object = {"containerPort": metrics.port, "name": PORT_NAME}
    served: Object = {**container, "ports": [*_list(container, "ports"), port]}
    served["volumeMounts"] = [*_list(container, "volumeMounts"), mount]
    return {
        **template,
        "metadata": {
            **about,
            "labels": {**_mapping(about, "labels"), SERVES: which},
            "annotations": {**_mapping(about, "annotations"), **_annotations(metrics)},
        },
        "spec": {
            **spec,
            "containers": [served, *others],
            "volumes": [*_list(spec, "volumes"), _token(intent, metrics)],
        },
    }


def _mapping(obj: Object, name: str) -> Object:
    value = obj.get(name, {})
    assert isinstance(value, dict), f"{name} is a mapping"
    return value


def _list(obj: Object, name: str) -> list[Json]:
    value = obj.get(name, [])
    assert isinstance(value, list), f"{name} is a list"
    return value


def render_monitor(intent: JobSpec, target: Target) -> list[Object]:
    """The PodMonitor of Prometheus' operator, on request."""
    metrics = intent.metrics
    if metrics is None or not metrics.has_monitor:
        return []
    secret: Object = {"name": metrics.secret, "key": metrics.key}
    endpoint: Object = {"port": PORT_NAME, "path": "/metrics", "interval": _SCRAPE_INTERVAL}
    endpoint["authorization"] = {"type": "Bearer", "credentials": secret}
    selected: Object = {**labels(intent), SERVES: which_pod(intent, target)}
    if is_indexed(intent, target):
        selected[INDEX] = "0"
    return [
        {
            "apiVersion": POD_MONITOR.api_version,
            "kind": POD_MONITOR.name,
            "metadata": metadata(intent, intent.name),
            "spec": {"selector": {"matchLabels": selected}, "podMetricsEndpoints": [endpoint]},
        }
    ]


def scraping(intent: JobSpec) -> list[Json]:
    """Ingress rule of a NetworkPolicy: Prometheus, in any namespace. The token protects the metrics."""
    metrics = intent.metrics
    return [] if metrics is None else [{"ports": [{"port": metrics.port, "protocol": "TCP"}]}]


def which_pod(intent: JobSpec, target: Target) -> str:
    """Value of the label SERVES."""
    torch = intent.torch
    is_c10d = torch is not None and torch.rendezvous is Rendezvous.C10D
    is_rank_0_anywhere = target is Target.HYPERPOD or is_c10d
    return ANY if is_rank_0_anywhere and intent.agents is None else FIRST


def is_indexed(intent: JobSpec, target: Target) -> bool:
    """Whether the pod that serves metrics differs from others only by its index."""
    if which_pod(intent, target) is ANY:
        return False
    return target is Target.JOB or (target is Target.TRAINJOB and intent.agents is None)


def describe_metrics(intent: JobSpec, target: Target) -> list[str]:
    metrics = intent.metrics
    if metrics is None:
        return []
    reference = f"Secret {metrics.secret} with the key {metrics.key}"
    notes = [f"{reference} must be in its namespace: it is the token of requests for metrics"]
    if which_pod(intent, target) is ANY:
        notes.append("rank 0 serves the metrics, in any of the pods: Prometheus shows the others as down")
    return notes


def _annotations(metrics: MetricsSpec) -> Object:
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(metrics.port),
        "prometheus.io/path": "/metrics",
    }


def _token(intent: JobSpec, metrics: MetricsSpec) -> Object:
    # Files of root: a pod of another user reads them by its group, and root needs none. Others read nothing.
    mode = 0o440 if intent.profile is Profile.STRICT else 0o400
    items: list[Json] = [{"key": metrics.key, "path": "token"}]
    return {
        "name": PORT_NAME,
        "secret": {"secretName": metrics.secret, "defaultMode": mode, "items": items},
    }
