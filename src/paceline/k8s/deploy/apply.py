"""Deployment of our own services: rendered, validated, tried by a dry run, created.

What is there and agrees is not written again; what differs is changed, after the server has tried all of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import CannotWriteError, ManifestError, NotReadyError, Problem
from paceline.k8s.deploy import coordinator, dashboard, monitoring
from paceline.k8s.deploy.coordinator import Coordinator
from paceline.k8s.deploy.dashboard import Dashboard
from paceline.k8s.deploy.monitoring import Monitoring
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


def coordinator_files(options: Coordinator) -> dict[str, str]:
    """The folder for kustomize, by file. Raises ConfigError."""
    _check(options)
    return manifest_texts(coordinator.kustomization(options), coordinator.render(options))


def manifest_texts(kustomization: Object, objects: dict[str, Object]) -> dict[str, str]:
    """Raises ConfigError if validation refuses an object."""
    wrong = [finding for obj in objects.values() for finding in find_problems(obj, Profile.STRICT)]
    if wrong:
        raise ManifestError(
            [Problem(finding.what, finding.hint, ".".join(map(str, finding.path))) for finding in wrong]
        )
    texts = {name: to_yaml([manifest]) for name, manifest in objects.items()}
    return {KUSTOMIZATION_FILE: to_yaml([kustomization]), **texts}


def write_files(folder: Path, files: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        hint = "name a folder where this user may write"
        raise CannotWriteError(f"cannot write to {folder}: {error.strerror}", hint) from error


def apply_coordinator(api: "KubernetesApi", options: Coordinator, *, dry_run: bool) -> list[Applied]:
    """Raises ApiError, ConfigError, NotReadyError; before the first write, if it can be known then."""
    coordinator_files(options)
    _require_keys(api, options)
    return apply_objects(api, list(coordinator.render(options).values()), dry_run=dry_run)


def apply_objects(api: "KubernetesApi", objects: Sequence[Object], *, dry_run: bool) -> list[Applied]:
    """All of them are tried by the server before the first is written."""
    states = [_write(api, manifest, dry_run=True) for manifest in objects]
    if not dry_run:
        states = [
            state if state == "there" else _write(api, manifest, dry_run=False)
            for manifest, state in zip(objects, states, strict=True)
        ]
    would = "would be " if dry_run else ""
    return [
        Applied(object_label(manifest), state if state == "there" else f"{would}{state}")
        for manifest, state in zip(objects, states, strict=True)
    ]


def _write(api: "KubernetesApi", manifest: Object, *, dry_run: bool) -> str:
    from paceline.k8s.fix.objects import find_object
    from paceline.k8s.kinds import kind_of

    existing = find_object(api, manifest)
    if existing is None:
        api.create(manifest, dry_run=dry_run)
        return "created"
    change = merge_patch(manifest, existing)
    if not change:
        return "there"
    if manifest.get("kind") == "StatefulSet":
        _require_same_replicas(manifest, existing)
    metadata = mapping(manifest, "metadata")
    api.patch(
        kind_of(dict(manifest)), str(metadata["name"]), str(metadata["namespace"]), change, dry_run=dry_run
    )
    return "changed"


def _require_same_replicas(manifest: Object, existing: Object) -> None:
    """The nodes decide the membership: a new node without --join would start a separate log."""
    now = mapping(manifest, "spec").get("replicas")
    then = mapping(existing, "spec").get("replicas")
    if now != then:
        hint = f"use --replicas {then}; change the members with `paceline coordinator add` and `remove`"
        raise ManifestError(
            [Problem(f"the coordinator has {then} nodes, but --replicas is {now}", hint, "--replicas")]
        )


def _require_keys(api: "KubernetesApi", options: Coordinator) -> None:
    require_namespace(api, options.namespace)
    hint = "create it: " + " && ".join(coordinator.secret_commands(options))
    require_secret(
        api, options.namespace, options.tls_secret, coordinator.secret_keys(options), hint, "certificates"
    )


def require_namespace(api: "KubernetesApi", name: str) -> None:
    from paceline.k8s.client.api import ForbiddenError, NotThereError
    from paceline.k8s.kinds import NAMESPACE

    try:
        api.get(NAMESPACE, name)
    except NotThereError as error:
        fix = f"paceline cluster fix -n {name} --only namespace"
        raise NotReadyError(f"there is no namespace {name}", f"create it: {fix}") from error
    except ForbiddenError:
        pass  # the right to read namespaces is not needed to write into one


def require_secret(
    api: "KubernetesApi", namespace: str, name: str, keys: Sequence[str], hint: str, content: str
) -> None:
    """Raises NotReadyError if it is not there, or lacks a key; its values are not read."""
    from paceline.k8s.client.api import ForbiddenError, NotThereError
    from paceline.k8s.kinds import SECRET

    try:
        held = mapping(api.get(SECRET, name, namespace), "data")
    except NotThereError as error:
        raise NotReadyError(f"there is no Secret {name} with {content}", hint) from error
    except ForbiddenError:
        return  # the right to read Secrets is not required either
    missing = [key for key in keys if key not in held]
    if missing:
        raise NotReadyError(f"Secret {name} lacks {', '.join(missing)}", hint)


def _check(options: Coordinator) -> None:
    problems = service_problems(options.name, options.namespace, options.image)
    if options.replicas % 2 == 0:
        message = f"{options.replicas} nodes tolerate no more failures than {options.replicas - 1}"
        problems.append(Problem(message, "use 3 or 5", "--replicas"))
    problems += find_invalid_quantities(options, ("storage", "cpu", "memory"))
    names = {"tls-secret": options.tls_secret, "pull-secret": options.pull_secret}
    problems += find_invalid_names({**names, "storage-class": options.storage_class})
    if problems:
        raise ManifestError(problems)


def service_problems(name: str, namespace: str, image: str) -> list[Problem]:
    """Problems with the options that every service has."""
    problems: list[Problem] = []
    for flag, text, shape, most in (
        ("--name", name, NAME, _LONGEST),
        ("--namespace", namespace, DNS_LABEL, MAX_LABEL_LENGTH),
    ):
        if not shape.fullmatch(text) or len(text) > most:
            hint = f"start with a letter; use lower-case letters, digits and -, {most} at most"
            problems.append(Problem(f"{text!r} is not a valid name", hint, flag))
    if not IMAGE.fullmatch(image):
        problems.append(Problem(f"{image!r} is not an image name", "write NAME:TAG", "--image"))
    return problems


def find_invalid_names(names: Mapping[str, str | None]) -> list[Problem]:
    """Names, by flag, that are not valid for objects."""
    return [
        Problem(f"{name!r} is not a valid name", "use a-z, 0-9 and -", f"--{flag}")
        for flag, name in names.items()
        if name is not None and not DNS_SUBDOMAIN.fullmatch(name)
    ]


def find_invalid_quantities(options: object, names: Sequence[str]) -> list[Problem]:
    return [
        Problem(
            f"{getattr(options, name)!r} is not a quantity", "write 1Gi or 500m, for example", f"--{name}"
        )
        for name in names
        if not read_quantity(getattr(options, name))
    ]


def dashboard_files(options: Dashboard) -> dict[str, str]:
    """The folder for kustomize, by file. Raises ConfigError."""
    problems = service_problems(options.name, options.namespace, options.image) + find_invalid_quantities(
        options, ("cpu", "memory")
    )
    if options.path.startswith("/") or ".." in options.path.split("/"):
        message = f"{options.path!r} is not a folder on the claim"
        problems.append(Problem(message, "write a relative path without ..", "--path"))
    named = {"claim": options.claim, "token-secret": options.token_secret, "pull-secret": options.pull_secret}
    problems += find_invalid_names(named)
    for flag, shape, names in (
        ("--host-name", DNS_SUBDOMAIN, options.hosts),
        ("--from-namespace", DNS_LABEL, options.from_namespaces),
    ):
        wrong = [name for name in names if not shape.fullmatch(name)]
        problems += [Problem(f"{name!r} is not a valid name", "use a-z, 0-9 and -", flag) for name in wrong]
    if problems:
        raise ManifestError(problems)
    return manifest_texts(dashboard.kustomization(options), dashboard.render(options))


def monitoring_files(options: Monitoring) -> dict[str, str]:
    """The folder for kustomize, by file. Raises ConfigError."""
    problems = service_problems(options.name, options.namespace, options.prometheus_image)
    if not IMAGE.fullmatch(options.grafana_image):
        message = f"{options.grafana_image!r} is not an image name"
        problems.append(Problem(message, "write NAME:TAG", "--grafana-image"))
    problems += find_invalid_quantities(options, ("storage",))
    named = {"token-secret": options.token_secret, "password-secret": options.password_secret}
    problems += find_invalid_names({**named, "pull-secret": options.pull_secret})
    if problems:
        raise ManifestError(problems)
    return manifest_texts(monitoring.kustomization(options), monitoring.render(options))


def apply_dashboard(api: "KubernetesApi", options: Dashboard, *, dry_run: bool) -> list[Applied]:
    """Raises ApiError, ConfigError, NotReadyError; before the first write, if it can be known then."""
    dashboard_files(options)
    require_namespace(api, options.namespace)
    hint = "create it: " + " && ".join(dashboard.secret_commands(options))
    require_secret(api, options.namespace, options.token_secret, [dashboard.KEY], hint, "the token")
    _require_claim(api, options)
    return apply_objects(api, list(dashboard.render(options).values()), dry_run=dry_run)


def _require_claim(api: "KubernetesApi", options: Dashboard) -> None:
    from paceline.k8s.client.api import ForbiddenError, NotThereError
    from paceline.k8s.kinds import CLAIM

    try:
        api.get(CLAIM, options.claim, options.namespace)
    except NotThereError as error:
        hint = (
            f"name the claim that jobs write to, or create one: paceline cluster fix -n {options.namespace}"
        )
        hint += f" --claim {options.claim}=10Gi:rwx"
        raise NotReadyError(f"there is no claim {options.claim}", hint) from error
    except ForbiddenError:
        return  # the server will report it
