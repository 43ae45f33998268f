"""Minimal etcd client: the two calls that the benchmark needs, after etcd's own rpc.proto."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_BYTES = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
_UINT64 = descriptor_pb2.FieldDescriptorProto.TYPE_UINT64
_PACKAGE = "etcdserverpb"
# Message: field, number, type (a name: another message of this table).
_MESSAGES: dict[str, list[tuple[str, int, int | str]]] = {
    "ResponseHeader": [("member_id", 2, _UINT64), ("raft_term", 4, _UINT64)],
    "PutRequest": [("key", 1, _BYTES), ("value", 2, _BYTES)],
    "PutResponse": [("header", 1, "ResponseHeader")],
    "StatusRequest": [],
    "StatusResponse": [("header", 1, "ResponseHeader"), ("leader", 4, _UINT64)],
}


def putter(channel: grpc.aio.Channel, key: bytes, value: bytes) -> Callable[[], Awaitable[object]]:
    put = channel.unary_unary(
        f"/{_PACKAGE}.KV/Put", _type("PutRequest").SerializeToString, _type("PutResponse").FromString
    )
    request = _type("PutRequest")(key=key, value=value)
    return lambda: put(request)


async def find_leader(addresses: Sequence[str], patience_s: float) -> str:
    """Address of the node that reports itself as leader."""
    async with asyncio.timeout(patience_s):
        while True:
            for address in addresses:
                if await _leads(address):
                    return address
            await asyncio.sleep(0.1)


async def _leads(address: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        ask = channel.unary_unary(
            f"/{_PACKAGE}.Maintenance/Status",
            _type("StatusRequest").SerializeToString,
            _type("StatusResponse").FromString,
        )
        result = await ask(_type("StatusRequest")(), wait_for_ready=True)
    return bool(result.leader) and result.leader == result.header.member_id


def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="etcd_rpc.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            made = message.field.add(name=field, number=number, label=1)
            if isinstance(kind, str):
                made.type, made.type_name = made.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                made.type = made.Type.ValueType(kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_POOL = _pool()


def _type(name: str) -> Any:  # a class defined by the table above
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
