"""What does Kubernetes refuse about objects that come with a job? In its own words."""

from collections.abc import Iterator, Mapping

from paceline.config.nearest import did_you_mean
from paceline.kube.reading import mapping, mappings, texts
from paceline.kube.schema import Finding, Path
from paceline.kube.words import DNS_SUBDOMAIN, read_quantity

Spec = Mapping[str, object]
_MOST_BYTES = 1 << 20
_VERBS: tuple[str, ...] = (
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "use",
    "bind",
)
_VERBS += ("escalate", "impersonate", "approve", "sign", "attest", "*")


def find_in_configmap(value: Spec, path: Path) -> Iterator[Finding]:
    data, binary = mapping(value, "data"), mapping(value, "binaryData")
    for name in sorted(set(data).intersection(binary)):
        yield Finding(
            (*path, "binaryData", name), "Invalid value: duplicate of key present in data", "keep one"
        )
    size = sum(len(str(text).encode()) for text in (*data.values(), *binary.values()))
    if size > _MOST_BYTES:
        what = f"Too long: must have at most {_MOST_BYTES} bytes, and it has {size}"
        yield Finding((*path, "data"), what, "put it into the image, or onto a volume")


def find_in_claim(spec: Spec, path: Path) -> Iterator[Finding]:
    amount = read_quantity(mapping(spec, "resources", "requests").get("storage"))
    if amount is not None and amount <= 0:
        where = (*path, "resources", "requests", "storage")
        yield Finding(where, "Invalid value: must be greater than zero", "write 10Gi, for example")
    modes = texts(spec, "accessModes")
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        what = "may not use ReadWriteOncePod with other access modes"
        yield Finding((*path, "accessModes"), what, "keep one of them")


def find_in_binding(value: Spec, path: Path) -> Iterator[Finding]:
    for number, subject in enumerate(mappings(value, "subjects")):
        if subject.get("kind") != "ServiceAccount":
            continue
        if not DNS_SUBDOMAIN.fullmatch(str(subject.get("name"))):
            what = "no account can be called so"
            yield Finding((*path, "subjects", number, "name"), what, "use small letters, digits, - and .")
        if "namespace" not in subject:
            hint = "write the namespace that the account is in"
            yield Finding((*path, "subjects", number, "namespace"), "Required value", hint)


def find_in_role(value: Spec, path: Path) -> Iterator[Finding]:
    for number, rule in enumerate(mappings(value, "rules")):
        for verb in texts(rule, "verbs"):
            if verb not in _VERBS:
                what = f"{verb} is no verb that Kubernetes itself asks for"
                where = (*path, "rules", number, "verbs")
                yield Finding(
                    where, what, did_you_mean(verb, _VERBS, otherwise="such as get"), is_advice=True
                )


def find_in_policy(spec: Spec, path: Path) -> Iterator[Finding]:
    types = texts(spec, "policyTypes")
    for name, kind, peers in (("ingress", "Ingress", "from"), ("egress", "Egress", "to")):
        if name in spec and types and kind not in types:
            what = f"{name} is given, but policyTypes does not say {kind}, so it is not looked at"
            yield Finding((*path, name), what, f"add {kind} to policyTypes", is_advice=True)
        for number, rule in enumerate(mappings(spec, name)):
            for index, peer in enumerate(mappings(rule, peers)):
                where = (*path, name, number, peers, index)
                if not peer:
                    yield Finding(where, "Required value: must specify a peer", "add podSelector")
                elif "ipBlock" in peer and len(peer) > 1:
                    what = "may not specify both ipBlock and another peer"
                    yield Finding(where, f"Forbidden: {what}", "make two peers of it")


def find_nothing(_value: Spec, _path: Path) -> Iterator[Finding]:
    """Its shape says everything."""
    return iter(())
