"""A completion receipt has one form, and every other is refused."""

import hashlib
import hmac
import json
from collections.abc import Iterator
from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.canonical import canonical_bytes
from qinglong_edge.domain.completion import (
    CompletionReceipt,
    completion_bytes,
    parse_completion,
    seal,
    token_digest,
)
from qinglong_edge.domain.errors import UsageError
from tests.support.receipts import BODY, RECEIPT, SECRET, TOKEN, sealed

MEMBERS = (
    "schemaVersion", "runId", "attemptId", "callbackSequence", "token", "bootId", "startedAtMs",
    "finishedAtMs", "exitCode", "signal", "keyVersion", "hmac",
)  # fmt: skip


def members(**changes: Any) -> dict[str, Any]:
    return {**dict(zip(MEMBERS, RECEIPT, strict=True)), **changes}


def refused(data: bytes) -> None:
    with pytest.raises(UsageError):
        parse_completion(data)


@pytest.mark.run_scenario(13)
def test_the_bytes_are_the_twelve_members_in_order_and_nothing_else() -> None:
    assert tuple(json.loads(BODY)) == MEMBERS
    assert canonical_bytes(members()) == BODY
    assert not BODY.endswith(b"\n")
    assert parse_completion(BODY) == RECEIPT


def test_the_hmac_is_that_of_the_other_members_in_a_domain_of_its_own() -> None:
    unsigned = members()
    del unsigned["hmac"]
    text = json.dumps(unsigned, separators=(",", ":")).encode()
    message = b"qinglong-edge.completion.v2\0" + text
    assert RECEIPT.hmac == hmac.new(SECRET, message, "sha256").hexdigest()
    assert RECEIPT.hmac != hmac.new(SECRET, text, "sha256").hexdigest()


def test_every_member_changes_the_hmac() -> None:
    changed = [
        sealed(run_id="run-2"), sealed(attempt_id="att-2"), sealed(callback_sequence=2),
        sealed(token="u" * 43), sealed(boot_id="boot-2"), sealed(started_at_ms=0),
        sealed(finished_at_ms=RECEIPT.finished_at_ms + 1), sealed(exit_code=1),
        sealed(exit_code=None, signal=1), sealed(key_version=2),
    ]  # fmt: skip
    assert len({RECEIPT.hmac, *(each.hmac for each in changed)}) == len(changed) + 1
    assert seal(RECEIPT, b"another key").hmac != RECEIPT.hmac


def test_the_database_keeps_the_lower_case_digest_of_the_tokens_text() -> None:
    assert token_digest(TOKEN) == hashlib.sha256(TOKEN.encode()).hexdigest()


@pytest.mark.run_scenario(14)
@pytest.mark.parametrize("name", MEMBERS)
def test_a_missing_member_is_refused(name: str) -> None:
    refused(canonical_bytes({key: value for key, value in members().items() if key != name}))


def of_wrong_type() -> Iterator[bytes]:
    for name, value in members().items():
        if name not in {"exitCode", "signal"}:
            others: list[Any] = [None, True, [value], {"a": value}, 1.5, ""]
            others.append(str(value) if type(value) is int else 1)
            yield from (canonical_bytes(members(**{name: other})) for other in others)


@pytest.mark.run_scenario(15)
@pytest.mark.parametrize("data", list(of_wrong_type()))
def test_a_member_of_another_type_is_refused(data: bytes) -> None:
    refused(data)


def text_with(old: str, new: str) -> bytes:
    changed = BODY.replace(old.encode(), new.encode(), 1)
    assert changed != BODY
    return changed


