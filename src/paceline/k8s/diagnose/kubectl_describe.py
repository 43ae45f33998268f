"""Texts as people have them: output of `kubectl describe`, event tables, YAML, and lone logs.

`kubectl describe` is read back into the objects that it was printed from, as far as a diagnosis needs them:
kind, name, namespace, node, phase, states of containers, conditions and events. Every other text is a log of
unknown origin, which may quote events too. See docs/guides/jobs.md.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from paceline.k8s.diagnose.snapshot import JOB_KINDS, Log, Snapshot, was_overcome
from paceline.k8s.objects import write_time
from paceline.plan.codec import Json

_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z][\w ./()-]*?):(?:\s+(?P<value>.*))?$")
_EVENTS = re.compile(r"^Events:\s*(?:<none>)?\s*$")
_SHELL = re.compile(r"^\S{0,60}[$#>%] ?kubectl |^kubectl ")
_AGE = re.compile(r"(?:(?P<d>\d+)d)?(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m(?!s))?(?:(?P<s>\d+)s)?$")
_FROM = r"[a-z][\w./-]*(?:, [\w.-]+)*\s{2,}"
# The age, or the reporting component, distinguishes an event from a log line with a level.
_EVENT = re.compile(
    r"^\s*(?P<type>Normal|Warning)\s+(?P<reason>[A-Z]\w*)\s+(?:"
    r"(?P<age>(?:\d+[dhms])+|<unknown>|<invalid>)(?:\s+\(x(?P<count>\d+) over (?P<since>[\ddhms]+)\))?\s+"
    rf"(?:{_FROM})?|{_FROM})(?P<message>\S.*)$"
)
# kubectl get events: LAST SEEN, TYPE, REASON, OBJECT, MESSAGE.
_LISTED = re.compile(
    r"^(?:\S+\s+)?(?P<age>(?:\d+[dhms])+|<unknown>)\s+(?P<type>Normal|Warning)\s+(?P<reason>[A-Z]\w*)\s+"
    r"(?P<kind>[a-z]+)/(?P<name>[\w.-]+)\s+(?P<message>\S.*)$"
)
_ALLOCATABLE = re.compile(r"^Allocatable:\n((?:[ \t]+\S+:[ \t]+\S+(?:\n|$))+)", re.MULTILINE)
_HEAD = re.compile(r"^Name:\s+(?P<name>\S+)\s*$", re.MULTILINE)
# Markers in the output of describe that identify the kind, which it does not state.
_MARKS = {
    "Pod": re.compile(r"^(?:Containers|Init Containers|QoS Class|Node-Selectors):", re.MULTILINE),
    "Node": re.compile(r"^(?:Capacity|Allocatable|PodCIDR|System Info):", re.MULTILINE),
    "PersistentVolumeClaim": re.compile(r"^(?:StorageClass|Access Modes|VolumeMode):", re.MULTILINE),
    "Job": re.compile(r"^(?:Parallelism|Pods Statuses|Completion Mode|Backoff Limit):", re.MULTILINE),
}
# A container's message may be the end of its log, printed as it is; these keys of describe follow it.
_AFTER_MESSAGE = re.compile(
    r"^ *(?:Exit Code|Signal|Started|Finished|Ready|Restart Count|Last State|Limits|Requests|Environment"
    r"|Mounts|Reason|Status|Type|IPs?|Controlled By|(?:Init )?Containers|Events|Conditions|Last \w+ Time"
    r"|Observed Generation|Start Time|End Time|Job \w[\w ]*|Ray \w[\w ]*|Replica Statuses|Failed):"
)
_AT_S = 1_000_000_000.0  # a text without times is read as of this moment
# A message of the cluster, which a terminal, a table or an editor may have broken into lines.
_MESSAGE = re.compile(
    r"^\s*(?:Normal|Warning)\s{2,}|failed calling webhook|Error from server|rpc error: code ="
    r"|nodes are available:|Failed to pull image|(?:Mount|Attach)Volume\.|Error creating:|is forbidden:"
)
_UNFINISHED = re.compile(r"(?:[,:;=(\[{\"'\\]|\s)$")
_GOES_ON = re.compile(r"\s|[a-z0-9\"')\]}]|Mounting |Output: ")
# The beginning of something else: a key, a table, a record of a log, an exception, a prompt.
_OPENS = re.compile(
    r"\s*(?:$|(?!Mounting|Output)[A-Z][\w ./()-]{0,40}:(?:\s|$)"
    r"|(?:Normal|Warning|NAME|NAMESPACE|LAST SEEN|Type)\s{2,}"
    r"|-{3}|={3}|\[|\{|\d{4}-\d\d-\d\d|[EWIF]\d{4} |(?:ERROR|WARN(?:ING)?|INFO|DEBUG|CRITICAL|FATAL)\b"
    r"|Traceback |File \"|[\w.]*(?:Error|Exception)\b|[\w.-]+:\d+:\d+ \[\d+\]|(?:\w+@\S+)?[$#%>] |kubectl )"
)
_MOST_JOINED = 6


@dataclass(slots=True)
class _Part:
    """One key of describe's tree, with what is indented below it."""

    value: str = ""
    below: "dict[str, _Part]" = field(default_factory=dict)

    def get(self, *keys: str) -> "_Part":
        part = self
        for key in keys:
            part = part.below.get(key, _Part())
        return part


