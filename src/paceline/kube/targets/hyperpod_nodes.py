"""What does a pod on nodes of HyperPod want, whichever operator it belongs to? Healthy ones, and new ones."""

from paceline.kube.intent import Intent
from paceline.kube.parts import Object
from paceline.kube.torch_parts import placement, torch_of
from paceline.plan.codec import Json

HEALTH = "sagemaker.amazonaws.com/node-health-status"
_RESUME, _RETRIES = (
    "sagemaker.amazonaws.com/enable-job-auto-resume",
    "sagemaker.amazonaws.com/job-max-retry-count",
)
_MACHINE = "node.kubernetes.io/instance-type"


def is_hyperpod(intent: Intent) -> bool:
    """Its machines are called ml.*, and no others are."""
    return dict(torch_of(intent).node_labels).get(_MACHINE, "").startswith("ml.")


def healthy(intent: Intent) -> Object:
    """Only nodes that HyperPod has found to be healthy, beside what is wanted anyway."""
    good: Object = {"key": HEALTH, "operator": "In", "values": ["Schedulable"]}
    terms: list[Json] = [{"matchExpressions": [good]}]
    wanted: Object = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    others = placement(intent).get("affinity")
    return {"nodeAffinity": wanted, **(others if isinstance(others, dict) else {})}


def auto_resume(intent: Intent) -> Object:
    """HyperPod replaces a bad machine, and then starts a PyTorchJob that says so again."""
    if not intent.limits.retries:
        return {}
    return {"annotations": {_RESUME: "true", _RETRIES: str(intent.limits.retries)}}
