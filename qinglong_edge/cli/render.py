"""Turn an answer into text for people: a few lines, tables where there are rows, the next step.

A view of its own have those commands whose answer is read rather than looked up; everything else is
shown member by member, so that an answer that grows is shown whole. Nothing is coloured, digests
are never cut, and everything that was stored goes through `text.plain`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from qinglong_edge.cli.text import block, columns, cut, local_time, padded, plain, quoted, span
from qinglong_edge.domain.canonical import Json, JsonObject

PROGRAM = "qinglong-edge"
CELL_COLUMNS_MIN = 8

_GAP = "  "
_INDENT = "  "
_NOTHING = "-"
_BOOKKEEPING = ("version", "execution_version", "created_at_ms", "updated_at_ms")
_WHOLE = ("_id", "digest", "cursor", "token")  # what people copy is never cut

# The columns of a list, where its rows have them; other lists show every plain member.
_COLUMNS = {
    "action.list": (
        "approval_request_id", "effective_state", "state", "action_type", "risk", "requested_by",
        "requested_at_ms",
    ),
    "recovery.list": (
        "dispatch_id", "effective_state", "action_type", "risk", "started_at_ms", "age_ms",
        "finding_count", "last_finding", "settled_by",
    ),
}  # fmt: skip


class Look(NamedTuple):
    """Hold what limits the text: the columns of the terminal, None where it goes elsewhere."""

    width: int | None = None


def render(command: str, body: JsonObject, *, look: Look) -> str:
    """Return the text of one answer, ending in a newline."""
    view = _VIEWS.get(command)
    if view is not None:
        lines = list(view(body))
    elif isinstance(body.get("items"), Sequence):
        lines = list(_list(command, body, look=look))
    else:
        lines = list(_members(body, look))
    lines += _next_steps(command, body)
    return "\n".join(lines or ["done"]) + "\n"


def _members(body: JsonObject, look: Look, *, indent: str = "") -> Iterator[str]:
    """Yield a line for each plain member, then the nested ones under their names."""
    plain_ones = {key: value for key, value in body.items() if not _is_nested(value)}
    width = max((columns(_label(key)) for key in plain_ones), default=0)
    for key, value in plain_ones.items():
        yield f"{indent}{padded(_label(key), width)}{_GAP}{_shown(key, value)}"
    for key, value in body.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{_label(key)}:"
            yield from _members(value, look, indent=indent + _INDENT)
        elif _is_rows(value):
            yield f"{indent}{_label(key)}:"
            yield from (indent + _INDENT + line for line in _table(_flat_rows(value), look))


def _is_nested(value: Json) -> bool:
    return (isinstance(value, Mapping) and bool(value)) or _is_rows(value)


def _is_rows(value: Json) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(isinstance(item, Mapping) for item in value)
    )


def _flat_rows(value: Json) -> list[JsonObject]:
    items = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    return [_flat(item) for item in items if isinstance(item, Mapping)]


def _label(key: str) -> str:
    return plain(key.removesuffix("_ms")).replace("_", " ")


def _shown(key: str, value: Json) -> str:
    """Return one value on one line; lists and the odd object as JSON."""
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        if key.endswith("_at_ms"):
            return local_time(value)
        if key.endswith("age_ms"):
            return span(value - value % 1000)
        return span(value) if key.endswith("_ms") else str(value)
    if isinstance(value, str):
        return plain(value)
    return quoted(value) if value else "none"


def _list(command: str, body: JsonObject, *, look: Look) -> Iterator[str]:
    rows = _flat_rows(body["items"])
    yield from _table(rows, look, wanted=_COLUMNS.get(command, ())) if rows else ("nothing",)
    for key, value in body.items():
        if key not in {"items", "next_cursor"} and value:
            yield f"{_label(key)}{_GAP}{_shown(key, value)}"
    cursor = body.get("next_cursor")
    if isinstance(cursor, str):
        yield f"there is more: --cursor {plain(cursor)}"


def _flat(item: JsonObject) -> JsonObject:
    """Return a row with the plain members of its objects beside its own; its own names win."""
    row: dict[str, Json] = {}
    for value in item.values():
        if isinstance(value, Mapping):
            row.update({key: each for key, each in value.items() if not _is_nested(each)})
    row.update({key: value for key, value in item.items() if not _is_nested(value)})
    return row


def _table(rows: list[JsonObject], look: Look, *, wanted: tuple[str, ...] = ()) -> list[str]:
    """Return a heading and a line for each row; on a terminal the longest cells give way."""
    there = dict.fromkeys(key for row in rows for key in row)
    keys = [key for key in wanted if key in there] or list(there)
    if "effective_state" in keys and "state" in keys:
        keys.remove("state")
    cells = [[_label(key) for key in keys]]
    cells += [[_shown(key, row.get(key)) for key in keys] for row in rows]
    widths = [max(columns(line[at]) for line in cells) for at in range(len(keys))]
    if look.width is not None:
        widths = _fitted(keys, widths, width=look.width)
    return [
        _GAP.join(
            padded(cell if _kept(key) else cut(cell, width), width)
            for key, cell, width in zip(keys, line, widths, strict=True)
        ).rstrip()
        for line in cells
    ]


def _fitted(keys: list[str], widths: list[int], *, width: int) -> list[int]:
    """Narrow the widest columns that may be cut until the line fits, or nothing is left to cut."""
    fitted = list(widths)
    soft = [at for at, key in enumerate(keys) if not _kept(key)]
    over = sum(fitted) + len(_GAP) * (len(fitted) - 1) - width
    while over > 0 and soft:
        widest = max(soft, key=lambda at: fitted[at])
        if fitted[widest] <= CELL_COLUMNS_MIN:
            break
        fitted[widest] -= 1
        over -= 1
    return fitted


def _kept(key: str) -> bool:
    return key.endswith(_WHOLE)


def _view_propose(body: JsonObject) -> Iterator[str]:
    """Show what is to be done before anything else; first of all, that it was done before."""
    yield from _preview(body)
    yield ""
    yield from _members(_without(body, "preview", "action_type"), Look())


def _preview(body: JsonObject) -> Iterator[str]:
    preview = body.get("preview")
    preview = preview if isinstance(preview, Mapping) else {}
    repeats = body.get("repeats") or preview.get("repeats")
    if repeats:
        shown = plain(repeats) if isinstance(repeats, str) else quoted(repeats)
        yield f"WARNING: repeats {shown}, whose outcome nobody knows: it may happen twice"
    warnings = preview.get("warnings")
    if isinstance(warnings, Sequence) and not isinstance(warnings, str):
        yield from (f"WARNING: {_warning(warning)}" for warning in warnings)
    action_type = preview.get("action_type") or body.get("action_type")
    yield f"{plain(str(action_type))}:" if action_type else "action:"
    rest = _without(preview, "action_type", "warnings", "repeats")
    yield from _members(_present(rest), Look(), indent=_INDENT)


def _warning(warning: Json) -> str:
    """Return a code as words, followed by what it is about."""
    if not isinstance(warning, Mapping):
        return plain(warning) if isinstance(warning, str) else quoted(warning)
    about = [_shown(key, value) for key, value in warning.items() if key != "code"]
    return " ".join([_label(str(warning.get("code", "beware"))), *about])


def _view_show(body: JsonObject) -> Iterator[str]:
    """Show one action on a screen: where it stands, what it does, and what happened when."""
    parts = {key: value for key, value in body.items() if isinstance(value, Mapping)}
    approval, execution = parts.get("approval", {}), parts.get("execution", {})
    name = _shown("", approval.get("approval_request_id"))
    risk = _shown("risk", approval.get("risk"))
    yield f"{name}: {_shown('', body.get('effective_state'))} ({risk} risk)"
    if "preview" in parts:
        yield from _preview({**approval, "preview": parts["preview"]})
    lines = {
        "digest": _shown("", approval.get("action_digest")),
        "requested": _event(approval, "requested_at_ms", "requested_by", "action_type"),
        "expires": _event(approval, "expires_at_ms"),
        "decided": _event(
            approval, "decided_at_ms", "decided_by", "decision", "decision_reason_code"
        ),
        "cancelled": _event(approval, "cancelled_at_ms", "cancelled_by"),
        "dispatched": _event(parts.get("dispatch", {}), "created_at_ms", "", "dispatch_id"),
        "started": _event(execution, "started_at_ms", "", "attempt_count", "max_attempts"),
        "ended": _event(execution, "completed_at_ms", "", "status", "last_result_code"),
        "recovery": _in_a_row(_present(_without(parts.get("recovery", {}), *_BOOKKEEPING))),
        "resolution": _in_a_row(_present(parts.get("resolution", {}))),
    }
    told = {key: text for key, text in lines.items() if text not in {"", _NOTHING, "nothing"}}
    width = max((len(key) for key in told), default=0)
    for key, text in told.items():
        yield f"{key.ljust(width)}{_GAP}{text}"
    known = {"preview", "effective_state"}
    rest = {key: value for key, value in _plain_members(body).items() if key not in known}
    yield from _members(_present(rest), Look())


def _event(body: JsonObject, at: str, by: str = "", *about: str) -> str:
    """Return when something happened, who did it, and what it was; nothing where it did not."""
    if body.get(at) is None:
        return ""
    words = [_shown(at, body[at])]
    if by and body.get(by) is not None:
        words.append(f"by {_shown(by, body[by])}")
    for key in about:
        if body.get(key) is not None:
            number = isinstance(body[key], int)
            words.append(
                f"{_label(key)} {_shown(key, body[key])}" if number else _shown(key, body[key])
            )
    return " ".join(words[:1]) + ("" if len(words) == 1 else "  " + ", ".join(words[1:]))


def _view_status(body: JsonObject) -> Iterator[str]:
    """Show the verdict first, then one line for each part."""
    yield f"health: {plain(str(body.get('health', 'unknown')))}"
    for key, value in body.items():
        if key == "health":
            continue
        shown = _in_a_row(value) if isinstance(value, Mapping) else _shown(key, value)
        yield f"{_label(key)}: {shown}"


def _view_cycle(body: JsonObject) -> Iterator[str]:
    """Show a line for each phase; what stayed at zero is left out."""
    for key, value in body.items():
        if isinstance(value, Mapping):
            moved = {name: each for name, each in value.items() if each not in (0, None, False)}
            yield f"{_label(key)}: {_in_a_row(moved)}"
        else:
            yield f"{_label(key)}: {_shown(key, value)}"


def _view_demo(body: JsonObject) -> Iterator[str]:
    lines = body.get("lines")
    if isinstance(lines, Sequence) and not isinstance(lines, str):
        for line in lines:
            yield from block(str(line)) or [""]


def _view_logs(body: JsonObject) -> Iterator[str]:
    """Print what the action wrote as it stands, escapes aside; the rest only where it says more."""
    yield from block(str(body.get("text", "")))
    rest = {key: value for key, value in body.items() if key != "text" and value}
    yield from _members(rest, Look())


def _view_totp(body: JsonObject) -> Iterator[str]:
    """Show what goes into an authenticator, then what goes onto paper."""
    yield plain(str(body.get("otpauth_uri", "")))
    codes = body.get("recovery_codes")
    if isinstance(codes, Sequence) and not isinstance(codes, str):
        yield "recovery codes, each for one login:"
        yield from (f"{_INDENT}{plain(str(code))}" for code in codes)


def _view_verify(body: JsonObject) -> Iterator[str]:
    if body.get("ok") is True:
        yield "ok: everything that is stored can be believed"
        return
    problems = body.get("problems")
    problems = problems if isinstance(problems, Sequence) else ()
    yield f"{len(problems)} problems:"
    for problem in problems:
        yield f"{_INDENT}{plain(problem) if isinstance(problem, str) else quoted(problem)}"


def _in_a_row(value: JsonObject) -> str:
    parts = [f"{_label(key)} {_shown(key, each)}" for key, each in value.items()]
    return ", ".join(parts) or "nothing"


def _plain_members(body: JsonObject) -> JsonObject:
    return {key: value for key, value in body.items() if not _is_nested(value)}


def _present(body: JsonObject) -> JsonObject:
    return {key: value for key, value in body.items() if value not in (None, [], {}, ())}


def _without(body: JsonObject, *keys: str) -> JsonObject:
    return {key: value for key, value in body.items() if key not in keys}


def _next_steps(command: str, body: JsonObject) -> Iterator[str]:
    """Yield what the caller will want to do now, where there is one such thing."""
    approval, dispatch = body.get("approval"), body.get("dispatch")
    request = _shown("", body.get("approval_request_id"))
    if command == "init":
        yield f"next: {PROGRAM} login {_shown('', body.get('owner'))}"
    elif command == "action.propose" and body.get("state") == "pending":
        yield from _how_to_approve(body)
    elif command == "action.show" and body.get("effective_state") == "pending":
        yield from _how_to_approve(approval if isinstance(approval, Mapping) else {})
    elif command == "action.approve" and body.get("state") == "approved":
        yield f"held; to hand it on: {PROGRAM} action dispatch {request}"
    elif command in {"action.approve", "action.dispatch"}:
        yield f"next: {PROGRAM} cycle carries it out, {PROGRAM} action show {request} tells how"
    elif command == "recovery.show" and isinstance(dispatch, Mapping):
        yield from _how_to_settle(body, _shown("", dispatch.get("dispatch_id")))
    elif command == "user.totp":
        yield "shown this once: add the line to an authenticator, write the codes down"
    elif command == "clock.trust" and body.get("settled") is True:
        yield f"every session has ended; next: {PROGRAM} login NAME"
    elif command in {"agent.add", "agent.rotate"}:
        yield "the token is shown this once: keep it in a file that only the agent may read"


def _how_to_settle(body: JsonObject, dispatch_id: str) -> Iterator[str]:
    execution, approval = body.get("execution"), body.get("approval")
    if isinstance(approval, Mapping) and approval.get("action_type") == "shell.exec":
        yield f"what it wrote: {PROGRAM} action logs {dispatch_id}"
    unknown = body.get("effective_state") in {"recovery_required", "manual_required"}
    if unknown and isinstance(execution, Mapping):
        version = _shown("", execution.get("version"))
        yield "to say how it ended, a user with a second factor runs:"
        yield f"{_INDENT}{PROGRAM} recovery resolve {dispatch_id} --expected-version {version} \\"
        yield f"{_INDENT}{_INDENT}--decision confirm_succeeded|confirm_failed|abandon_unknown \\"
        yield f"{_INDENT}{_INDENT}--reason CODE"


def _how_to_approve(approval: JsonObject) -> Iterator[str]:
    request = _shown("", approval.get("approval_request_id"))
    digest = _shown("", approval.get("action_digest"))
    yield "to approve exactly this, a user runs:"
    yield f"{_INDENT}{PROGRAM} action approve {request} --action-digest {digest}"


_VIEWS: dict[str, Callable[[JsonObject], Iterator[str]]] = {
    "action.propose": _view_propose,
    "action.show": _view_show,
    "action.wait": _view_show,
    "action.logs": _view_logs,
    "recovery.show": _view_show,
    "status": _view_status,
    "cycle": _view_cycle,
    "demo": _view_demo,
    "user.totp": _view_totp,
    "verify": _view_verify,
}
