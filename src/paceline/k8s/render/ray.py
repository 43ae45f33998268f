"""RayCluster and RayJob of KubeRay 1.7, `ray.io/v1`."""

import shlex

from paceline.k8s.render.metrics import serving
from paceline.k8s.render.pod import (
    Object,
    config_name,
    container,
    container_security,
    elastic_annotations,
    gpu_toleration,
    metadata,
    pod,
    resources,
    spread_over_nodes,
)
from paceline.k8s.spec.job import CONFIG, JobSpec
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
            "metadata": metadata(intent, intent.name),
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
    head = container(intent, "ray-head", resources(intent.head), ports=ports, **_mounts(intent))
    return {
        # No CPUs for Ray: the head answers and drives, and workers do not slow it down.
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
        "template": serving(
            intent,
            pod(
                intent, [head], {**_restarts(intent), **_volumes(intent)}, needs_api=intent.pods.is_automatic
            ),
        ),
    }


def _workers(intent: JobSpec) -> Object:
    # /dev/shm is KubeRay's: it mounts memory of the right size when the pod has no volume there.
    worker = container(intent, "ray-worker", resources(intent.worker), **_mounts(intent))
    group_labels: Object = {"app.kubernetes.io/instance": intent.name, "ray.io/group": GROUP}
    more: Object = {**gpu_toleration(intent.worker), **spread_over_nodes(group_labels)}
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
            "metadata": {**metadata(intent, intent.name), **elastic_annotations(intent)},
            "spec": {
                "entrypoint": shlex.join(intent.command),
                "submissionMode": "K8sJobMode",
                "backoffLimit": limits.retries,
                # A second submission of the same id only confuses: KubeRay retries with a new cluster.
                "submitterConfig": {"backoffLimit": 0},
                "preRunningDeadlineSeconds": limits.pending_s,
                "activeDeadlineSeconds": limits.running_s,
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
    return pod(intent, [submitter], {"restartPolicy": "Never"})


DASHBOARD_NODE_PORT = 30265
CLIENT_NODE_PORT = 30001
SUFFIX = "-node-port"


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
