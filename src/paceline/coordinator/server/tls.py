"""Certificates: load and check them (`load_certificate`), and create an authority (`init_pki`).

A TLS folder holds `ca.crt`, and for each identity `NAME.crt` and `NAME.key`. The identity of a
certificate is in its subject alternative names, as `paceline://ROLE/NAME`. Certificates are
checked before they are used, with an error that names the problem; the error of a failed
handshake is seldom clear.

`init_pki` creates everything before it writes the first file, and never overwrites: to replace
a lost key, its files must be deleted first. The authority's key is needed only to create further
certificates, so it can be kept away from the nodes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from paceline.coordinator.server.access_policy import NAME_PATTERN, Identity, Role, from_uri, node_name
from paceline.core import clock
from paceline.core.disk import SecretError, read_private, write_private
from paceline.core.errors import ClusterOptionError, ConfigError, Problem

CA_NAME = "ca"
_MAKE = "make one with `paceline coordinator init-pki`"
_PREFERENCE = (Role.ADMIN, Role.WORKER, Role.VIEWER)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A checked certificate, its key, and the authority that it trusts."""

    identity: Identity
    authority: bytes = field(repr=False)
    chain: bytes = field(repr=False)
    key: bytes = field(repr=False)

    def for_server(self) -> grpc.ServerCredentials:
        """Callers need a certificate of the same authority (mutual TLS)."""
        return grpc.ssl_server_credentials(
            [(self.key, self.chain)], root_certificates=self.authority, require_client_auth=True
        )

    def for_client(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.authority, self.key, self.chain)


def load_node_certificate(folder: Path, node: int) -> Certificate:
    certificate = load_certificate(folder, node_name(node))
    if certificate.identity != Identity(node_name(node), Role.NODE):
        raise SecretError(
            f"{folder / node_name(node)}.crt belongs to {certificate.identity.uri}, not to node {node}",
            f"give node {node} its own certificate; {_MAKE} --add --node {node}=HOST",
        )
    return certificate


def load_client_certificate(folder: Path, name: str | None = None, *, role: Role = Role.ADMIN) -> Certificate:
    """The client's certificate of this folder: that of the role if there is one, else the most powerful."""
    if name is not None:
        return load_certificate(folder, name)
    owners = {path.stem: _owner(path) for path in sorted(folder.glob("*.crt")) if path.stem != CA_NAME}
    for chosen in (role, *_PREFERENCE):
        names = [name for name, owner in owners.items() if owner is not None and owner.role is chosen]
        if len(names) == 1:
            return load_certificate(folder, names[0])
        if names:
            raise SecretError(
                f"{folder} has {len(names)} certificates of the role {chosen.value}: {', '.join(names)}",
                "choose one with --tls-name NAME, or give a folder with ca.crt and one client's files",
            )
    raise SecretError(
        f"{folder} has no client's certificate",
        f"copy ca.crt, NAME.crt and NAME.key into it; {_MAKE} --client NAME=ROLE",
    )


def load_certificate(folder: Path, name: str) -> Certificate:
    """NAME.crt and NAME.key of this folder, after all checks."""
    certificate_path = folder / f"{name}.crt"
    authority = _read_pem(folder / f"{CA_NAME}.crt")
    chain = _read_pem(certificate_path)
    key = read_private(folder / f"{name}.key")
    links = _parse(certificate_path, chain)
    _check_key(certificate_path, links[0], key)
    _check_chain(certificate_path, links, _parse(folder / f"{CA_NAME}.crt", authority))
    _check_time(certificate_path, links[0])
    identity = identity_of(uris(links[0]))
    if identity is None:
        raise SecretError(f"{certificate_path} names no role (paceline://ROLE/NAME)", _MAKE)
    return Certificate(identity, authority, chain, key)


def identity_of(names: Sequence[str]) -> Identity | None:
    """The identity in these URIs; a certificate with two identities has none."""
    identities = [identity for identity in map(from_uri, names) if identity is not None]
    return identities[0] if len(identities) == 1 else None


def uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _owner(path: Path) -> Identity | None:
    """Identity of the certificate, if its key exists."""
    return identity_of(uris(_parse(path, _read_pem(path))[0])) if path.with_suffix(".key").exists() else None


def _read_pem(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SecretError(f"cannot read {path}: {error.strerror}", _MAKE) from error


def _parse(path: Path, data: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise SecretError(f"{path} is not a PEM certificate", _MAKE) from error


def _check_key(path: Path, certificate: x509.Certificate, data: bytes) -> None:
    key_path = path.with_suffix(".key")
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError):
        # Without the cause: its message may show a part of the file.
        raise SecretError(f"{key_path} is not an unencrypted PEM private key", _MAKE) from None
    encoding = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*encoding) != certificate.public_key().public_bytes(*encoding):
        raise SecretError(
            f"{key_path} is not the key of {path}", "copy both files again, from the same place"
        )


def _check_chain(
    path: Path, links: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]
) -> None:
    for link, issuer in pairwise(links):
        if not _is_issued_by(link, [issuer]):
            raise SecretError(f"the certificates in {path} are not a chain", _MAKE)
    if not _is_issued_by(links[-1], authorities):
        raise SecretError(
            f"{path} was not issued by the authority in {path.with_name(f'{CA_NAME}.crt')}",
            "copy ca.crt and the certificate from the same place: all of a cluster share one authority",
        )


def _is_issued_by(certificate: x509.Certificate, issuers: Sequence[x509.Certificate]) -> bool:
    for issuer in issuers:
        try:
            certificate.verify_directly_issued_by(issuer)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False


