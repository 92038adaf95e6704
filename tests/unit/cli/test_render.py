import time
from collections.abc import Iterator
from typing import Any

import pytest

from qinglong_edge.cli.render import Look, render
from qinglong_edge.cli.text import block, columns, cut, local_time, plain, quoted, span

DIGEST = "d" * 64
AT_MS = 1_800_000_000_000
UNSAFE = [
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *"\u202e\u2066\u200b\ufeff\u2028\ud800",
]


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Live in a zone with half an hour; the C library reads it once."""
    monkeypatch.setenv("TZ", "XXX-5:30")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def lines(command: str, body: dict[str, Any], width: int | None = None) -> list[str]:
    text = render(command, body, look=Look(width))
    assert text.endswith("\n")
    return text.splitlines()


def proposal(**changes: Any) -> dict[str, Any]:
    return {
        "approval_request_id": "a-1",
        "state": "pending",
        "version": 1,
        "action_type": "shell.exec",
        "action_digest": DIGEST,
        "preview_digest": "e" * 64,
        "preview": {
            "action_type": "shell.exec",
            "argv": ["/bin/rm", "-r", "a b"],
            "cwd": "/",
            "env": {},
            "timeout_ms": 30_000,
            "warnings": [],
        },
        "risk": "medium",
        "requested_at_ms": AT_MS,
        "expires_at_ms": AT_MS + 3_600_000,
        "replayed": False,
        **changes,
    }


def action(**changes: Any) -> dict[str, Any]:
    approval = {**proposal(), "requested_by": "agent:bot", "decided_at_ms": None, "repeats": None}
    preview = approval.pop("preview")
    return {
        "approval": approval,
        "dispatch": None,
        "execution": None,
        "recovery": None,
        "resolution": None,
        "effective_state": "pending",
        "preview": preview,
        **changes,
    }


def test_a_proposal_shows_first_what_would_be_done() -> None:
    found = lines("action.propose", proposal())
    assert found[:2] == ["shell.exec:", '  argv     ["/bin/rm", "-r", "a b"]']
    assert "  timeout  30 s" in found
    assert found[-1] == f"  qinglong-edge action approve a-1 --action-digest {DIGEST}"
    assert any(line.split() == ["action", "digest", DIGEST] for line in found)
    assert any("2027-01-15T13:30:00+05:30" in line for line in found)


def test_a_repetition_is_the_first_thing_that_is_said() -> None:
    preview = {**proposal()["preview"], "repeats": "d-1", "warnings": [{"code": "shell_word"}, "x"]}
    found = lines("action.propose", proposal(preview=preview))
    assert found[0].startswith("WARNING: repeats d-1, ")
    assert found[1:3] == ["WARNING: shell word", "WARNING: x"]
    again = lines("action.show", action(preview=preview))
    assert again[1] == found[0]


def test_a_replayed_proposal_that_was_decided_is_not_offered_again() -> None:
    found = lines("action.propose", proposal(state="consumed", replayed=True))
    assert not any("action approve" in line for line in found)


def test_an_action_is_shown_on_one_screen() -> None:
    body = action(
        effective_state="manual_required",
        dispatch={"dispatch_id": "d-1", "created_at_ms": AT_MS},
        execution={
            "status": "executing",
            "attempt_count": 1,
            "max_attempts": 5,
            "started_at_ms": AT_MS,
            "completed_at_ms": None,
        },
        recovery={"status": "manual_required", "version": 2, "finding_count": 3},
    )
    found = lines("action.show", body)
    assert found[0] == "a-1: manual_required (medium risk)"
    assert len(found) < 24
    text = "\n".join(found)
    assert "agent:bot" in text
    assert DIGEST in text
    assert "attempt count 1, max attempts 5" in text
    assert "status manual_required, finding count 3" in text
    assert "ended" not in text


def test_a_pending_action_says_how_to_approve_it() -> None:
    assert lines("action.show", action())[-1].endswith(f"approve a-1 --action-digest {DIGEST}")


def test_a_list_is_a_table_with_its_next_page() -> None:
    items = [
        {"approval_request_id": "a-1", "risk": "low", "effective_state": "due", "other": 1},
        {"approval_request_id": "a-22", "risk": "high", "effective_state": "pending"},
    ]
    found = lines("action.list", {"items": items, "next_cursor": "1.2", "damaged": 1})
    assert found == [
        "approval request id  effective state  risk",
        "a-1                  due              low",
        "a-22                 pending          high",
        "damaged  1",
        "there is more: --cursor 1.2",
    ]
    assert lines("action.list", {"items": [], "next_cursor": None}) == ["nothing"]


def test_a_list_without_a_known_shape_shows_every_plain_member() -> None:
    items = [{"name": "bob", "role": None, "created_at_ms": AT_MS, "deep": {"state": "active"}}]
    heading, row = lines("user.list", {"items": items, "next_cursor": None})
    assert heading.split() == ["state", "name", "role", "created", "at"]
    assert row.split() == ["active", "bob", "-", "2027-01-15T13:30:00+05:30"]


def test_long_cells_are_cut_on_a_terminal_and_digests_never() -> None:
    items = [{"name": "n" * 90, "action_digest": DIGEST, "reason": "r" * 90}]
    body = {"items": items, "next_cursor": None}
    assert columns(lines("user.list", body, 100)[1]) == 100
    assert DIGEST in lines("user.list", body, 20)[1]
    assert "n" * 90 in lines("user.list", body)[1]


def test_status_tells_its_verdict_first() -> None:
    body = {
        "health": "attention",
        "backlog": {"due": 1, "manual_required": 2, "oldest_age_ms": 61_500},
        "admission": {"open": False, "reasons": ["clock_untrusted"]},
    }
    assert lines("status", body) == [
        "health: attention",
        "backlog: due 1, manual required 2, oldest age 1 min 1 s",
        'admission: open no, reasons ["clock_untrusted"]',
        "a person is needed: qinglong-edge recovery list --queue manual",
    ]


def test_a_cycle_tells_what_moved() -> None:
    phase = {"pages": 1, "scanned": 0, "stop_reason": "complete", "remaining": False}
    body = {"recovery": phase, "dispatch": {**phase, "scanned": 2, "remaining": True}}
    assert lines("cycle", body) == [
        "recovery: pages 1, stop reason complete",
        "dispatch: pages 1, scanned 2, stop reason complete, remaining yes",
    ]


def test_the_demo_is_told_line_by_line() -> None:
    assert lines("demo", {"lines": ["one", "", "two\x1b"]}) == ["one", "", "two\\x1b"]


def test_logs_are_printed_as_they_stand_escapes_aside() -> None:
    body = {"dispatch_id": "d-1", "text": "a\tb\n\x1b[1mc\r\n", "truncated": True}
    found = lines("action.logs", body)
    assert found[:2] == ["a\tb", "\\x1b[1mc\\x0d"]
    assert "truncated    yes" in found


def test_verify_names_its_problems() -> None:
    assert len(lines("verify", {"ok": True, "problems": []})) == 1
    found = lines("verify", {"ok": False, "problems": ["x\n", {"row": 1}]})
    assert found == ["2 problems:", "  x\\x0a", '  {"row": 1}']


def test_other_answers_are_shown_member_by_member() -> None:
    body = {"profile": "edge", "interval_ms": 30_000, "recovery": {"page_size": 8}, "empty": {}}
    assert lines("profile.show", body) == [
        "profile   edge",
        "interval  30 s",
        "empty     none",
        "recovery:",
        "  page size  8",
    ]
    assert lines("logout", {}) == ["done"]


def test_a_token_is_followed_by_what_to_do_with_it() -> None:
    found = lines("agent.add", {"agent": "bot", "token": "t" * 43})
    assert found[1] == f"token  {'t' * 43}"
    assert "this once" in found[2]


@pytest.mark.parametrize("command", ["action.list", "action.show", "action.propose", "status", "x"])
def test_no_stored_text_steers_a_terminal(command: str) -> None:
    evil = "".join(UNSAFE)
    bodies: list[dict[str, Any]] = [
        {"items": [{"name": evil, evil: evil}], "next_cursor": evil},
        action(
            effective_state=evil,
            preview={"action_type": evil, "argv": [evil], "env": {evil: evil}, "warnings": [evil]},
            approval={"approval_request_id": evil, "repeats": evil, "requested_by": evil},
        ),
        {"health": evil, evil: {evil: evil}, "list": [evil]},
        proposal(preview={"argv": [evil], evil: evil, "repeats": evil}),
    ]
    for body in bodies:
        text = render(command, body, look=Look(80))
        assert not set(UNSAFE) - {"\n"} & set(text)
        text.encode()


def test_visible_text_is_told_apart_from_escapes() -> None:
    assert plain("a\x1bb") == "a\\x1bb"
    assert plain("a\\x1bb") == "a\\\\x1bb"
    assert plain("\u202e\U000e0001\u9f99") == "\\u202e\\U000e0001\u9f99"
    assert quoted(["\x9b", '"', "\u9f99"]) == '["\\x9b", "\\"", "\u9f99"]'
    assert block("a\n\nb\x00\n") == ["a", "", "b\\x00"]
    assert block("") == []


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (0, "0 s"),
        (1, "1 ms"),
        (30_000, "30 s"),
        (590_001, "9 min 50 s 1 ms"),
        (90_000_000, "1 d 1 h"),
        (-1_000, "-1 s"),
    ],
)
def test_a_length_of_time_is_exact(length_ms: int, text: str) -> None:
    assert span(length_ms) == text


def test_an_instant_beyond_the_calendar_stays_a_number() -> None:
    assert local_time(0) == "1970-01-01T05:30:00+05:30"
    assert local_time(2**80).endswith(" ms")


def test_an_ideograph_takes_two_columns() -> None:
    assert columns("a\u9f99") == 3
    assert cut("\u9f99\u9f99\u9f99", 4) == "\u9f99\u2026"
    assert cut("abcd", 4) == "abcd"
