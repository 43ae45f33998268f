"""How is one run on a Ray cluster of its own written down? RayJob of KubeRay 1.7, `ray.io/v1`.

Delete it and apply it again: names are fixed, the job id is not, so KubeRay makes a
new cluster and submits anew. The cluster ends some time after the job.
"""

import shlex

from paceline.kube.intent import Intent
from paceline.kube.parts import Object, container, metadata, pod
from paceline.kube.targets.raycluster import cluster_spec

# As much as KubeRay gives to a submitter of its own.
_SUBMITTER: Object = {
    "requests": {"cpu": "500m", "memory": "200Mi"},
    "limits": {"cpu": "1", "memory": "1Gi"},
}


def render(intent: Intent) -> list[Object]:
    limits = intent.limits
    return [
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": metadata(intent, intent.name),
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


def _submitter(intent: Intent) -> Object:
    """Ours, because KubeRay's own would not pass Pod Security; it adds the command."""
    submitter = container(intent, "ray-job-submitter", _SUBMITTER)
    return pod(intent, [submitter], {"restartPolicy": "Never"})
