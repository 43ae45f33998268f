"""Reference page of the coordinator's gRPC services, from the proto files and their comments."""

import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
    SourceCodeInfo,
)

from docs.tables import code, table
from paceline.coordinator.server.access_policy import describe_roles, roles_for

PROTO = "paceline/coordinator/proto/cluster.proto"
TORCHFT = "paceline/coordinator/proto/torchft.proto"
SOURCE = Path(__file__).parent.parent / "src"
Comments = dict[tuple[int, ...], str]

# Numbers of fields in descriptor.proto: comments are found by the way to what they are about.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_MEMBERS = 2  # fields of a message, values of an enumeration, methods of a service
_KINDS = {
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_BYTES: "bytes",
    FieldDescriptorProto.TYPE_DOUBLE: "double",
    FieldDescriptorProto.TYPE_FIXED32: "fixed32",
    FieldDescriptorProto.TYPE_INT64: "int64",
    FieldDescriptorProto.TYPE_STRING: "string",
    FieldDescriptorProto.TYPE_UINT32: "uint32",
    FieldDescriptorProto.TYPE_UINT64: "uint64",
}


def grpc_page() -> list[str]:
    file = _described(PROTO)
    lines = [
        "# gRPC",
        "",
        *_head(file),
        "",
        "## Services",
        *_services(file),
        "",
        "## Messages",
        *_messages(file),
    ]
    lines += ["", "## Enumerations"]
    comments = _comments(file)
    for number, found in enumerate(file.enum_type):
        lines += ["", f"### {found.name}", "", *_enum(found, (_ENUMS, number), comments)]
    return lines + _torchft_part()


def _torchft_part() -> list[str]:
    file = _described(TORCHFT)
    head = [f"Package `{file.package}`, as in [torchft.proto](../../src/{TORCHFT}).", "", *_about(TORCHFT)]
    return ["", "## torchft's lighthouse", "", *head, *_services(file), *_messages(file)]


def _services(file: FileDescriptorProto) -> list[str]:
    lines, comments = [], _comments(file)
    for number, service in enumerate(file.service):
        way = (_SERVICES, number)
        lines += ["", f"### Service {service.name}", "", *_service(file.package, service, way, comments)]
    return lines


def _messages(file: FileDescriptorProto) -> list[str]:
    lines, comments = [], _comments(file)
    for number, message in enumerate(file.message_type):
        lines += ["", f"### {message.name}", "", *_message(message, (_MESSAGES, number), comments)]
    return lines


def _comments(file: FileDescriptorProto) -> Comments:
    return {tuple(place.path): _comment(place) for place in file.source_code_info.location}


def _described(proto: str) -> FileDescriptorProto:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "described.bin"
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(SOURCE), "--include_source_info"]
        subprocess.run([*command, f"--descriptor_set_out={made}", str(SOURCE / proto)], check=True)
        return FileDescriptorSet.FromString(made.read_bytes()).file[0]


def _head(file: FileDescriptorProto) -> list[str]:
    """Where it is, and what the comment at the head of the file says."""
    return [
        f"The contract of the [coordinator](../guides/coordinator.md), package `{file.package}`, as in",
        f"[cluster.proto](../../src/{PROTO}). Concepts: [raft](../concepts/raft.md).",
        "",
        *_about(PROTO),
    ]


def _about(proto: str) -> list[str]:
    text = (SOURCE / proto).read_text(encoding="utf-8")
    return [line.removeprefix("//").strip() for line in text.partition("\nsyntax")[0].splitlines()]


def _comment(place: SourceCodeInfo.Location) -> str:
    """Above it and behind it, as one text. A line of dashes begins a part of the file, and is none."""
    parts = (place.leading_comments, place.trailing_comments)
    text = " ".join(part.strip() for part in parts if part.strip() and "---" not in part)
    return " ".join(text.split())


def _service(
    package: str, service: ServiceDescriptorProto, way: tuple[int, ...], comments: Comments
) -> list[str]:
    rows = (
        (
            code(method.name),
            _streamed(method.input_type, method.client_streaming),
            _streamed(method.output_type, method.server_streaming),
            describe_roles(roles_for(f"/{package}.{service.name}/{method.name}"))
            or "any user of this machine",
            comments.get((*way, _MEMBERS, number), ""),
        )
        for number, method in enumerate(service.method)
    )
    return [*_said(way, comments), *table(("method", "request", "response", "roles", "meaning"), rows)]


def _streamed(kind: str, is_stream: bool) -> str:
    return f"{'a stream of ' if is_stream else ''}{_link(kind)}"


def _message(message: DescriptorProto, way: tuple[int, ...], comments: Comments) -> list[str]:
    if not message.field:
        return [*_said(way, comments), "Has no fields."]
    rows = (
        (
            str(field.number),
            code(field.name),
            _kind(field, message),
            comments.get((*way, _MEMBERS, number), ""),
        )
        for number, field in enumerate(message.field)
    )
    return [*_said(way, comments), *table(("number", "field", "type", "meaning"), rows)]


def _kind(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    entries = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    entry = entries.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        key, value = entry.field
        return f"map from {_kind(key, entry)} to {_kind(value, entry)}"
    kind = _link(field.type_name) if field.type_name else _KINDS[field.type]
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"list of {kind}"
    return f"{kind}, one of `{message.oneof_decl[field.oneof_index].name}`" if _is_choice(field) else kind


def _is_choice(field: FieldDescriptorProto) -> bool:
    return field.HasField("oneof_index") and not field.proto3_optional


def _enum(found: EnumDescriptorProto, way: tuple[int, ...], comments: Comments) -> list[str]:
    rows = (
        (str(value.number), code(value.name), comments.get((*way, _MEMBERS, number), ""))
        for number, value in enumerate(found.value)
    )
    return [*_said(way, comments), *table(("number", "value", "meaning"), rows)]


def _said(way: tuple[int, ...], comments: Comments) -> list[str]:
    return [comments[way], ""] if comments.get(way) else []


def _link(kind: str) -> str:
    name = kind.rpartition(".")[2]
    if kind.startswith(".google."):
        return code(name)
    return f"[{name}](#{name.lower()})"
