"""How is a run written down for training-operator 1.9? PyTorchJob, `kubeflow.org/v1`.

Static: a Master and Workers, rank 0 is in the Master. c10d: Workers alone, and the
operator tells torchrun everything by PET_* variables, so that no flag can contradict them.
"""

from paceline.kube.intent import Intent, Rendezvous
from paceline.kube.parts import Object
from paceline.kube.targets.hyperpod_nodes import auto_resume, healthy, is_hyperpod
from paceline.kube.torch_parts import arguments, container, job_metadata, template, torch_of, variables
from paceline.plan.codec import Json


def render(intent: Intent) -> list[Object]:
    spec: Object = {"nprocPerNode": str(torch_of(intent).procs), "runPolicy": _policy(intent)}
    spec |= _elastic(intent) if torch_of(intent).rendezvous is Rendezvous.C10D else _static(intent)
    return [
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {**job_metadata(intent), **(auto_resume(intent) if is_hyperpod(intent) else {})},
            "spec": spec,
        }
    ]


def _policy(intent: Intent) -> Object:
    limits = intent.limits
    # The operator counts restarted containers, and each attempt restarts those of all nodes; it gives
    # up when the count is reached, so the last allowed attempt needs one more.
    backoff = limits.retries * intent.pods.most + 1 if limits.retries else 0
    return {
        "cleanPodPolicy": "None",  # pods stay, with their logs
        "ttlSecondsAfterFinished": limits.kept_s,
        "activeDeadlineSeconds": limits.running_s,
        "backoffLimit": backoff,
        "suspend": False,
    }


def _static(intent: Intent) -> Object:
    words = arguments(intent, rank="$(RANK)", master="$(MASTER_ADDR)", port="$(MASTER_PORT)")
    replicas: Object = {"Master": _replica(intent, 1, words)}
    if intent.pods.wanted > 1:
        replicas["Worker"] = _replica(intent, intent.pods.wanted - 1, words)
    return {"pytorchReplicaSpecs": replicas}


def _elastic(intent: Intent) -> Object:
    policy: Object = {
        "rdzvBackend": "c10d",
        "rdzvId": intent.name,
        "minReplicas": intent.pods.least,
        "maxReplicas": intent.pods.most,
        "maxRestarts": intent.limits.retries,
    }
    replicas: Object = {"Worker": _replica(intent, intent.pods.wanted, list(intent.command))}
    return {"elasticPolicy": policy, "pytorchReplicaSpecs": replicas}


def _replica(intent: Intent, replicas: int, words: list[Json]) -> Object:
    program: list[Json] = [torch_of(intent).program]
    more: Object = {"affinity": healthy(intent)} if is_hyperpod(intent) else {}
    one = container(intent, "pytorch", command=program, args=words, env=variables(intent))
    return {
        "replicas": replicas,
        "restartPolicy": "OnFailure" if intent.limits.retries else "Never",
        "template": template(intent, one, **more),
    }
