"""Deployment of our own services: rendered, validated, tried by a dry run, created.

What is there and agrees is not written again; what differs is changed, after the server has tried all of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import CannotWriteError, ManifestError, NotReadyError, Problem
from paceline.k8s.deploy import coordinator, dashboard
from paceline.k8s.deploy.coordinator import Coordinator
from paceline.k8s.deploy.dashboard import Dashboard
from paceline.k8s.deploy.service import KUSTOMIZATION_FILE, merge_patch
from paceline.k8s.fix.actions import object_label
from paceline.k8s.objects import (
    DNS_LABEL,
    DNS_SUBDOMAIN,
    IMAGE,
    MAX_LABEL_LENGTH,
    NAME,
    mapping,
    read_quantity,
)
from paceline.k8s.render.pod import Object
from paceline.k8s.render.targets import to_yaml
from paceline.k8s.spec.job import Profile
from paceline.k8s.validate.offline import find_problems

if TYPE_CHECKING:
    from paceline.k8s.client.kubernetes_api import KubernetesApi


_LONGEST = 40  # pods, claims and labels add to it


@dataclass(frozen=True, slots=True)
class Applied:
    object: str
    state: str  # there, created, changed; with a dry run would create, would change


def coordinator_files(asked: Coordinator) -> dict[str, str]:
    """The folder for kustomize, by file. Raises ConfigError."""
    _check(asked)
    return manifest_texts(coordinator.kustomization(asked), coordinator.render(asked))


def manifest_texts(kustomization: Object, objects: dict[str, Object]) -> dict[str, str]:
    """Raises ConfigError for what our own rules do not take."""
    wrong = [finding for one in objects.values() for finding in find_problems(one, Profile.STRICT)]
    if wrong:
        raise ManifestError([Problem(one.what, one.hint, ".".join(map(str, one.path))) for one in wrong])
    texts = {name: to_yaml([one]) for name, one in objects.items()}
    return {KUSTOMIZATION_FILE: to_yaml([kustomization]), **texts}


def write_files(folder: Path, files: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        hint = "name a folder where this user may write"
        raise CannotWriteError(f"cannot write to {folder}: {error.strerror}", hint) from error


def apply_coordinator(api: "KubernetesApi", asked: Coordinator, *, dry_run: bool) -> list[Applied]:
    """Raises ApiError, ConfigError, NotReadyError; before the first write, if it can be known then."""
    coordinator_files(asked)
    _needs_keys(api, asked)
    return apply_objects(api, list(coordinator.render(asked).values()), dry_run=dry_run)


def apply_objects(api: "KubernetesApi", objects: Sequence[Object], *, dry_run: bool) -> list[Applied]:
    """All of them are tried by the server before the first is written."""
    states = [_write(api, one, dry_run=True) for one in objects]
    if not dry_run:
        states = [
            state if state == "there" else _write(api, one, dry_run=False)
            for one, state in zip(objects, states, strict=True)
        ]
    would = "would be " if dry_run else ""
    return [
        Applied(object_label(one), state if state == "there" else f"{would}{state}")
        for one, state in zip(objects, states, strict=True)
    ]


def _write(api: "KubernetesApi", wanted: Object, *, dry_run: bool) -> str:
    from paceline.k8s.fix.objects import find_object
    from paceline.k8s.kinds import kind_of

    there = find_object(api, wanted)
    if there is None:
        api.create(wanted, dry_run=dry_run)
        return "created"
    change = merge_patch(wanted, there)
    if not change:
        return "there"
    if wanted.get("kind") == "StatefulSet":
        _same_nodes(wanted, there)
    about = mapping(wanted, "metadata")
    api.patch(kind_of(dict(wanted)), str(about["name"]), str(about["namespace"]), change, dry_run=dry_run)
    return "changed"


def _same_nodes(wanted: Object, there: Object) -> None:
    """Who takes part is decided by the nodes: a new one without --join would begin a log of its own."""
    now, then = mapping(wanted, "spec").get("replicas"), mapping(there, "spec").get("replicas")
    if now != then:
        hint = f"say --replicas {then}; `paceline coordinator add` and `remove` change who takes part"
        raise ManifestError([Problem(f"there are {then} nodes, and {now} are asked for", hint, "--replicas")])


def _needs_keys(api: "KubernetesApi", asked: Coordinator) -> None:
    require_namespace(api, asked.namespace)
    hint = "make it: " + " && ".join(coordinator.secret_commands(asked))
    require_secret(
        api, asked.namespace, asked.tls_secret, coordinator.secret_keys(asked), hint, "certificates"
    )


def require_namespace(api: "KubernetesApi", name: str) -> None:
    from paceline.k8s.client.api import ForbiddenError, NotThereError
    from paceline.k8s.kinds import NAMESPACE

    try:
        api.get(NAMESPACE, name)
    except NotThereError as error:
        fix = f"paceline cluster fix -n {name} --only namespace"
        raise NotReadyError(f"there is no namespace {name}", f"make it: {fix}") from error
    except ForbiddenError:
        pass  # whoever may not look at namespaces may still write into one


def require_secret(
    api: "KubernetesApi", namespace: str, name: str, keys: Sequence[str], hint: str, what: str
) -> None:
    """Raises NotReadyError if it is not there, or lacks a key; what is in it is not looked at."""
    from paceline.k8s.client.api import ForbiddenError, NotThereError
    from paceline.k8s.kinds import SECRET

    try:
        held = mapping(api.get(SECRET, name, namespace), "data")
    except NotThereError as error:
        raise NotReadyError(f"there is no Secret {name} with {what}", hint) from error
    except ForbiddenError:
        return  # nor has everybody to be able to read keys
    missing = [key for key in keys if key not in held]
    if missing:
        raise NotReadyError(f"Secret {name} lacks {', '.join(missing)}", hint)


def _check(asked: Coordinator) -> None:
    problems = service_problems(asked.name, asked.namespace, asked.image)
    if asked.replicas % 2 == 0:
        what = f"{asked.replicas} nodes survive no more losses than {asked.replicas - 1}"
        problems.append(Problem(what, "take 3, or 5", "--replicas"))
    problems += find_invalid_quantities(asked, ("storage", "cpu", "memory"))
    said = {"tls-secret": asked.tls_secret, "pull-secret": asked.pull_secret}
    problems += find_invalid_names({**said, "storage-class": asked.storage_class})
    if problems:
        raise ManifestError(problems)


def service_problems(name: str, namespace: str, image: str) -> list[Problem]:
    """With what every service is told."""
    problems: list[Problem] = []
    for flag, text, shape, most in (
        ("--name", name, NAME, _LONGEST),
        ("--namespace", namespace, DNS_LABEL, MAX_LABEL_LENGTH),
    ):
        if not shape.fullmatch(text) or len(text) > most:
            hint = f"begin with a letter; use small letters, digits and -, {most} at most"
            problems.append(Problem(f"{text!r} cannot be a name here", hint, flag))
    if not IMAGE.fullmatch(image):
        problems.append(Problem(f"{image!r} is no image", "write NAME:TAG", "--image"))
    return problems


def find_invalid_names(names: Mapping[str, str | None]) -> list[Problem]:
    """By flag: what no object can be called."""
    return [
        Problem(f"{name!r} cannot be a name here", "use a-z, 0-9 and -", f"--{flag}")
        for flag, name in names.items()
        if name is not None and not DNS_SUBDOMAIN.fullmatch(name)
    ]


def find_invalid_quantities(asked: object, names: Sequence[str]) -> list[Problem]:
    return [
        Problem(f"{getattr(asked, name)!r} is no amount", "write 1Gi or 500m, for example", f"--{name}")
        for name in names
        if not read_quantity(getattr(asked, name))
    ]


def dashboard_files(asked: Dashboard) -> dict[str, str]:
    """The folder for kustomize, by file. Raises ConfigError."""
    problems = service_problems(asked.name, asked.namespace, asked.image) + find_invalid_quantities(
        asked, ("cpu", "memory")
    )
    if asked.path.startswith("/") or ".." in asked.path.split("/"):
        what = f"{asked.path!r} is no folder on the claim"
        problems.append(Problem(what, "write it without / before it, and without ..", "--path"))
    said = {"claim": asked.claim, "token-secret": asked.token_secret, "pull-secret": asked.pull_secret}
    problems += find_invalid_names(said)
    for flag, shape, names in (
        ("--host-name", DNS_SUBDOMAIN, asked.hosts),
        ("--from-namespace", DNS_LABEL, asked.from_namespaces),
    ):
        wrong = [name for name in names if not shape.fullmatch(name)]
        problems += [Problem(f"{name!r} cannot be a name here", "use a-z, 0-9 and -", flag) for name in wrong]
    if problems:
        raise ManifestError(problems)
    return manifest_texts(dashboard.kustomization(asked), dashboard.render(asked))


def apply_dashboard(api: "KubernetesApi", asked: Dashboard, *, dry_run: bool) -> list[Applied]:
    """Raises ApiError, ConfigError, NotReadyError; before the first write, if it can be known then."""
    dashboard_files(asked)
    require_namespace(api, asked.namespace)
    hint = "make it: " + " && ".join(dashboard.secret_commands(asked))
    require_secret(api, asked.namespace, asked.token_secret, [dashboard.KEY], hint, "the token")
    _needs_claim(api, asked)
    return apply_objects(api, list(dashboard.render(asked).values()), dry_run=dry_run)


def _needs_claim(api: "KubernetesApi", asked: Dashboard) -> None:
    from paceline.k8s.client.api import ForbiddenError, NotThereError
    from paceline.k8s.kinds import CLAIM

    try:
        api.get(CLAIM, asked.claim, asked.namespace)
    except NotThereError as error:
        hint = f"name the one that jobs write to, or make one: paceline cluster fix -n {asked.namespace}"
        hint += f" --claim {asked.claim}=10Gi:rwx"
        raise NotReadyError(f"there is no claim {asked.claim} with runs", hint) from error
    except ForbiddenError:
        return  # the server will say
