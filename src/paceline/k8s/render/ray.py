"""RayCluster and RayJob of KubeRay 1.7, `ray.io/v1`."""

import shlex

from paceline.k8s.render.metrics import scraping, serving
from paceline.k8s.render.pod import (
    Object,
    config_name,
    container,
    container_security,
    deadline,
    job_metadata,
    labels,
    metadata,
    node_labels,
    pod,
    resources,
    runtime_class,
    spread_over_nodes,
    tolerations,
)
from paceline.k8s.spec.job import CONFIG, JobSpec, Size
from paceline.plan.codec import Json

GCS = 6379
DASHBOARD = 8265
CLIENT = 10001
GROUP = "workers"
# KubeRay's default for the autoscaler container that it adds.
_AUTOSCALER: Object = {"cpu": "500m", "memory": "512Mi"}
_IDLE_S = 120  # before an idle worker pod is removed


def render_raycluster(intent: JobSpec) -> list[Object]:
    return [
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": job_metadata(intent),
            "spec": cluster_spec(intent),
        }
    ]


def cluster_spec(intent: JobSpec) -> Object:
    return {
        "rayVersion": intent.ray_version,
        # Only this literal value enables it. Without it any client that reaches the dashboard can run code.
        "authOptions": {"mode": "token"},
        "enableInTreeAutoscaling": intent.pods.is_automatic,
        **_autoscaler(intent),
        "headGroupSpec": _head(intent),
        "workerGroupSpecs": [_workers(intent)],
    }


def _autoscaler(intent: JobSpec) -> Object:
    if not intent.pods.is_automatic:
        return {}
    amounts: Object = {"requests": dict(_AUTOSCALER), "limits": dict(_AUTOSCALER)}
    options: Object = {"version": "v2", "idleTimeoutSeconds": _IDLE_S, "resources": amounts}
    return {"autoscalerOptions": {**options, **container_security(intent)}}


def _head(intent: JobSpec) -> Object:
    ports: list[Json] = [
        {"containerPort": GCS, "name": "gcs-server"},
        {"containerPort": DASHBOARD, "name": "dashboard"},
        {"containerPort": CLIENT, "name": "client"},
    ]
    head = container(intent, "ray-head", resources(intent, intent.head), ports=ports, **_mounts(intent))
    return {
        # No CPUs for Ray: the head answers and drives, and workers do not slow it down.
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
        "template": serving(
            intent,
            pod(
                intent,
                [head],
                {
                    **_account(intent),
                    **_token(intent),
                    **_restarts(intent),
                    **_placement(intent),
                    **_volumes(intent),
                },
                needs_api=intent.pods.is_automatic,
            ),
        ),
    }


def _workers(intent: JobSpec) -> Object:
    # /dev/shm is KubeRay's: it mounts memory of the right size when the pod has no volume there.
    worker = container(intent, "ray-worker", resources(intent, intent.worker), **_mounts(intent))
    group_labels: Object = {"app.kubernetes.io/instance": intent.name, "ray.io/group": GROUP}
    more: Object = {**_account(intent), **runtime_class(intent), **tolerations(intent, intent.worker)}
    more |= {"nodeSelector": dict(node_labels(intent))} if node_labels(intent) else {}
    more |= spread_over_nodes(group_labels)
    return {
        "groupName": GROUP,
        "replicas": intent.pods.wanted,
        "minReplicas": intent.pods.least,
        "maxReplicas": intent.pods.most,
        "rayStartParams": {},
        "template": pod(intent, [worker], {**_restarts(intent), **more, **_volumes(intent)}),
    }


def _mounts(intent: JobSpec) -> Object:
    """The same in head and workers: the head keeps the run's folder, workers read data."""
    mounts: list[Json] = []
    for volume in intent.volumes:
        only: Object = {"readOnly": True} if volume.is_read_only else {}
        mounts.append({"name": volume.claim, "mountPath": volume.path, **only})
    if intent.files:
        mounts.append({"name": "config", "mountPath": CONFIG, "readOnly": True})
    return {"volumeMounts": mounts} if mounts else {}


def _volumes(intent: JobSpec) -> Object:
    volumes: list[Json] = [
        {"name": volume.claim, "persistentVolumeClaim": {"claimName": volume.claim}}
        for volume in intent.volumes
    ]
    if intent.files:
        volumes.append({"name": "config", "configMap": {"name": config_name(intent)}})
    return {"volumes": volumes} if volumes else {}


