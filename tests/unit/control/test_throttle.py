"""Failed logins make the next one of the same uid wait; nobody is ever locked out."""

import pytest

from qinglong_edge.control.throttle import DELAY_MS_MAX, DELAY_MS_MIN, UIDS_MAX, LoginThrottle
from qinglong_edge.domain.errors import UnavailableError
from tests.support.clock import FakeClocks


def wait_ms(throttle: LoginThrottle, uid: int) -> int:
    try:
        throttle.check(uid)
    except UnavailableError as error:
        left = error.details["wait_ms"]
        return left if isinstance(left, int) else -1
    return 0


def test_a_delay_says_that_repeating_helps() -> None:
    throttle = LoginThrottle(FakeClocks())
    throttle.failed(7)
    with pytest.raises(UnavailableError) as caught:
        throttle.check(7)
    assert (caught.value.code, caught.value.retryable) == ("login_delayed", True)


def test_each_failure_doubles_the_wait_up_to_half_a_minute() -> None:
    throttle = LoginThrottle(FakeClocks())
    waits = []
    for _ in range(10):
        throttle.failed(7)
        waits.append(wait_ms(throttle, 7))
    assert waits[:3] == [DELAY_MS_MIN, 2 * DELAY_MS_MIN, 4 * DELAY_MS_MIN]
    assert waits[-1] == DELAY_MS_MAX


def test_only_the_uid_that_failed_waits_and_only_for_a_while() -> None:
    clocks = FakeClocks()
    throttle = LoginThrottle(clocks)
    throttle.failed(7)
    assert wait_ms(throttle, 8) == 0
    clocks.advance(DELAY_MS_MIN - 1)
    assert wait_ms(throttle, 7) == 1
    clocks.advance(1)
    assert wait_ms(throttle, 7) == 0


def test_who_proves_itself_starts_afresh() -> None:
    throttle = LoginThrottle(FakeClocks())
    throttle.failed(7)
    throttle.failed(7)
    throttle.passed(7)
    throttle.failed(7)
    assert wait_ms(throttle, 7) == DELAY_MS_MIN


@pytest.mark.parametrize("more", [0, 1, 50])
def test_the_memory_is_bounded(more: int) -> None:
    throttle = LoginThrottle(FakeClocks())
    for uid in range(UIDS_MAX + more):
        throttle.failed(uid)
    delayed = [uid for uid in range(UIDS_MAX + more) if wait_ms(throttle, uid)]
    assert delayed == list(range(more, UIDS_MAX + more))
