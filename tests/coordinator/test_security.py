"""Unauthorized callers are refused with a status that says why, and the node keeps serving."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from tests.fixtures.coordinator.guarded_service import (
    CHANGES,
    CREATE,
    GET,
    LIVE,
    TALK,
    Service,
    raw,
    refusal,
    serving,
)
from tests.fixtures.wording import Wording

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server.access_policy import PACKAGE, Identity, Limits, Rate, Role
from paceline.coordinator.server.security import call_metadata, listen, new_server, open_channel, peer_access
from paceline.coordinator.server.tokens import Token, Tokens, load_or_create_tokens
from paceline.core.disk import SecretError
from paceline.core.errors import NotReadyError

Code = grpc.StatusCode
WRONG = Token("0123456789-wrong-0123456789-wrong")
A_RUN = pb.CreateRun(run="first").SerializeToString()
Test = Callable[[grpc.aio.Channel, Service], Awaitable[None]]


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return load_or_create_tokens(tmp_path / "tokens.json")


def with_server(tokens: Tokens, test: Test, limits: Limits | None = None) -> None:
    """Run the test on a channel to a real server, and see that the server still serves afterwards."""

    async def main() -> None:
        async with serving(tokens, limits) as (address, service), open_channel(address, WRONG) as channel:
            await test(channel, service)
            service.now_s += 3600
            assert pb.Run.FromString(await call(channel, CREATE, tokens.of(Role.ADMIN))).run == "first"

    asyncio.run(main())


async def call(channel: grpc.aio.Channel, method: str, token: Token | None, data: bytes = A_RUN) -> bytes:
    metadata = call_metadata(token) if token is not None else ()
    return await channel.unary_unary(method, raw, raw)(data, metadata=metadata, timeout=30)


def is_told(details: str) -> bool:
    """What happened, a line break, what to do."""
    description, _, hint = details.partition("\n")
    return bool(description) and bool(hint) and "\n" not in hint


# --- Who --------------------------------------------------------------------------------------------------


def test_each_token_gives_its_role(tokens: Tokens) -> None:
    async def test(channel: grpc.aio.Channel, service: Service) -> None:
        for role in Role:
            await call(channel, GET, tokens.of(role), b"")
        assert service.served == [("Get", Identity(role.value, role)) for role in Role]

    with_server(tokens, test)


@pytest.mark.parametrize("method", [CREATE, CHANGES, LIVE, TALK, f"/{PACKAGE}.Runs/Nothing", "/a/b"])
def test_a_caller_without_a_token_is_refused_whatever_it_requests(
    tokens: Tokens, method: str, wording: Wording
) -> None:
    async def test(channel: grpc.aio.Channel, service: Service) -> None:
        code, details = await refusal(call(channel, method, None))
        assert code is Code.UNAUTHENTICATED
        wording(details)
        assert "--token-file" in details
        assert is_told(details)
        assert not service.served

    with_server(tokens, test)


@pytest.mark.parametrize(
    "header", ["Bearer 0123456789-wrong", "Bearer", "Basic eDp5", "", "Bearer " + "x" * 4000]
)
def test_a_wrong_token_is_refused_and_not_repeated(tokens: Tokens, header: str) -> None:
    async def test(channel: grpc.aio.Channel, service: Service) -> None:
        metadata = (("authorization", header),)
        code, details = await refusal(channel.unary_unary(CREATE, raw, raw)(A_RUN, metadata=metadata))
        assert code is Code.UNAUTHENTICATED
        _, without = await refusal(call(channel, CREATE, None))
        assert details != without
        assert is_told(details)
        assert "wrong" not in details.partition("\n")[0]
        assert not service.served

    with_server(tokens, test)


@pytest.mark.parametrize(
    ("role", "method"),
    [
        (Role.VIEWER, CREATE),
        (Role.WORKER, CREATE),
        (Role.NODE, CREATE),
        (Role.VIEWER, LIVE),
        (Role.ADMIN, TALK),
        (Role.WORKER, TALK),
    ],
)
def test_a_role_that_is_not_enough_is_refused(tokens: Tokens, role: Role, method: str) -> None:
    async def test(channel: grpc.aio.Channel, service: Service) -> None:
        code, details = await refusal(call(channel, method, tokens.of(role)))
        assert code is Code.PERMISSION_DENIED
        assert f"'{role.value}'" in details
        assert is_told(details)
        assert tokens.of(role).text not in details
        assert not service.served

    with_server(tokens, test)


@pytest.mark.parametrize("method", [f"/{PACKAGE}.Runs/Nothing", f"/{PACKAGE}.Runs/Forgotten", "/a/b"])
def test_a_method_without_a_policy_is_not_there(tokens: Tokens, method: str) -> None:
    async def test(channel: grpc.aio.Channel, service: Service) -> None:
        code, details = await refusal(call(channel, method, tokens.of(Role.ADMIN)))
        assert code is Code.UNIMPLEMENTED
        assert method in details
        assert is_told(details)
        assert not service.served

    with_server(tokens, test)


def test_streams_are_guarded_and_work(tokens: Tokens) -> None:
    async def test(channel: grpc.aio.Channel, service: Service) -> None:
        changes = channel.unary_stream(CHANGES, raw, pb.Change.FromString)
        seen = [change.index async for change in changes(b"", metadata=tokens.of(Role.VIEWER).metadata)]
        assert seen == [0, 1, 2]
        worker = tokens.of(Role.WORKER).metadata
        live = channel.stream_stream(LIVE, pb.Beat.SerializeToString, pb.Order.FromString)(metadata=worker)
        for step in (7, 8):
            await live.write(pb.Beat(step=step))
            order = await live.read()
            assert isinstance(order, pb.Order)
            assert order.lease_ms == step
        await live.done_writing()
        assert await live.read() is grpc.aio.EOF
        assert await live.code() is Code.OK
        talk = channel.stream_unary(TALK, pb.Frame.SerializeToString, pb.Heard.FromString)
        assert await talk(iter([pb.Frame()] * 3), metadata=tokens.of(Role.NODE).metadata) == pb.Heard()
        assert [who.role for _, who in service.served] == [Role.VIEWER, Role.WORKER, Role.NODE]

    with_server(tokens, test)


# --- What -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [Limits(), Limits(message_bytes=1 << 20)])
def test_a_message_that_is_too_long_is_refused(tokens: Tokens, limits: Limits) -> None:
    async def test(channel: grpc.aio.Channel, service: Service) -> None:
        code, details = await refusal(call(channel, CREATE, tokens.of(Role.ADMIN), bytes(5 << 20)))
        assert code is Code.RESOURCE_EXHAUSTED
        assert f"larger than max ({5 << 20} vs. {limits.message_bytes})" in details
        live = channel.stream_stream(LIVE, raw, raw)(metadata=tokens.of(Role.WORKER).metadata)
        await live.write(bytes(5 << 20))
        assert (await refusal(live.read()))[0] is Code.RESOURCE_EXHAUSTED
        assert [method for method, _ in service.served] == ["Live"]

    with_server(tokens, test, limits)


def test_the_body_of_an_unauthenticated_request_is_not_read(tokens: Tokens) -> None:
    async def test(channel: grpc.aio.Channel, _: Service) -> None:
        for data in (bytes(5 << 20), b"\xff\xff"):
            assert (await refusal(call(channel, CREATE, WRONG, data)))[0] is Code.UNAUTHENTICATED

    with_server(tokens, test)


def test_a_small_message_that_unfolds_to_a_huge_one_is_refused(tokens: Tokens) -> None:
    async def test(channel: grpc.aio.Channel, service: Service) -> None:
        assert len(gzip.compress(bytes(5 << 20))) < 1 << 14
        packed = channel.unary_unary(CREATE, raw, raw)(
            bytes(5 << 20), metadata=tokens.of(Role.ADMIN).metadata, compression=grpc.Compression.Gzip
        )
        code, details = await refusal(packed)
        assert code is Code.UNIMPLEMENTED
        assert "gzip" in details
        assert not service.served

    with_server(tokens, test)


def test_bytes_that_are_no_message_are_refused(tokens: Tokens, wording: Wording) -> None:
    async def test(channel: grpc.aio.Channel, service: Service) -> None:
        code, details = await refusal(call(channel, CREATE, tokens.of(Role.ADMIN), b"\xff\xff"))
        assert code is Code.INVALID_ARGUMENT
        wording(details)
        live = channel.stream_stream(LIVE, raw, raw)(metadata=tokens.of(Role.WORKER).metadata)
        await live.write(b"\xff\xff")
        assert (await refusal(live.read()))[0] is Code.INVALID_ARGUMENT
        talk = channel.stream_unary(TALK, raw, raw)(iter([b"\xff"]), metadata=tokens.of(Role.NODE).metadata)
        assert (await refusal(talk))[0] is Code.INVALID_ARGUMENT
        nothing = channel.stream_unary(CREATE, raw, raw)(iter(()), metadata=tokens.of(Role.ADMIN).metadata)
        assert (await refusal(nothing))[0] is Code.INVALID_ARGUMENT
        assert [method for method, _ in service.served] == ["Live", "Talk"]

    with_server(tokens, test)


# --- How often --------------------------------------------------------------------------------------------


def test_a_caller_above_its_rate_must_wait_and_is_served_again_later(
    tokens: Tokens, wording: Wording
) -> None:
    async def test(channel: grpc.aio.Channel, service: Service) -> None:
        for _ in range(3):
            await call(channel, GET, tokens.of(Role.VIEWER), b"")
        code, details = await refusal(call(channel, GET, tokens.of(Role.VIEWER), b""))
        assert code is Code.RESOURCE_EXHAUSTED
        wording(details)
        await call(channel, GET, tokens.of(Role.WORKER), b"")  # has a bucket of its own
        service.now_s += 0.5
        await call(channel, GET, tokens.of(Role.VIEWER), b"")

    with_server(tokens, test, Limits(per_caller=Rate(2, 3), overall=Rate(100, 100)))


def test_all_together_have_a_limit_but_nodes_have_none(tokens: Tokens) -> None:
    async def test(channel: grpc.aio.Channel, _: Service) -> None:
        for role in (Role.VIEWER, Role.WORKER):
            await call(channel, GET, tokens.of(role), b"")
        assert (await refusal(call(channel, GET, tokens.of(Role.ADMIN), b"")))[0] is Code.RESOURCE_EXHAUSTED
        for role in [Role.NODE] * 10:
            await call(channel, GET, tokens.of(role), b"")

    with_server(tokens, test, Limits(overall=Rate(2, 2)))


def test_guessing_is_slowed_down_but_locks_no_client_out(tokens: Tokens, wording: Wording) -> None:
    async def test(channel: grpc.aio.Channel, _: Service) -> None:
        seen = [await refusal(call(channel, GET, WRONG, b"")) for _ in range(5)]
        assert [code for code, _ in seen] == [Code.UNAUTHENTICATED] * 3 + [Code.RESOURCE_EXHAUSTED] * 2
        wording(seen[-1][1])
        assert is_told(seen[-1][1])
        await call(channel, GET, tokens.of(Role.VIEWER), b"")

    with_server(tokens, test, Limits(failures=Rate(1, 3)))


# --- Where ------------------------------------------------------------------------------------------------


def test_a_token_is_not_sent_to_another_machine(tokens: Tokens, wording: Wording) -> None:
    async def main() -> None:
        with wording.raises(SecretError):
            open_channel("10.0.0.1:7400", tokens.of(Role.ADMIN))
        server = new_server(tokens)
        with wording.raises(SecretError):
            listen(server, "0.0.0.0:0", tokens)
        await server.stop(None)

    asyncio.run(main())


def test_a_proxy_from_the_environment_is_not_given_the_token(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)

    async def test(channel: grpc.aio.Channel, _: Service) -> None:
        await call(channel, GET, tokens.of(Role.VIEWER), b"")

    with_server(tokens, test)


def test_two_servers_do_not_share_a_port(tokens: Tokens) -> None:
    async def main() -> None:
        first, second = new_server(tokens), new_server(tokens)
        port = listen(first, "127.0.0.1:0", tokens)
        await first.start()
        with pytest.raises(NotReadyError) as refused:
            listen(second, f"127.0.0.1:{port}", tokens)
        assert f"127.0.0.1:{port}" in refused.value.what
        await first.stop(None)
        await second.stop(None)

    asyncio.run(main())


def test_a_new_server_has_its_guard(tokens: Tokens) -> None:
    async def main() -> None:
        service, server = Service(), new_server(tokens)
        server.add_generic_rpc_handlers(service.handlers())
        port = listen(server, "127.0.0.1:0", tokens)
        await server.start()
        async with open_channel(f"127.0.0.1:{port}", peer_access(tokens)) as channel:
            assert (await refusal(call(channel, GET, None)))[0] is Code.UNAUTHENTICATED
            await call(channel, GET, peer_access_token(tokens), b"")
        await server.stop(None)
        assert service.served == [("Get", Identity("node", Role.NODE))]

    asyncio.run(main())


def peer_access_token(tokens: Tokens) -> Token:
    access = peer_access(tokens)
    assert isinstance(access, Token)
    return access
