"""How commands fail: one line on stderr that names the cause and the next step, and an exit code that scripts can use.

0 done, 1 error, 2 wrong usage, 3 not found, 4 a check failed. Never a traceback.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_CHECK_FAILED = 4
EXIT_INTERRUPTED = 130  # as shells report SIGINT


class CommandError(Exception):
    """A command cannot go on; the message is the line that the user reads."""

    def __init__(self, message: str, code: int = EXIT_ERROR) -> None:
        super().__init__(message)
        self.code = code


def usage(message: str) -> CommandError:
    return CommandError(message, EXIT_USAGE)


def explain(error: BaseException) -> tuple[str, int]:
    """The line and the exit code for whatever stopped a command."""
    # Nobody pays for the client's modules until something goes wrong.
    from moldau.client import ConnectionFailed, NoBrokerReachable, SettingsError
    from moldau.kernel import KafkaError

    if isinstance(error, CommandError):
        return one_line(str(error)), error.code
    if isinstance(error, KafkaError):
        return _explain_refusal(error)
    if isinstance(error, SettingsError):
        return one_line(str(error)), EXIT_USAGE
    if isinstance(error, NoBrokerReachable) and len(error.failures) > 1:
        return f"no broker could be reached: {', '.join(str(one) for one in error.failures)}", EXIT_ERROR
    if isinstance(error, ConnectionFailed):
        return one_line(_explain_connection(error)), EXIT_ERROR
    if isinstance(error, OSError):
        if error.filename is not None:
            return one_line(f"{error.filename}: {error.strerror or error}"), EXIT_ERROR
        return one_line(str(error) or type(error).__name__), EXIT_ERROR
    # A bug. The line is for whoever reports it.
    place = "run it as `python -X dev -m moldau ...` to see where, and please report it"
    return one_line(f"unexpected {type(error).__name__}: {error}; {place}"), EXIT_ERROR


def _explain_connection(error: object) -> str:
    text = str(error)
    if getattr(error, "cause", "") != "connection refused":
        return text
    if "advertised.listeners" in text:
        return f"{text}; `moldau doctor` tells more"
    host, port = getattr(error, "host", ""), getattr(error, "port", 0)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return (
        f"nothing listens on {address}: is a broker running? start one with `moldau up`, or name one with -b HOST:PORT"
    )


def _explain_refusal(error: object) -> tuple[str, int]:
    from moldau.kernel import ErrorCode, KafkaError

    assert isinstance(error, KafkaError)
    not_found = {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`moldau topic list` shows the topics",
        ErrorCode.UNKNOWN_TOPIC_ID: "`moldau topic list` shows the topics",
        ErrorCode.BROKER_NOT_AVAILABLE: "`moldau cluster describe` shows the brokers",
        ErrorCode.BROKER_ID_NOT_REGISTERED: "`moldau cluster describe` shows the brokers",
        ErrorCode.RESOURCE_NOT_FOUND: "",
        ErrorCode.GROUP_ID_NOT_FOUND: "",
    }
    text = one_line(str(error)).rstrip(".")
    step = not_found.get(error.code)
    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and text.endswith(error.code.name):
        text = text.removesuffix(error.code.name) + "it does not exist"  # the broker said no more than its number
    if step is None:
        return (text if error.code.name in text else f"{text} ({error.code.name})"), EXIT_ERROR
    return (f"{text}; {step}" if step else text), EXIT_NOT_FOUND


def one_line(text: str) -> str:
    return " ".join(text.split())
