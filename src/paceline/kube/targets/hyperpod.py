"""How is a run written down for HyperPod's own operator? HyperPodPyTorchJob, `sagemaker.amazonaws.com/v1`.

Its agent `hyperpodrun` stands for torchrun: it takes torchrun's flags, and learns from
the operator who is who.
"""

from paceline.kube.intent import Intent
from paceline.kube.parts import Object
from paceline.kube.targets.hyperpod_nodes import healthy
from paceline.kube.torch_parts import container, job_metadata, template, torch_of, variables
from paceline.plan.codec import Json

AGENT = 8080  # where hyperpodrun listens to the operator
_EVALUATED_S = 21_600  # the window in which restarts are counted


def render(intent: Intent) -> list[Object]:
    torch = torch_of(intent)
    replicas: Object = {"name": "pods", "replicas": intent.pods.wanted}
    replicas |= {"spares": torch.spares} if torch.spares else {}
    replicas["template"] = _template(intent)
    return [
        {
            "apiVersion": "sagemaker.amazonaws.com/v1",
            "kind": "HyperPodPyTorchJob",
            "metadata": job_metadata(intent),
            "spec": {
                "nprocPerNode": str(torch.procs),
                "runPolicy": _policy(intent),
                "replicaSpecs": [replicas],
            },
        }
    ]


def _policy(intent: Intent) -> Object:
    limits = intent.limits
    policy: Object = {"cleanPodPolicy": "None", "jobMaxRetryCount": limits.retries}
    if limits.retries:
        policy["restartPolicy"] = {
            "evalPeriodSeconds": _EVALUATED_S,
            "numRestartBeforeFullJobRestart": limits.retries,
            "maxFullJobRestarts": 1,
        }
    return {
        **policy,
        "startupDeadlineSeconds": limits.pending_s,
        "activeDeadlineSeconds": limits.running_s,
        "ttlSecondsAfterFinished": limits.kept_s,
    }


def _template(intent: Intent) -> Object:
    torch = torch_of(intent)
    words: list[Json] = [f"--nnodes={intent.pods.wanted}", f"--nproc_per_node={torch.procs}"]
    words += ["--tee=3", "--log_dir=/tmp/hyperpod", *intent.command]
    ports: list[Json] = [{"containerPort": AGENT, "name": "agent"}]
    program: list[Json] = [torch.program]
    one = container(intent, "pytorch", command=program, args=words, ports=ports, env=variables(intent))
    return template(intent, one, affinity=healthy(intent))
