"""The code of one module: classes, readers and writers of its messages.

Every distinct layout of a struct becomes one reader and one writer, named after the first version that uses it. A
nested struct's functions work on a whole array, so that the call is paid once per array and not once per element.
Neighbouring fields of fixed size are read and written by one precompiled `struct.Struct`; when reading, the length that
follows them rides along in the same call.
"""

from __future__ import annotations

import struct as struct_module
from dataclasses import dataclass, field

from tools.generator.layout import FIXED_FORMATS, FieldLayout, StructLayout, layout_of
from tools.generator.schema import NO_DEFAULT, Field, Message, Struct

PYTHON_TYPES = {
    "bool": "bool",
    "int8": "int",
    "int16": "int",
    "uint16": "int",
    "int32": "int",
    "uint32": "int",
    "int64": "int",
    "float64": "float",
    "uuid": "bytes",
    "string": "str",
    "bytes": "bytes",
    "records": "Buffer",
}
ZERO_VALUES = {
    "bool": "False",
    "float64": "0.0",
    "uuid": "ZERO_UUID",
    "string": '""',
    "bytes": 'b""',
    "records": "None",
}
ARRAY_HELPERS = {"int8": "int8s", "int16": "int16s", "int32": "int32s", "int64": "int64s", "uuid": "uuids"}


class Lines:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def add(self, text: str = "") -> None:
        self.lines.append("    " * self.depth + text if text else "")

    def block(self, header: str) -> _Block:
        self.add(header)
        return _Block(self)


class _Block:
    def __init__(self, lines: Lines) -> None:
        self.lines = lines

    def __enter__(self) -> None:
        self.lines.depth += 1

    def __exit__(self, *exc: object) -> None:
        self.lines.depth -= 1


@dataclass
class ModuleNames:
    """What the module must import or define before its functions."""

    wire: set[str] = field(default_factory=set)
    formats: dict[str, set[str]] = field(default_factory=lambda: {"pack": set(), "unpack": set()})

    def use(self, *names: str) -> None:
        self.wire.update(names)

    def packer(self, kind: str, fmt: str) -> str:
        self.formats[kind].add(fmt)
        return f"_{kind}_{_identifier(fmt)}"


def _identifier(fmt: str) -> str:
    return fmt.replace("?", "o").replace("16s", "u")


def has_fresh_default(item: Field) -> bool:
    """Whether the default is a new mutable object per message."""
    if item.has_null_default or item.is_optional_struct:
        return False
    return item.is_array or item.is_struct


def python_type(message: Message, item: Field) -> str:
    base = f"{message.name}.{item.base_type}" if item.struct else PYTHON_TYPES[item.base_type]
    if item.is_array:
        base = f"list[{base}]"
    return f"{base} | None" if item.may_be_none or item.base_type == "records" else base


def default_value(item: Field) -> str:
    """The default as an expression, for anything but a fresh list or struct."""
    if item.has_null_default or item.is_optional_struct:
        return "None"
    if item.default is not NO_DEFAULT:
        return repr(item.default).replace("'", '"')
    return ZERO_VALUES.get(item.base_type, "0")


def class_name(message: Message, struct: Struct) -> str:
    return message.name if struct is message.root else f"_{message.name}_{struct.name}"


