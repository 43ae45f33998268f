"""A cluster's certificates: what they contain, and how bad ones are refused."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from tests.fixtures.wording import Wording

from paceline.coordinator.server.access_policy import Identity, Role
from paceline.coordinator.server.tls import (
    CertificateHolder,
    init_pki,
    load_certificate,
    load_client_certificate,
    load_node_certificate,
    parse_client,
    parse_node,
)
from paceline.core.disk import SecretError
from paceline.core.errors import ConfigError, PacelineError

DAY_S = 86_400.0
NODES = [parse_node("1=127.0.0.1,node1.example"), parse_node("2=10.0.0.2,::1")]


def made(folder: Path, *, now_s: float | None = None, days: int = 825) -> Path:
    init_pki(folder, NODES, now_s=time.time() if now_s is None else now_s, days=days)
    return folder


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_one_command_makes_an_authority_and_a_certificate_for_each_node_and_role(tmp_path: Path) -> None:
    written = init_pki(tmp_path / "pki", NODES, now_s=time.time())
    names = ("ca", "node-1", "node-2", "admin", "worker", "viewer")
    assert [path.name for path in written] == [f"{name}.{end}" for name in names for end in ("crt", "key")]
    assert sorted((tmp_path / "pki").iterdir()) == sorted(written)
    for path in written:
        assert path.stat().st_mode & 0o777 == (0o600 if path.suffix == ".key" else 0o644)
    assert load_node_certificate(tmp_path / "pki", 1).identity == Identity("node-1", Role.NODE)
    assert load_client_certificate(tmp_path / "pki").identity == Identity("admin", Role.ADMIN)
    assert load_client_certificate(tmp_path / "pki", "viewer").identity == Identity("viewer", Role.VIEWER)


def test_the_authority_signs_leaves_only_and_holds_ten_years(tmp_path: Path) -> None:
    authority = certificate(made(tmp_path) / "ca.crt")
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)
    assert isinstance(authority.public_key(), ec.EllipticCurvePublicKey)
    assert authority.not_valid_after_utc - datetime.now(UTC) > timedelta(days=3649)


def test_a_nodes_certificate_answers_under_its_addresses_and_a_clients_under_none(tmp_path: Path) -> None:
    made(tmp_path)
    builder = PolicyBuilder().store(Store([certificate(tmp_path / "ca.crt")]))
    node = certificate(tmp_path / "node-1.crt")
    builder.build_server_verifier(x509.DNSName("node1.example")).verify(node, [])
    with pytest.raises(VerificationError):
        builder.build_server_verifier(x509.DNSName("node2.example")).verify(node, [])
    for name in ("node-1", "worker"):
        builder.build_client_verifier().verify(certificate(tmp_path / f"{name}.crt"), [])
    worker = certificate(tmp_path / "worker.crt")
    usage = worker.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH], "a worker cannot pose as a node"


def test_certificates_are_valid_as_long_as_requested_but_not_longer_than_their_authority(
    tmp_path: Path,
) -> None:
    made(tmp_path, days=30)
    init_pki(
        tmp_path,
        [],
        [parse_client("late=viewer")],
        now_s=time.time() + 3600 * DAY_S,
        days=825,
        add=True,
    )
    thirty = certificate(tmp_path / "node-1.crt").not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=29) < thirty <= timedelta(days=30)
    authority = certificate(tmp_path / "ca.crt")
    assert certificate(tmp_path / "late.crt").not_valid_after_utc == authority.not_valid_after_utc


def test_an_authority_is_never_overwritten(tmp_path: Path, wording: Wording) -> None:
    before = {path: path.read_bytes() for path in made(tmp_path).iterdir()}
    with wording.raises(SecretError) as caught:
        made(tmp_path)
    assert "--add" in caught.value.hint
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_certificates_are_added_to_an_authority(tmp_path: Path, wording: Wording) -> None:
    made(tmp_path)
    before = (tmp_path / "ca.crt").read_bytes()
    added = init_pki(
        tmp_path, [parse_node("3=10.0.0.3")], [parse_client("alice=admin")], now_s=time.time(), add=True
    )
    assert [path.name for path in added] == ["node-3.crt", "node-3.key", "alice.crt", "alice.key"]
    assert (tmp_path / "ca.crt").read_bytes() == before
    assert load_node_certificate(tmp_path, 3).identity.name == "node-3"
    with wording.raises(SecretError):
        load_client_certificate(tmp_path)
    assert load_client_certificate(tmp_path, "alice").identity == Identity("alice", Role.ADMIN)


def test_a_certificate_is_never_overwritten(tmp_path: Path, wording: Wording) -> None:
    before = {path: path.read_bytes() for path in made(tmp_path).iterdir()}
    with wording.raises(SecretError):
        init_pki(tmp_path, [NODES[0], parse_node("9=10.0.0.9")], now_s=time.time(), add=True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before, "all or nothing"


def test_nothing_can_be_added_without_an_authority_or_its_key(tmp_path: Path, wording: Wording) -> None:
    with wording.raises(SecretError):
        init_pki(tmp_path, NODES, now_s=time.time(), add=True)
    made(tmp_path / "pki")
    more = [parse_client("bob=viewer")]
    (tmp_path / "pki" / "ca.key").chmod(0o644)
    with wording.raises(SecretError):
        init_pki(tmp_path / "pki", [], more, now_s=time.time(), add=True)
    (tmp_path / "pki" / "ca.key").unlink()
    with wording.raises(SecretError):
        init_pki(tmp_path / "pki", [], more, now_s=time.time(), add=True)
    (tmp_path / "pki" / "ca.key").write_bytes((tmp_path / "pki" / "admin.key").read_bytes())
    (tmp_path / "pki" / "ca.key").chmod(0o600)
    with wording.raises(SecretError):
        init_pki(tmp_path / "pki", [], more, now_s=time.time(), add=True)


def test_an_expired_authority_signs_nothing(tmp_path: Path, wording: Wording) -> None:
    made(tmp_path, now_s=time.time() - 3660 * DAY_S)
    with wording.raises(SecretError):
        init_pki(tmp_path, [], [parse_client("bob=viewer")], now_s=time.time(), add=True)


@pytest.mark.parametrize(
    "text",
    ["1", "1=", "x=10.0.0.1", "0=10.0.0.1", "-1=10.0.0.1", "1=10.0.0", "1=0.0.0.0", "1=a b", "1=a,", "1=-a"],
)
def test_a_node_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_node(text)
    assert caught.value.problems[0].where == "--node"
    assert "--node ID=HOST" in caught.value.hint


@pytest.mark.parametrize(
    "text", ["bob", "bob=", "bob=root", "bob=node", "=admin", "../x=admin", "ca=admin", "node-1=admin"]
)
def test_a_client_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_client(text)
    assert caught.value.problems[0].where == "--client"


@pytest.mark.parametrize(
    ("nodes", "clients", "days"),
    [
        ([], [parse_client("bob=admin")], 825),
        ([NODES[0], NODES[0]], [], 825),
        (NODES, [parse_client("bob=admin"), parse_client("bob=viewer")], 825),
        (NODES, [], 0),
        (NODES, [], 4000),
    ],
)
def test_an_order_that_makes_no_sense_leaves_nothing_behind(
    tmp_path: Path, nodes: list[CertificateHolder], clients: list[CertificateHolder], days: int
) -> None:
    with pytest.raises(PacelineError):
        init_pki(tmp_path / "pki", nodes, clients, now_s=time.time(), days=days)
    assert not (tmp_path / "pki").exists()


# --- Looking at a certificate before it is used ------------------------------------------------------------


def test_an_expired_certificate_is_called_expired(tmp_path: Path, wording: Wording) -> None:
    made(tmp_path, now_s=time.time() - 10 * DAY_S, days=3)
    with wording.raises(SecretError) as caught:
        load_node_certificate(tmp_path, 1)
    assert "init-pki --add" in caught.value.hint


def test_a_certificate_that_is_not_yet_valid_hints_at_the_clock(tmp_path: Path, wording: Wording) -> None:
    made(tmp_path, now_s=time.time() + DAY_S)
    with wording.raises(SecretError):
        load_client_certificate(tmp_path)


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path, wording: Wording) -> None:
    made(tmp_path / "ours")
    made(tmp_path / "theirs")
    for end in ("crt", "key"):
        (tmp_path / "theirs" / f"node-1.{end}").rename(tmp_path / "ours" / f"node-1.{end}")
    with wording.raises(SecretError):
        load_node_certificate(tmp_path / "ours", 1)


def test_a_node_does_not_take_another_nodes_certificate(tmp_path: Path, wording: Wording) -> None:
    made(tmp_path)
    for end in ("crt", "key"):
        (tmp_path / f"node-2.{end}").rename(tmp_path / f"node-1.{end}")
    with wording.raises(SecretError):
        load_node_certificate(tmp_path, 1)


def test_a_key_that_does_not_belong_is_refused(tmp_path: Path, wording: Wording) -> None:
    made(tmp_path)
    (tmp_path / "node-2.key").rename(tmp_path / "node-1.key")
    with wording.raises(SecretError):
        load_node_certificate(tmp_path, 1)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path, wording: Wording) -> None:
    (made(tmp_path) / "node-1.key").chmod(0o644)
    with wording.raises(SecretError):
        load_node_certificate(tmp_path, 1)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ca.crt", None),
        ("admin.crt", None),
        ("admin.key", None),
        ("ca.crt", "x"),
        ("admin.crt", ""),
        ("admin.key", "secret"),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_named(
    tmp_path: Path, name: str, content: str | None, wording: Wording
) -> None:
    path = made(tmp_path) / name
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with wording.raises(SecretError) as caught:
        load_certificate(tmp_path, "admin")
    assert "secret" not in caught.value.what


def test_a_client_finds_its_own_among_the_files_of_its_folder(tmp_path: Path, wording: Wording) -> None:
    made(tmp_path)
    (tmp_path / "admin.key").unlink()
    assert load_client_certificate(tmp_path).identity.role is Role.WORKER
    for name in ("worker", "viewer"):
        (tmp_path / f"{name}.key").unlink()
    with wording.raises(SecretError):
        load_client_certificate(tmp_path)


def test_a_key_is_never_shown(tmp_path: Path) -> None:
    assert "PRIVATE" not in repr(load_client_certificate(made(tmp_path)))