@pytest.mark.run_scenario(14, 15, 18, 19)
@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[]", b"null", b"\0" * 64, BODY[:-1], BODY[: len(BODY) // 2],
        BODY + b"\n", BODY + b" ", b" " + BODY, BODY + b"{}", BODY + b"\0", BODY + BODY,
        b"\xef\xbb\xbf" + BODY, BODY.replace(b"boot-1", b"boot-\xff"), b"\xff" + BODY[1:],
        BODY.ljust(limits.RECEIPT_BYTES_MAX),
        text_with('{"schema', '{ "schema'),
        text_with('"keyVersion":1', '"keyVersion":1.0'),
        text_with('"keyVersion":1', '"keyVersion":1e0'),
        text_with('"keyVersion":1', '"keyVersion":01'),
        text_with('"keyVersion":1', '"keyVersion":NaN'),
        text_with('"exitCode":0', '"exitCode":-0'),
        text_with("boot-1", "\\u0062oot-1"),
        text_with('"token"', '"\\u0074oken"'),
        text_with('"token"', '"exitCode":0,"token"'),
        text_with('"keyVersion":1', '"\\u006beyVersion":1,"keyVersion":1'),
        canonical_bytes(members(note="x")),
        canonical_bytes(dict(reversed(members().items()))),
        json.dumps(members()).encode(),
    ],
)  # fmt: skip
def test_any_other_spelling_is_refused(data: bytes) -> None:
    """Upstream reads blanks between the tokens, and 1.0 for 1."""
    refused(data)


@pytest.mark.run_scenario(18)
def test_the_size_is_looked_at_before_the_shape() -> None:
    for size, code in ((4_096, "malformed_json"), (4_097, "too_large")):
        with pytest.raises(UsageError) as caught:
            parse_completion(b"x" * size)
        assert caught.value.code == code


def test_the_largest_receipt_has_room_in_its_reserve() -> None:
    safe = limits.SAFE_INTEGER_MAX
    largest = CompletionReceipt(
        2, "r" * 36, "a" * 36, safe, "t" * 128, "b" * 64, safe, safe, 255, None, 2**31 - 1, ""
    )
    data = completion_bytes(seal(largest, SECRET))
    assert len(data) < 1_024 < limits.RECEIPT_BYTES_MAX
    assert parse_completion(data).token == "t" * 128


OUTSIDE: list[dict[str, Any]] = [
    {"schema_version": 1}, {"schema_version": 3}, {"callback_sequence": 0},
    {"callback_sequence": 2**53}, {"started_at_ms": -1}, {"finished_at_ms": -1},
    {"finished_at_ms": 2**53}, {"key_version": 0}, {"key_version": 2**31},
    {"exit_code": -1}, {"exit_code": 256}, {"exit_code": "0"}, {"exit_code": True},
    {"exit_code": None}, {"signal": 9}, {"exit_code": None, "signal": 0},
    {"exit_code": None, "signal": 65}, {"exit_code": None, "signal": "9"},
    {"run_id": "r/1"}, {"run_id": ".."}, {"run_id": "r" * 37}, {"attempt_id": "a/1"},
    {"attempt_id": ".."}, {"attempt_id": "att\n"}, {"attempt_id": "a" * 37}, {"boot_id": "b/1"},
    {"token": "t" * 31}, {"token": "t" * 129}, {"token": "t" * 42 + "="},
    {"token": "t" * 42 + "\n"},
]  # fmt: skip


@pytest.mark.run_scenario(15, 16, 20, 21)
@pytest.mark.parametrize("change", OUTSIDE, ids=str)
def test_what_lies_outside_its_bounds_is_neither_sealed_nor_read(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        sealed(**change)
    refused(completion_bytes(RECEIPT._replace(**change)))


@pytest.mark.run_scenario(16, 20)
@pytest.mark.parametrize(
    "change",
    [
        {"exit_code": 255}, {"exit_code": None, "signal": 1}, {"exit_code": None, "signal": 64},
        {"token": "t" * 32}, {"token": "-_" * 64}, {"started_at_ms": 0},
        {"attempt_id": "a" * 36}, {"callback_sequence": limits.SAFE_INTEGER_MAX},
    ],
    ids=str,
)  # fmt: skip
def test_what_lies_on_its_bound_is_read(change: dict[str, Any]) -> None:
    receipt = sealed(**change)
    assert parse_completion(completion_bytes(receipt)) == receipt


@pytest.mark.run_scenario(17)
def test_an_end_before_its_start_is_read_since_a_clock_may_have_jumped() -> None:
    """Upstream refuses it (17); here no receipt is lost to a clock (contract 24.2)."""
    receipt = sealed(finished_at_ms=RECEIPT.started_at_ms - 1)
    assert parse_completion(completion_bytes(receipt)) == receipt


@pytest.mark.parametrize("digest", ["", "0" * 63, "F" * 64, "0" * 65])
def test_an_hmac_has_one_spelling(digest: str) -> None:
    refused(completion_bytes(RECEIPT._replace(hmac=digest)))