def _placement(intent: JobSpec) -> Object:
    """Of pods that do not train, such as the head: they need no GPU, and no instance with GPUs."""
    labels = dict(intent.fields.node_labels)
    return {**tolerations(intent, Size()), **({"nodeSelector": dict(labels)} if labels else {})}


def _restarts(intent: JobSpec) -> Object:
    """The autoscaler replaces pods itself, and demands that nothing else restarts them."""
    return {"restartPolicy": "Never"} if intent.pods.is_automatic else {}


# Delete it and apply it again: names are fixed, the job id is not, so KubeRay makes a
# new cluster and submits again. The cluster ends some time after the job.

# KubeRay's default for its own submitter.
_SUBMITTER: Object = {
    "requests": {"cpu": "500m", "memory": "200Mi"},
    "limits": {"cpu": "1", "memory": "1Gi"},
}


def render_rayjob(intent: JobSpec) -> list[Object]:
    limits = intent.limits
    return [
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": job_metadata(intent),
            "spec": {
                "entrypoint": shlex.join(intent.command),
                "submissionMode": "K8sJobMode",
                "backoffLimit": limits.retries,
                # A second submission of the same id only confuses: KubeRay retries with a new cluster.
                "submitterConfig": {"backoffLimit": 0},
                "preRunningDeadlineSeconds": limits.pending_s,
                **deadline(intent),
                "shutdownAfterJobFinishes": True,
                "ttlSecondsAfterFinished": limits.kept_s,
                "submitterPodTemplate": _submitter(intent),
                "rayClusterSpec": cluster_spec(intent),
            },
        }
    ]


def _submitter(intent: JobSpec) -> Object:
    """Custom submitter, because KubeRay's default does not pass Pod Security; KubeRay adds the command."""
    submitter = container(intent, "ray-job-submitter", _SUBMITTER)
    return pod(intent, [submitter], {**_account(intent), "restartPolicy": "Never", **_placement(intent)})


DASHBOARD_NODE_PORT = 30265
CLIENT_NODE_PORT = 30001
SUFFIX = "-node-port"


def account_name(intent: JobSpec) -> str:
    """Not that of the cluster: KubeRay gives its own Role for the autoscaler that name."""
    return f"{intent.name}-ray"


def _account(intent: JobSpec) -> Object:
    return {"serviceAccountName": account_name(intent)} if intent.has_identity else {}


def _token(intent: JobSpec) -> Object:
    """The account withholds its token, and the autoscaler in the head pod needs it."""
    return {"automountServiceAccountToken": True} if intent.has_identity and intent.pods.is_automatic else {}


def scaling_rules(intent: JobSpec) -> list[Object]:
    """Rights of the autoscaler, which runs in the head pod and changes the size of its own cluster."""
    if not intent.pods.is_automatic:
        return []
    return [{"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["get", "patch"]}]


# Label of the operator's pods in its Helm chart.
_OPERATOR: Object = {"app.kubernetes.io/name": "kuberay-operator"}


def render_policy(intent: JobSpec) -> Object:
    """Ingress of the pods of a cluster.

    Ray's own processes use ports that are chosen at the start, so pods of the cluster reach each other on
    all. Other pods of the namespace reach the three documented ports, and the operator, which polls the
    state of a RayJob, the dashboard. A NodePort Service exposes its two ports to everyone.
    """
    own_pods: Object = {"matchLabels": labels(intent)}
    operator: Object = {"namespaceSelector": {}, "podSelector": {"matchLabels": _OPERATOR}}
    ingress: list[Json] = [
        {"from": [{"podSelector": own_pods}]},
        {"from": [{"podSelector": {}}], "ports": _tcp(GCS, DASHBOARD, CLIENT)},
        {"from": [operator], "ports": _tcp(DASHBOARD)},
        *scraping(intent),
    ]
    if intent.has_node_port:
        ingress.append({"ports": _tcp(DASHBOARD, CLIENT)})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(intent, account_name(intent)),
        "spec": {"podSelector": own_pods, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def _tcp(*ports: int) -> list[Json]:
    return [{"port": port, "protocol": "TCP"} for port in ports]


def render_node_port(intent: JobSpec) -> Object:
    ports: list[Json] = [
        {"name": "dashboard", "port": DASHBOARD, "targetPort": DASHBOARD, "nodePort": DASHBOARD_NODE_PORT},
        {"name": "client", "port": CLIENT, "targetPort": CLIENT, "nodePort": CLIENT_NODE_PORT},
    ]
    head: Object = {"app.kubernetes.io/instance": intent.name, "ray.io/node-type": "head"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(intent, intent.name + SUFFIX),
        "spec": {"type": "NodePort", "selector": head, "ports": ports},
    }
