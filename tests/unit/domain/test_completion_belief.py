"""A receipt is believed where everything agrees, whatever the clocks did; then it means one end."""

from typing import Any

import pytest

from qinglong_edge.domain.completion import (
    Believed,
    CompletionReceipt,
    Disbelief,
    End,
    EndStatus,
    authenticate,
    end_of,
    seal,
    token_digest,
)
from tests.support.clock import WALL_MS
from tests.support.receipts import (
    EXPECTED,
    FINISHED_MS,
    RECEIPT,
    SECRET,
    STARTED_MS,
    TOKEN,
    sealed,
)

NOW_MS = FINISHED_MS + 10
WHOLE = Believed(RECEIPT, STARTED_MS, FINISHED_MS, clock_untrusted=False)


def believed(
    receipt: CompletionReceipt = RECEIPT, secret: bytes | None = SECRET, **changes: Any
) -> Believed | Disbelief:
    return authenticate(receipt, EXPECTED._replace(**changes), secret, NOW_MS)


def test_a_receipt_is_believed_where_everything_agrees() -> None:
    assert believed() == WHOLE


@pytest.mark.run_scenario(40)
@pytest.mark.parametrize(
    ("receipt", "why"),
    [
        (sealed(run_id="run-2"), Disbelief.OTHER_RUN),
        (sealed(attempt_id="att-2"), Disbelief.OTHER_ATTEMPT),
        (sealed(callback_sequence=2), Disbelief.OTHER_SEQUENCE),
        (sealed(boot_id="boot-2"), Disbelief.OTHER_BOOT),
        (sealed(token=TOKEN[:-1] + "y"), Disbelief.TOKEN_WRONG),
        (RECEIPT._replace(exit_code=1), Disbelief.HMAC_WRONG),
        (RECEIPT._replace(key_version=2), Disbelief.HMAC_WRONG),
        (RECEIPT._replace(hmac="0" * 64), Disbelief.HMAC_WRONG),
        (seal(RECEIPT, b"another key"), Disbelief.HMAC_WRONG),
    ],
)
def test_one_wrong_member_is_enough(receipt: CompletionReceipt, why: Disbelief) -> None:
    assert believed(receipt) is why


def test_a_receipt_of_a_key_that_never_was_is_not_believed() -> None:
    assert believed(secret=None) is Disbelief.KEY_UNKNOWN


@pytest.mark.run_scenario(41)
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"token_digest": None}, Disbelief.TOKEN_WRONG),
        ({"token_digest": ""}, Disbelief.TOKEN_WRONG),
        ({"token_digest": token_digest(TOKEN).upper()}, Disbelief.TOKEN_WRONG),
        ({"token_digest": token_digest(TOKEN)[:-1]}, Disbelief.TOKEN_WRONG),
        ({"boot_id": None}, Disbelief.OTHER_BOOT),
    ],
)
def test_an_attempt_that_was_never_started_has_no_receipt(
    changes: dict[str, Any], why: Disbelief
) -> None:
    assert believed(**changes) is why


@pytest.mark.run_scenario(40, 42, 51)
@pytest.mark.parametrize(
    ("stored", "terminal", "good"),
    [
        (0, False, True), (1, False, False), (2, False, False),
        (0, True, True), (1, True, True), (2, True, False),
    ],
)  # fmt: skip
def test_the_sequence_is_the_next_one_or_that_of_the_end(
    stored: int, terminal: bool, good: bool
) -> None:
    answer = believed(callback_sequence=stored, terminal=terminal)
    assert answer == (WHOLE if good else Disbelief.OTHER_SEQUENCE)


@pytest.mark.run_scenario(17, 129, 130)
@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ((WALL_MS, WALL_MS), (WALL_MS, WALL_MS)),
        ((STARTED_MS, NOW_MS), (STARTED_MS, NOW_MS)),
        ((WALL_MS - 1, FINISHED_MS), (WALL_MS, FINISHED_MS)),
        ((0, 5), (WALL_MS, WALL_MS)),
        ((STARTED_MS, STARTED_MS - 1), (STARTED_MS, STARTED_MS)),
        ((STARTED_MS, NOW_MS + 1), (STARTED_MS, NOW_MS)),
        ((NOW_MS + 1, NOW_MS + 2), (NOW_MS, NOW_MS)),
    ],
)
def test_times_out_of_order_are_clamped_and_flagged_never_refused(
    said: tuple[int, int], kept: tuple[int, int]
) -> None:
    receipt = sealed(started_at_ms=said[0], finished_at_ms=said[1])
    assert believed(receipt) == Believed(receipt, *kept, said != kept)


def test_a_clock_behind_the_attempt_itself_ends_it_when_it_began() -> None:
    answer = authenticate(RECEIPT, EXPECTED, SECRET, now_ms=5)
    assert answer == Believed(RECEIPT, WALL_MS, WALL_MS, clock_untrusted=True)


EXIT_0, EXIT_3, KILLED = RECEIPT, sealed(exit_code=3), sealed(exit_code=None, signal=9)


@pytest.mark.run_scenario(38, 39, 44, 46, 148, 149)
@pytest.mark.parametrize(
    ("receipt", "reason", "end"),
    [
        (EXIT_0, None, End(EndStatus.SUCCEEDED, None, 0, None)),
        (EXIT_3, None, End(EndStatus.FAILED, "EXECUTION_FAILED", 3, None)),
        (sealed(exit_code=125), None, End(EndStatus.FAILED, "EXECUTION_FAILED", 125, None)),
        (KILLED, None, End(EndStatus.FAILED, "EXECUTION_FAILED", None, 9)),
        (EXIT_0, "timeout", End(EndStatus.TIMED_OUT, "EXECUTION_TIMED_OUT", 0, None)),
        (KILLED, "timeout", End(EndStatus.TIMED_OUT, "EXECUTION_TIMED_OUT", None, 9)),
        (EXIT_0, "user", End(EndStatus.CANCELLED, "EXECUTION_CANCELLED", 0, None)),
        (EXIT_3, "policy", End(EndStatus.CANCELLED, "EXECUTION_CANCELLED", 3, None)),
        (KILLED, "shutdown", End(EndStatus.CANCELLED, "EXECUTION_CANCELLED", None, 9)),
    ],
)
def test_a_stored_cancel_intent_comes_before_every_exit(
    receipt: CompletionReceipt, reason: str | None, end: End
) -> None:
    assert end_of(receipt, reason) == end
