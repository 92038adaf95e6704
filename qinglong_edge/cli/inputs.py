"""Read what a person names: plan, password, token and first-boot files, the terminal, stdin.

Only the client does this; an owner that answers for it never opens a path out of a request. Every
read is bounded before it is believed, and no message repeats what a file holds.
"""

import os

from qinglong_edge.cli.request import Streams
from qinglong_edge.cli.text import plain
from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import UsageError

STDIN = "-"

_READ_BYTES = 65_536


class Source:
    """Hand out files by name, and stdin under the name `-` once."""

    def __init__(self, streams: Streams) -> None:
        """Keep the streams; nothing is read yet."""
        self._streams = streams
        self._stdin_used_for: str | None = None

    def text(self, path: str, *, what: str, most: int) -> str:
        """Return what `read_file` does, with stdin under the name `-`."""
        if path != STDIN:
            return read_file(path, what=what, most=most)
        return _text(self._stdin(what, most + 1), what, most=most)

    def password(self, path: str | None, *, name: str, new: bool) -> str:
        """Return a password from its file, from stdin, or asked for on a terminal.

        A new one is asked for twice. One newline at the end of a file does not count. Raises
        `UsageError` also where there is neither file nor terminal.
        """
        what = "password file"
        if path is not None:
            return _secret(self._secret_text(path, what), what)
        if not self._streams.stdin_is_tty:
            raise UsageError(
                "usage",
                "there is no terminal to ask for the password",
                {"hint": "name a file that holds it: --password-file FILE, or - for stdin"},
            )
        given = ask(f"Password for {plain(name)}: ")
        if new and ask("Once more: ") != given:
            raise UsageError("password_mismatch", "the two passwords differ")
        return _secret(given, "password")

    def recovery_code(self, path: str) -> str:
        """Return the recovery code that a file, or stdin, holds."""
        return self._secret_text(path, "recovery code file")

    def _secret_text(self, path: str, what: str) -> str:
        most = limits.PASSWORD_BYTES_MAX + len("\r\n")
        return without_newline(self.text(path, what=what, most=most))

    def _stdin(self, what: str, most: int) -> bytes:
        if self._stdin_used_for is not None:
            raise UsageError("usage", f"stdin cannot be both {self._stdin_used_for} and {what}")
        self._stdin_used_for = what
        try:
            return self._streams.stdin.read(most)
        except OSError as error:
            raise _unreadable(what, "stdin") from error


def ask(prompt: str) -> str:
    """Ask on the terminal without showing what is typed."""
    import getpass  # noqa: PLC0415  # needs termios, and hardly any call asks

    try:
        return getpass.getpass(prompt)
    except (EOFError, OSError, UnicodeError) as error:
        raise UsageError("usage", "the terminal gave no password") from error


def read_file(path: str, *, what: str, most: int) -> str:
    """Return the UTF-8 text of a file of at most `most` bytes; `what` names it in messages.

    A pipe or a device is read like a file. Raises `UsageError`: `file_unreadable`, `too_large`,
    `not_utf8`.
    """
    return _text(_read(path, what, most=most + 1), what, most=most)


def without_newline(text: str) -> str:
    """Return a text without the one newline that an editor puts at its end."""
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def _read(path: str, what: str, *, most: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            pieces, left = [], most
            while left and (piece := os.read(descriptor, min(left, _READ_BYTES))):
                pieces.append(piece)
                left -= len(piece)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _unreadable(what, path) from error
    return b"".join(pieces)


def _unreadable(what: str, path: str) -> UsageError:
    return UsageError("file_unreadable", f"{what}: cannot be read: {plain(path)[:256]}")


def _text(data: bytes, what: str, *, most: int) -> str:
    if len(data) > most:
        raise UsageError("too_large", f"{what}: over {most} bytes", {"bytes_max": most})
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError("not_utf8", f"{what}: not UTF-8 text") from error


def _secret(text: str, what: str) -> str:
    most = limits.PASSWORD_BYTES_MAX
    if not text:
        raise UsageError("invalid_value", f"{what}: holds no password", {"field": "password"})
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise UsageError("not_utf8", f"{what}: not UTF-8 text") from error
    if size > most:
        raise UsageError("too_large", f"{what}: over {most} bytes", {"bytes_max": most})
    return text
