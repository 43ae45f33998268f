"""Is this certificate good, and whose is it? Looked at before it is used, so that problems have names.

A folder for TLS holds `ca.crt`, and for each identity in it `NAME.crt` and `NAME.key`. Whose a
certificate is stands in its subject alternative names, as `paceline://ROLE/NAME`. What is wrong
with a certificate is found out here, with words; what a handshake says of it is seldom clear.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from paceline import clock
from paceline.coordinator.shell.identity import Identity, Role, from_uri, node_name
from paceline.coordinator.shell.private_files import SecretError, read_private

CA_NAME = "ca"
_MAKE = "make one with `paceline coordinator init-pki`"
_PREFERENCE = (Role.ADMIN, Role.WORKER, Role.VIEWER)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that was looked at, its key, and the authority that it trusts."""

    identity: Identity
    authority: bytes = field(repr=False)
    chain: bytes = field(repr=False)
    key: bytes = field(repr=False)

    def for_server(self) -> grpc.ServerCredentials:
        """Nobody speaks to this server without a certificate of the same authority."""
        return grpc.ssl_server_credentials(
            [(self.key, self.chain)], root_certificates=self.authority, require_client_auth=True
        )

    def for_client(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.authority, self.key, self.chain)


def load_node(folder: Path, node: int) -> Certificate:
    found = load(folder, node_name(node))
    if found.identity != Identity(node_name(node), Role.NODE):
        raise SecretError(
            f"{folder / node_name(node)}.crt belongs to {found.identity.uri}, not to node {node}",
            f"give node {node} its own certificate; {_MAKE} --add --node {node}=HOST",
        )
    return found


def load_client(folder: Path, name: str | None = None) -> Certificate:
    """The client's certificate of this folder; of several the one that may do most."""
    if name is not None:
        return load(folder, name)
    owners = {path.stem: _owner(path) for path in sorted(folder.glob("*.crt")) if path.stem != CA_NAME}
    for role in _PREFERENCE:
        names = [name for name, owner in owners.items() if owner is not None and owner.role is role]
        if len(names) == 1:
            return load(folder, names[0])
        if names:
            raise SecretError(
                f"{folder} has {len(names)} certificates of the role {role.value}: {', '.join(names)}",
                "give a folder with ca.crt and one client's files",
            )
    raise SecretError(
        f"{folder} has no client's certificate",
        f"copy ca.crt, NAME.crt and NAME.key into it; {_MAKE} --client NAME=ROLE",
    )


def load(folder: Path, name: str) -> Certificate:
    """NAME.crt and NAME.key of this folder, if they are good for anything."""
    certificate_path = folder / f"{name}.crt"
    authority = _read(folder / f"{CA_NAME}.crt")
    chain, key = _read(certificate_path), read_private(folder / f"{name}.key")
    links = _parse(certificate_path, chain)
    _check_key(certificate_path, links[0], key)
    _check_chain(certificate_path, links, _parse(folder / f"{CA_NAME}.crt", authority))
    _check_time(certificate_path, links[0])
    identity = identity_of(uris(links[0]))
    if identity is None:
        raise SecretError(f"{certificate_path} names no role (paceline://ROLE/NAME)", _MAKE)
    return Certificate(identity, authority, chain, key)


def identity_of(names: Sequence[str]) -> Identity | None:
    """Whose these URIs are; a certificate with two identities has none."""
    found = [identity for identity in map(from_uri, names) if identity is not None]
    return found[0] if len(found) == 1 else None


def uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _owner(path: Path) -> Identity | None:
    """Whose it is, if there is a key to it."""
    return identity_of(uris(_parse(path, _read(path))[0])) if path.with_suffix(".key").exists() else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SecretError(f"cannot read {path}: {error.strerror}", _MAKE) from error


def _parse(path: Path, data: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise SecretError(f"{path} is no certificate in PEM", _MAKE) from error


def _check_key(path: Path, certificate: x509.Certificate, data: bytes) -> None:
    key_path = path.with_suffix(".key")
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError):
        # Without the cause: its message may show a part of the file.
        raise SecretError(f"{key_path} is no plain private key in PEM", _MAKE) from None
    how = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*how) != certificate.public_key().public_bytes(*how):
        raise SecretError(
            f"{key_path} is not the key of {path}", "copy both files again, from the same place"
        )


def _check_chain(
    path: Path, links: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]
) -> None:
    for link, issuer in pairwise(links):
        if not _is_issued_by(link, [issuer]):
            raise SecretError(f"the certificates in {path} do not follow from each other", _MAKE)
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
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > last:
        raise SecretError(
            f"{path} expired on {last:%Y-%m-%d}",
            "delete it and its key, and make a new one with `paceline coordinator init-pki --add`",
        )
    if now < first:
        raise SecretError(
            f"{path} is valid only from {first:%Y-%m-%d %H:%M} UTC on", "set this machine's clock"
        )
