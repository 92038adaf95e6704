"""The one table of commands: words, parameters, and how each parameter's text becomes a value.

A reader takes the text and the name of its field, and returns the value or raises `UsageError`.
What a value needs of the domain is imported when it is read: a call pays for its own options only.
"""

import enum
import re
from collections.abc import Callable
from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.canonical import Json

Reader = Callable[[str, str], Json]

LIST_ITEMS_DEFAULT = 20
QUEUES = ("due", "manual")
DECISIONS = ("confirm_succeeded", "confirm_failed", "abandon_unknown")
ACTION_STATES = ("pending", "approved", "due", "executing", "manual_required")

_DURATION = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?([smhd]?)")
_UNIT_MS = {"": 1_000, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NANO_DIGITS = 9


class Draw(enum.Enum):
    """Name what the client draws for an argument that was left out."""

    ID = "id"
    TOKEN = "token"  # noqa: S105  # a word, not a secret


class Parameter(NamedTuple):
    """Hold one option (`--risk`) or positional (`FILE`); without a reader it is a switch."""

    name: str
    key: str
    read: Reader | None
    about: str
    default: Json = None
    required: bool = False
    value: str = ""


class Row(NamedTuple):
    """Hold one command: its parameters in the order of its help, and what is drawn for it."""

    summary: str
    parameters: tuple[Parameter, ...] = ()
    draws: tuple[tuple[str, Draw], ...] = ()


def read_path(text: str, field: str) -> str:
    """Return the name of a file or directory; `-` is the caller's business."""
    if not text or "\0" in text:
        raise ids.invalid(field, "must name a file or directory")
    return text


def read_ident(text: str, field: str) -> str:
    """Return an id."""
    return ids.check_ident(text, field)


def read_digest(text: str, field: str) -> str:
    """Return a digest."""
    return ids.check_digest(text, field)


def read_slug(text: str, field: str) -> str:
    """Return a slug."""
    return ids.check_slug(text, field)


def read_name(text: str, field: str) -> str:
    """Return the name of a user or an agent."""
    return ids.check_ident(text, field)


def read_subject(text: str, field: str) -> str:
    """Return `user:NAME` or `agent:NAME`."""
    from qinglong_edge.domain.policy import parse_subject  # noqa: PLC0415  # see above

    subject = parse_subject(text)
    ids.check_ident(subject.id, field)
    return str(subject)


def read_role(text: str, field: str) -> str:
    """Return one of the roles."""
    from qinglong_edge.domain.policy import Role  # noqa: PLC0415  # see above

    return one_of(tuple(role.value for role in Role))(text, field)


def read_risk(text: str, field: str) -> str:
    """Return one of the risks."""
    from qinglong_edge.domain.action import Risk  # noqa: PLC0415  # see above

    return one_of(tuple(risk.value for risk in Risk))(text, field)


def read_profile(text: str, _field: str) -> str:
    """Return the name of a profile, a local one or not."""
    from qinglong_edge.domain.profile import parse_profile  # noqa: PLC0415  # see above

    return parse_profile(text).value


def read_types(text: str, field: str) -> list[str]:
    """Return action types separated by commas."""
    return [ids.check_ident(word, field) for word in text.split(",")]


def read_cursor(text: str, _field: str) -> str:
    """Return a cursor that some list printed."""
    from qinglong_edge.domain.paging import parse_cursor  # noqa: PLC0415  # see above

    parse_cursor(text)
    return text


def read_limit(text: str, field: str) -> int:
    """Return a page size."""
    most = limits.PAGE_ITEMS_MAX
    number = int(text) if re.fullmatch("[0-9]{1,4}", text) else None
    return ids.check_int(number, field, least=1, most=most)


def read_version(text: str, field: str) -> int:
    """Return a version."""
    number = int(text) if re.fullmatch("[0-9]{1,10}", text) else None
    return ids.check_int(number, field, least=0, most=limits.VERSION_MAX)


def read_code(text: str, field: str) -> str:
    """Return a time-based code."""
    from qinglong_edge.domain.totp import check_code  # noqa: PLC0415  # see above

    return check_code(text, field)


def one_of(words: tuple[str, ...]) -> Callable[[str, str], str]:
    """Return a reader of a few words."""

    def read(text: str, field: str) -> str:
        if text not in words:
            raise ids.invalid(field, f"must be one of {', '.join(words)}")
        return text

    return read


def duration(least_ms: int, most_ms: int) -> Callable[[str, str], int]:
    """Return a reader of a length of time: `90s`, `15m`, `1h`, `1d`, or plain seconds."""

    def read(text: str, field: str) -> int:
        match = _DURATION.fullmatch(text)
        if match is None:
            raise ids.invalid(field, "must be a length of time such as 90s, 15m, 1h or 1d")
        whole, part, unit = match.groups()
        nanos = int(whole) * 10**_NANO_DIGITS + int((part or "").ljust(_NANO_DIGITS, "0"))
        length_ms: int = nanos * _UNIT_MS[unit] // 10**_NANO_DIGITS
        if not least_ms <= length_ms <= most_ms:
            raise ids.invalid(field, f"must be from {least_ms} to {most_ms} milliseconds")
        return length_ms

    return read


GLOBALS = (
    Parameter("--state", "state", read_path, "the state directory", value="DIR"),
    Parameter("--json", "json", None, "answer with one JSON object"),
    Parameter("--session", "session", read_path, "a user's session file", value="FILE"),
    Parameter("--token-file", "token_file", read_path, "an agent's token file", value="FILE"),
    Parameter("--socket", "socket", read_path, "talk to this socket, touch no state", value="PATH"),
)

PASSWORD = "password"  # noqa: S105  # a key, not a secret
RECOVERY = "recovery_code"
PLAN = "plan"
FROM = "from"

_ID = Parameter("ID", "id", read_ident, "an approval or dispatch id", required=True)
_NAME = Parameter("NAME", "name", read_name, "a name", required=True)
_ROLE = Parameter(
    "--role", "role", read_role, "owner, admin, operator or viewer", required=True, value="ROLE"
)
_SUBJECT = Parameter("SUBJECT", "subject", read_subject, "user:NAME or agent:NAME", required=True)
_PASSWORD = Parameter(
    "--password-file", PASSWORD, read_path,
    "a file that holds the password, - for stdin; else the terminal asks", value="FILE",
)  # fmt: skip
_PAGE = (
    Parameter("--limit", "limit", read_limit, "1 to 64 rows", LIST_ITEMS_DEFAULT, value="N"),
    Parameter("--cursor", "cursor", read_cursor, "go on where a list ended", value="CURSOR"),
)
_MUTATION = (("mutation_id", Draw.ID),)
_EXPIRY = duration(1, limits.APPROVAL_LIFETIME_MS_MAX)
_WAIT = duration(0, limits.INTERVAL_MS_MAX)

ROWS: dict[str, Row] = {
    "init": Row(
        "make the state directory, its first owner, and nothing else",
        (
            Parameter("--owner", "owner", read_name, "the first user", value="NAME"),
            _PASSWORD,
            Parameter("--profile", "profile", read_profile, "edge or standalone", value="NAME"),
            Parameter("--project", "project", read_slug, "the project", value="SLUG"),
            Parameter("--enable", "enable", read_types, "action types", value="TYPE[,TYPE...]"),
            Parameter("--volatile", "volatile", None, "accept a directory that lies in memory"),
            Parameter("--from", FROM, read_path, "take all of it from a JSON file", value="FILE"),
        ),
    ),
    "migrate": Row("bring an older state to the schema of this program"),
    "verify": Row("check database, receipts and digests"),
    "status": Row("tell what waits, what runs and what needs a person"),
    "cycle": Row("recover and dispatch once"),
    "serve": Row(
        "own the state, listen on a socket, and run cycles until a signal",
        (Parameter("--socket-group", "socket_group", read_ident, "who may connect", value="G"),),
    ),
    "demo": Row("play the whole story in a temporary directory"),
    "login": Row(
        "open a session for a user",
        (
            _NAME,
            _PASSWORD,
            Parameter("--totp", "totp", read_code, "the six digits of now", value="CODE"),
            Parameter(
                "--recovery-code", RECOVERY, read_path,
                "instead: a file that holds a recovery code, - for stdin", value="FILE",
            ),
        ),
        (("session_token", Draw.TOKEN), ("session_id", Draw.ID)),
    ),
    "logout": Row("end the session and remove its file"),
    "clock trust": Row("believe the clock at once; what is open, not started or logged in ends"),
    "profile show": Row(
        "print a profile's resource policy",
        (Parameter("NAME", "name", read_profile, "edge or standalone", required=True),),
    ),
    "action propose": Row(
        "ask for approval of one exact plan",
        (
            Parameter("FILE", PLAN, read_path, "the plan, - for stdin", required=True),
            Parameter("--id", "approval_request_id", read_ident, "the request's id", value="ID"),
            Parameter("--risk", "risk", read_risk, "low, medium, high or critical", value="RISK"),
            Parameter(
                "--expires-in", "expires_in_ms", _EXPIRY, "90s, 15m, 1h; at most 1d",
                limits.APPROVAL_LIFETIME_MS_DEFAULT, value="TIME",
            ),
            Parameter(
                "--repeats", "repeats", read_ident,
                "the dispatch of unknown outcome that this does again", value="DISPATCH_ID",
            ),
        ),
        (("approval_request_id", Draw.ID),),
    ),
    "action list": Row(
        "list actions, newest first, or one queue",
        (
            Parameter(
                "--state", "state", one_of(ACTION_STATES),
                "pending, approved, due, executing or manual_required", value="STATE",
            ),
            *_PAGE,
        ),
    ),
    "action show": Row("show one action whole", (_ID,)),
    "action approve": Row(
        "approve a request and hand it to dispatch",
        (
            _ID,
            Parameter(
                "--action-digest", "action_digest", read_digest, "approve only this digest",
                value="HEX",
            ),
            Parameter("--hold", "hold", None, "decide only; `action dispatch` hands it on"),
            Parameter("--decision-id", "decision_id", read_ident, "the decision's id", value="ID"),
        ),
        (("decision_id", Draw.ID), ("consumption_id", Draw.ID), ("dispatch_id", Draw.ID)),
    ),
    "action reject": Row(
        "refuse a request",
        (
            _ID,
            Parameter(
                "--reason", "reason", read_ident, "why, as a code such as too_risky",
                required=True, value="CODE",
            ),
        ),
        (("decision_id", Draw.ID),),
    ),
    "action dispatch": Row(
        "hand an approved, held request on",
        (
            _ID,
            Parameter(
                "--consumption-id", "consumption_id", read_ident, "the consumption's id", value="ID"
            ),
        ),
        (("consumption_id", Draw.ID), ("dispatch_id", Draw.ID)),
    ),
    "action cancel": Row(
        "withdraw a request, or stop its dispatch before it starts",
        (_ID,),
        (("cancel_id", Draw.ID),),
    ),
    "action wait": Row(
        "wait until an action has ended or needs a person",
        (
            _ID,
            Parameter(
                "--timeout", "timeout_ms", _WAIT, "at most so long, in seconds", required=True,
                value="S",
            ),
        ),
    ),
    "action logs": Row("print what an action wrote", (_ID,)),
    "recovery list": Row(
        "list actions whose outcome is unknown",
        (
            Parameter(
                "--queue", "queue", one_of(QUEUES), "due or manual", QUEUES[0], value="QUEUE"
            ),
            *_PAGE,
        ),
    ),
    "recovery show": Row(
        "show what is known about one unknown outcome",
        (Parameter("DISPATCH_ID", "id", read_ident, "a dispatch id", required=True),),
    ),
    "recovery resolve": Row(
        "say how an action of unknown outcome ended; it is never run again",
        (
            Parameter("DISPATCH_ID", "id", read_ident, "a dispatch id", required=True),
            Parameter(
                "--decision", "decision", one_of(DECISIONS), ", ".join(DECISIONS), required=True,
                value="DECISION",
            ),
            Parameter(
                "--reason", "reason", read_ident, "why, as a code such as seen_on_the_disk",
                required=True, value="CODE",
            ),
            Parameter(
                "--expected-version", "expected_version", read_version,
                "the execution's version that was looked at", required=True, value="N",
            ),
            Parameter(
                "--expected-recovery-version", "expected_recovery", read_version,
                "the recovery's version, where it must not have moved either", value="N",
            ),
            Parameter("--mutation-id", "mutation_id", read_ident, "the word's id", value="ID"),
            Parameter(
                "--evidence", "evidence", read_digest, "the digest of what was seen", value="HEX"
            ),
            Parameter("--unprobed", "unprobed", None, "before evidence was looked for"),
        ),
        _MUTATION,
    ),
    "handler list": Row("list the action types and how far each can be reached"),
    "task list": Row("list tasks with their newest revisions", _PAGE),
    "task show": Row(
        "show what a revision of a task runs",
        (
            Parameter("ID", "id", read_ident, "a task id", required=True),
            Parameter("--revision", "revision", read_ident, "the newest otherwise", value="rN"),
        ),
    ),
    "user add": Row("add a user", (_NAME, _ROLE, _PASSWORD), _MUTATION),
    "user list": Row("list users", _PAGE),
    "user disable": Row("disable a user and end their sessions", (_NAME,), _MUTATION),
    "user totp": Row(
        "give a user a second factor and print it once", (_NAME,), (("seed", Draw.TOKEN),)
    ),
    "user reset": Row(
        "give a user a new password, as the owner of the state", (_NAME, _PASSWORD),
        (("reset_id", Draw.ID),),
    ),
    "agent add": Row(
        "add an agent and print its token once", (_NAME, _ROLE), (*_MUTATION, ("token", Draw.TOKEN))
    ),
    "agent list": Row("list agents", _PAGE),
    "agent rotate": Row(
        "give an agent a new token and end the old one", (_NAME,), (("token", Draw.TOKEN),)
    ),
    "agent disable": Row("disable an agent", (_NAME,), _MUTATION),
    "role bind": Row(
        "give a user or an agent a role",
        (_SUBJECT, Parameter("ROLE", "role", read_role, "the role", required=True)),
        _MUTATION,
    ),
    "role revoke": Row("take a role away", (_SUBJECT,), _MUTATION),
}  # fmt: skip
