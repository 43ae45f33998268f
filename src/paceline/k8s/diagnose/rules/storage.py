"""Storage: classes, provisioning, permissions, space and I/O errors of volumes. Rows 52 to 55.

Kubelet, provisioners and mount helpers report them in events; programs report them as OSError. A volume
that is refused stays refused, so it is configuration. A file server that stops answering is infrastructure.
"""

from collections.abc import Iterator

from paceline.k8s.diagnose.findings import Doubt, Failure, FailureClass, Remedy, Sign, Source, Weight, text
from paceline.k8s.diagnose.pods import conditions
from paceline.k8s.diagnose.snapshot import Object, Snapshot, name_of
from paceline.k8s.objects import mapping, read_time

STORAGE_CLASS = Failure(
    number=52,
    name="storage-class",
    what="no volume can be provisioned for a claim",
    kind=FailureClass.CONFIG,
    cause="no volume is provisioned for claim {claim}: {detail}",
    why="the storage class does not exist, is not the default, or has invalid parameters",
    command="kubectl get storageclass",
    remedy=Remedy.STOP,
    patience_s=60.0,  # a driver that restarts provisions at its second try
)
VOLUME_PERMISSION = Failure(
    number=53,
    name="volume-permission",
    what="access to a volume or file is denied",
    kind=FailureClass.CONFIG,
    cause="access to a volume or file is denied: {detail}",
    why="its owner, mode, access point, security context (runAsUser, fsGroup) or mount is read-only for "
    "this pod",
    command="kubectl get pod {pod} -n {namespace} -o jsonpath='{{.spec.securityContext}}'",
    remedy=Remedy.STOP,
)
VOLUME_IO = Failure(
    number=54,
    name="volume-io",
    what="a file system stopped responding",
    kind=FailureClass.INFRA,
    cause="a file system reported an I/O error on node {node}: {detail}",
    why="the client lost its file server, or a disk failed; the same program works on a healthy mount",
    command="kubectl describe pod {pod} -n {namespace}",
    remedy=Remedy.RESUBMIT,
    excludes_node=True,
)
VOLUME_FULL = Failure(
    number=55,
    name="volume-full",
    what="a volume or quota of a file system is full",
    kind=FailureClass.CONFIG,
    cause="there is no space left for the program's files: {detail}",
    why="the volume, the container's layer or a quota is full; a retry writes the same amount",
    command="kubectl exec {pod} -n {namespace} -- df -h",
    remedy=Remedy.STOP,
)
ROWS = (STORAGE_CLASS, VOLUME_PERMISSION, VOLUME_IO, VOLUME_FULL)


def _errno(numbers: str, names: str) -> str:
    """Words for an error number, as Python, Rust, C and Node.js print it."""
    number = rf"(?:{numbers})"
    printed = rf"\[Errno {number}\]|\(os error {number}\)|\berrno ?[:=] ?{number}\b"
    return rf"(?:{printed}|\b(?-i:{names})\b)"


