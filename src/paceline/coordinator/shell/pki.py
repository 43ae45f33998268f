"""How does a cluster get its certificates? One authority of its own, and one certificate for each holder.

`init_pki` makes everything before it writes anything, and never overwrites: whoever lost a key
deletes its files first. The authority's key is needed only to make further certificates, so it
can lie somewhere else than on the nodes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from paceline.coordinator.shell.identity import NAME, Identity, Role, node_name
from paceline.coordinator.shell.private_files import SecretError, read_private, write_private
from paceline.coordinator.shell.tls import CA_NAME
from paceline.errors import ClusterWishError, ConfigError, Problem

AUTHORITY_DAYS = 3650
DAYS = 825
DEFAULT_CLIENTS = tuple(Identity(role.value, role) for role in (Role.ADMIN, Role.WORKER, Role.VIEWER))
# Clocks differ: a certificate is good a little before it was made.
_BEFORE = timedelta(hours=1)
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*")


@dataclass(frozen=True, slots=True)
class Holder:
    """Who gets a certificate, and under which addresses it answers (only nodes do)."""

    identity: Identity
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def parse_node(text: str) -> Holder:
    """`1=10.0.0.1,node1.example` is node 1, and answers under two addresses."""
    node, _, listed = text.partition("=")
    hosts = tuple(host.strip() for host in listed.split(","))
    if not node.isdecimal() or int(node) < 1:
        raise _wrong(f"{text!r} does not begin with a node's number", "--node")
    for host in hosts:
        _check_host(host, text)
    return Holder(Identity(node_name(int(node)), Role.NODE), hosts)


def parse_client(text: str) -> Holder:
    """`alice=admin` is a client with the name alice and the role admin."""
    name, _, role = text.partition("=")
    if not NAME.fullmatch(name) or name == CA_NAME or re.fullmatch(r"node-\d+", name):
        raise _wrong(f"{name!r} cannot be a client's name", "--client")
    known = {client.role.value: client.role for client in DEFAULT_CLIENTS}
    if role not in known:
        raise _wrong(f"{role!r} is no role of a client: there are {', '.join(known)}", "--client")
    return Holder(Identity(name, known[role]))


def init_pki(
    folder: Path,
    nodes: Sequence[Holder],
    clients: Sequence[Holder] = (),
    *,
    now_s: float,
    days: int = DAYS,
    add: bool = False,
) -> list[Path]:
    """Make certificates for all of these, and the authority unless it is there; the files, as written.

    Without `add` there must be no authority yet, and an admin, a worker and a viewer get
    a certificate unless clients are named.
    """
    if not 1 <= days <= AUTHORITY_DAYS:
        raise _wrong(
            f"certificates cannot be valid for {days} days, only for 1 to {AUTHORITY_DAYS}", "--days"
        )
    has_authority = (folder / f"{CA_NAME}.crt").exists() or (folder / f"{CA_NAME}.key").exists()
    if has_authority and not add:
        raise SecretError(
            f"{folder} has an authority already, and certificates of another one would not match",
            "say --add to make further certificates, or give another folder with --out DIR",
        )
    if not has_authority and add:
        raise SecretError(
            f"{folder} has no authority to add certificates to", "say it without --add to make one"
        )
    holders = [*nodes, *(clients if clients or add else [Holder(client) for client in DEFAULT_CLIENTS])]
    _check_holders(folder, holders, add)
    now = datetime.fromtimestamp(int(now_s), UTC)
    authority = load_authority(folder, now) if add else make_authority(now)
    made = {} if add else {CA_NAME: (authority.certificate, authority.key)}
    made |= {holder.identity.name: make_certificate(authority, holder, now, days) for holder in holders}
    folder.mkdir(parents=True, exist_ok=True)
    return [path for name, pair in made.items() for path in _write(folder, name, *pair)]


def make_authority(now: datetime) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Paceline authority of {now:%Y-%m-%d}")])
    builder = _builder(name, name, key, now, now + timedelta(days=AUTHORITY_DAYS))
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def load_authority(folder: Path, now: datetime) -> Authority:
    hint = "give the folder in which `paceline coordinator init-pki` made the authority"
    path = folder / f"{CA_NAME}.key"
    key_data = read_private(path)
    try:
        certificate = x509.load_pem_x509_certificate((folder / f"{CA_NAME}.crt").read_bytes())
        key = load_pem_private_key(key_data, password=None)
    except (OSError, ValueError, TypeError):
        # Without the cause: its message may show a part of the key.
        raise SecretError(f"{folder} has no authority that can be read (ca.crt and ca.key)", hint) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise SecretError(f"{path} is not the key of ca.crt", hint)
    if now > certificate.not_valid_after_utc:
        raise SecretError(
            f"the authority in {folder} expired on {certificate.not_valid_after_utc:%Y-%m-%d}",
            "make a new one in another folder, with new certificates for all nodes and clients",
        )
    return Authority(certificate, key)


def make_certificate(
    authority: Authority, holder: Holder, now: datetime, days: int
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    identity = holder.identity
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, identity.role.value),
            x509.NameAttribute(NameOID.COMMON_NAME, identity.name),
        ]
    )
    end = min(now + timedelta(days=days), authority.certificate.not_valid_after_utc)
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if identity.role is Role.NODE:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    names = [general_name(host) for host in holder.hosts]
    certificate = (
        _builder(subject, authority.certificate.subject, key, now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(signer, critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri), *names]),
            critical=False,
        )
        .sign(authority.key, hashes.SHA256())
    )
    return certificate, key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> list[Path]:
    key_path, path = folder / f"{name}.key", folder / f"{name}.crt"
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    # The key first: a certificate is never there without it.
    for target, data in ((key_path, secret), (path, certificate.public_bytes(Encoding.PEM))):
        if not write_private(target, data):
            raise SecretError(f"{target} appeared while certificates were made", "see who else makes some")
    path.chmod(0o644)
    return [path, key_path]


def _check_holders(folder: Path, holders: Sequence[Holder], add: bool) -> None:
    names = [holder.identity.name for holder in holders]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _wrong(f"{', '.join(twice)} is named twice", "--node, --client")
    if not names:
        raise _wrong("there is nobody to add a certificate for", "--add")
    if not add and not any(holder.identity.role is Role.NODE for holder in holders):
        raise _wrong("a cluster needs at least one node", "--node")
    present = [
        f"{name}.{end}" for name in names for end in ("crt", "key") if (folder / f"{name}.{end}").exists()
    ]
    if present:
        raise SecretError(
            f"{folder} has {', '.join(present)} already",
            "delete the .crt and .key of those that are to get a new certificate, and say --add",
        )


def _check_host(host: str, text: str) -> None:
    try:
        if not ip_address(host).is_unspecified:
            return
    except ValueError:
        if _HOST.fullmatch(host) and not re.fullmatch(r"[\d.]+", host):
            return
    raise _wrong(f"{host!r} in {text!r} is no address under which others reach a node", "--node")


def _wrong(what: str, flag: str) -> ConfigError:
    return ClusterWishError(
        [
            Problem(
                what,
                "write --node ID=HOST[,HOST] and --client NAME=ROLE, for example --node 1=10.0.0.1",
                flag,
            )
        ]
    )
