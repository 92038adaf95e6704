"""Every command with what it needs from the state: the one list that all ways in share."""

import enum
from typing import NamedTuple

from qinglong_edge.commands import (
    actions,
    clock,
    factors,
    identities,
    recovery,
    sessions,
    status,
    tasks,
)
from qinglong_edge.commands.engine import Command


class Access(enum.Enum):
    """Name how a command opens the store."""

    LOOK = "look"
    WRITE = "write"


class Entry(NamedTuple):
    """Hold one command; an `offline` one is for whoever owns the state, never through a socket."""

    run: Command
    access: Access
    offline: bool = False


TABLE = {
    "action.propose": Entry(actions.propose, Access.WRITE),
    "action.list": Entry(actions.list_, Access.LOOK),
    "action.show": Entry(actions.show, Access.LOOK),
    "action.logs": Entry(actions.logs, Access.LOOK),
    "action.approve": Entry(actions.approve, Access.WRITE),
    "action.reject": Entry(actions.reject, Access.WRITE),
    "action.dispatch": Entry(actions.dispatch, Access.WRITE),
    "action.cancel": Entry(actions.cancel, Access.WRITE),
    "agent.add": Entry(identities.add_agent, Access.WRITE),
    "agent.list": Entry(identities.list_agents, Access.LOOK),
    "agent.rotate": Entry(identities.rotate_agent, Access.WRITE),
    "agent.disable": Entry(identities.disable_agent, Access.WRITE),
    "user.add": Entry(identities.add_user, Access.WRITE),
    "user.list": Entry(identities.list_users, Access.LOOK),
    "user.disable": Entry(identities.disable_user, Access.WRITE),
    "user.totp": Entry(factors.enrol_totp, Access.WRITE),
    "user.reset": Entry(factors.reset_user, Access.WRITE, offline=True),
    "clock.trust": Entry(clock.trust, Access.WRITE),
    "role.bind": Entry(identities.bind_role, Access.WRITE),
    "role.revoke": Entry(identities.revoke_role, Access.WRITE),
    "login": Entry(sessions.login, Access.WRITE),
    "logout": Entry(sessions.logout, Access.WRITE),
    "recovery.list": Entry(recovery.list_, Access.LOOK),
    "recovery.show": Entry(recovery.show, Access.LOOK),
    "recovery.resolve": Entry(recovery.resolve, Access.WRITE),
    "handler.list": Entry(status.handlers, Access.LOOK),
    "task.list": Entry(tasks.list_, Access.LOOK),
    "task.show": Entry(tasks.show, Access.LOOK),
    "status": Entry(status.status, Access.LOOK),
    "verify": Entry(status.verify, Access.LOOK),
}
