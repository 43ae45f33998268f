"""Roles, rate limits and tokens: the rules, without a network."""

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server import security
from paceline.coordinator.server.access_policy import (
    METHODS,
    Buckets,
    Identity,
    Limits,
    Rate,
    Role,
    from_uri,
    may_speak_for,
    roles_for,
)
from paceline.coordinator.server.security import (
    check_private,
    client_access,
    host_of,
    is_loopback,
    node_security,
)
from paceline.coordinator.server.tokens import Token, Tokens, load_or_create_tokens, read_token
from paceline.core.disk import SecretError, read_private, write_private
from paceline.core.errors import PacelineError

NOW_S = 1000.0


def method(name: str) -> str:
    return f"/paceline.cluster.v1.{name}"


# --- Roles ------------------------------------------------------------------------------------------------


def test_every_method_of_the_contract_has_a_policy() -> None:
    services = pb.DESCRIPTOR.services_by_name.values()
    contract = {f"/{service.full_name}/{m.name}" for service in services for m in service.methods}
    assert set(METHODS) == contract


def test_a_method_that_is_not_in_the_table_may_not_be_called() -> None:
    assert roles_for(method("Runs/Delete")) == frozenset()


def test_only_nodes_use_the_raft_service() -> None:
    for name, roles in METHODS.items():
        assert (roles == {Role.NODE}) == (".Raft/" in name)


def test_a_viewer_may_read_and_nothing_else() -> None:
    seen = {name.rpartition("/")[2] for name, roles in METHODS.items() if Role.VIEWER in roles}
    assert seen == {"Status", "Get", "List", "Alerts", "Changes"}


def test_an_admin_may_do_all_that_a_worker_may_and_a_worker_all_that_a_viewer_may() -> None:
    for roles in METHODS.values():
        assert Role.ADMIN in roles or roles == {Role.NODE}
        assert Role.WORKER in roles or Role.VIEWER not in roles


def test_a_worker_neither_creates_nor_ends_runs_nor_changes_the_cluster() -> None:
    for name in (
        "Runs/Create",
        "Runs/End",
        "Checkpoints/Drop",
        "Actions/Request",
        "Nodes/Add",
        "Nodes/Remove",
    ):
        assert roles_for(method(name)) == {Role.ADMIN}
    assert Role.WORKER in roles_for(method("Members/Live"))


@given(st.sampled_from(list(Role)), st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True))
def test_an_identity_is_read_as_the_certificate_states_it(role: Role, name: str) -> None:
    assert from_uri(Identity(name, role).uri) == Identity(name, role)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "admin/x",
        "paceline://",
        "paceline://owner/x",
        "paceline://admin/",
        "paceline://admin/a/b",
        "x://admin/x",
    ],
)
def test_other_uris_are_no_identity(uri: str) -> None:
    assert from_uri(uri) is None


def test_a_certificate_of_a_node_is_valid_for_that_node_alone() -> None:
    second = Identity("node-2", Role.NODE)
    assert may_speak_for(second, 2)
    assert not may_speak_for(second, 3)
    assert may_speak_for(Identity("node", Role.NODE), 3), "nodes that use tokens share one"
    assert not may_speak_for(Identity("node-2", Role.ADMIN), 2)


# --- Rates ------------------------------------------------------------------------------------------------


def test_a_bucket_gives_its_burst_and_then_as_much_as_flows_in() -> None:
    buckets = Buckets(Rate(per_s=10, burst=3))
    assert [buckets.wait_s("a", NOW_S) for _ in range(3)] == [0, 0, 0]
    assert buckets.wait_s("a", NOW_S) == pytest.approx(0.1)
    assert buckets.wait_s("b", NOW_S) == 0, "another caller has a bucket of its own"
    assert buckets.wait_s("a", NOW_S + 0.1) == 0
    assert buckets.wait_s("a", NOW_S + 0.1) > 0


