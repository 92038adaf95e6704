import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.identity import (
    SESSIONS_MAX,
    STRONG,
    Assurance,
    Identity,
    IdentityRefusal,
    IdentityState,
    PasswordHash,
    Principal,
    Session,
    disable,
    is_strong,
    new_identity,
    new_session,
    reset,
    rotate,
    session_active,
    sessions_to_drop,
)
from qinglong_edge.domain.policy import Subject, SubjectType
from qinglong_edge.domain.tick import Now
from tests.support.builders import ANA, BOB, BOT, EDGE, HOUR_MS, at, tick
from tests.support.clock import WALL_MS

LIMIT_MS = limits.STRONG_AUTHENTICATION_AGE_MS_MAX
SESSION = Session(
    "ses-1", "0" * 64, ANA, Assurance.MULTI_FACTOR, WALL_MS, tick(0), WALL_MS + HOUR_MS
)
PRINCIPAL = Principal(ANA, Assurance.MULTI_FACTOR, "ses-1", WALL_MS, tick(0))


@pytest.mark.scenario(170)
@pytest.mark.parametrize(
    ("now", "active"),
    [
        (at(0), True),
        (at(HOUR_MS - 1), True),
        (at(HOUR_MS), False),
        (at(HOUR_MS + 1), False),
        (at(-1), False),
        (at(1, wall_ms=WALL_MS + HOUR_MS - 1), True),
        (at(1, wall_ms=WALL_MS + HOUR_MS), False),
        (at(HOUR_MS - 1, wall_ms=WALL_MS + 1), True),
        (at(HOUR_MS, wall_ms=WALL_MS + 1), False),
        (at(1, wall_ms=WALL_MS - 1), False),
        (at(-1, wall_ms=WALL_MS), False),
        (at(1, epoch=2), False),
    ],
)
def test_a_session_holds_while_both_clocks_say_so(now: Now, *, active: bool) -> None:
    """Both times, at their ends: at the start it holds, at exactly its end it does not."""
    assert session_active(SESSION, now) is active


@pytest.mark.scenario(171)
@pytest.mark.parametrize("assurance", sorted(STRONG))
def test_strong_is_more_than_one_factor(assurance: Assurance) -> None:
    assert is_strong(PRINCIPAL._replace(assurance=assurance), at(LIMIT_MS))


@pytest.mark.scenario(169, 170)
@pytest.mark.adr("0006", "6")
@pytest.mark.parametrize("assurance", sorted(set(Assurance) - STRONG))
def test_one_factor_and_services_are_not_strong(assurance: Assurance) -> None:
    assert not is_strong(PRINCIPAL._replace(assurance=assurance), at(0))


def test_the_strong_assurances_are_three() -> None:
    assert {Assurance.MULTI_FACTOR, Assurance.HARDWARE, Assurance.LOCAL_CONSOLE} == STRONG


@pytest.mark.scenario(171)
@pytest.mark.adr("0006", "6")
@pytest.mark.parametrize(
    "now", [at(0), at(LIMIT_MS), at(1, wall_ms=WALL_MS + LIMIT_MS), at(LIMIT_MS, wall_ms=WALL_MS)]
)
def test_five_minutes_are_recent(now: Now) -> None:
    assert is_strong(PRINCIPAL, now)


@pytest.mark.scenario(169, 170)
@pytest.mark.adr("0006", "6")
@pytest.mark.parametrize(
    "now",
    [
        at(LIMIT_MS + 1),
        at(1, wall_ms=WALL_MS + LIMIT_MS + 1),
        at(LIMIT_MS + 1, wall_ms=WALL_MS),
        at(0, epoch=2),
    ],
)
def test_one_millisecond_more_on_either_clock_is_not_recent(now: Now) -> None:
    assert not is_strong(PRINCIPAL, now)


@pytest.mark.scenario(170)
@pytest.mark.parametrize(
    "now", [at(-1), at(1, wall_ms=WALL_MS - 1), at(-1, wall_ms=WALL_MS), at(0, wall_ms=0)]
)
def test_a_proof_from_the_future_is_no_proof(now: Now) -> None:
    """Contract 10.1: a principal is active from its authentication on, on both clocks."""
    assert not is_strong(PRINCIPAL, now)


PASSWORD = PasswordHash("scrypt:15:8:1", b"salt", b"value")
TOKEN, OTHER_TOKEN = "a" * 64, "b" * 64
USER = Identity(ANA, IdentityState.ACTIVE, 1, PASSWORD, None, WALL_MS, WALL_MS)
AGENT = Identity(BOT, IdentityState.ACTIVE, 1, None, TOKEN, WALL_MS, WALL_MS)


def test_a_user_is_born_with_a_password_and_an_agent_with_a_token() -> None:
    assert new_identity(ANA, password=PASSWORD, token_digest=None, now=at(0)) == USER
    assert new_identity(BOT, password=None, token_digest=TOKEN, now=at(0)) == AGENT


@pytest.mark.parametrize(
    ("subject", "password", "token"),
    [
        (ANA, None, None),
        (ANA, None, TOKEN),
        (ANA, PASSWORD, TOKEN),
        (BOT, PASSWORD, None),
        (BOT, None, None),
        (BOT, PASSWORD, TOKEN),
        (BOT, None, "A" * 64),
        (BOT, None, "a" * 63),
        (EDGE, PASSWORD, None),
        (EDGE, None, TOKEN),
        (Subject(SubjectType.USER, "-ana"), PASSWORD, None),
        (Subject(SubjectType.USER, "a" * 65), PASSWORD, None),
        (Subject(SubjectType.AGENT, "a\n"), None, TOKEN),
    ],
)
def test_no_other_identity_is_born(
    subject: Subject, password: PasswordHash | None, token: str | None
) -> None:
    with pytest.raises(UsageError):
        new_identity(subject, password=password, token_digest=token, now=at(0))


