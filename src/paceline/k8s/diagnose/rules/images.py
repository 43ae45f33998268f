"""Images that cannot be fetched or run. Rows 16 to 20."""

from collections.abc import Iterator
from dataclasses import replace

from paceline.k8s.diagnose.findings import Failure, FailureClass, Remedy, Sign, Source, text
from paceline.k8s.diagnose.pods import condition, node_of, phase, waiting
from paceline.k8s.diagnose.snapshot import Snapshot, name_of
from paceline.k8s.objects import read_time

IMAGE_NOT_FOUND = Failure(
    number=16,
    name="image-not-found",
    what="the image does not exist",
    kind=FailureClass.CONFIG,
    cause="the image {image} does not exist in its registry{near}",
    why="the registry responds, but has no such name or tag: correct --image; no operator stops such a job",
    command="docker manifest inspect {image}",
    remedy=Remedy.STOP,
    patience_s=15.0,
    observations=2,
)
NO_REGISTRY = replace(
    IMAGE_NOT_FOUND,
    cause="the registry of image {image} does not exist: {detail}",
    why="DNS has no such host: correct the registry's name in --image",
)
IMAGE_AUTH = Failure(
    number=17,
    name="image-auth",
    what="the registry denies the pull",
    kind=FailureClass.CONFIG,
    cause="the registry denies this cluster access to {image}, or has no such repository",
    why="the node has no credentials for it, or they lack the permission",
    command="docker login {registry} && kubectl create secret docker-registry pull -n {namespace} "
    "--from-file=.dockerconfigjson=$HOME/.docker/config.json",
    remedy=Remedy.STOP,
    patience_s=15.0,
    observations=2,
)
IMAGE_NETWORK = Failure(
    number=18,
    name="image-network",
    what="the registry cannot be reached, or limits pulls",
    kind=FailureClass.INFRA,
    cause="the image {image} cannot be pulled now: {detail}",
    why="the registry or the network is overloaded; the node retries, and the job is watched for 10 minutes",
    command="kubectl describe pod {pod} -n {namespace}",
    remedy=Remedy.RESUBMIT,
    patience_s=600.0,
)
WRONG_PLATFORM = Failure(
    number=19,
    name="wrong-platform",
    what="the image is built for another architecture, or is not on the node",
    kind=FailureClass.CONFIG,
    cause="the image {image} cannot run on this node: {detail}",
    why="it was built for another CPU architecture, or its pull policy is Never and it is not on the node",
    command="docker buildx build --platform linux/amd64,linux/arm64 --push -t {image} .",
    remedy=Remedy.STOP,
)
DISK_FULL = Failure(
    number=20,
    name="disk-full",
    what="the node's disk is full",
    kind=FailureClass.INFRA,
    cause="the disk of node {node} is full",
    why="other images and logs have filled it; another node is tried once",
    command="kubectl describe node {node} | grep -A8 Conditions",
    remedy=Remedy.RESUBMIT,
    most=1,
    excludes_node=True,
)
ROWS = (IMAGE_NOT_FOUND, NO_REGISTRY, IMAGE_AUTH, IMAGE_NETWORK, WRONG_PLATFORM, DISK_FULL)

_PULL = (
    r"\A(?=[\s\S]*(?:pull|failed to resolve reference|image reference|manifest|ImageInspect|to authorize))"
    r"[\s\S]*?"
)
_NETWORK = (
    r"(?P<detail>toomanyrequests|429 Too Many Requests|i/o timeout|TLS handshake|unexpected EOF|: EOF\b"
    r"|short read|failed commit on ref|unexpected (?:commit )?(?:digest|size)"
    r"|content digest \S+: not found|code = Unavailable"
    r"|http2: [^\n]{0,60}|Client\.Timeout|DeadlineExceeded|server misbehaving|connection (?:refused|reset)"
    r"|context (?:deadline exceeded|canceled)"
    r"|50[0234]\b[^\n]{0,40}"
    r"|Temporary failure in name resolution|network is unreachable|connect: \w+)"
)
_REFUSED = (
    r"(?:unauthorized|no basic auth|40[13]\b|denied|authorization failed|failed to authorize"
    r"|insufficient_scope|authentication required)"
)
_SOURCES = (Source.CLUSTER,)
TEXTS = (
    text(
        WRONG_PLATFORM,
        r"(?P<detail>no (?:match for|supported) platform (?:found )?in (?:the )?manifest"
        r"|no matching manifest for \S+)",
        *_SOURCES,
    ),
    text(WRONG_PLATFORM, r"(?P<detail>exec format error)"),
    text(
        WRONG_PLATFORM, r"(?P<detail>ErrImageNeverPull|is not present with pull policy of Never)", *_SOURCES
    ),
    text(DISK_FULL, rf"{_PULL}no space left on device", *_SOURCES),
    text(
        DISK_FULL,
        r"DiskPressure|failed to garbage collect required amount of images|ImageGCFailed",
        *_SOURCES,
    ),
    text(IMAGE_NOT_FOUND, r"InvalidImageName|invalid reference format|couldn't parse image", *_SOURCES),
    text(NO_REGISTRY, rf"{_PULL}(?P<detail>lookup \S+(?: on \S+)?: no such host)", *_SOURCES),
    text(
        IMAGE_AUTH,
        rf"{_PULL}(?:x509: |certificate signed by unknown authority"
        rf"|server gave HTTP response to HTTPS client)",
        *_SOURCES,
    ),
    text(
        WRONG_PLATFORM,
        rf"{_PULL}(?P<detail>unsupported (?:manifest )?media ?type[^\n]*"
        rf"|schema 1[^\n]*no longer supported[^\n]*|invalid tar header[^\n]*)",
        *_SOURCES,
    ),
    text(IMAGE_NETWORK, rf"{_PULL}{_NETWORK}", *_SOURCES),
    text(IMAGE_AUTH, rf"{_PULL}{_REFUSED}", *_SOURCES),
    text(
        IMAGE_NOT_FOUND,
        r"manifest unknown|(?:pull|resolve reference|manifest for)[\s\S]*not found|NAME_UNKNOWN|name unknown",
        *_SOURCES,
    ),
)

# After checkpoints and shared memory, which also report missing space.
LATE_TEXTS = (text(DISK_FULL, r"No space left on device|Disk quota exceeded", *_SOURCES),)


def find_signs(snapshot: Snapshot) -> Iterator[Sign]:
    for state in waiting(snapshot):
        if state.reason in ("InvalidImageName", "ErrImageNeverPull"):
            failure = IMAGE_NOT_FOUND if state.reason == "InvalidImageName" else WRONG_PLATFORM
            line = (
                f"pod/{name_of(state.pod)} container {state.container} waits: {state.reason}: {state.message}"
            )
            values = {"image": state.image, "detail": "it is not on the node, and its pull policy is Never"}
            yield Sign(failure, (line,), pod=state.pod, values=values, seen=2)
    for node in snapshot.nodes:
        pressure = condition(node, "DiskPressure")
        stuck = (pod for pod in snapshot.pods if phase(pod) in ("Pending", "Failed"))
        affected = next((pod for pod in stuck if node_of(pod) == name_of(node)), None)
        if pressure.get("status") == "True" and affected is not None:
            at_s = read_time(pressure.get("lastTransitionTime"))
            line = f"node/{name_of(node)} DiskPressure: {pressure.get('message', '')}"
            yield Sign(DISK_FULL, (line,), at_s=at_s, pod=affected, values={"node": name_of(node)})