_SOURCES = (Source.CLUSTER,)
_CLAIM = r'(?:(?:claim|PersistentVolumeClaim|pvc)[ /"]+(?P<claim>[\w./-]+)[^\n]{0,80}?)?'
EARLY_TEXTS = (
    text(
        STORAGE_CLASS,
        rf'{_CLAIM}(?P<detail>storage ?class(?:\.storage\.k8s\.io)? "?[\w.-]*"? ?(?:not found|does not exist'
        rf"|is not "
        r"found)[^\n]*)",
        *_SOURCES,
    ),
    text(
        STORAGE_CLASS,
        r"(?P<detail>no persistent volumes available for this claim and no storage class is set[^\n]*"
        r"|no volume plugin matched[^\n]*|no default storage ?class[^\n]*)",
        *_SOURCES,
    ),
    text(
        STORAGE_CLASS,
        r"(?P<detail>failed to provision volume[^\n]*(?:InvalidArgument|InvalidParameter|not support"
        r"|Unsupported|Access"
        r"Denied|Unauthorized|not authorized|must be|is required|NotFound|not found|out of range"
        r"|LimitExceeded)[^\n]*)",
        *_SOURCES,
    ),
    text(
        VOLUME_PERMISSION,
        r"(?P<detail>(?:mount|MountVolume|mounting|mount\.\w+)[^\n]*(?:access denied by server"
        r"|Permission denied"
        r"|Operation not permitted|AccessDenied|not authorized|read-only file ?system)[\s\S]{0,200})",
        *_SOURCES,
    ),
)
# Before checkpoints, which a full volume cuts off.
FULL_TEXTS = (
    text(
        VOLUME_FULL,
        rf"(?P<detail>{_errno('28|122', 'ENOSPC|EDQUOT')}[^\n]*|Disk quota exceeded[^\n]*)",
        Source.LOG,
        Source.CLUSTER,
    ),
    text(
        VOLUME_FULL,
        r"(?P<detail>No space left on device[^\n]*|not enough (?:free )?disk space[^\n]*)",
        Source.LOG,
    ),
)
TEXTS = (
    text(
        VOLUME_PERMISSION,
        rf"(?P<detail>(?:PermissionError: )?{_errno('13|1|30', 'EACCES|EPERM|EROFS')}[^\n]*)",
        Source.LOG,
        Source.CLUSTER,
    ),
    text(
        VOLUME_PERMISSION,
        r"(?P<detail>^\S*sh: (?:line )?(?:\d+: )?\S+: (?:Permission denied|Read-only file system))",
        Source.LOG,
    ),
    text(
        VOLUME_PERMISSION,
        r"(?P<detail>\bRead-only file system$)",
        Source.LOG,
        Source.CLUSTER,
    ),
    text(
        VOLUME_PERMISSION,
        r"(?P<detail>(?:mkdir|touch|cp|mv|tar|cat|open|chown|chmod|ls|rm|cannot (?:create|open|access|make)"
        r"|failed to (?:create|open|write))\b[^\n]*(?:Permission denied|Operation not permitted"
        r"|Read-only file system))",
        Source.LOG,
        soft=True,
    ),
    text(
        VOLUME_IO,
        r"(?P<detail>(?:OSError: )?"
        rf"{_errno('5|52|107|108|112|116|121|103', 'EIO|ESTALE|EREMOTEIO|ESHUTDOWN')}[^\n]*)",
        Source.LOG,
        Source.CLUSTER,
    ),
    text(
        VOLUME_IO,
        # Network libraries use the same errno texts for their links.
        r"^(?![^\n]*(?:what\(\):|NCCL|NET/|libfabric|\bibv_|\befa\b|\bgloo\b|\bmlx5|\bUCX\b|\brdma))(?P<detail>[^\n]*"
        r"(?:Stale (?:NFS )?file handle|Transport endpoint is not connected"
        r"|Cannot send after transport endpoint shutdown|Remote I/O error|Input/output error)[^\n]*)",
        Source.LOG,
        Source.CLUSTER,
    ),
    text(
        VOLUME_IO,
        r"(?P<detail>(?:Lustre|LustreError|lnet|ldlm)\b[^\n]*(?:evicted|lost connection|Connection to"
        r"|timed out|in recovery|was lost|unavailable)[^\n]*|nfs: server \S+ not responding[^\n]*"
        r"|(?:EXT4-fs|XFS|Buffer I/O|blk_update_request|I/O) error[^\n]*|errno = 5, Unable to (?:open|read"
        r"|write)[^\n]*)",
        Source.LOG,
        Source.CLUSTER,
    ),
    # The writer of PyTorch reports only that a write was short: a full volume, a quota, or an I/O error.
    text(
        VOLUME_FULL,
        r"(?P<detail>PytorchStreamWriter failed[^\n]*"
        r"|inline_container\.cc[^\n]*unexpected pos \d+ vs \d+[^\n]*)",
        Source.LOG,
        Source.CLUSTER,
        doubt=Doubt.ALWAYS,
    ),
)


def find_signs(snapshot: Snapshot) -> Iterator[Sign]:
    """Claims that stay without a volume although a pod uses them."""
    used = {
        str(mapping(volume, "persistentVolumeClaim").get("claimName", ""))
        for pod in snapshot.pods
        for volume in _volumes(pod)
    }
    for claim in snapshot.of("PersistentVolumeClaim"):
        if name_of(claim) not in used or mapping(claim, "status").get("phase") != "Lost":
            continue
        line = f"persistentvolumeclaim/{name_of(claim)} is Lost"
        at_s = next((read_time(condition.get("lastTransitionTime")) for condition in conditions(claim)), None)
        values = {"claim": name_of(claim), "detail": "its volume no longer exists"}
        yield Sign(STORAGE_CLASS, (line,), at_s, values=values, weight=Weight.MASK)


def _volumes(pod: Object) -> list[Object]:
    volumes = mapping(pod, "spec").get("volumes")
    return [volume for volume in volumes if isinstance(volume, dict)] if isinstance(volumes, list) else []
