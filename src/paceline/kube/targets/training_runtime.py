"""Which runtime comes with a TrainJob? A TrainingRuntime of its own, with all that its pods must carry.

Kubeflow Trainer makes a JobSet of it: one Job with one pod for each node. When a pod
fails the JobSet starts all of them anew, so nothing else may restart anything.
"""

from paceline.kube.intent import Intent
from paceline.kube.parts import Object, labels, metadata
from paceline.kube.torch_parts import container, template, torch_of

NODE = "node"  # Trainer's own name for the job and for the container


def render_runtime(intent: Intent) -> Object:
    limits = intent.limits
    job: Object = {"backoffLimit": 0}
    if torch_of(intent).trainer == "2.1":  # else the TrainJob says it
        job["activeDeadlineSeconds"] = limits.running_s
    job["template"] = template(intent, container(intent, NODE), restartPolicy="Never")
    step: Object = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    jobs: Object = {"failurePolicy": {"maxRestarts": limits.retries}} if limits.retries else {}
    jobs["replicatedJobs"] = [{"name": NODE, "template": {"metadata": step, "spec": job}}]
    where = metadata(intent, intent.name)
    where["labels"] = {**labels(intent), "trainer.kubeflow.org/framework": "torch"}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": where,
        "spec": {
            "mlPolicy": {"numNodes": intent.pods.wanted, "torch": {}},
            "template": {"spec": jobs},
        },
    }
