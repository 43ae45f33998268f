"""What should whoever sends a manifest know that no manifest can say? In words, for stderr."""

from paceline.kube.intent import Intent, Profile, Rendezvous, Torch
from paceline.kube.render import Target


def notes(intent: Intent, target: Target) -> list[str]:
    torch = intent.torch
    if torch is None:
        return []
    found = [*_exceptions(intent, torch), *_of_kind(intent, torch, target)]
    read_only = {volume.claim for volume in torch.volumes if volume.is_read_only}
    for claim in torch.claims:
        if claim.name in read_only:
            found.append(f"claim {claim.name} is new and empty, and this job only reads it: fill it first")
    if torch.has_gpu_claims:
        found.append(
            "claims of GPUs need Kubernetes 1.34 and NVIDIA's DRA driver; a queue or quota of nvidia.com/gpu"
            " does not count them"
        )
    if torch.results == "/results":
        found.append("results lie in the pod of rank 0 and go with it; --checkpoint-volume keeps them")
    if intent.pods.least != intent.pods.most:
        found.append("the run has as many workers as come at its beginning; when that changes, it ends")
    return found


def _exceptions(intent: Intent, torch: Torch) -> list[str]:
    if not torch.efa or intent.profile is Profile.COMPAT:
        return []
    return ["EFA needs the capability IPC_LOCK, so a namespace that enforces Pod Security refuses these pods"]


def _of_kind(intent: Intent, torch: Torch, target: Target) -> list[str]:
    never_starts = (
        f"nothing ends a job that has not started after {intent.limits.pending_s} s: look at it then"
    )
    match target:
        case Target.PYTORCHJOB:
            is_static = torch.rendezvous is Rendezvous.STATIC
            added = "training-operator adds a container init-pytorch (alpine) to Workers, without a security"
            added += " context; where Pod Security is enforced, give the operator a template of its own"
            return [never_starts, *([added] if is_static and intent.pods.wanted > 1 else [])]
        case Target.TRAINJOB:
            return [never_starts, *_of_trainer(torch)]
        case Target.JOB:
            return [never_starts]
        case _:
            return []


def _of_trainer(torch: Torch) -> list[str]:
    found = ["Trainer keeps what has ended: delete the TrainJob when you have its results"]
    if torch.runtime is None:
        return found
    found.append(f"tokens, service links and restarts of the pods are as runtime {torch.runtime} says")
    if torch.trainer == "2.1":
        found.append("Trainer 2.1 has no deadline for a job with a runtime of others")
    if torch.trainer != "2.3":
        found.append("pods have the runtime's time for a last checkpoint, by default 30 s")
    return found
