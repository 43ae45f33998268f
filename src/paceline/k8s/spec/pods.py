"""Readers of the options that are fields of pods: labels, tolerations, variables, placement, queue.

The same for jobs of torchrun and of Ray. What a Secret holds is only referred to.
"""

import re
from collections.abc import Sequence

from paceline.core.errors import Problem
from paceline.k8s.objects import DNS_LABEL, DNS_SUBDOMAIN, LABEL_KEY, LABEL_VALUE, read_quantity
from paceline.k8s.spec.job import JobOptions, Profile
from paceline.k8s.spec.options import PodFields, Toleration
from paceline.k8s.spec.readers import Parsed, read_labels, read_variables

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TOLERATION = re.compile(r"(?P<key>[^=:]+)(=(?P<value>[^=:]*))?(:(?P<effect>[A-Za-z]+))?")
_SOURCES = {"secret": "secretRef", "configmap": "configMapRef"}
# By these labels a job and its pods are found, and Kueue's have flags of their own.
_RESERVED = re.compile(
    r"app\.kubernetes\.io/(name|instance|managed-by)|kueue\.x-k8s\.io/(queue-name|priority-class)|paceline\.dev/.*"
)


def read_pod_fields(options: JobOptions) -> tuple[PodFields, list[Problem]]:
    """The fields, and every problem of their texts."""
    pod = options.pod
    torch = options.torch
    tolerations, problems = _tolerations(pod.tolerations)
    labels, odd_labels = read_labels(pod.labels, "--label")
    annotations, odd_annotations = _annotations(pod.annotations)
    env_from, odd_sources = _sources(pod.env_from)
    variables, odd_variables = read_variables(torch.env)
    node_labels, odd_selectors = read_labels(torch.node_selector, "--node-selector")
    problems += [*odd_labels, *odd_annotations, *odd_sources, *odd_variables, *odd_selectors]
    problems += [*_reserved(labels, "--label"), *_reserved(annotations, "--annotation")]
    problems += [*_names(options), *_storage(pod.ephemeral_storage), *_network(options)]
    fields = PodFields(
        tolerations=tolerations,
        labels=labels,
        annotations=annotations,
        env_from=env_from,
        ephemeral_storage=pod.ephemeral_storage,
        priority_class=pod.priority_class,
        runtime_class=pod.runtime_class,
        scheduler=pod.scheduler,
        host_network=pod.host_network,
        node_labels=node_labels,
        instance_type=torch.instance_type,
        variables=variables,
        queue=torch.queue,
        queue_priority=torch.priority,
    )
    return fields, problems


def _tolerations(texts: Sequence[str]) -> Parsed[Toleration]:
    """KEY[=VALUE][:EFFECT], as `kubectl taint` writes taints."""
    tolerations: list[Toleration] = []
    problems: list[Problem] = []
    for text in texts:
        match = _TOLERATION.fullmatch(text)
        if (
            match is None
            or not LABEL_KEY.fullmatch(match["key"])
            or not LABEL_VALUE.fullmatch(match["value"] or "")
        ):
            message = f"toleration is {text!r}, but it must be KEY, KEY=VALUE or KEY=VALUE:EFFECT"
            problems.append(
                Problem(message, "write --toleration dedicated=ml:NoSchedule, for example", "--toleration")
            )
        elif match["effect"] not in (None, *_EFFECTS):
            message = f"toleration is {text!r}, but its effect must be one of {', '.join(_EFFECTS)}"
            problems.append(Problem(message, f"write --toleration {match['key']}:NoSchedule", "--toleration"))
        else:
            tolerations.append(Toleration(key=match["key"], value=match["value"], effect=match["effect"]))
    return tuple(tolerations), problems


def _annotations(texts: Sequence[str]) -> Parsed[tuple[str, str]]:
    annotations: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if equals and LABEL_KEY.fullmatch(key):
            annotations.append((key, value))
        else:
            # The input may contain a secret, so only its beginning is shown.
            message = f"annotation {key[:40]!r} is not KEY=VALUE"
            problems.append(Problem(message, "write --annotation team=vision, for example", "--annotation"))
    return tuple(annotations), problems


def _sources(texts: Sequence[str]) -> Parsed[tuple[str, str]]:
    sources: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for text in texts:
        kind, _, name = text.partition("/")
        if kind in _SOURCES and DNS_SUBDOMAIN.fullmatch(name):
            sources.append((_SOURCES[kind], name))
        else:
            message = f"env_from is {text[:40]!r}, but it must be secret/NAME or configmap/NAME"
            problems.append(
                Problem(message, "write --env-from configmap/settings, for example", "--env-from")
            )
    return tuple(sources), problems


def _reserved(pairs: Sequence[tuple[str, str]], flag: str) -> list[Problem]:
    return [
        Problem(f"{flag.removeprefix('--')} sets {key}, which the job sets itself", "use another key", flag)
        for key, _ in pairs
        if _RESERVED.fullmatch(key)
    ]


def _names(options: JobOptions) -> list[Problem]:
    """Names that must be names."""
    pod = options.pod
    torch = options.torch
    rules = (
        ("priority_class", pod.priority_class, DNS_SUBDOMAIN, "training"),
        ("runtime_class", pod.runtime_class, DNS_SUBDOMAIN, "nvidia"),
        ("scheduler", pod.scheduler, DNS_SUBDOMAIN, "volcano"),
        ("queue", torch.queue, DNS_LABEL, "gpu-queue"),
        ("priority", torch.priority, DNS_SUBDOMAIN, "training-priority"),
        ("instance_type", torch.instance_type, LABEL_VALUE, "p5.48xlarge"),
    )
    problems: list[Problem] = []
    for name, given, pattern, example in rules:
        if given is not None and not pattern.fullmatch(given):
            flag = f"--{name.replace('_', '-')}"
            problems.append(Problem(f"{name} is {given!r}", f"write {flag} {example}, for example", flag))
    return problems


def _storage(size: str | None) -> list[Problem]:
    amount = None if size is None else read_quantity(size)
    if size is None or (amount is not None and amount >= 1):
        return []
    message = f"ephemeral_storage is {size!r}, but it must be an amount"
    return [Problem(message, "write --ephemeral-storage 50Gi, for example", "--ephemeral-storage")]


def _network(options: JobOptions) -> list[Problem]:
    if not options.pod.host_network or options.profile == Profile.COMPAT:
        return []
    message = "host_network is set, but the strict profile keeps pods off the network of their nodes"
    return [Problem(message, "add --profile compat, or leave --host-network out", "--host-network")]
