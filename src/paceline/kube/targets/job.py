"""How is a run written down without any operator? As an Indexed Job, `batch/v1`.

A Service without an address gives its pods names, so that they find the first of them.
"""

from paceline.kube.intent import Intent
from paceline.kube.parts import Object, labels, metadata
from paceline.kube.torch_parts import PORT, arguments, container, job_metadata, template, torch_of, variables
from paceline.plan.codec import Json


def render(intent: Intent) -> list[Object]:
    return [_service(intent), _job(intent)]


def _service(intent: Intent) -> Object:
    """Without an address of its own: it only makes the pods' names resolvable, also before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(intent, intent.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels(intent),
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }


def _job(intent: Intent) -> Object:
    limits, nodes = intent.limits, intent.pods.wanted
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": job_metadata(intent),
        "spec": {
            "completionMode": "Indexed",
            "completions": nodes,
            "parallelism": nodes,
            "backoffLimit": limits.retries * nodes,  # an attempt that fails is one failed pod on every node
            # A new pod has its predecessor's name: only one of them may be there.
            "podReplacementPolicy": "Failed",
            "activeDeadlineSeconds": limits.running_s,
            "ttlSecondsAfterFinished": limits.kept_s,
            "template": _template(intent),
        },
    }


def _template(intent: Intent) -> Object:
    words = arguments(intent, rank="$(JOB_COMPLETION_INDEX)", master=f"{intent.name}-0.{intent.name}")
    program: list[Json] = [torch_of(intent).program]
    ports: list[Json] = [{"containerPort": PORT, "name": "rendezvous"}]
    one = container(intent, "pytorch", command=program, args=words, ports=ports, env=variables(intent))
    return template(intent, one, subdomain=intent.name, restartPolicy="Never")
