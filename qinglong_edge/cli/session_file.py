"""Where the state and a user's session lie, and how a session is kept between two calls.

The file holds the token itself, so it is private from its first byte: a new file of mode 0600 takes
the place of the old one, and a file that others may read, own or redirect is never believed. It is
not synced: what a power cut takes away is one login.
"""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from qinglong_edge.cli.inputs import read_file, without_newline
from qinglong_edge.cli.request import Options
from qinglong_edge.cli.text import plain
from qinglong_edge.domain import ids
from qinglong_edge.domain.canonical import Fields, Json, canonical_bytes, parse_object
from qinglong_edge.domain.errors import UnavailableError, UsageError
from qinglong_edge.executor import private_file
from qinglong_edge.ports.ambient import Entropy

SCHEMA_VERSION = 1
SESSION_BYTES_MAX = 4_096
TOKEN_BYTES_MAX = 256
SYSTEM_STATE = "/var/lib/qinglong-edge"
SYSTEM_STATE_WITHOUT_VAR = "/etc/qinglong-edge"  # where /var lies in memory, as on OpenWrt
SESSION_NAME = "session"

_DIRECTORY = "qinglong-edge"
_PRIVATE_DIRECTORY = 0o700
_HINT = "remove it and log in again; it must be a regular file of yours, mode 0600"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class StoredSession(NamedTuple):
    """Hold what a session file says; the token decides, the rest is for people."""

    subject: str
    session_token: str
    expires_at_ms: int


def state_path(options: Options, environ: Mapping[str, str]) -> str:
    """Return the state directory: the given one, else the system's or the user's own."""
    if options.state is not None:
        return options.state
    if os.geteuid() != 0:
        return _user_directory(environ)
    from qinglong_edge.storage.filesystem import describe  # noqa: PLC0415  # for root alone

    return SYSTEM_STATE_WITHOUT_VAR if describe(SYSTEM_STATE).volatile else SYSTEM_STATE


def session_path(options: Options, environ: Mapping[str, str], state_dir: str) -> str:
    """Return the session file: the given one, else in a state of one's own, else in one's home.

    Root acts as the owner of the state, so that every state is its own.
    """
    if options.session is not None:
        return options.session
    with suppress(OSError, ValueError):
        if os.geteuid() in {0, os.stat(state_dir).st_uid}:
            return os.path.join(state_dir, SESSION_NAME)
    return os.path.join(_user_directory(environ), SESSION_NAME)


def read_session(path: str) -> str | None:
    """Return the session token that a file holds, None where there is no file.

    Raises `UsageError`: `session_file_insecure` for a file that others could have read or put
    there, `session_file_malformed` for any other content, `file_unreadable`.
    """
    stored = load(path)
    return None if stored is None else stored.session_token


def load(path: str) -> StoredSession | None:
    """Return all that a session file says; raises what `read_session` raises."""
    try:
        check = partial(_check_private, path)
        data, _ = private_file.read(path, check, SESSION_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        message = f"session file: cannot be read: {plain(path)[:256]}"
        raise UsageError("file_unreadable", message, {"hint": _HINT}) from error
    try:
        return _parse(data)
    except UsageError as error:
        raise UsageError(
            "session_file_malformed",
            f"this is no session file: {plain(path)[:256]}",
            {"hint": "remove it and log in again"},
        ) from error


def read_token_file(path: str) -> str:
    """Return the agent token that a file holds: one word of printable ASCII.

    Raises `UsageError` (`file_unreadable`, `not_utf8`, `too_large`, `invalid_value`); whether the
    token is anybody's is not asked here.
    """
    token = without_newline(read_file(path, what="token file", most=TOKEN_BYTES_MAX))
    if not token or not all("!" <= character <= "~" for character in token):
        raise ids.invalid("token_file", "must hold one token and nothing else")
    return token


def write_session(path: str, session: StoredSession, *, entropy: Entropy) -> None:
    """Put a session into its file, in place of the one before.

    Raises `UsageError` (`session_file_insecure`) where a link or a directory has the name, and
    `UnavailableError` (`session_file_not_written`); then the file before stands as it was.
    """
    body: dict[str, Json] = {"schema_version": SCHEMA_VERSION, **session._asdict()}
    _refuse_strangers(path)
    directory = os.path.dirname(path)
    new = os.path.join(directory, f".{os.path.basename(path)[:64]}.{entropy(8).hex()}")
    try:
        if directory:
            os.makedirs(directory, mode=_PRIVATE_DIRECTORY, exist_ok=True)
        private_file.replace(new, path, canonical_bytes(body) + b"\n")
    except (OSError, ValueError) as error:
        message = f"the session file cannot be written: {plain(path)[:256]}"
        raise UnavailableError("session_file_not_written", message) from error


def remove_session(path: str) -> None:
    """Remove a session file; one that is not there is removed already.

    Raises `UsageError` for what is no session file of ours, and `UnavailableError`.
    """
    if load(path) is None:
        return
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        message = f"the session file cannot be removed: {plain(path)[:256]}"
        raise UnavailableError("session_file_not_removed", message) from error


def _user_directory(environ: Mapping[str, str]) -> str:
    """Return `${XDG_STATE_HOME:-~/.local/state}/qinglong-edge`; a relative variable is no value."""
    base = environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        home = environ.get("HOME", "")
        base = os.path.join(home if home.startswith("/") else _home(), ".local", "state")
    return os.path.join(base, _DIRECTORY)


def _home() -> str:
    import pwd  # noqa: PLC0415  # only where HOME is not set

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError as error:
        raise UsageError(
            "usage", "this user has no home directory", {"hint": "name the state: --state DIR"}
        ) from error


def _refuse_strangers(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError):
        return  # nothing there, or the write will say what is wrong
    if not stat.S_ISREG(mode):
        raise _insecure(path)


def _check_private(path: str, found: os.stat_result) -> None:
    """Refuse a file that others may read, that is no file, or that is somebody else's."""
    owners = {os.geteuid()}
    if 0 in owners:  # root acts as the owner of the state that the file lies in
        owners.add(os.stat(os.path.dirname(path) or ".").st_uid)
    if not stat.S_ISREG(found.st_mode) or found.st_mode & _OTHERS or found.st_uid not in owners:
        raise _insecure(path)


def _insecure(path: str) -> UsageError:
    return UsageError(
        "session_file_insecure",
        f"others may have read or replaced the session file: {plain(path)[:256]}",
        {"hint": _HINT},
    )


def _parse(data: bytes) -> StoredSession:
    fields = Fields(parse_object(data, "session", most=SESSION_BYTES_MAX), "session")
    version = fields.take("schema_version")
    subject = fields.take("subject")
    token, expires = fields.take("session_token"), fields.take("expires_at_ms")
    fields.done()
    known = type(version) is int and version == SCHEMA_VERSION
    texts = isinstance(subject, str) and isinstance(token, str)
    if not known or not texts or type(expires) is not int:
        raise UsageError("session_file_malformed", "session: a member has the wrong type")
    return StoredSession(str(subject), str(token), expires)
