"""One prepared call of every port method, on one store that holds something for each of them."""

from collections.abc import Callable
from typing import NamedTuple

from qinglong_edge.domain.canonical import sha256_hex
from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.identity import Assurance, Principal
from qinglong_edge.domain.policy import BindRole, Role, Subject, SubjectType
from qinglong_edge.ports import effects, identities, repositories
from qinglong_edge.ports.identities import (
    AddIdentity,
    DisableIdentity,
    EnrolTotp,
    Factors,
    Identities,
    OpenSession,
    ResetUser,
)
from qinglong_edge.ports.repositories import Listing, TrustClock
from tests.contract.adapters import Ports, Repositories
from tests.contract.recovery_story import (
    claimed_effect,
    done_effect,
    evidence_of,
    observe_of,
    perform_of,
    person_of,
    publish_of,
    renew_scan_of,
    run_of,
    scan_of,
    scanned,
    started_effect,
    unknown,
    whole_of,
)
from tests.contract.story import (
    Story,
    cancel_of,
    changed,
    claim_of,
    complete_of,
    consume_of,
    decide_of,
    expire_of,
    propose_of,
    put_back_of,
    release_of,
    renew_of,
    start_of,
)
from tests.support.builders import ANA, BOB, BOT, EDGE, FENCE, HOUR_MS, LEASE_MS, PROJECT, at
from tests.support.store import CHEAP_HASH

EVE = Subject(SubjectType.USER, "eve")
ADA = Subject(SubjectType.AGENT, "ada")
TOKEN, OTHER_TOKEN, SESSION, OTHER_SESSION = (letter * 64 for letter in "abcd")


class Call(NamedTuple):
    """Hold one call; `writes` says whether it changes the prepared store."""

    run: Callable[[Ports], object]
    writes: bool


def prepare(made: Repositories) -> None:
    """Store one action, at least, in each state that a call below begins with; eve and ada.

    1 pending, 2 approved, 3 consumed, 4 and 5 leased, 6 executing, 7 without an answer, 8 scanned,
    11 published a task, 12 is leased and will run it, 13 is started and will publish another,
    14 ran it.
    """
    story = Story(made)
    story.proposed(1)
    story.approved(2)
    story.consumed(3)
    story.claimed(4, 5)
    story.started(6)
    unknown(story, 7)
    scanned(story, 8)
    done_effect(story, 11, publish_of(11))
    claimed_effect(story, 12, run_of(12, of=11))
    started_effect(story, 13, publish_of(13))
    done_effect(story, 14, run_of(14, of=11))
    known = story.ports.identities
    if known is not None:
        eve = AddIdentity(PROJECT, EVE, Role.VIEWER, CHEAP_HASH, None, "add-eve", EDGE)
        ada = AddIdentity(PROJECT, ADA, Role.OPERATOR, None, TOKEN, "add-ada", EDGE)
        assert isinstance(known.add(eve), Changed)
        assert isinstance(known.add(ada), Changed)
        assert isinstance(known.open_session(opening("ses-1", SESSION)), Changed)
        assert isinstance(factors_of(story.ports).enrol(enrolment_of(OLD_SECRET)), Changed)
    changed(story.ports.dispatches.renew(renew_of(5, 1)))


def opening(session_id: str, digest: str) -> OpenSession:
    return OpenSession(session_id, digest, EVE, Assurance.SINGLE_FACTOR, HOUR_MS, 1)


def of(ports: Ports) -> Identities:
    assert ports.identities is not None
    return ports.identities


def factors_of(ports: Ports) -> Factors:
    assert ports.factors is not None
    return ports.factors


def enrolment_of(secret: bytes) -> EnrolTotp:
    """Return what eve asks for; each secret has codes of its own."""
    digests = tuple(sha256_hex(secret + bytes([n])) for n in range(10))
    return EnrolTotp(PROJECT, EVE, secret, digests, STRONG_EVE)


SECRET, OLD_SECRET = b"s" * 20, b"o" * 20
STRONG_EVE = Principal(EVE, Assurance.MULTI_FACTOR, "ses-1", at(0).at_ms, at(0).tick)
STRONG_ANA = STRONG_EVE._replace(subject=ANA)
RESET = ResetUser(EVE, CHEAP_HASH, "reset-eve")
TRUST = TrustClock(PROJECT, ANA, FENCE)
BIND = BindRole(PROJECT, BOB, 1, Role.VIEWER, "bind-bob", EDGE)
ADD = AddIdentity(
    PROJECT, Subject(SubjectType.AGENT, "new"), Role.VIEWER, None, OTHER_TOKEN, "add-new", EDGE
)
DISABLE = DisableIdentity(PROJECT, EVE, "disable-eve", EDGE)

