"""What fills the places of a message: which pod, node, image, job and rank is meant?"""

import re
import shlex

from paceline.kube.diagnosis.failure import Sign
from paceline.kube.diagnosis.pods import node_of, rank_of
from paceline.kube.diagnosis.snapshot import Object, Snapshot, name_of, namespace_of
from paceline.kube.reading import mappings

STEP = re.compile(r"\b(?:global_)?step[ =:#/]+(\d+)", re.IGNORECASE)
_PULLED = re.compile(r'[Ii]mage "([^"]+)"|reference "([^"]+)"|manifest for (\S+) not found')


def values_of(sign: Sign, snapshot: Snapshot) -> dict[str, str]:
    pod = sign.pod
    gone = [one.subject for one in snapshot.removals]
    all_of_it = (*snapshot.jobs, *snapshot.pods, *gone)
    somewhere = next((namespace_of(one) for one in all_of_it if namespace_of(one)), "")
    known = {
        "pod": name_of(pod),
        "namespace": namespace_of(pod) or somewhere,
        "node": node_of(pod),
        "job": next((name_of(job) for job in snapshot.jobs), ""),
        "image": _image(sign),
        "container": next((str(one.get("name", "")) for one in mappings(pod, "spec", "containers")), ""),
    }
    rank = sign.rank if sign.rank is not None else rank_of(pod)
    known["rank"] = "" if rank is None else str(rank)
    found = {**known, **{name: value for name, value in sign.values.items() if value}}
    return {**found, **_derived(found), "near": _near(found["image"], snapshot)}


def _image(sign: Sign) -> str:
    """As the pod's author wrote it, or as the kubelet complains about it."""
    for line in sign.evidence:
        named = _PULLED.search(line)
        if named is not None:
            return next(group for group in named.groups() if group)
    return next((str(one.get("image", "")) for one in mappings(sign.pod, "spec", "containers")), "")


def _near(image: str, snapshot: Snapshot) -> str:
    """The same image by another tag, if a node or a pod has it: probably what was meant."""
    name = image.partition("@")[0].rpartition(":")[0]
    had = [str(one.get("image", "")) for pod in snapshot.pods for one in mappings(pod, "spec", "containers")]
    for node in snapshot.nodes:
        for held in mappings(node, "status", "images"):
            names = held.get("names")
            had += [str(one) for one in names] if isinstance(names, list) else []
    others = sorted({one for one in had if name and one.startswith(f"{name}:") and one != image})
    return f"; known here is {', '.join(others[:3])}" if others else ""


def _derived(found: dict[str, str]) -> dict[str, str]:
    made: dict[str, str] = {}
    registry, slash, _ = found["image"].partition("/")
    made["registry"] = registry if slash and ("." in registry or ":" in registry) else "docker.io"
    if "plural" in found:
        group = found.get("group", "")
        made["resource"] = f"{found['plural']}.{group}" if group else found["plural"]
    elif "group" in found and found.get("resource", "").islower() and "." not in found["resource"]:
        made["resource"] = f"{found['resource']}.{found['group']}"
    if "plural" in found or "verb" in found:
        made["subject"] = _subject(found.get("user", ""))
    if "reference" in found:
        made["made"] = found["reference"].rpartition("/")[2]
        made["sort"] = found.get("sort", "secret").lower()
        made["maker"] = "secret generic" if made["sort"] == "secret" else made["sort"]
    if "where" not in found and found.get("namespace"):
        made["where"] = found["namespace"]
    return made


def _subject(user: str) -> str:
    """Flags of `kubectl create rolebinding` for a user as the API server names it, or for who asks."""
    name = user.removeprefix('User "').removesuffix('"')
    account = re.fullmatch(r"system:serviceaccount:([^:]+:[^:]+)", name)
    if account is not None:
        return f"--serviceaccount={account[1]}"
    known = shlex.quote(name) if name else '"$(kubectl auth whoami -o jsonpath={.status.userInfo.username})"'
    return f"--user={known}"


def last_step(snapshot: Snapshot, pod: Object) -> int | None:
    """How far it had come: the last step that its log names, or any pod's if its own names none."""
    mine = [log for log in snapshot.logs if log.pod == name_of(pod)]
    for logs in (mine, snapshot.logs):
        steps = [int(number) for log in logs for number in STEP.findall(log.text)]
        if steps:
            return steps[-1]
    return None