class MessageEmitter:
    def __init__(self, message: Message, names: ModuleNames) -> None:
        self.message = message
        self.names = names
        self.layouts: dict[StructLayout, int] = {}  # layout -> first version, children before parents
        self.by_version: dict[int, StructLayout] = {}
        for version in message.valid:
            layout = layout_of(message, message.root, version)
            self.by_version[version] = layout
            self._collect(layout, version)

    def _collect(self, layout: StructLayout, version: int) -> None:
        if layout in self.layouts:
            return
        for item in (*layout.body, *layout.tagged):
            if item.struct is not None:
                self._collect(item.struct, version)
        self.layouts[layout] = version

    def function(self, kind: str, layout: StructLayout) -> str:
        return f"_{kind}_{self.message.name}_{layout.struct.name}_{self.layouts[layout]}".replace(
            f"{self.message.name}_{self.message.name}_", f"{self.message.name}_"
        )

    # ---- classes

    def emit_class(self, out: Lines) -> None:
        message = self.message
        with out.block(f"class {message.name}(Message):"):
            for struct in message.structs:
                with out.block(f"class {struct.name}(Struct):"):
                    self._emit_fields(out, struct)
                out.add()
            self._emit_attributes(out)
            self._emit_fields(out, message.root)

    def _emit_attributes(self, out: Lines) -> None:
        message = self.message
        flexible = message.flexible.low if message.flexible else None
        if message.api_key is not None:
            out.add(f"API_KEY = {message.api_key}")
        out.add(f"VERSION_MIN = {message.valid.low}")
        out.add(f"VERSION_MAX = {message.valid.high}")
        if flexible is not None:
            out.add(f"FLEXIBLE_FROM = {flexible}")
        if message.latest_unstable:
            out.add("LATEST_VERSION_UNSTABLE = True")

    def _emit_fields(self, out: Lines, struct: Struct) -> None:
        attributes = [item.attribute for item in struct.fields] + ["unknown_tags"]
        with out.block("__slots__ = ("):
            for attribute in attributes:
                out.add(f'"{attribute}",')
        out.add(")")
        out.add()
        with out.block("def __init__("):
            out.add("self,")
            for item in struct.fields:
                default = "EMPTY" if has_fresh_default(item) else default_value(item)
                self.names.use(*({default} & {"EMPTY", "ZERO_UUID"}))
                out.add(f"{item.attribute}: {python_type(self.message, item)} = {default},")
            out.add("unknown_tags: tuple[tuple[int, bytes], ...] = (),")
        with out.block(") -> None:"):
            for item in struct.fields:
                if has_fresh_default(item):
                    fresh = "[]" if item.is_array else f"{self.message.name}.{item.base_type}()"
                    out.add(f"self.{item.attribute} = {fresh} if {item.attribute} is EMPTY else {item.attribute}")
                else:
                    out.add(f"self.{item.attribute} = {item.attribute}")
            out.add("self.unknown_tags = unknown_tags")

    # ---- functions

    def emit_functions(self, out: Lines) -> None:
        for struct in self.message.structs:
            out.add(f"{class_name(self.message, struct)} = {self.message.name}.{struct.name}")
        for layout in self.layouts:
            out.add()
            out.add()
            _ReaderEmitter(self, layout, out).emit()
            out.add()
            out.add()
            _WriterEmitter(self, layout, out).emit()
        out.add()
        out.add()
        for table, kind in (("_READERS", "read"), ("_WRITERS", "write")):
            with out.block(f"{self.message.name}.{table} = {{"):
                for version, layout in self.by_version.items():
                    out.add(f"{version}: {self.function(kind, layout)},")
            out.add("}")


