"""Faults of talking to brokers. Refusals by a broker are `KafkaError`s; these are what the network does to us.

Every message names the place, what happened, and what to check next: most of them are read by someone at a shell.
"""

from __future__ import annotations

import errno
import socket
import ssl

from moldau.kernel import ErrorCode, KafkaError


class ConnectionFailed(ConnectionError):
    """No connection, or one that ended. `sent` says whether a request may have reached the broker before."""

    def __init__(self, host: str, port: int, cause: str, check: str, *, sent: bool = False) -> None:
        super().__init__(f"{address_text(host, port)}: {cause}; {check}")
        self.host = host
        self.port = port
        self.cause = cause
        self.check = check
        self.sent = sent


class NoBrokerReachable(ConnectionFailed):
    """Every address was tried, in vain."""

    def __init__(self, failures: list[ConnectionFailed]) -> None:
        first = failures[0]
        super().__init__(first.host, first.port, first.cause, first.check)
        if len(failures) > 1:
            self.args = ("no broker could be reached:\n" + "\n".join(f"  {failure}" for failure in failures),)
        self.failures = failures


class RequestTimedOut(TimeoutError):
    """A broker took a request and did not answer in time."""

    def __init__(self, host: str, port: int, request: str, timeout_ms: int) -> None:
        super().__init__(
            f"{address_text(host, port)}: {request} was not answered within {timeout_ms} ms; "
            "check the broker's load, or raise request.timeout.ms"
        )


class SendTimedOut(TimeoutError):
    """A record could not be taken within `max.block.ms`: no metadata, or no room in the buffer."""


class DeliveryTimedOut(TimeoutError):
    """A record that was taken could not be delivered within `delivery.timeout.ms`."""


class ProducerClosed(RuntimeError):
    """The producer is closed, or closed before the record was delivered."""


class WrongTransactionState(RuntimeError):
    """A call that the state of the producer's transaction does not allow. It changed nothing."""


class TransactionAbortable(KafkaError):
    """The transaction cannot be committed. Abort it, and do it again: the producer is sound."""


class TransactionFatal(KafkaError):
    """The producer can do no transactions any more. Close it; what it had not committed is aborted."""


class ProducerFenced(TransactionFatal):
    """Another producer has taken the transactional id, or the coordinator has given this one up."""


class TransactionAborted(RuntimeError):
    """A record was not delivered because its transaction was aborted."""


class TransactionTimedOut(TimeoutError):
    """A transaction's end, or the producer's beginning, took longer than `max.block.ms`. It goes on: call again."""


class ConsumerClosed(RuntimeError):
    """The consumer is closed."""


class CommitFailed(KafkaError):
    """Offsets were not committed, and trying again will not help: the group went on without this member."""


class NoCommittedOffset(KafkaError):
    """With auto.offset.reset=none there is no place to begin."""

    def __init__(self, partitions: str) -> None:
        super().__init__(
            ErrorCode.OFFSET_NOT_AVAILABLE,
            f"{partitions}: the group has committed no offset, and auto.offset.reset is none; "
            "seek to a place, or set auto.offset.reset to earliest, latest or by_duration:PT1H",
        )


class RecordUnreadable(ValueError):
    """A deserializer refused a record. Reading stays there until someone seeks past it."""


class SettingsError(ValueError):
    """A setting that does not exist, does not parse or contradicts another."""


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def explain_connect_error(host: str, port: int, error: BaseException) -> ConnectionFailed:
    """Turn what the socket said into a cause and the next thing to check."""
    check = "check the address, and that a broker runs there"
    if isinstance(error, TimeoutError):
        cause = "no answer to the connection attempt"
        check = "check the address and any firewall on the way"
    elif isinstance(error, socket.gaierror):
        cause = f"the host name does not resolve ({error.strerror})"
        check = "check its spelling, or the broker's advertised.listeners if a broker gave this name"
    elif isinstance(error, ConnectionRefusedError) or getattr(error, "errno", None) == errno.ECONNREFUSED:
        cause = "connection refused"
        check = "check that a broker is running there and the port is right"
    elif isinstance(error, ssl.SSLError):
        cause = f"TLS failed ({error.reason})"
        check = "check that the listener speaks TLS"
    else:
        cause = str(error) or type(error).__name__
    return ConnectionFailed(host, port, cause, check)