def _check_time(path: Path, certificate: x509.Certificate) -> None:
    now = datetime.fromtimestamp(clock.unix_now_s(), UTC)
    first = certificate.not_valid_before_utc
    last = certificate.not_valid_after_utc
    if now > last:
        raise SecretError(
            f"{path} expired on {last:%Y-%m-%d}",
            "delete it and its key, and make a new one with `paceline coordinator init-pki --add`",
        )
    if now < first:
        raise SecretError(
            f"{path} is valid only from {first:%Y-%m-%d %H:%M} UTC on", "set this machine's clock"
        )


AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 825
DEFAULT_CLIENTS = tuple(Identity(role.value, role) for role in (Role.ADMIN, Role.WORKER, Role.VIEWER))
# Clocks differ: a certificate is valid from a little before it was made.
_CLOCK_SKEW = timedelta(hours=1)
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*")


@dataclass(frozen=True, slots=True)
class CertificateHolder:
    """The identity of a new certificate, and the addresses of a node."""

    identity: Identity
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def parse_node(text: str) -> CertificateHolder:
    """`1=10.0.0.1,node1.example` is node 1, and answers under two addresses."""
    node, _, listed = text.partition("=")
    hosts = tuple(host.strip() for host in listed.split(","))
    if not node.isdecimal() or int(node) < 1:
        raise _invalid_flag(f"{text!r} does not begin with a node's number", "--node")
    for host in hosts:
        _check_host(host, text)
    return CertificateHolder(Identity(node_name(int(node)), Role.NODE), hosts)


def parse_client(text: str) -> CertificateHolder:
    """`alice=admin` is a client with the name alice and the role admin."""
    name, _, role = text.partition("=")
    if not NAME_PATTERN.fullmatch(name) or name == CA_NAME or re.fullmatch(r"node-\d+", name):
        raise _invalid_flag(f"{name!r} cannot be a client's name", "--client")
    known = {client.role.value: client.role for client in DEFAULT_CLIENTS}
    if role not in known:
        raise _invalid_flag(f"{role!r} is not a client role; roles are {', '.join(known)}", "--client")
    return CertificateHolder(Identity(name, known[role]))


def init_pki(
    folder: Path,
    nodes: Sequence[CertificateHolder],
    clients: Sequence[CertificateHolder] = (),
    *,
    now_s: float,
    days: int = CERTIFICATE_DAYS,
    add: bool = False,
) -> list[Path]:
    """Create certificates for all of these, and the authority unless it exists; return the written files.

    Without `add` there must be no authority yet, and an admin, a worker and a viewer get
    a certificate unless clients are named.
    """
    if not 1 <= days <= AUTHORITY_DAYS:
        raise _invalid_flag(
            f"certificates cannot be valid for {days} days, only for 1 to {AUTHORITY_DAYS}", "--days"
        )
    has_authority = (folder / f"{CA_NAME}.crt").exists() or (folder / f"{CA_NAME}.key").exists()
    if has_authority and not add:
        raise SecretError(
            f"{folder} has an authority already, and certificates of a new one would not match it",
            "use --add to create further certificates, or another folder with --out DIR",
        )
    if not has_authority and add:
        raise SecretError(
            f"{folder} has no authority to add certificates to", "leave out --add to create one"
        )
    holders = [
        *nodes,
        *(clients if clients or add else [CertificateHolder(client) for client in DEFAULT_CLIENTS]),
    ]
    _check_holders(folder, holders, add)
    now = datetime.fromtimestamp(int(now_s), UTC)
    authority = load_authority(folder, now) if add else make_authority(now)
    pairs = {} if add else {CA_NAME: (authority.certificate, authority.key)}
    pairs |= {holder.identity.name: make_certificate(authority, holder, now, days) for holder in holders}
    folder.mkdir(parents=True, exist_ok=True)
    return [path for name, pair in pairs.items() for path in _write_certificate(folder, name, *pair)]


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
    authority: Authority, holder: CertificateHolder, now: datetime, days: int
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
        .not_valid_before(now - _CLOCK_SKEW)
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


def _write_certificate(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> list[Path]:
    key_path = folder / f"{name}.key"
    path = folder / f"{name}.crt"
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    # The key first: a certificate never exists without it.
    for target, data in ((key_path, secret), (path, certificate.public_bytes(Encoding.PEM))):
        if not write_private(target, data):
            raise SecretError(
                f"{target} appeared while certificates were made", "check for another running init-pki"
            )
    path.chmod(0o644)
    return [path, key_path]


def _check_holders(folder: Path, holders: Sequence[CertificateHolder], add: bool) -> None:
    names = [holder.identity.name for holder in holders]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _invalid_flag(f"{', '.join(twice)} is named twice", "--node, --client")
    if not names:
        raise _invalid_flag("--add needs a --node or --client", "--add")
    if not add and not any(holder.identity.role is Role.NODE for holder in holders):
        raise _invalid_flag("a cluster needs at least one node", "--node")
    present = [
        f"{name}.{end}" for name in names for end in ("crt", "key") if (folder / f"{name}.{end}").exists()
    ]
    if present:
        raise SecretError(
            f"{folder} has {', '.join(present)} already",
            "delete the .crt and .key to be replaced, and use --add",
        )


def _check_host(host: str, text: str) -> None:
    try:
        if not ip_address(host).is_unspecified:
            return
    except ValueError:
        if _HOST.fullmatch(host) and not re.fullmatch(r"[\d.]+", host):
            return
    raise _invalid_flag(
        f"{host!r} in {text!r} is not an address at which other machines reach a node", "--node"
    )


def _invalid_flag(message: str, flag: str) -> ConfigError:
    return ClusterOptionError(
        [
            Problem(
                message,
                "write --node ID=HOST[,HOST] and --client NAME=ROLE, for example --node 1=10.0.0.1",
                flag,
            )
        ]
    )