class _ReaderEmitter:
    def __init__(self, owner: MessageEmitter, layout: StructLayout, out: Lines) -> None:
        self.owner = owner
        self.names = owner.names
        self.layout = layout
        self.out = out
        self.end = "end"
        self.pending: list[tuple[str, str]] = []  # struct format, target

    def emit(self) -> None:
        message, struct, out = self.owner.message, self.layout.struct, self.out
        name = self.owner.function("read", self.layout)
        if struct is message.root:
            with out.block(f"def {name}(buf: Buffer, pos: int, end: int) -> tuple[{message.name}, int]:"):
                out.add(f"o = _new({message.name})")
                self._emit_body()
                out.add("return o, pos")
            return
        cls = f"{message.name}.{struct.name}"
        with out.block(f"def {name}(buf: Buffer, pos: int, end: int, count: int) -> tuple[list[{cls}], int]:"):
            out.add(f"items: list[{cls}] = []")
            with out.block("for _ in range(count):"):
                out.add(f"o = _new({class_name(message, struct)})")
                self._emit_body()
                out.add("items.append(o)")
            out.add("return items, pos")

    def _emit_body(self) -> None:
        for item in self.layout.body:
            if fixed := item.fixed_format:
                self.pending.append((fixed, f"o.{item.field.attribute}"))
            else:
                self._emit_variable(item)
        if self.layout.flexible:
            self._read_length("B")
        else:
            self._flush()
        for absent in self.layout.absent:
            self._emit_default(absent)
        for item in self.layout.tagged:
            self._emit_default(item.field)
        self._emit_tags()

    def _emit_default(self, item: Field) -> None:
        if not has_fresh_default(item):
            value = default_value(item)
            self.names.use(*({value} & {"ZERO_UUID"}))
        elif item.is_array:
            value = "[]"
        else:
            assert item.struct is not None
            value = f"{class_name(self.owner.message, item.struct)}()"
        self.out.add(f"o.{item.attribute} = {value}")

    def _flush(self) -> None:
        if not self.pending:
            return
        fmt = "".join(part for part, _ in self.pending)
        targets = [target for _, target in self.pending]
        if fmt == "B":
            self.out.add(f"{targets[0]} = buf[pos]")
        else:
            unpack = self.names.packer("unpack", fmt)
            self.out.add(f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = {unpack}(buf, pos)")
        self.out.add(f"pos += {struct_module.calcsize('>' + fmt)}")
        self.pending.clear()

    def _read_length(self, fmt: str, rest: str = "uvarint_rest") -> None:
        """Read a length into `n`, together with the fixed fields before it."""
        self.pending.append((fmt, "n"))
        self._flush()
        if fmt == "B":
            self.names.use(rest)
            with self.out.block("if n > 0x7F:"):
                self.out.add(f"n, pos = {rest}(buf, pos, n)")

    def _where(self, item: FieldLayout) -> str:
        struct = self.layout.struct
        owner = self.owner.message
        prefix = owner.name if struct is owner.root else f"{owner.name}.{struct.name}"
        return f'"{prefix}.{item.field.attribute}"'

    def _emit_variable(self, item: FieldLayout) -> None:
        if item.field.is_array:
            self._emit_array(item)
        elif item.struct is not None:
            self._emit_struct(item)
        else:
            self._emit_bytes(item)

    def _emit_bytes(self, item: FieldLayout) -> None:
        out, target = self.out, f"o.{item.field.attribute}"
        self.names.use("length_error")
        short = item.field.base_type == "string"
        self._read_length("B" if item.compact else "h" if short else "i", "text_rest" if short else "uvarint_rest")
        value = {
            "string": 'str(buf[pos:stop], "utf-8")',
            "bytes": "bytes(buf[pos:stop])",
            "records": "memoryview(buf)[pos:stop]",
        }[item.field.base_type]
        length = "n - 1" if item.compact else "n"

        def read(bad: str) -> None:
            out.add(f"stop = pos + {length}")
            with out.block(f"if stop > {self.end}{bad}:"):
                out.add(f"raise length_error({self._where(item)}, {length}, {self.end} - pos)")
            out.add(f"{target} = {value}")
            out.add("pos = stop")

        if not item.nullable:
            read(" or not n" if item.compact else " or n < 0")
            return
        with out.block("if n:" if item.compact else "if n != -1:"):
            read("" if item.compact else " or n < 0")
        with out.block("else:"):
            out.add(f"{target} = None")

    def _emit_array(self, item: FieldLayout) -> None:
        out, target = self.out, f"o.{item.field.attribute}"
        self._read_length("B" if item.compact else "i")
        with out.block("if n > 1:" if item.compact else "if n > 0:"):
            if item.compact:
                out.add("n -= 1")
            if item.struct is not None:
                size = item.struct.bytes_min
                assert size > 0, f"{self._where(item)}: an element of no bytes would let a count go unchecked"
                self.names.use("count_error")
                with out.block(f"if {f'n * {size}' if size > 1 else 'n'} > {self.end} - pos:"):
                    out.add(f"raise count_error({self._where(item)}, n, {self.end} - pos)")
                reader = self.owner.function("read", item.struct)
            elif item.field.base_type == "string":
                reader = "read_compact_strings" if item.compact else "read_strings"
                self.names.use(reader)
            else:
                reader = f"read_{ARRAY_HELPERS[item.field.base_type]}"
                self.names.use(reader)
            out.add(f"{target}, pos = {reader}(buf, pos, {self.end}, n)")
        with out.block("elif n:" if item.compact else "elif n == 0:"):
            out.add(f"{target} = []")
        if item.nullable and item.compact:
            with out.block("else:"):
                out.add(f"{target} = None")
        elif item.nullable:
            with out.block("elif n == -1:"):
                out.add(f"{target} = None")
            self.names.use("count_error")
            with out.block("else:"):
                out.add(f"raise count_error({self._where(item)}, n, {self.end} - pos)")
        else:
            self.names.use("null_error")
            with out.block("else:"):
                out.add(f"raise null_error({self._where(item)})")

    def _emit_struct(self, item: FieldLayout, marker: tuple[str, int] = ("b", -1)) -> None:
        """A single struct; a nullable one has a marker before it: 1, or the value that stands for null."""
        out, target = self.out, f"o.{item.field.attribute}"
        assert item.struct is not None
        fmt, null = marker
        call = f"({target},), pos = {self.owner.function('read', item.struct)}(buf, pos, {self.end}, 1)"
        if not item.nullable:
            self._flush()
            out.add(call)
            return
        self._read_length(fmt)
        with out.block("if n == 1:"):
            out.add(call)
        with out.block(f"elif n == {null}:"):
            out.add(f"{target} = None")
        self.names.use("length_error")
        with out.block("else:"):
            out.add(f"raise length_error({self._where(item)}, n, {self.end} - pos)")

    def _emit_tags(self) -> None:
        out = self.out
        if not self.layout.flexible:
            out.add("o.unknown_tags = ()")
            return
        if not self.layout.tagged:
            self.names.use("read_unknown_tags")
            with out.block("if n:"):
                out.add("o.unknown_tags, pos = read_unknown_tags(buf, pos, end, n)")
            with out.block("else:"):
                out.add("o.unknown_tags = ()")
            return
        self.names.use("check_tag_count", "keep_tags", "read_tag", "tag_error", "UNKNOWN_TAGS_MAX")
        with out.block("if n:"):
            out.add("check_tag_count(buf, pos, end, n)")
            out.add("unknown: dict[int, bytes] = {}")
            with out.block("for _tag in range(n):"):
                out.add("tag, pos, tag_end = read_tag(buf, pos, end)")
                self.end = "tag_end"
                for index, item in enumerate(self.layout.tagged):
                    with out.block(f"{'elif' if index else 'if'} tag == {item.field.tag}:"):
                        self._emit_tagged(item)
                self.end = "end"
                with out.block("else:"):
                    with out.block("if len(unknown) < UNKNOWN_TAGS_MAX:"):
                        out.add("unknown[tag] = bytes(buf[pos:tag_end])")
                    out.add("pos = tag_end")
                with out.block("if pos != tag_end:"):
                    out.add(f'raise tag_error("{self.owner.message.name}.{self.layout.struct.name}")')
            out.add("o.unknown_tags = keep_tags(unknown) if unknown else ()")
        with out.block("else:"):
            out.add("o.unknown_tags = ()")

    def _emit_tagged(self, item: FieldLayout) -> None:
        if fixed := item.fixed_format:
            self.pending.append((fixed, f"o.{item.field.attribute}"))
            self._flush()
        elif item.field.is_struct:
            # Seen in Kafka's bytes: inside a tag the marker is a varint, and null is 0 (elsewhere an int8, null is -1).
            self._emit_struct(item, ("B", 0))
        else:
            self._emit_variable(item)


class _WriterEmitter:
    def __init__(self, owner: MessageEmitter, layout: StructLayout, out: Lines) -> None:
        self.owner = owner
        self.names = owner.names
        self.layout = layout
        self.out = out
        self.sink = "out"
        self.pending: list[tuple[str, str]] = []  # struct format, expression

    def emit(self) -> None:
        message, struct, out = self.owner.message, self.layout.struct, self.out
        name = self.owner.function("write", self.layout)
        if struct is message.root:
            with out.block(f"def {name}(out: bytearray, o: {message.name}) -> None:"):
                self._emit_body()
            return
        header = f"def {name}(out: bytearray, items: Iterable[{message.name}.{struct.name}]) -> None:"
        with out.block(header), out.block("for o in items:"):
            self._emit_body()

    def _where(self, attribute: str) -> str:
        struct = self.layout.struct
        owner = self.owner.message
        prefix = owner.name if struct is owner.root else f"{owner.name}.{struct.name}"
        return f'"{prefix}.{attribute}"'

    def _emit_body(self) -> None:
        out = self.out
        for absent in self.layout.absent:
            if not absent.ignorable:
                self.names.use("absent_error")
                with out.block(f"if {self._differs(f'o.{absent.attribute}', absent)}:"):
                    out.add(f"raise absent_error({self._where(absent.attribute)})")
        for item in self.layout.body:
            self._emit_item(item)
        if self.layout.flexible:
            self._emit_tags()
            return
        self._flush()
        self.names.use("absent_error")
        with out.block("if o.unknown_tags:"):
            out.add(f"raise absent_error({self._where('unknown_tags')})")

    def _differs(self, value: str, item: Field) -> str:
        """A condition that is true when the value is not the default."""
        if item.is_optional_struct:
            assert item.struct is not None
            inner = " or ".join(
                [self._differs(f"{value}.{child.attribute}", child) for child in item.struct.fields]
                + [f"{value}.unknown_tags"]
            )
            return f"{value} is not None and ({inner})"
        if item.has_null_default:
            return f"{value} is not None"
        if item.is_array:
            return f"({value} is None or len({value}) > 0)" if item.nullable else f"{value}"
        if item.is_struct:
            assert item.struct is not None
            return f"{value} != {class_name(self.owner.message, item.struct)}()"
        if item.base_type == "records":
            return f"{value} is not None"
        default = default_value(item)
        if item.base_type == "bool":
            return f"not {value}" if default == "True" else value
        self.names.use(*({default} & {"ZERO_UUID"}))
        return f"{value} != {default}"

    def _pack(self) -> str:
        fmt = "".join(part for part, _ in self.pending)
        return f"{self.names.packer('pack', fmt)}({', '.join(expression for _, expression in self.pending)})"

    def _flush(self) -> None:
        if self.pending:
            self.out.add(f"{self.sink} += {self._pack()}")
            self.pending.clear()

    def _emit_item(self, item: FieldLayout) -> None:
        value = f"o.{item.field.attribute}"
        if fixed := item.fixed_format:
            if item.field.base_type == "uuid":
                self.names.use("check_uuid")
                value = f"check_uuid({value})"  # struct would pad or cut it without a word
            self.pending.append((fixed, value))
        elif item.field.is_struct:
            self._emit_struct(item)
        else:
            self._emit_sized(item)

    def _emit_length(self, length: str, fmt: str) -> None:
        """Write a length; a varint goes out on its own, an int16 or int32 rides with the fixed fields before it."""
        if fmt != "varint":
            self.pending.append((fmt, length))
            self._flush()
            return
        self._flush()
        self.names.use("write_uvarint")
        self.out.add(f"n = {length}")
        with self.out.block("if n < 0x80:"):
            self.out.add(f"{self.sink}.append(n)")
        with self.out.block("else:"):
            self.out.add(f"write_uvarint({self.sink}, n)")

    def _emit_sized(self, item: FieldLayout) -> None:
        out, base, is_array = self.out, item.field.base_type, item.field.is_array
        is_string = base == "string" and not is_array
        fmt = "varint" if item.compact else "h" if is_string else "i"
        local = f"{'a' if is_array else 's' if is_string else 'b'}_{item.field.attribute}"
        out.add(f"{local} = o.{item.field.attribute}{'' if item.nullable or not is_string else '.encode()'}")
        length = f"len({local})" if fmt != "varint" else f"len({local}) + 1"
        if not item.nullable:
            if item.field.may_be_none or base == "records":
                self._refuse_null(local, item)
            self._emit_length(length, fmt)
            self._emit_content(item, local)
            return
        self._flush()
        with out.block(f"if {local} is None:"):
            out.add(f"{self.sink}.append(0)" if fmt == "varint" else f"{self.sink} += {self._minus_one(fmt)}")
        with out.block("else:"):
            if is_string:
                out.add(f"t_{item.field.attribute} = {local}.encode()")
                local = f"t_{item.field.attribute}"
                length = f"len({local})" if fmt != "varint" else f"len({local}) + 1"
            self._emit_length(length, fmt)
            self._emit_content(item, local)

    def _minus_one(self, fmt: str) -> str:
        return 'b"\\xff\\xff"' if fmt == "h" else 'b"\\xff\\xff\\xff\\xff"'

    def _refuse_null(self, local: str, item: FieldLayout) -> None:
        if item.field.base_type == "string" and not item.field.is_array:
            # `.encode()` was called on the value already, which None does not have.
            self.out.lines[-1] = self.out.lines[-1] + "  # type: ignore[union-attr]"
            return
        self.names.use("null_error")
        with self.out.block(f"if {local} is None:"):
            self.out.add(f"raise null_error({self._where(item.field.attribute)})")

    def _emit_content(self, item: FieldLayout, local: str) -> None:
        out, base = self.out, item.field.base_type
        if not item.field.is_array:
            out.add(f"{self.sink} += {local}")
        elif item.struct is not None:
            out.add(f"{self.owner.function('write', item.struct)}({self.sink}, {local})")
        else:
            writer = f"write_{ARRAY_HELPERS[base]}" if base in ARRAY_HELPERS else "write_strings"
            if base == "string" and item.compact:
                writer = "write_compact_strings"
            self.names.use(writer)
            out.add(f"{writer}({self.sink}, {local})")

    def _emit_struct(self, item: FieldLayout, null: str = "0xFF") -> None:
        out = self.out
        assert item.struct is not None
        local = f"c_{item.field.attribute}"
        writer = self.owner.function("write", item.struct)
        self._flush()
        out.add(f"{local} = o.{item.field.attribute}")
        if not item.nullable:
            if item.field.may_be_none and not item.field.is_optional_struct:
                self._refuse_null(local, item)
            out.add(f"{writer}({self.sink}, ({local},))")
            return
        with out.block(f"if {local} is None:"):
            out.add(f"{self.sink}.append({null})")
        with out.block("else:"):
            out.add(f"{self.sink}.append(1)")
            out.add(f"{writer}({self.sink}, ({local},))")

    def _emit_tags(self) -> None:
        out = self.out
        self.names.use("write_tags")
        if not self.layout.tagged:
            with out.block("if o.unknown_tags:"):
                if self.pending:
                    out.add(f"out += {self._pack()}")
                out.add("write_tags(out, [], o.unknown_tags)")
            with out.block("else:"):
                if self.pending:
                    self.pending.append(("B", "0"))
                    self._flush()
                else:
                    out.add("out.append(0)")
            return
        self._flush()
        out.add("tags: list[tuple[int, bytearray]] = []")
        self.sink = "tag_out"
        for item in self.layout.tagged:
            with out.block(f"if {self._differs(f'o.{item.field.attribute}', item.field)}:"):
                out.add("tag_out = bytearray()")
                if item.field.is_struct:
                    self._emit_struct(item, "0")
                else:
                    self._emit_item(item)
                    self._flush()
                out.add(f"tags.append(({item.field.tag}, tag_out))")
        self.sink = "out"
        with out.block("if tags or o.unknown_tags:"):
            out.add("write_tags(out, tags, o.unknown_tags)")
        with out.block("else:"):
            out.add("out.append(0)")


def emit_module(messages: list[Message], docstring: str) -> str:
    """The source of a module that holds these messages."""
    names = ModuleNames()
    emitters = [MessageEmitter(message, names) for message in messages]
    classes, functions = Lines(), Lines()
    for emitter in emitters:
        classes.add()
        classes.add()
        emitter.emit_class(classes)
        functions.add()
        functions.add()
        emitter.emit_functions(functions)
    has_structs = any(message.structs for message in messages)
    head = Lines()
    head.add(f'"""{docstring}"""')
    head.add()
    head.add("from __future__ import annotations")
    head.add()
    formats = names.formats
    if formats["pack"] or formats["unpack"]:
        head.add("from struct import Struct as _Format")
    if has_structs:
        head.add("from typing import TYPE_CHECKING")
    head.add()
    head.add(f"from moldau.protocol.message import Message{', Struct' if has_structs else ''}")
    names.use("Buffer")
    with head.block("from moldau.protocol.wire import ("):
        for name in sorted(names.wire):
            head.add(f"{name},")
    head.add(")")
    head.add()
    if has_structs:
        with head.block("if TYPE_CHECKING:"):
            head.add("from collections.abc import Iterable")
        head.add()
    head.add("_new = object.__new__")
    for kind, method in (("unpack", "unpack_from"), ("pack", "pack")):
        for fmt in sorted(formats[kind]):
            head.add(f'_{kind}_{_identifier(fmt)} = _Format(">{fmt}").{method}')
    source = "\n".join(head.lines + classes.lines + functions.lines) + "\n"
    assert not set(FIXED_FORMATS.values()) & {"B"}, "B is the first byte of a varint"
    return source