@given(st.lists(st.floats(0, 0.5), max_size=200), st.integers(1, 5))
def test_no_order_of_requests_gets_more_than_the_burst_and_the_flow(pauses: list[float], burst: int) -> None:
    buckets, now_s, taken = Buckets(Rate(per_s=7, burst=burst)), NOW_S, 0
    for pause in pauses:
        now_s += pause
        taken += buckets.wait_s("a", now_s) == 0
        assert taken <= burst + 7 * (now_s - NOW_S) + 1e-6


def test_a_caller_that_waits_as_instructed_gets_through() -> None:
    buckets = Buckets(Rate(per_s=3, burst=1))
    assert buckets.wait_s("a", NOW_S) == 0
    wait_s = buckets.wait_s("a", NOW_S)
    assert buckets.wait_s("a", NOW_S + wait_s + 1e-9) == 0


def test_a_crowd_of_strangers_does_not_fill_the_memory() -> None:
    buckets = Buckets(Rate(per_s=1, burst=2), max_keys=100)
    for number in range(1000):
        buckets.wait_s(number, NOW_S)
    assert len(buckets) <= 100


def test_a_caller_that_used_up_its_share_is_remembered_while_others_are_forgotten() -> None:
    buckets = Buckets(Rate(per_s=1, burst=2), max_keys=10)
    for number in range(9):
        buckets.wait_s(number, NOW_S)
    for _ in range(2):
        buckets.wait_s("greedy", NOW_S + 5)
    assert buckets.wait_s("stranger", NOW_S + 5) == 0
    assert buckets.wait_s("greedy", NOW_S + 5) > 0


# --- Tokens -----------------------------------------------------------------------------------------------


def test_a_node_makes_its_tokens_once_and_for_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "tokens.json"
    first, again = load_or_create_tokens(path), load_or_create_tokens(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    made = json.loads(path.read_text())
    assert set(made) == {"admin", "worker", "viewer", "node"}
    assert len(set(made.values())) == 4
    for role in Role:
        assert first.of(role) == again.of(role) == Token(made[role.value])
        assert first.identify(f"Bearer {made[role.value]}") == Identity(role.value, role)


def test_nodes_that_start_at_once_agree_on_one_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    with ThreadPoolExecutor(8) as pool:
        result = list(pool.map(load_or_create_tokens, [path] * 8))
    assert len({tokens.of(Role.ADMIN).text for tokens in result}) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_secret_is_never_overwritten(tmp_path: Path) -> None:
    assert write_private(tmp_path / "secret", b"first")
    assert not write_private(tmp_path / "secret", b"second")
    assert read_private(tmp_path / "secret") == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize(
    "header", ["", "Bearer ", "Bearer x", "{admin}", "Basic {admin}", "bearer {admin} ", "Bearer ü"]
)
def test_anything_but_a_token_is_no_identity(tmp_path: Path, header: str) -> None:
    tokens = load_or_create_tokens(tmp_path / "tokens.json")
    assert tokens.identify(header.replace("{admin}", tokens.of(Role.ADMIN).text)) is None
    assert tokens.identify(b"\xff\x00") is None


def test_a_token_is_never_shown(tmp_path: Path) -> None:
    tokens = load_or_create_tokens(tmp_path / "tokens.json")
    token = tokens.of(Role.ADMIN)
    assert token.text not in repr(tokens) + repr(token)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_tokens_that_others_can_read_are_refused(tmp_path: Path, mode: int, wording: Wording) -> None:
    path = tmp_path / "tokens.json"
    load_or_create_tokens(path)
    path.chmod(mode)
    with wording.raises(SecretError) as caught:
        load_or_create_tokens(path)
    assert f"chmod 600 {path}" in caught.value.hint
    with pytest.raises(SecretError):
        read_token(path)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[1]",
        '{"admin": "0123456789abcdef0123456789"}',
        '{"admin": "secret"}',
        '{"admin": 5}',
        '{"admin": "secret-secret-secret-secret\\n"}',
        '{"root": "secret-secret-secret-secret"}',
        '{"admin": "secret-secret-secret-secret", "viewer": "secret-secret-secret-secret"}',
    ],
)
def test_a_damaged_token_file_is_refused_without_showing_it(
    tmp_path: Path, content: str, wording: Wording
) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(content)
    path.chmod(0o600)
    with wording.raises(SecretError) as caught:
        load_or_create_tokens(path)
    assert "secret" not in caught.value.what + caught.value.hint
    assert caught.value.__cause__ is None