CALLS: dict[str, Call] = {
    "Approvals.propose": Call(lambda p: p.approvals.propose(propose_of(20)), writes=True),
    "Approvals.decide": Call(lambda p: p.approvals.decide(decide_of(1)), writes=True),
    "Approvals.consume": Call(lambda p: p.approvals.consume(consume_of(2)), writes=True),
    "Approvals.approve_and_consume": Call(
        lambda p: p.approvals.approve_and_consume(decide_of(1), consume_of(1)), writes=True
    ),
    "Approvals.cancel": Call(lambda p: p.approvals.cancel(cancel_of(4)), writes=True),
    "Approvals.find": Call(lambda p: p.approvals.find("dsp-3"), writes=False),
    "Approvals.plan": Call(lambda p: p.approvals.plan("apr-1"), writes=False),
    "Approvals.page": Call(lambda p: p.approvals.page(Listing(None, None, 9)).items, writes=False),
    "Dispatches.list_due": Call(lambda p: p.dispatches.list_due(None, 9).items, writes=False),
    "Dispatches.claim_page": Call(
        lambda p: p.dispatches.claim_page((claim_of(3),), start_of(3)), writes=True
    ),
    "Dispatches.start": Call(lambda p: p.dispatches.start(start_of(4)), writes=True),
    "Dispatches.renew": Call(lambda p: p.dispatches.renew(renew_of(6, 2)), writes=True),
    "Dispatches.release": Call(lambda p: p.dispatches.release(release_of(4)), writes=True),
    "Dispatches.put_back": Call(lambda p: p.dispatches.put_back((put_back_of(4),)), writes=True),
    "Dispatches.expire": Call(lambda p: p.dispatches.expire(expire_of(6)), writes=True),
    "Dispatches.complete": Call(
        lambda p: p.dispatches.complete(complete_of(6), start_of(4)), writes=True
    ),
    "Dispatches.settle_dead_owners": Call(
        lambda p: p.dispatches.settle_dead_owners("owner-2"), writes=True
    ),
    "Approvals.repeated_by": Call(lambda p: p.approvals.repeated_by("dsp-7"), writes=False),
    "Dispatches.start whole": Call(
        lambda p: p.dispatches.start(whole_of(12, run_of(12, of=11))), writes=True
    ),
    "Effects.perform": Call(
        lambda p: p.effects.perform(perform_of(13, publish_of(13))), writes=True
    ),
    "Effects.receipt": Call(lambda p: p.effects.receipt("dsp-14"), writes=False),
    "Tasks.find": Call(lambda p: p.tasks.find("task-11"), writes=False),
    "Tasks.find numbered": Call(lambda p: p.tasks.find("task-11", 1), writes=False),
    "Tasks.page": Call(lambda p: p.tasks.page(None, 9).items, writes=False),
    "Recoveries.claim": Call(lambda p: p.recoveries.claim(scan_of(7)), writes=True),
    "Recoveries.renew": Call(
        lambda p: p.recoveries.renew(renew_scan_of(8, lease_ms=2 * LEASE_MS)), writes=True
    ),
    "Recoveries.observe": Call(lambda p: p.recoveries.observe(observe_of(8)), writes=True),
    "Recoveries.resolve_by_evidence": Call(
        lambda p: p.recoveries.resolve_by_evidence(evidence_of(8)), writes=True
    ),
    "Recoveries.resolve_by_person": Call(
        lambda p: p.recoveries.resolve_by_person(person_of(7, STRONG_ANA)), writes=True
    ),
    "Recoveries.list_due": Call(lambda p: p.recoveries.list_due(None, 9).items, writes=False),
    "Policy.resolve": Call(lambda p: p.policy.resolve(PROJECT, BOT), writes=False),
    "Policy.bind": Call(lambda p: p.policy.bind(BIND), writes=True),
    "Overview.instant": Call(lambda p: p.overview.instant(), writes=False),
    "Overview.backlog": Call(lambda p: p.overview.backlog(), writes=False),
    "Overview.work_waits": Call(lambda p: p.overview.work_waits("owner-1"), writes=False),
    "Overview.problems": Call(lambda p: p.overview.problems(), writes=False),
    "Overview.bytes_on_disk": Call(lambda p: p.overview.bytes_on_disk() > 0, writes=False),
    "Identities.add": Call(lambda p: of(p).add(ADD), writes=True),
    "Identities.find": Call(lambda p: of(p).find(EVE), writes=False),
    "Identities.page": Call(lambda p: of(p).page(SubjectType.AGENT, None, 9).items, writes=False),
    "Identities.disable": Call(lambda p: of(p).disable(DISABLE), writes=True),
    "Identities.rotate": Call(lambda p: of(p).rotate(ADA, OTHER_TOKEN), writes=True),
    "Identities.by_token": Call(lambda p: of(p).by_token(TOKEN), writes=False),
    "Identities.open_session": Call(
        lambda p: of(p).open_session(opening("ses-2", OTHER_SESSION)), writes=True
    ),
    "Identities.session": Call(lambda p: of(p).session(SESSION), writes=False),
    "Identities.close_session": Call(lambda p: of(p).close_session(SESSION), writes=True),
    "Clock.trust": Call(lambda p: p.clock.trust(TRUST), writes=False),
    "Factors.enrol": Call(lambda p: factors_of(p).enrol(enrolment_of(SECRET)), writes=True),
    "Factors.reset": Call(lambda p: factors_of(p).reset(RESET), writes=True),
}
WRITES = sorted(name for name, call in CALLS.items() if call.writes)
READS = sorted(name for name, call in CALLS.items() if not call.writes)


def port_methods() -> set[str]:
    """List every method of every port of the store, from the Protocols themselves."""
    return {
        f"{name}.{member}"
        for module in (repositories, identities, effects)
        for name, port in vars(module).items()
        if getattr(port, "_is_protocol", False) and port.__module__ == module.__name__
        for member, value in vars(port).items()
        if callable(value) and not member.startswith("_")
    }
