"""A node with TLS accepts its own cluster's certificates, and no others."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.fixtures.coordinator.guarded_service import CREATE, GET, TALK, Service, raw, refusal, serving
from tests.fixtures.wording import Wording

from paceline.coordinator.client.aio import Client, UntrustedError
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server.access_policy import Identity, Role, may_speak_for
from paceline.coordinator.server.security import (
    call_metadata,
    listen,
    new_server,
    node_security,
    open_channel,
    peer_access,
)
from paceline.coordinator.server.tls import (
    Certificate,
    CertificateHolder,
    init_pki,
    load_authority,
    load_client_certificate,
    load_node_certificate,
    make_certificate,
    parse_client,
    parse_node,
)
from paceline.coordinator.server.tokens import Token, Tokens, load_or_create_tokens

Code = grpc.StatusCode
Test = Callable[[str, Service], Awaitable[None]]
DAYS_S = 86_400.0
NODES = [parse_node("1=127.0.0.1,localhost"), parse_node("2=192.0.2.7")]


def pki(folder: Path) -> Path:
    init_pki(folder, NODES, now_s=time.time())
    return folder


def with_server(folder: Path, test: Test, node: int = 1) -> None:
    """Run the test against a real server with TLS, and see that the server still serves afterwards."""

    async def main() -> None:
        async with serving(load_node_certificate(folder, node)) as (address, service):
            await test(address, service)
            if node == 1:
                await call_method(address, load_client_certificate(folder), CREATE)

    asyncio.run(main())


async def call_method(address: str, access: Token | Certificate, method: str = GET) -> bytes:
    async with open_channel(address, access) as channel:
        metadata = call_metadata(access)
        return await channel.unary_unary(method, raw, raw)(b"", metadata=metadata, timeout=30)


def issued(folder: Path, identity: Identity, *, made_s: float, days: int) -> Certificate:
    """A certificate that a careful client would not even try."""
    authority = load_authority(folder, datetime.now(UTC))
    certificate, key = make_certificate(
        authority, CertificateHolder(identity), datetime.fromtimestamp(made_s, UTC), days
    )
    return Certificate(
        identity,
        (folder / "ca.crt").read_bytes(),
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def test_the_certificate_identifies_the_caller_and_no_token_is_needed(tmp_path: Path) -> None:
    folder = pki(tmp_path)

    async def test(address: str, service: Service) -> None:
        for name in ("admin", "worker", "viewer", "node-2"):
            await call_method(address, load_client_certificate(folder, name))
        assert service.served == [
            ("Get", Identity("admin", Role.ADMIN)),
            ("Get", Identity("worker", Role.WORKER)),
            ("Get", Identity("viewer", Role.VIEWER)),
            ("Get", Identity("node-2", Role.NODE)),
        ]
        assert may_speak_for(service.served[-1][1], 2)

    with_server(folder, test)


def test_a_role_that_is_not_enough_is_refused(tmp_path: Path) -> None:
    folder = pki(tmp_path)

    async def test(address: str, service: Service) -> None:
        for name, method in (("viewer", CREATE), ("worker", CREATE), ("admin", TALK), ("node-2", CREATE)):
            code, details = await refusal(call_method(address, load_client_certificate(folder, name), method))
            assert code is Code.PERMISSION_DENIED
            assert f"'{name}'" in details
        assert not service.served

    with_server(folder, test)


def test_nodes_talk_to_each_other_with_their_own_certificates(tmp_path: Path) -> None:
    folder = pki(tmp_path / "pki")

    async def test(address: str, service: Service) -> None:
        second = node_security("192.0.2.7:7400", 2, tmp_path / "data", tls_dir=folder)
        async with open_channel(address, peer_access(second)) as channel:
            talk = channel.stream_unary(TALK, pb.Frame.SerializeToString, pb.Heard.FromString)
            assert await talk(iter([pb.Frame()]), timeout=30) == pb.Heard()
        assert service.served == [("Talk", Identity("node-2", Role.NODE))]

    with_server(folder, test)
    assert not (tmp_path / "data").exists(), "no tokens are made where certificates are used"


def test_a_token_does_not_replace_a_certificate(tmp_path: Path) -> None:
    async def test(address: str, service: Service) -> None:
        code, _ = await refusal(call_method(address, Token("a-token-in-plain-text-0123456789")))
        assert code is Code.UNAVAILABLE
        assert not service.served

    with_server(pki(tmp_path), test)


def test_a_client_without_a_certificate_gets_no_connection(tmp_path: Path) -> None:
    folder = pki(tmp_path)

    async def test(address: str, service: Service) -> None:
        credentials = grpc.ssl_channel_credentials((folder / "ca.crt").read_bytes())
        async with grpc.aio.secure_channel(address, credentials) as channel:
            code, _ = await refusal(channel.unary_unary(GET, raw, raw)(b"", timeout=30))
        assert code is Code.UNAVAILABLE
        assert not service.served

    with_server(folder, test)


def test_a_certificate_of_another_authority_gets_no_connection(tmp_path: Path) -> None:
    ours, theirs = pki(tmp_path / "ours"), load_client_certificate(pki(tmp_path / "theirs"))
    # It trusts our node, but our node does not trust it.
    stranger = Certificate(theirs.identity, (ours / "ca.crt").read_bytes(), theirs.chain, theirs.key)

    async def test(address: str, service: Service) -> None:
        for access in (stranger, theirs):
            assert (await refusal(call_method(address, access)))[0] is Code.UNAVAILABLE
        assert not service.served

    with_server(ours, test)


def test_an_expired_certificate_gets_no_connection(tmp_path: Path) -> None:
    folder = pki(tmp_path)
    expired = issued(folder, Identity("old", Role.ADMIN), made_s=time.time() - 10 * DAYS_S, days=3)

    async def test(address: str, service: Service) -> None:
        assert (await refusal(call_method(address, expired)))[0] is Code.UNAVAILABLE
        assert not service.served

    with_server(folder, test)


def test_a_node_with_an_expired_certificate_is_not_trusted(tmp_path: Path) -> None:
    folder = pki(tmp_path)
    expired = issued(folder, Identity("node-1", Role.NODE), made_s=time.time() - 10 * DAYS_S, days=3)

    async def main() -> None:
        async with serving(expired) as (address, service):
            assert (await refusal(call_method(address, load_client_certificate(folder))))[
                0
            ] is Code.UNAVAILABLE
            assert not service.served

    asyncio.run(main())


def node_secrets(folder: Path, problem: str) -> Certificate | Tokens:
    """Of a node that a client with the certificates of `folder` must not trust."""
    match problem:
        case "expired":
            identity = Identity("node-1", Role.NODE)
            return issued(folder, identity, made_s=time.time() - 10 * DAYS_S, days=3)
        case "of another authority":
            return load_node_certificate(pki(folder.parent / "other"), 1)
        case "for another address":
            return load_node_certificate(folder, 2)
        case _:
            return load_or_create_tokens(folder.parent / "tokens.json")


@pytest.mark.parametrize("problem", ["expired", "of another authority", "for another address", "no TLS"])
def test_a_client_says_at_once_why_it_trusts_no_node(tmp_path: Path, problem: str) -> None:
    folder = pki(tmp_path / "pki")
    access = load_client_certificate(folder)

    async def main() -> None:
        async with (
            serving(node_secrets(folder, problem)) as (address, service),
            Client([address], lambda at: open_channel(at, access), patience_s=600) as client,
        ):
            with pytest.raises(UntrustedError) as raised:
                await client.read("Runs.Get", pb.GetRun(run="r"), pb.RunView)
            assert raised.value.code == "E511"
            assert not service.served

    asyncio.run(main())


def test_one_node_that_is_trusted_is_enough(tmp_path: Path) -> None:
    folder = pki(tmp_path / "pki")
    access = load_client_certificate(folder)

    async def main() -> None:
        async with (
            serving(node_secrets(folder, "expired")) as (expired, _),
            serving(load_node_certificate(folder, 1)) as (address, _),
            Client([expired, address], lambda at: open_channel(at, access), patience_s=60) as client,
        ):
            await client.read("Runs.Get", pb.GetRun(run="r"), pb.RunView)

    asyncio.run(main())


def test_a_node_under_an_address_that_is_not_its_own_is_not_trusted(tmp_path: Path) -> None:
    folder = pki(tmp_path)

    async def test(address: str, service: Service) -> None:
        code, details = await refusal(call_method(address, load_client_certificate(folder)))
        assert code is Code.UNAVAILABLE
        assert "127.0.0.1" in details
        assert not service.served

    with_server(folder, test, node=2)


def test_a_worker_cannot_pose_as_a_node(tmp_path: Path) -> None:
    folder = pki(tmp_path)

    async def main() -> None:
        async with serving(load_client_certificate(folder, "worker")) as (address, service):
            assert (await refusal(call_method(address, load_client_certificate(folder))))[
                0
            ] is Code.UNAVAILABLE
            assert not service.served

    asyncio.run(main())


@pytest.mark.parametrize("names", [[], ["paceline://owner/x"], ["paceline://admin/a", "paceline://viewer/a"]])
def test_a_certificate_of_the_authority_without_a_single_role_is_no_identity(
    tmp_path: Path, names: list[str], wording: Wording
) -> None:
    folder = pki(tmp_path)
    plain = issued(folder, Identity("paceline", Role.ADMIN), made_s=time.time(), days=3)
    nameless = Certificate(plain.identity, plain.authority, _renamed(folder, plain.chain, names), plain.key)

    async def test(address: str, service: Service) -> None:
        code, details = await refusal(call_method(address, nameless))
        assert code is Code.UNAUTHENTICATED
        wording(details)
        assert not service.served

    with_server(folder, test)


def test_a_node_listens_to_other_machines_with_tls(tmp_path: Path) -> None:
    folder = pki(tmp_path / "pki")

    async def main() -> None:
        security = node_security("0.0.0.0:0", 1, tmp_path / "data", tls_dir=folder)
        service, server = Service(), new_server(security)
        server.add_generic_rpc_handlers(service.handlers())
        port = listen(server, "0.0.0.0:0", security)
        await server.start()
        await call_method(f"localhost:{port}", load_client_certificate(folder))
        await server.stop(None)
        assert service.served == [("Get", Identity("admin", Role.ADMIN))]

    asyncio.run(main())


def test_a_client_made_later_is_known_at_once(tmp_path: Path) -> None:
    folder = pki(tmp_path)

    async def test(address: str, service: Service) -> None:
        init_pki(folder, [], [parse_client("alice=worker")], now_s=time.time(), add=True)
        await call_method(address, load_client_certificate(folder, "alice"))
        assert service.served == [("Get", Identity("alice", Role.WORKER))]

    with_server(folder, test)


def _renamed(folder: Path, chain: bytes, names: list[str]) -> bytes:
    """The same certificate, signed by our authority, with other names."""
    old, authority = x509.load_pem_x509_certificate(chain), load_authority(folder, datetime.now(UTC))
    builder = x509.CertificateBuilder(
        issuer_name=old.issuer,
        subject_name=x509.Name.from_rfc4514_string("CN=paceline://admin/admin,OU=admin"),
        public_key=old.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=old.not_valid_before_utc,
        not_valid_after=old.not_valid_after_utc,
    )
    if names:
        uris = [x509.UniformResourceIdentifier(name) for name in names]
        builder = builder.add_extension(x509.SubjectAlternativeName(uris), critical=False)
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM)
