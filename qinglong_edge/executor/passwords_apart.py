"""Stretch passwords in a process of their own, so that a daemon never loads OpenSSL.

The child is this very program in a fresh interpreter; what is secret goes through its pipes.
Callers take turns: on a small machine two at once would only take each other's memory.
"""

import json
import sys
import threading

from qinglong_edge.domain.canonical import Fields, JsonObject, canonical_bytes, parse_object
from qinglong_edge.domain.errors import QinglongError, UnavailableError, UsageError
from qinglong_edge.domain.identity import PasswordHash
from qinglong_edge.executor import ambient, passwords, program

_DEADLINE_S = 60
_MODULE = "executor.passwords_apart"


class Apart:
    """Set and check passwords in a child, one at a time."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._turn = threading.Lock()

    def hash(self, password: str) -> PasswordHash:
        """Return a salted, stretched password; raises `UsageError` for one that may not be set."""
        passwords.check_password(password)
        answer = self._ask({"password": password})
        return _hash_of(answer)

    def verify(self, password: str, known: PasswordHash) -> bool:
        """Tell whether this is the password; raises `UnavailableError` where no child answers."""
        return self._ask({"password": password, "known": _words(known)}).get("right") is True

    def _ask(self, request: JsonObject) -> JsonObject:
        import subprocess  # noqa: PLC0415 - most of a daemon's life needs none

        with self._turn:
            try:
                done = subprocess.run(
                    program.command(_MODULE, "answer"),
                    input=canonical_bytes(request),
                    capture_output=True,
                    timeout=_DEADLINE_S,
                    check=True,
                    env={},
                )
                return parse_object(done.stdout, "answer")
            except (OSError, subprocess.SubprocessError, UsageError) as error:
                raise UnavailableError(
                    "password_check_unavailable", "the password cannot be checked now"
                ) from error


def answer() -> None:
    """Be the child: read one request on stdin, answer it on stdout; a failure is no answer."""
    fields = Fields(parse_object(sys.stdin.buffer.read(), "request"), "request")
    password, known = str(fields.take("password")), fields.maybe("known")
    try:
        if known is None:
            clocks = ambient.SystemClocks()
            body = _words(passwords.hash_password(password, ambient.system_entropy, clocks=clocks))
        else:
            body = {"right": passwords.verify(password, _hash_of(known))}
    except QinglongError:
        sys.exit(1)
    sys.stdout.write(json.dumps(body))
    sys.stdout.flush()


def _words(value: PasswordHash) -> JsonObject:
    return {"scheme": value.scheme, "salt": value.salt.hex(), "value": value.value.hex()}


def _hash_of(value: object) -> PasswordHash:
    fields = Fields(value, "hash")
    texts = [str(fields.take(name)) for name in ("scheme", "salt", "value")]
    fields.done()
    return PasswordHash(texts[0], bytes.fromhex(texts[1]), bytes.fromhex(texts[2]))
