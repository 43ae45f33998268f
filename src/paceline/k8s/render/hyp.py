"""A job in the format of HyperPod's command `hyp`, and the parts that `hyp` does not support.

`hyp create` reads a folder: config.yaml has the template and the job's name, k8s.jinja is the manifest. It
parses the manifest by its own models, which are narrower than the API: fields that they lack are left out
and reported, or refused if leaving them out would change the job. Tested with hyp 3.12.0.
"""

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from paceline.core.errors import ManifestError, Problem
from paceline.k8s.check.nodes import efa_of
from paceline.k8s.objects import EFA, GPU, INSTANCE_TYPE, ZONE, mapping, read_quantity

KIND = "HyperPodPyTorchJob"
MIN_VERSION = (3, 12)  # earlier ones write their own manifest, and lose this one
INSTALL = "pip install 'sagemaker-hyperpod>=3.12' in a separate environment: it pins click, pytest and more"
CONFIG = "config.yaml"
TEMPLATE = "k8s.jinja"
# hyp reads a pod's security by the model of a container's, which has none of these.
_OF_PODS_ALONE = (
    "fsGroup",
    "fsGroupChangePolicy",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "sysctls",
)
_GIB = Decimal(1024) ** 3
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
Object = dict[str, Any]  # Any: JSON, of which single fields are changed


@dataclass(frozen=True, slots=True)
class HypJob:
    """`job` as hyp accepts it, and how it differs from the requested one."""

    job: Object
    notes: tuple[str, ...]


def to_hyp_job(manifest: Mapping[str, object]) -> HypJob:
    """Raises ConfigError."""
    if manifest.get("kind") != KIND:
        hint = "render it with --target hyperpod, or submit without --through hyp"
        raise ManifestError(
            [Problem(f"hyp submits a {KIND}, not a {manifest.get('kind')}", hint, "--through")]
        )
    job: Object = copy.deepcopy(dict(manifest))
    problems: list[Problem] = []
    notes: list[str] = []
    for replicas in job["spec"]["replicaSpecs"]:
        pod: Object = replicas["template"]["spec"]
        _security(pod, notes)
        _placement(pod, notes, problems)
        _resources(pod, notes, problems)
    if problems:
        raise ManifestError(problems)
    return HypJob(job, tuple(dict.fromkeys(notes)))


def folder(job: Mapping[str, object]) -> dict[str, str]:
    """The files that `hyp create` reads, by name. The content of the job is never a template."""
    metadata = mapping(job, "metadata")
    pod = _first_pod(job)
    config = {"job_name": metadata.get("name"), "image": pod["containers"][0]["image"]}
    config |= {"namespace": metadata["namespace"]} if "namespace" in metadata else {}
    settings = "".join(f"{name}: {json.dumps(value)}\n" for name, value in config.items())
    # YAML reads JSON. An opening brace in a text could begin an expression of Jinja; elsewhere none can.
    text = json.dumps(job, indent=1, ensure_ascii=False)
    plain = _STRING.sub(lambda match: match[0].replace("{", "\\u007b"), text)
    return {CONFIG: f"# template: hyp-pytorch-job\n# version: 1.1\n{settings}", TEMPLATE: plain + "\n"}


def read_version(text: str) -> tuple[int, ...] | None:
    """Version in the output of `hyp --version`; None if there is none."""
    match = re.search(r"^hyp version: ([0-9]+(?:\.[0-9]+)*)", text, re.MULTILINE)
    return None if match is None else tuple(int(part) for part in match[1].split("."))


def _first_pod(job: Mapping[str, object]) -> Object:
    spec: Any = job["spec"]
    pod: Object = spec["replicaSpecs"][0]["template"]["spec"]
    return pod


def _security(pod: Object, notes: list[str]) -> None:
    its: Object = pod.get("securityContext", {})
    lost = [name for name in _OF_PODS_ALONE if its.pop(name, None) is not None]
    if "fsGroup" in lost and any("persistentVolumeClaim" in volume for volume in pod.get("volumes", [])):
        user = its.get("runAsUser", "the image's user")
        notes.append(f"hyp does not support fsGroup: user {user} needs write permission on the volumes")


def _placement(pod: Object, notes: list[str], problems: list[Problem]) -> None:
    """hyp reads pod affinity by the model of node affinity, and refuses it."""
    affinity: Object = pod.get("affinity", {})
    lost = [name for name in ("podAffinity", "podAntiAffinity") if affinity.pop(name, None) is not None]
    if not lost:
        return
    if ZONE in pod.get("nodeSelector", {}):
        notes.append(f"hyp does not support {' or '.join(lost)}: the zone in the node selector replaces it")
        return
    message = f"hyp does not support {' or '.join(lost)}, so the pods may be in several zones"
    hint = f"set the zone: job render --node-selector {ZONE}=ZONE; or leave out --through hyp"
    problems.append(Problem(message, hint, "--through"))


def _resources(pod: Object, notes: list[str], problems: list[Problem]) -> None:
    """hyp reads cpu as a plain number and memory as GiB, regardless of the unit."""
    amounts: Object = pod["containers"][0].setdefault("resources", {})
    for its in (amounts.get("requests", {}), amounts.get("limits", {})):
        cpu = read_quantity(its.get("cpu"))
        memory = read_quantity(its.get("memory"))
        its.update({} if cpu is None else {"cpu": f"{cpu.normalize():f}"})
        its.update({} if memory is None else {"memory": f"{(memory / _GIB).normalize():f}Gi"})
    requests = amounts.get("requests", {})
    machine = str(pod.get("nodeSelector", {}).get(INSTANCE_TYPE, ""))
    if GPU in requests and not machine:
        hint = "set the instance type: job render --instance-type ml.p5.48xlarge, for example"
        problems.append(Problem("hyp supports GPUs only with an instance type", hint, "--through"))
    if GPU in requests and EFA not in requests and efa_of(machine.removeprefix("ml.")):
        notes.append(f"hyp also requests the EFA devices of {machine}, as it does by default")
