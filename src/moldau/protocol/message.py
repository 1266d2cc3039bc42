"""What every generated message can do.

A message class stands for all versions of the message: a field that a version lacks has its default after decoding, and
must have it when encoding unless Kafka marks the field as ignorable. Attributes are Kafka's names in snake case; their
values are plain: int, bool, float, str, bytes (a uuid is its 16 bytes), list, nested struct, or None for null.
Two attributes deserve a word:

* `records` is a zero-copy view of the decoded buffer; whoever keeps it keeps the buffer, and a bytearray cannot be
  resized meanwhile. Any bytes, bytearray or byte memoryview may be assigned.
* a tagged struct that Kafka always has (`current_leader`, `replica_state`, ...) is None until it is set, which means
  the same on the wire: a tagged field with its default value is not sent.

Where to read next: `wire` for the encodings, `messages/` for what the generator makes of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, ClassVar, Self

from moldau.protocol.wire import Buffer, EncodingError, ProtocolError, UnsupportedVersionError

NEVER_FLEXIBLE = 32768  # above every int16 version


class Struct:
    """A group of fields: compared and printed by them."""

    __slots__: tuple[str, ...] = ()
    __hash__ = None  # type: ignore[assignment]  # mutable

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        fields = ((name, getattr(self, name)) for name in self.__slots__)
        shown = ", ".join(f"{name}={value!r}" for name, value in fields if name != "unknown_tags" or value)
        return f"{type(self).__qualname__}({shown})"


class Message(Struct):
    """A struct that travels on its own, with the versions it has."""

    __slots__ = ()

    API_KEY: ClassVar[int] = -1
    VERSION_MIN: ClassVar[int]
    VERSION_MAX: ClassVar[int]
    FLEXIBLE_FROM: ClassVar[int] = NEVER_FLEXIBLE
    LATEST_VERSION_UNSTABLE: ClassVar[bool] = False

    _READERS: ClassVar[dict[int, Callable[[Buffer, int, int], tuple[Any, int]]]]
    _WRITERS: ClassVar[dict[int, Callable[[bytearray, Any], None]]]

    @classmethod
    def decode(cls, buf: Buffer, version: int) -> Self:
        """Read the message at the start of `buf`; bytes after it are left alone (see `decode_from`)."""
        try:
            message: Self = cls._READERS[version](buf, 0, len(buf))[0]
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ProtocolError(f"{cls.__name__} v{version}: {error}") from error
        except KeyError:
            raise cls._unsupported(version) from None
        return message

    @classmethod
    def decode_from(cls, buf: Buffer, pos: int, version: int) -> tuple[Self, int]:
        """Read the message at `pos`, and return it with the position behind it."""
        try:
            return cls._READERS[version](buf, pos, len(buf))
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ProtocolError(f"{cls.__name__} v{version}: {error}") from error
        except KeyError:
            raise cls._unsupported(version) from None

    def encode(self, version: int) -> bytes:
        out = bytearray()
        self.encode_into(out, version)
        return bytes(out)

    def encode_into(self, out: bytearray, version: int) -> None:
        """Append the message to `out`; when it cannot be written, `out` is left with a part of it."""
        try:
            self._WRITERS[version](out, self)
        except KeyError:
            raise self._unsupported(version) from None
        except (struct.error, AttributeError, TypeError, UnicodeEncodeError) as error:
            raise EncodingError(f"{type(self).__name__} v{version}: {error}") from error

    @classmethod
    def _unsupported(cls, version: int) -> UnsupportedVersionError:
        return UnsupportedVersionError(
            f"{cls.__name__} has versions {cls.VERSION_MIN} to {cls.VERSION_MAX}, not {version}"
        )
