"""`RegistryProtobufReader`: messages of Protocol Buffers whose descriptors are in a registry."""

from __future__ import annotations

import base64
import importlib
import re
from collections.abc import Hashable, Sequence
from typing import Any

from objcat.errors import SourceUnfit
from objcat.ingest.kafka.connect_types import SchemaUnfit
from objcat.ingest.kafka.message import Unreadable
from objcat.ingest.kafka.protobuf_reader import ProtobufMessage, protobuf_module, split_places
from objcat.ingest.kafka.readers import unframed
from objcat.ingest.kafka.registry import RegistryClient, StoredSchema
from objcat.ingest.kafka.values import ValueField, ValueType

_KNOWN_FILES = re.compile(r"google/(?:protobuf|type)/[a-z_]+\.proto")
"""Files that registries hold without being told, and that are Python modules here."""
_OPTION_FILES = ("confluent/meta.proto",)
"""Files that declare options alone, which nobody has to know to read a message."""
_BY_FILE = (
    'Write its descriptors by protoc --descriptor_set_out=FILE --include_imports, and give descriptor = "FILE" and message in '
    "[[source.topic]]."
)


class RegistryProtobufReader:
    """Reads messages, each by the number of its schema and its place there.

    Args:
        registry: where schemas are.
        message: the full name of the messages that are read; others are unreadable. None: each message has the type that it says.

    Raises:
        MissingDependency: protobuf is not installed.
    """

    def __init__(self, registry: RegistryClient, message: str | None) -> None:
        self._registry = registry
        self._wanted = message
        self._files: dict[int, tuple[Any, Any]] = {}
        self._known: dict[Hashable, ProtobufMessage | SchemaUnfit] = {}
        protobuf_module("message")

    def read(self, raw: bytes) -> tuple[Hashable, Any]:
        """See `ValueReader`. Raises SourceUnfit where the registry has no descriptors."""
        number, rest = unframed(raw)
        places, body = split_places(rest)
        identity = number, places
        if identity not in self._known:
            self._known[identity] = self._message(number, places)
        found = self._known[identity]
        # What cannot be a table has no fields either, which `fields` says.
        return identity, {} if isinstance(found, SchemaUnfit) else found.read(body)

    def fields(self, identity: Hashable, part: str | None = None) -> list[ValueField]:  # noqa: ARG002 - the Protocol has it
        """See `ValueReader`."""
        return list(self._type_of(identity).fields)

    def scalar(self, identity: Hashable) -> ValueType | None:
        """See `ValueReader`. A message is a struct."""
        return self._type_of(identity)

    def _type_of(self, identity: Hashable) -> ValueType:
        found = self._known.get(identity, SchemaUnfit("its schema is in its values alone"))
        if isinstance(found, SchemaUnfit):
            raise found
        return found.type

    def _message(self, number: int, places: Sequence[int]) -> ProtobufMessage | SchemaUnfit:
        if number not in self._files:
            self._files[number] = _loaded(number, self._registry.protobuf_files(number))
        pool, file = self._files[number]
        names = message_names(file, places)
        if not names:
            raise Unreadable(f"its schema {number} has no message at the place {list(places)}")
        if self._wanted is not None and self._wanted not in names:
            raise Unreadable(f"it is a {' or a '.join(names)}, and [[source.topic]] wants {self._wanted}")
        if self._wanted is None and len(names) > 1:
            raise Unreadable(
                f"its place {list(places)} in the schema {number} is {' or '.join(names)}, by whether its producer counts the entries of "
                'maps as messages. Give the right one by message = "..." in [[source.topic]]'
            )
        try:
            return ProtobufMessage(pool.FindMessageTypeByName(self._wanted or names[0]))
        except SchemaUnfit as error:
            return error


def message_names(file: Any, places: Sequence[int]) -> list[str]:
    """The full names of the messages that a place may mean.

    Confluent's client for Python counts the entries of maps among the nested messages, and that for Java does not. So one place may mean
    two messages.

    Args:
        file: a `FileDescriptorProto`.
        places: of a message of the file, and of those nested in it.
    """
    found = {_name_at(file, places, counts_entries=counts) for counts in (False, True)}
    return sorted(name for name in found if name is not None)


def _name_at(file: Any, places: Sequence[int], *, counts_entries: bool) -> str | None:
    name, messages = file.package, file.message_type
    is_entry = False
    for place in places:
        counted = [one for one in messages if counts_entries or not one.options.map_entry]
        if not 0 <= place < len(counted):
            return None
        found = counted[place]
        name, messages, is_entry = f"{name}.{found.name}".lstrip("."), found.nested_type, found.options.map_entry
    return None if is_entry else name


def _loaded(number: int, stored: Sequence[StoredSchema]) -> tuple[Any, Any]:
    """A pool with the files of a schema, and its own file. Raises Unreadable and SourceUnfit."""
    pool = protobuf_module("descriptor_pool").DescriptorPool()
    given = {one.name for one in stored if one.name}
    added: set[str] = set()
    file: Any = None
    for one in stored:
        file = _parsed(number, one)
        file.name = one.name or f"objcat/{number}.proto"
        if file.name in added:
            continue
        added.add(file.name)
        for imported in file.dependency:
            if imported not in given:
                _add_known(pool, imported, added, number)
        try:
            pool.Add(file)
        except (TypeError, ValueError) as error:
            raise Unreadable(f"its schema {number} has descriptors that do not fit together: {' '.join(str(error).split())}") from None
    return pool, file


def _parsed(number: int, stored: StoredSchema) -> Any:
    which = f"The schema {number} of the registry" + (f", in its file {stored.name}," if stored.name else "")
    try:
        return protobuf_module("descriptor_pb2").FileDescriptorProto.FromString(base64.b64decode(stored.text, validate=True))
    except ValueError:
        raise SourceUnfit(
            f"{which} came as text, and objcat reads descriptors: this registry does not know format=serialized. Nothing was left out. "
            f"{_BY_FILE} Then start the ingest again."
        ) from None
    except protobuf_module("message").DecodeError as error:
        raise Unreadable(f"its schema {number} is no descriptor: {error}") from None


def _add_known(pool: Any, name: str, added: set[str], number: int) -> None:
    """Add a file that registries know without being told, after those that it imports. Raises Unreadable."""
    if name in added:
        return
    added.add(name)
    file = protobuf_module("descriptor_pb2").FileDescriptorProto(name=name)
    if name not in _OPTION_FILES:
        try:
            if not _KNOWN_FILES.fullmatch(name):
                raise ImportError
            module: Any = importlib.import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2")
        except ImportError:
            raise Unreadable(
                f"its schema {number} imports {name}, which is neither among its references nor known here. {_BY_FILE}"
            ) from None
        module.DESCRIPTOR.CopyToProto(file)
    for imported in file.dependency:
        _add_known(pool, imported, added, number)
    pool.Add(file)