def test_a_client_takes_its_token_from_the_file_or_else_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    path, alone = tmp_path / "tokens.json", tmp_path / "viewer"
    tokens = load_or_create_tokens(path)
    alone.write_text(tokens.of(Role.VIEWER).text + "\n")
    alone.chmod(0o600)
    monkeypatch.setenv("PACELINE_TOKEN", "from-the-environment-alone")
    assert read_token() == Token("from-the-environment-alone")
    assert read_token(path) == tokens.of(Role.ADMIN)
    assert client_access(token_file=path, role=Role.WORKER) == tokens.of(Role.WORKER)
    assert read_token(alone, role=Role.WORKER) == tokens.of(Role.VIEWER)
    monkeypatch.delenv("PACELINE_TOKEN")
    with wording.raises(SecretError) as caught:
        read_token()
    assert "--token-file" in caught.value.hint


def test_a_file_that_is_not_there_is_named(tmp_path: Path, wording: Wording) -> None:
    with wording.raises(SecretError):
        read_token(tmp_path / "nothing")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, wording: Wording) -> None:
    tmp_path.chmod(0o500)
    with wording.raises(SecretError):
        load_or_create_tokens(tmp_path / "tokens.json")


# --- Addresses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1:7400", "127.8.0.1:0", "[::1]:7400", "localhost:7400"])
def test_loopback_needs_no_tls(address: str) -> None:
    check_private(address, "init-pki")


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:7400",
        "[::]:7400",
        "10.0.0.1:7400",
        "example.com:7400",
        "localhost.example.com:1",
        "dns:///127.0.0.1:1",
    ],
)
def test_an_address_that_others_reach_is_refused_without_tls(
    address: str, tmp_path: Path, wording: Wording
) -> None:
    with wording.raises(SecretError) as caught:
        node_security(address, 1, tmp_path)
    assert "paceline coordinator init-pki --out pki --node 1=" in caught.value.hint
    assert not list(tmp_path.iterdir()), "nothing was made for it"


@pytest.mark.parametrize("address", ["", "7400", ":7400", "localhost", "127.0.0.1:", "127.0.0.1:http"])
def test_an_invalid_address_is_reported_as_invalid(address: str, wording: Wording) -> None:
    with wording.raises(PacelineError):
        host_of(address)


def test_nodes_on_one_machine_can_share_their_tokens(tmp_path: Path) -> None:
    shared = tmp_path / "shared.json"
    results = [
        node_security(f"127.0.0.1:{7400 + node}", node, tmp_path / str(node), token_file=shared)
        for node in (1, 2)
    ]
    assert isinstance(results[0], Tokens)
    assert isinstance(results[1], Tokens)
    assert results[0].of(Role.NODE) == results[1].of(Role.NODE)
    own = node_security("127.0.0.1:7403", 3, tmp_path / "3")
    assert isinstance(own, Tokens)
    assert own.of(Role.NODE) != results[0].of(Role.NODE)
    assert (tmp_path / "3" / "tokens.json").exists()


def test_names_of_other_machines_are_not_loopback() -> None:
    assert not is_loopback("127.0.0.1.example.com")
    assert not is_loopback("::ffff:10.0.0.1")


GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("data", [b"", GREETING])
def test_an_idle_connection_is_closed(tmp_path: Path, data: bytes) -> None:
    """Each is a file of the process: a thousand strangers who only wait must not keep others out."""

    async def story() -> None:
        proof = load_or_create_tokens(tmp_path / "tokens.json")
        server = security.new_server(proof, Limits(greeting_ms=200, idle_ms=200))
        port = security.listen(server, "127.0.0.1:0", proof)
        await server.start()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            async with asyncio.timeout(20):  # without the limit it is never closed
                while await reader.read(1 << 16):
                    pass
            writer.close()
        finally:
            await server.stop(grace=0)

    asyncio.run(story())
