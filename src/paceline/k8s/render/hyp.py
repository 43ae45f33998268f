"""A job as HyperPod's own command `hyp` takes it, and what `hyp` cannot carry.

`hyp create` reads a folder: config.yaml says which template and whose job, k8s.jinja is the manifest. It
reads the manifest by models of its own, which are narrower than the API: what they lack is left out here and
said, or refused where leaving it out would change what the job does. Found out with hyp 3.12.0.
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
MIN_VERSION = (3, 12)  # those before make a manifest of their own, and lose ours
INSTALL = (
    "pip install 'sagemaker-hyperpod>=3.12' in an environment of its own: it pins click, pytest and more"
)
CONFIG, TEMPLATE = "config.yaml", "k8s.jinja"
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
    """`job` as hyp can take it, and what is different from what was asked for."""

    job: Object
    notes: tuple[str, ...]


def to_hyp_job(manifest: Mapping[str, object]) -> HypJob:
    """Raises ConfigError."""
    if manifest.get("kind") != KIND:
        hint = "render it with --target hyperpod, or send it without --through hyp"
        raise ManifestError([Problem(f"hyp sends a {KIND}, not a {manifest.get('kind')}", hint, "--through")])
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
    """The files that `hyp create` reads, by name. Whatever the job holds, it is no template."""
    about, pod = mapping(job, "metadata"), _first_pod(job)
    config = {"job_name": about.get("name"), "image": pod["containers"][0]["image"]}
    config |= {"namespace": about["namespace"]} if "namespace" in about else {}
    said = "".join(f"{name}: {json.dumps(value)}\n" for name, value in config.items())
    # YAML reads JSON. An opening brace in a text could begin an expression of Jinja; elsewhere none can.
    text = json.dumps(job, indent=1, ensure_ascii=False)
    plain = _STRING.sub(lambda found: found[0].replace("{", "\\u007b"), text)
    return {CONFIG: f"# template: hyp-pytorch-job\n# version: 1.1\n{said}", TEMPLATE: plain + "\n"}


def read_version(text: str) -> tuple[int, ...] | None:
    """Of what `hyp --version` prints; None where it says none."""
    found = re.search(r"^hyp version: ([0-9]+(?:\.[0-9]+)*)", text, re.MULTILINE)
    return None if found is None else tuple(int(part) for part in found[1].split("."))


def _first_pod(job: Mapping[str, object]) -> Object:
    spec: Any = job["spec"]
    found: Object = spec["replicaSpecs"][0]["template"]["spec"]
    return found


def _security(pod: Object, notes: list[str]) -> None:
    its: Object = pod.get("securityContext", {})
    lost = [name for name in _OF_PODS_ALONE if its.pop(name, None) is not None]
    if "fsGroup" in lost and any("persistentVolumeClaim" in one for one in pod.get("volumes", [])):
        user = its.get("runAsUser", "the image's user")
        notes.append(
            f"hyp cannot carry fsGroup: user {user} must be able to write to the volumes as they are"
        )


def _placement(pod: Object, notes: list[str], problems: list[Problem]) -> None:
    """hyp reads pod affinity by the model of node affinity, and refuses it."""
    affinity: Object = pod.get("affinity", {})
    lost = [name for name in ("podAffinity", "podAntiAffinity") if affinity.pop(name, None) is not None]
    if not lost:
        return
    if ZONE in pod.get("nodeSelector", {}):
        notes.append(f"hyp cannot carry {' or '.join(lost)}: the zone of the node selector stands for it")
        return
    what = f"hyp cannot carry {' or '.join(lost)}, so nothing keeps the pods in one zone"
    hint = f"name the zone: job render --node-selector {ZONE}=ZONE; or leave out --through hyp"
    problems.append(Problem(what, hint, "--through"))


def _resources(pod: Object, notes: list[str], problems: list[Problem]) -> None:
    """hyp reads cpu as a plain number and memory as GiB, whatever unit is written."""
    amounts: Object = pod["containers"][0].setdefault("resources", {})
    for its in (amounts.get("requests", {}), amounts.get("limits", {})):
        cpu, memory = read_quantity(its.get("cpu")), read_quantity(its.get("memory"))
        its.update({} if cpu is None else {"cpu": f"{cpu.normalize():f}"})
        its.update({} if memory is None else {"memory": f"{(memory / _GIB).normalize():f}Gi"})
    asked, machine = amounts.get("requests", {}), str(pod.get("nodeSelector", {}).get(INSTANCE_TYPE, ""))
    if GPU in asked and not machine:
        hint = "name the machine: job render --instance-type ml.p5.48xlarge, for example"
        problems.append(Problem("hyp takes GPUs of a named type of machine alone", hint, "--through"))
    if GPU in asked and EFA not in asked and efa_of(machine.removeprefix("ml.")):
        notes.append(
            f"hyp asks for the EFA devices of {machine} too, because it does so whenever none is named"
        )
