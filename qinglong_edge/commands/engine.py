"""What a command works with: the ports of one open store, and who is calling.

A command is a function `(engine, caller, args) -> Answer`. Its arguments are plain JSON, so the
same function answers whether the command line owns the state itself or an owner answers for it. No
command opens a path that its arguments name.
"""

from collections.abc import Callable
from typing import NamedTuple

from qinglong_edge.actions.registry import Registry
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.profile import ResourcePolicy
from qinglong_edge.ports.ambient import Clocks, Entropy
from qinglong_edge.ports.effects import Tasks
from qinglong_edge.ports.identities import Factors, Identities
from qinglong_edge.ports.passwords import Passwords
from qinglong_edge.ports.probe import Probe
from qinglong_edge.ports.repositories import (
    Approvals,
    Clock,
    Dispatches,
    Overview,
    Policy,
    Recoveries,
)


class StateFacts(NamedTuple):
    """Hold what init recorded about this state."""

    state_dir: str
    state_id: str
    project_id: str
    policy: ResourcePolicy
    owner: str
    enable: tuple[str, ...]
    volatile: bool
    journal: str
    file_system: str
    schema_version: int
    created_at_ms: int


class Engine(NamedTuple):
    """Hold one open store and everything a command may ask."""

    facts: StateFacts
    approvals: Approvals
    dispatches: Dispatches
    recoveries: Recoveries
    policy: Policy
    identities: Identities
    factors: Factors
    tasks: Tasks
    clock: Clock
    overview: Overview
    registry: Registry
    passwords: Passwords
    clocks: Clocks
    entropy: Entropy
    probe: Probe
    read_log: Callable[[str], tuple[bytes, bool]]


class Caller(NamedTuple):
    """Hold what the caller showed: a session token, an agent token, or only its uid."""

    session_token: str | None
    agent_token: str | None
    is_state_owner: bool


class Answer(NamedTuple):
    """Hold the one JSON object that a command prints, and its exit code."""

    body: JsonObject
    exit_code: int = 0


Command = Callable[[Engine, Caller, JsonObject], Answer]