@pytest.mark.parametrize("identity", [USER, AGENT])
@pytest.mark.parametrize("ms", [-5, 7])
def test_an_identity_is_disabled_once_and_for_good(identity: Identity, ms: int) -> None:
    after = identity._replace(
        state=IdentityState.DISABLED, version=2, updated_at_ms=WALL_MS + max(0, ms)
    )
    assert disable(identity, at(ms)) == Changed(after)
    assert disable(after, at(9)) is IdentityRefusal.ALREADY_DISABLED


def test_an_agent_gets_another_token_and_the_token_tells_a_replay() -> None:
    after = AGENT._replace(token_digest=OTHER_TOKEN, version=2, updated_at_ms=WALL_MS + 7)
    assert rotate(AGENT, OTHER_TOKEN, at(7)) == Changed(after)
    assert rotate(after, OTHER_TOKEN, at(9)) == Replayed(after)


@pytest.mark.parametrize(
    ("identity", "refusal"),
    [
        (USER, IdentityRefusal.NOT_FOUND),
        (AGENT._replace(state=IdentityState.DISABLED), IdentityRefusal.ALREADY_DISABLED),
    ],
)
def test_only_an_active_agent_has_a_token_to_change(
    identity: Identity, refusal: IdentityRefusal
) -> None:
    for token in (TOKEN, OTHER_TOKEN):
        assert rotate(identity, token, at(7)) is refusal


def test_a_user_gets_another_password_and_a_new_version() -> None:
    other = PASSWORD._replace(value=b"other")
    after = USER._replace(password=other, version=2, updated_at_ms=WALL_MS + 7)
    assert reset(USER, other, at(7)) == Changed(after)


@pytest.mark.parametrize(
    ("identity", "refusal"),
    [
        (AGENT, IdentityRefusal.NOT_FOUND),
        (USER._replace(state=IdentityState.DISABLED), IdentityRefusal.ALREADY_DISABLED),
    ],
)
def test_only_an_active_user_has_a_password_to_change(
    identity: Identity, refusal: IdentityRefusal
) -> None:
    assert reset(identity, PASSWORD, at(7)) is refusal


LATER = SESSION._replace(
    authenticated_at_ms=WALL_MS + 9, authenticated_tick=tick(9), expires_at_ms=WALL_MS + 9 + HOUR_MS
)


@pytest.mark.parametrize(
    ("taken", "now", "answer"),
    [
        ([], at(9), Changed(LATER)),
        ([SESSION], at(9), Replayed(SESSION)),
        ([SESSION], at(HOUR_MS), Changed(LATER)),
        ([SESSION._replace(session_id="ses-2")], at(9), IdentityRefusal.SESSION_TAKEN),
        ([SESSION._replace(token_digest=TOKEN)], at(9), IdentityRefusal.SESSION_TAKEN),
        ([SESSION._replace(subject=BOB)], at(9), IdentityRefusal.SESSION_TAKEN),
        ([SESSION._replace(subject=BOB)], at(HOUR_MS), IdentityRefusal.SESSION_TAKEN),
        (
            [SESSION._replace(assurance=Assurance.SINGLE_FACTOR)],
            at(9),
            IdentityRefusal.SESSION_TAKEN,
        ),
    ],
)
def test_a_session_asked_for_again_replays_while_it_holds(
    taken: list[Session], now: Now, answer: Changed[Session] | Replayed[Session] | IdentityRefusal
) -> None:
    assert new_session(LATER, taken, now) == answer


def sessions(count: int) -> list[Session]:
    """Return sessions a minute apart, the newest first."""
    return [
        SESSION._replace(
            session_id=f"ses-{n:02}",
            authenticated_at_ms=WALL_MS + n,
            authenticated_tick=tick(n),
            expires_at_ms=WALL_MS + n + HOUR_MS,
        )
        for n in reversed(range(count))
    ]


@pytest.mark.parametrize(
    ("count", "ms", "dropped"),
    [
        (0, 99, 0),
        (SESSIONS_MAX - 1, 99, 0),
        (SESSIONS_MAX, 99, 1),
        (SESSIONS_MAX + 3, 99, 4),
        (3, HOUR_MS + 1, 2),
        (3, HOUR_MS + 2, 3),
        (SESSIONS_MAX + 2, HOUR_MS + 1, 3),
        (SESSIONS_MAX + 2, HOUR_MS * 2, SESSIONS_MAX + 2),
    ],
)
def test_ended_sessions_and_then_the_oldest_make_room(count: int, ms: int, dropped: int) -> None:
    known = sessions(count)
    gone = sessions_to_drop(known, at(ms))
    assert [each.session_id for each in gone] == [f"ses-{n:02}" for n in range(dropped)]


def test_an_ended_session_makes_room_before_an_older_one_that_holds() -> None:
    newest, *others = sessions(SESSIONS_MAX)
    ended = newest._replace(expires_at_ms=newest.authenticated_at_ms + 1)
    assert sessions_to_drop([ended, *others], at(99)) == [ended]
