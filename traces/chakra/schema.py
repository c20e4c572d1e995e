"""The messages of a Chakra execution trace, as protobuf classes created at run time.

Field numbers and types are those of ``schema/protobuf/et_def.proto`` of mlcommons/chakra (schema version 0.0.4). Fields
that meshtwin neither reads nor writes are left out: protobuf skips them.
"""

from typing import Any, Final

from msgspec import Struct

from traces.errors import TraceError

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError
except ImportError:  # an extra: meshtwin[chakra]
    descriptor_pb2 = None
    DecodeError = ValueError

__all__ = ["VERSION", "DecodeError", "Messages", "messages"]

VERSION: Final = "0.0.4"
PACKAGE: Final = "ChakraProtoMsg"

_NODE: Final = (
    ("id", 1, "uint64"), ("name", 2, "string"), ("type", 3, "int32"), ("ctrl_deps", 4, "repeated uint64"),
    ("data_deps", 5, "repeated uint64"), ("duration_micros", 7, "uint64"), ("attr", 10, "repeated AttributeProto"),
)  # fmt: skip
"""``type`` is an enumeration there: on the wire the same as int32."""
_ATTRIBUTE: Final = (
    ("name", 1, "string"), ("double_val", 3, "double"), ("float_val", 5, "float"), ("int32_val", 7, "int32"),
    ("int64_val", 9, "int64"), ("uint32_val", 11, "uint32"), ("uint64_val", 13, "uint64"),
    ("sint32_val", 15, "sint32"), ("sint64_val", 17, "sint64"), ("bool_val", 27, "bool"), ("string_val", 29, "string"),
)  # fmt: skip
_METADATA: Final = (("version", 1, "string"), ("attr", 2, "repeated AttributeProto"))


class Messages(Struct, frozen=True):
    """The message classes."""

    metadata: Any
    node: Any


def messages() -> Messages:
    """Return the message classes. Raises TraceError if protobuf is not installed."""
    if descriptor_pb2 is None:
        rule = "Chakra traces take the package protobuf, which is not installed"
        raise TraceError("", rule, "pip install 'meshtwin[chakra]'")
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=PACKAGE, syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in (("AttributeProto", _ATTRIBUTE), ("GlobalMetadata", _METADATA), ("Node", _NODE)):
        described = file.message_type.add(name=message)
        in_oneof = message == "AttributeProto"
        if in_oneof:
            described.oneof_decl.add(name="value")
        for name, number, kind in fields:
            word = kind.removeprefix("repeated ")
            label = kinds.LABEL_REPEATED if word != kind else kinds.LABEL_OPTIONAL
            field = described.field.add(name=name, number=number, label=label)
            if word == "AttributeProto":
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{word}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{word.upper()}")
            if in_oneof and name != "name":
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in ("GlobalMetadata", "Node")
    ]
    return Messages(*classes)
