"""Checks of storage: the default class, drivers, and volumes that several nodes can share."""

from collections.abc import Iterator

from paceline.k8s.check.findings import Finding, Level, Need, list_names, ok_finding
from paceline.k8s.check.snapshot import Object, Snapshot, name_of
from paceline.k8s.objects import mapping

AREA = "storage"
CLASSES = "storageclasses.storage.k8s.io"
DRIVERS = "csidrivers.storage.k8s.io"
CLAIMS = "persistentvolumeclaims"
_IS_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_SHARED = (  # drivers whose volumes several nodes may write to
    "fsx.csi.aws.com",
    "efs.csi.aws.com",
    "s3.csi.aws.com",
    "nfs.csi.k8s.io",
    "cephfs.csi.ceph.com",
    "file.csi.azure.com",
    "filestore.csi.storage.gke.io",
    "driver.longhorn.io",
)
_EBS = "ebs.csi.aws.com"
_NEEDS_DRIVER = {"kubernetes.io/aws-ebs": _EBS, _EBS: _EBS, "fsx.csi.aws.com": "", "efs.csi.aws.com": ""}
_MINIKUBE = "k8s.io/minikube-hostpath"


def check_storage(seen: Snapshot, need: Need) -> Iterator[Finding]:
    if seen.knows(CLASSES):
        yield from _default(seen)
        yield from _without_driver(seen)
        yield from _one_node_only(seen)
    yield from _shared(seen, need)
    yield from _claims(seen)


def _default(seen: Snapshot) -> Iterator[Finding]:
    defaults = [name_of(storage_class) for storage_class in seen.of(CLASSES) if _is_default(storage_class)]
    if defaults:
        yield ok_finding(AREA, f"default storage class: {list_names(defaults)}")
        return
    yield Finding(
        area=AREA,
        level=Level.NOTE,
        what="there is no default storage class",
        evidence=f"no StorageClass with the annotation {_IS_DEFAULT}",
        why="claims must name a class; others stay Pending",
        command="kubectl get storageclasses",
    )


def _without_driver(seen: Snapshot) -> Iterator[Finding]:
    """On EKS the class gp2 is always there; the driver behind it is an add-on."""
    if not seen.knows(DRIVERS):
        return
    drivers = {name_of(csi_driver) for csi_driver in seen.of(DRIVERS)}
    for storage_class in seen.of(CLASSES):
        provisioner = str(storage_class.get("provisioner", ""))
        driver = _NEEDS_DRIVER.get(provisioner) or provisioner
        if provisioner not in _NEEDS_DRIVER or driver in drivers:
            continue
        yield Finding(
            area=AREA,
            level=Level.WARNING if _is_default(storage_class) else Level.NOTE,
            what=f"storage class {name_of(storage_class)} has no CSI driver",
            evidence=f"its provisioner is {provisioner}, and there is no CSIDriver {driver}",
            why="claims of this class stay Pending",
            command="aws eks create-addon --cluster-name CLUSTER --addon-name aws-ebs-csi-driver"
            if driver == _EBS and _is_default(storage_class)
            else "kubectl get csidrivers",
        )


def _one_node_only(seen: Snapshot) -> Iterator[Finding]:
    for storage_class in seen.of(CLASSES):
        if (
            storage_class.get("provisioner") == _MINIKUBE
            and _is_default(storage_class)
            and len(seen.of("nodes")) > 1
        ):
            yield Finding(
                area=AREA,
                level=Level.WARNING,
                what="minikube's default storage works on its first node only",
                evidence=f"StorageClass {name_of(storage_class)}: provisioner {_MINIKUBE}, and several nodes",
                why="pods on other nodes see an empty folder",
                command="minikube addons enable storage-provisioner-rancher",
            )


def _shared(seen: Snapshot, need: Need) -> Iterator[Finding]:
    drivers = [name_of(csi_driver) for csi_driver in seen.of(DRIVERS) if name_of(csi_driver) in _SHARED]
    claims = [
        name_of(claim)
        for claim in seen.of(CLAIMS)
        if _phase(claim) == "Bound" and "ReadWriteMany" in _modes(claim)
    ]
    if drivers or claims:
        yield ok_finding(AREA, f"several nodes can write to one volume: {list_names([*drivers, *claims])}")
        return
    if not seen.knows(DRIVERS) and not need.rwx:
        return
    if need.rwx or len(seen.of("nodes")) > 1:
        yield Finding(
            area=AREA,
            level=Level.PROBLEM if need.rwx else Level.NOTE,
            what="no volume that several nodes can write to",
            evidence=f"no CSIDriver such as {list_names(_SHARED[:3])}, no bound ReadWriteMany claim",
            why="checkpoints of a run on several nodes need such a volume, or object storage",
            command="aws eks create-addon --cluster-name CLUSTER --addon-name aws-efs-csi-driver"
            if need.rwx
            else "",
        )


def _claims(seen: Snapshot) -> Iterator[Finding]:
    classes = {name_of(storage_class): storage_class for storage_class in seen.of(CLASSES)}
    for claim in seen.of(CLAIMS):
        class_name = str(mapping(claim, "spec").get("storageClassName") or "")
        known = classes.get(class_name)
        waits = known is not None and known.get("volumeBindingMode") == "WaitForFirstConsumer"
        if _phase(claim) == "Lost" or (_phase(claim) == "Pending" and not waits):
            missing = bool(class_name) and seen.knows(CLASSES) and known is None
            yield Finding(
                area=AREA,
                level=Level.WARNING,
                what=f"claim {name_of(claim)} has no volume",
                evidence=f"PersistentVolumeClaim {name_of(claim)}: {_phase(claim)}"
                + (f", and there is no StorageClass {class_name}" if missing else ""),
                why="pods that mount it do not start",
                command=f"kubectl -n {seen.namespace} describe pvc {name_of(claim)}",
            )


def _is_default(storage_class: Object) -> bool:
    return mapping(storage_class, "metadata", "annotations").get(_IS_DEFAULT) == "true"


def _phase(claim: Object) -> str:
    return str(mapping(claim, "status").get("phase", ""))


def _modes(claim: Object) -> list[object]:
    modes = mapping(claim, "spec").get("accessModes")
    return modes if isinstance(modes, list) else []
