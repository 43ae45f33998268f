"""What do flags mean that are written in words of their own? `data:/data:ro`, `output=10Gi`, `NAME=VALUE`.

Each reader gives what it understood, and a problem for what it did not.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from paceline.errors import Problem
from paceline.kube.intent import Claim, Volume
from paceline.kube.words import DNS_LABEL, DNS_SUBDOMAIN, LABEL_KEY, LABEL_VALUE, VARIABLE, read_quantity

Found = TypeVar("Found")
Read = tuple[tuple[Found, ...], list[Problem]]

_PATH = re.compile(r"/[A-Za-z0-9._/-]*[A-Za-z0-9._-]")
# Ours, torchrun's and the operators': whoever changes them contradicts the manifest.
_TAKEN = re.compile(r"PET_.*|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|JOB_NAME")
_OURS = ("/dev/shm", "/config", "/cache", "/results")


def read_volumes(texts: Sequence[str], flag: str) -> Read[Volume]:
    """CLAIM:PATH[:ro]"""
    found: list[Volume] = []
    problems: list[Problem] = []
    for text in texts:
        claim, _, rest = text.partition(":")
        path, _, mode = rest.partition(":")
        if DNS_LABEL.fullmatch(claim) and len(claim) <= 63 and _PATH.fullmatch(path) and mode in ("", "ro"):
            found.append(Volume(claim=claim, path=path, is_read_only=mode == "ro"))
        else:
            what = f"{flag.removeprefix('--')} is {text!r}, but it must be CLAIM:PATH, or CLAIM:PATH:ro"
            problems.append(Problem(what, f"write {flag} data:/data:ro, for example", flag))
    return tuple(found), problems


def clashes(volumes: Sequence[Volume]) -> list[Problem]:
    """Two volumes at one place, one claim twice, or one where something else is."""
    problems: list[Problem] = []
    paths = [volume.path.rstrip("/") for volume in volumes]
    for path in sorted({path for path in paths if paths.count(path) > 1 or path in _OURS}):
        what = f"{path} is where something else is mounted already"
        problems.append(Problem(what, "choose another path, such as /data", "--volume"))
    claims = [volume.claim for volume in volumes]
    for claim in sorted({claim for claim in claims if claims.count(claim) > 1}):
        problems.append(Problem(f"claim {claim} is mounted twice", "mount it once", "--volume"))
    for claim in sorted({"shm", "config", "cache", "results"}.intersection(claims)):
        what = f"claim {claim} has the name of a volume that every pod has"
        problems.append(Problem(what, "give the claim another name", "--volume"))
    return problems


def read_claims(texts: Sequence[str], volumes: Sequence[Volume], nodes: int) -> Read[Claim]:
    """CLAIM=SIZE[/STORAGECLASS]; the number of nodes says who must be able to reach it."""
    found: list[Claim] = []
    problems: list[Problem] = []
    mounted = {volume.claim for volume in volumes}
    for text in texts:
        name, _, rest = text.partition("=")
        size, _, storage = rest.partition("/")
        amount = read_quantity(size)
        if amount is None or amount < 1 or (storage and not DNS_SUBDOMAIN.fullmatch(storage)):
            what = f"create_volume is {text!r}, but it must be CLAIM=SIZE, or CLAIM=SIZE/STORAGECLASS"
            problems.append(Problem(what, "write --create-volume data=10Gi, for example", "--create-volume"))
        elif name not in mounted:
            what = f"create_volume names {name!r}, which no pod mounts"
            hint = "mount it by --volume or --checkpoint-volume, or leave it out"
            problems.append(Problem(what, hint, "--create-volume"))
        else:
            # Also for reading only: it must be filled first, and few drivers take two modes, or ReadOnlyMany.
            mode = "ReadWriteMany" if nodes > 1 else "ReadWriteOnce"
            found.append(Claim(name=name, size=size, storage_class=storage or None, modes=(mode,)))
    return tuple(found), problems


def read_variables(texts: Sequence[str]) -> Read[tuple[str, str]]:
    """NAME=VALUE. Whether a value is a secret is asked of the finished manifest."""
    found: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not VARIABLE.fullmatch(name):
            # What was typed may be a secret, so only the name is shown.
            what = f"env for {name[:40]!r} is not NAME=VALUE"
            problems.append(Problem(what, "write --env OMP_NUM_THREADS=4, for example", "--env"))
        elif taken := find_taken([name], "--env"):
            problems += taken
        else:
            found.append((name, value))
    return tuple(found), problems


def find_taken(names: Iterable[str], flag: str) -> list[Problem]:
    hint, said = "leave it out: it is set for every pod", flag.removeprefix("--").replace("-", "_")
    return [
        Problem(f"{said} sets {name}, which says who is who in a job", hint, flag)
        for name in names
        if _TAKEN.fullmatch(name)
    ]


def read_labels(texts: Sequence[str], flag: str) -> Read[tuple[str, str]]:
    """KEY=VALUE of nodes."""
    found: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if equals and LABEL_KEY.fullmatch(key) and LABEL_VALUE.fullmatch(value) and len(value) <= 63:
            found.append((key, value))
        else:
            what = f"{flag.removeprefix('--').replace('-', '_')} is {text!r}, but it must be KEY=VALUE"
            problems.append(Problem(what, f"write {flag} disktype=ssd, for example", flag))
    return tuple(found), problems


def secret_of(text: str) -> str:
    """SECRET[/KEY] as VARIABLE=SECRET/KEY, which is read, and complained about, in one place."""
    secret, _, key = text.partition("/")
    return f"HF_TOKEN={secret}/{key or 'token'}"