def parse_described(text: str, name: str = "") -> Snapshot:
    """`name` is the pod's, if the text is a log in a file that is called like it."""
    text = _unwrapped(text)
    blocks = _blocks(text)
    objects = [described for block in blocks for described in _described(block)]
    objects += _headless_nodes(text, objects)
    if not any(obj["kind"] == "Event" for obj in objects):
        listed = _in_order([(line, event) for line in text.splitlines() for event in _listed(line)])
        objects += [event for _, event in listed]
        events = [event for _, event in listed]
        over = {line for line, event in listed if was_overcome(event, events)}
        text = "\n".join(line for line in text.splitlines() if line not in over)
    if objects and _is_all_described(text):
        return Snapshot(at_s=_AT_S, objects=tuple(objects))
    # The remaining text is read line by line.
    rest = text if not objects else _without_described(text)
    logs = (Log(pod=name, text=rest, mixed=True),) if rest.strip() else ()
    return Snapshot(at_s=_AT_S, objects=tuple(objects), logs=logs)


def _unwrapped(text: str) -> str:
    """Messages of the cluster in one line each."""
    lines: list[str] = []
    joined = 0
    for line in text.splitlines():
        whole = lines[-1] if lines else ""
        goes_on = _UNFINISHED.search(whole) is not None or _GOES_ON.match(line) is not None
        is_same = _MESSAGE.search(whole) is not None and goes_on and _OPENS.match(line) is None
        joined = joined + 1 if is_same else 0
        if is_same and joined <= _MOST_JOINED:
            lines[-1] = f"{whole.rstrip()} {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(lines)


def _in_order(listed: list[tuple[str, dict[str, Json]]]) -> list[tuple[str, dict[str, Json]]]:
    """Tables of events show the newest last: without ages, their order is the only time."""
    if any(event["lastTimestamp"] != _stamp(_AT_S) for _, event in listed):
        return listed
    for before, (_, event) in enumerate(reversed(listed)):
        event["firstTimestamp"] = event["lastTimestamp"] = _stamp(_AT_S - before)
    return listed


def _headless_nodes(text: str, known: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Nodes of which only capacity and allocatable were pasted."""
    if any(match["kind"] == "Node" for match in known):
        return []
    matches = _ALLOCATABLE.finditer(text)
    return [
        {
            "kind": "Node",
            "metadata": {"name": f"node-{number}"},
            "status": {"allocatable": _amounts(match[1])},
        }
        for number, match in enumerate(matches)
    ]


def _amounts(lines: str) -> dict[str, Json]:
    pairs = (line.strip().partition(":") for line in lines.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _is_all_described(text: str) -> bool:
    return not _without_described(text).strip()


def _without_described(text: str) -> str:
    """The lines before the first description and the log lines that follow the last one's events."""
    kept: list[str] = []
    inside = False
    in_events = False
    for line in text.splitlines():
        if _HEAD.match(line):
            inside = True
            in_events = False
        elif inside and _EVENTS.match(line):
            in_events = True
        elif _SHELL.match(line) or (in_events and line.strip() and not line.startswith((" ", "\t"))):
            inside = in_events = False
        if not inside and not _LISTED.match(line) and not line.startswith(("LAST SEEN", "NAMESPACE ")):
            kept.append(line)
    return "\n".join(kept)


def _blocks(text: str) -> list[str]:
    """One per described object: describe separates them by blank lines before the next `Name:`."""
    starts = [match.start() for match in _HEAD.finditer(text)]
    starts = [at for at in starts if _looks_described(text[at : at + 4000])]
    return [text[at:end] for at, end in pairwise([*starts, len(text)])]


def _looks_described(text: str) -> bool:
    return any(mark.search(text) for mark in _MARKS.values()) or bool(
        re.search(r"^(?:Namespace|API Version|Kind|Labels|Status):", text, re.MULTILINE)
    )


def _described(block: str) -> Iterator[dict[str, Json]]:
    lines = block.splitlines()
    at = next((n for n, line in enumerate(lines) if _EVENTS.match(line)), len(lines))
    tree = _tree(lines[:at])
    kind = tree.get("Kind").value or next(
        (name for name, mark in _MARKS.items() if mark.search(block)), "Object"
    )
    metadata: dict[str, Json] = {"name": tree.get("Name").value}
    if tree.get("Namespace").value:
        metadata["namespace"] = tree.get("Namespace").value
    metadata["labels"] = _labels(tree.get("Labels"))
    obj: dict[str, Json] = {"kind": kind, "metadata": metadata}
    if kind == "Pod":
        obj |= _pod(tree, metadata)
    elif kind == "Node" and (match := _ALLOCATABLE.search(block)) is not None:
        obj["status"] = {"allocatable": _amounts(match[1])}
    elif kind in JOB_KINDS:
        obj["status"] = _job_status(tree, block)
    yield obj
    name = str(metadata["name"])
    space = str(metadata.get("namespace", ""))
    for match in (_EVENT.match(line) for line in _joined(lines[at + 1 :])):
        if match is not None:
            yield _event(match, kind, name, space)


def _tree(lines: list[str]) -> _Part:
    root = _Part()
    path: list[tuple[int, _Part]] = [(-1, root)]
    message: _Part | None = None
    for line in lines:
        match = _KEY.match(line)
        if message is not None and not _AFTER_MESSAGE.match(line):
            message.value = f"{message.value}\n{line}"
            continue
        message = None
        if match is None:
            if line.strip() and len(path) > 1:
                path[-1][1].value = f"{path[-1][1].value} {line.strip()}".strip()
            continue
        indent = len(match["indent"])
        while path[-1][0] >= indent:
            path.pop()
        part = _Part(value=(match["value"] or "").strip())
        path[-1][1].below[match["key"].strip()] = part
        path.append((indent, part))
        if match["key"] == "Message":
            message = part
    return root


def _labels(part: _Part) -> dict[str, Json]:
    texts = [part.value, *(f"{key}:{below.value}" for key, below in part.below.items())]
    pairs = (word.partition("=") for text in texts for word in text.split())
    return {name: value for name, sign, value in pairs if sign}


def _pod(tree: _Part, metadata: dict[str, Json]) -> dict[str, Json]:
    node = tree.get("Node").value.partition("/")[0]
    phase = tree.get("Status").value.split(" ")[0]
    if phase == "Terminating":
        metadata["deletionTimestamp"] = write_time(_AT_S)
        phase = "Running"
    spec: dict[str, Json] = {"nodeName": "" if node in ("<none>", "") else node}
    status: dict[str, Json] = {"phase": phase}
    for key, name in (("Reason", "reason"), ("Message", "message")):
        if tree.get(key).value:
            status[name] = tree.get(key).value
    containers: list[Json] = []
    for key, of in (("Init Containers", "initContainerStatuses"), ("Containers", "containerStatuses")):
        sections = tree.get(key).below
        status[of] = [_container(name, part) for name, part in sections.items()]
        if key == "Containers":
            containers = [_spec_of(name, part) for name, part in sections.items()]
    spec["containers"] = containers
    status["conditions"] = [
        {"type": name, "status": part.value.split(" ")[0]}
        for name, part in tree.get("Conditions").below.items()
        if name != "Type"
    ]
    return {"spec": spec, "status": status}


def _spec_of(name: str, part: _Part) -> dict[str, Json]:
    resources: dict[str, Json] = {}
    for key, of in (("Limits", "limits"), ("Requests", "requests")):
        amounts: dict[str, Json] = {resource: below.value for resource, below in part.get(key).below.items()}
        if amounts:
            resources[of] = amounts
    return {"name": name, "image": part.get("Image").value, "resources": resources}


def _container(name: str, part: _Part) -> dict[str, Json]:
    count = part.get("Restart Count").value
    return {
        "name": name,
        "image": part.get("Image").value,
        "restartCount": int(count) if count.isdigit() else 0,
        "state": _state(part.get("State")),
        "lastState": _state(part.get("Last State")),
    }


def _state(part: _Part) -> dict[str, Json]:
    fields: dict[str, Json] = {"reason": part.get("Reason").value, "message": part.get("Message").value}
    match part.value.split(" ")[0].lower():
        case "waiting":
            return {"waiting": fields}
        case "running":
            return {"running": {"startedAt": write_time(_AT_S - 60)}}
        case "terminated":
            code = part.get("Exit Code").value
            if part.get("Signal").value.isdigit():
                code = str(128 + int(part.get("Signal").value))
            return {"terminated": {**fields, "exitCode": int(code) if code.lstrip("-").isdigit() else 1}}
        case _:
            return {}


def _job_status(tree: _Part, block: str) -> dict[str, Json]:
    """Status of a custom resource is printed as a tree, that of a Job as single lines."""
    status: dict[str, Json] = {}
    part = tree.get("Status")
    for key, name in (
        ("Job Status", "jobStatus"),
        ("Job Deployment Status", "jobDeploymentStatus"),
        ("Message", "message"),
        ("Reason", "reason"),
    ):
        if part.get(key).value:
            status[name] = part.get(key).value
    conditions: list[Json] = []
    for chunk in re.split(r"^ +Last Transition Time:", _status_text(block), flags=re.MULTILINE)[1:]:
        fields = {
            match["key"].strip(): (match["value"] or "").strip()
            for line in chunk.splitlines()
            if (match := _KEY.match(line)) is not None
        }
        names = {"Type": "type", "Status": "status", "Reason": "reason", "Message": "message"}
        conditions.append({name: fields.get(key, "") for key, name in names.items()})
    if conditions:
        status["conditions"] = conditions
    return status


def _status_text(block: str) -> str:
    match = re.search(r"^Status:\s*$(?P<body>.*?)^(?=\S)", f"{block}\nX", re.MULTILINE | re.DOTALL)
    return match["body"] if match is not None else ""


def _joined(lines: list[str]) -> Iterator[str]:
    """Events, with the lines that a message was broken into."""
    whole = ""
    for line in lines:
        if _EVENT.match(line):
            if whole:
                yield whole
            whole = line
        elif whole and line.strip() and line.startswith((" ", "\t")):
            whole = f"{whole} {line.strip()}"
        elif whole and line.strip():
            break
    if whole:
        yield whole


def _listed(line: str) -> Iterator[dict[str, Json]]:
    match = _LISTED.match(line) or _EVENT.match(line)
    if match is None:
        return
    named = match.groupdict()
    kind = {"pod": "Pod", "job": "Job"}.get(str(named.get("kind", "")), str(named.get("kind", "")).title())
    yield _event(match, kind, str(named.get("name") or ""), "")


def _event(match: re.Match[str], kind: str, name: str, namespace: str) -> dict[str, Json]:
    named = match.groupdict()
    at_s = _AT_S - _seconds(str(named["age"]))
    since = named.get("since")
    first_s = at_s if not since else _AT_S - _seconds(str(since))
    subject: dict[str, Json] = {"kind": kind, "name": name, "namespace": namespace}
    return {
        "kind": "Event",
        "type": named["type"],
        "reason": named["reason"],
        "message": named["message"],
        "count": int(named.get("count") or 1),
        "firstTimestamp": _stamp(first_s),
        "lastTimestamp": _stamp(at_s),
        "involvedObject": subject,
    }


def _stamp(at_s: float) -> str:
    return (datetime.fromtimestamp(0, UTC) + timedelta(seconds=at_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(age: str) -> float:
    match = _AGE.fullmatch(age)
    if match is None:
        return 0.0
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    return float(sum(int(match[unit]) * factor for unit, factor in units.items() if match[unit]))
