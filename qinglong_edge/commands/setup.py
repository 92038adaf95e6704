"""Make a state, once: `init` and `migrate`. They own the state themselves and never use a socket.

Everything is checked before anything is created. The database is built whole under another name
and then linked: a `state.db` is always a finished one. Whatever was interrupted before the link is
begun anew by the same call; whatever comes after it is compared with what `init` recorded.
"""

import os
import sqlite3
from typing import cast

from qinglong_edge.actions.manifest import Manifest, write_manifest
from qinglong_edge.commands.engine import Answer
from qinglong_edge.domain import ids, profile
from qinglong_edge.domain.action import ACTION_TYPES
from qinglong_edge.domain.canonical import Fields, Json, JsonObject
from qinglong_edge.domain.errors import DamagedError, RefusedError, UnavailableError
from qinglong_edge.executor.passwords import check_password, hash_password
from qinglong_edge.ports.ambient import Clocks, Entropy
from qinglong_edge.ports.probe import Probe
from qinglong_edge.storage import filesystem
from qinglong_edge.storage.sqlite import custody, database, epoch_file, meta, migrations
from qinglong_edge.storage.sqlite.meta import Meta
from qinglong_edge.storage.sqlite.owner import OwnerLock

DEFAULT_PROJECT = "default"
_NEW = ".new"


class Initialiser:
    """Carry out `init` on one directory."""

    def __init__(self, state_dir: str, clocks: Clocks, entropy: Entropy, probe: Probe) -> None:
        """Take where the state shall be; nothing is touched yet."""
        self._state_dir = state_dir
        self._clocks = clocks
        self._entropy = entropy
        self._probe = probe

    def run(self, args: JsonObject) -> Answer:
        """Create the state, finish an interrupted creation, or confirm an identical one."""
        asked, password = _parse(args)
        path = os.path.join(self._state_dir, database.DATABASE)
        database.check_path(path + _NEW)
        found = filesystem.describe(self._state_dir)
        filesystem.require_durable(found, allow_volatile=asked.volatile)
        _make_directory(self._state_dir)
        custody.become_owner(self._state_dir)
        with OwnerLock.acquire(self._state_dir, clocks=self._clocks):
            _sweep(self._state_dir)
            recorded = _recorded(path)
            if recorded is not None:
                return self._answer(recorded, asked)
            filesystem.check_links(self._state_dir, self._entropy)
            journal = database.probe_journal(self._state_dir, self._entropy)
            write_manifest(self._state_dir, Manifest(asked.enable))
            wanted = asked._replace(
                state_id=self._entropy(16).hex(), journal=journal, file_system=found.type
            )
            made = self._build(path + _NEW, wanted, password)
            _publish(path + _NEW, path)
            epoch_file.write(self._state_dir, 1)
        return _body(self._state_dir, made, created=True)

    def _build(self, path: str, wanted: Meta, password: str) -> Meta:
        """Make the whole database under another name and close it; nobody opens it there."""
        journal = cast("database.Journal", wanted.journal)
        connection = database.create(path, journal)
        try:
            migrations.migrate(connection, self._probe)
            hashed = hash_password(password, self._entropy, clocks=self._clocks)
            reading = self._clocks.read()
            return meta.create(connection, wanted, hashed, reading=reading, probe=self._probe)
        finally:
            connection.close()

    def _answer(self, recorded: Meta, asked: Meta) -> Answer:
        same = asked._replace(
            state_id=recorded.state_id,
            volatile=recorded.volatile,
            journal=recorded.journal,
            file_system=recorded.file_system,
            created_at_ms=recorded.created_at_ms,
        )
        if same != recorded:
            raise RefusedError(
                "already_initialised",
                "this state was made with other choices",
                {"owner": recorded.owner, "profile": recorded.profile},
            )
        return _body(self._state_dir, recorded, created=False)


def _recorded(path: str) -> Meta | None:
    """Return what a finished init recorded; None where there was none.

    A database that is gone is never made anew: what it left behind would speak for the new one.
    """
    if not os.path.lexists(path):
        if database.left_behind(path) or epoch_file.read(os.path.dirname(path)) is not None:
            raise DamagedError(
                "store_missing", "the database of this state is gone; start in another directory"
            )
        return None
    opened = database.look(path)
    try:
        migrations.check(opened.connection)
        recorded = meta.read(opened.connection)
    finally:
        opened.connection.close()
    if recorded is None:
        raise DamagedError("store_damaged", "the database has lost what init recorded")
    return recorded


def _sweep(state_dir: str) -> None:
    """Remove what an interrupted init left: its unfinished database, its probes, a second name."""
    new = database.DATABASE + _NEW
    try:
        names = os.listdir(state_dir)
        left = [name for name in names if name.startswith((new, filesystem.PROBE_PREFIX))]
        for name in left:
            os.unlink(os.path.join(state_dir, name))
        if left:
            _sync(state_dir)
    except OSError as error:
        raise UnavailableError("state_unwritable", "the state cannot be made there") from error


def _publish(built: str, path: str) -> None:
    """Give the finished database its name, durably: the end of init."""
    try:
        # The state exists from this line on. A link never overwrites: two inits cannot both win.
        os.link(built, path)
        os.unlink(built)
        _sync(os.path.dirname(path))
    except OSError as error:
        raise UnavailableError("state_unwritable", "the state cannot be made there") from error


def _parse(args: JsonObject) -> tuple[Meta, str]:
    fields = Fields(args, "init")
    owner = ids.check_ident(fields.take("owner"), "owner")
    password = check_password(fields.take("password"))
    name, project = fields.take("profile"), fields.take("project")
    enable, volatile = fields.take("enable"), fields.take("volatile")
    fields.done()
    if name is not None and not isinstance(name, str):
        raise ids.invalid("profile", "must be a name")
    policy = profile.local_policy(profile.parse_profile(name))
    project_id = ids.check_slug(DEFAULT_PROJECT if project is None else project, "project")
    if not isinstance(enable, list) or not isinstance(volatile, bool):
        raise ids.invalid("enable", "must be a list of action types")
    for word in enable:
        if word not in ACTION_TYPES:
            raise ids.invalid("enable", "must be one of " + ", ".join(ACTION_TYPES))
    types = tuple(sorted({str(word) for word in enable}))
    asked = Meta("", project_id, policy.profile.value, owner, types, volatile, "", "", 0)
    return asked, password


def _make_directory(state_dir: str) -> None:
    try:
        os.makedirs(os.path.dirname(os.path.abspath(state_dir)), exist_ok=True)
        os.mkdir(state_dir, 0o700)
        os.chmod(state_dir, 0o700)
        _sync(os.path.dirname(os.path.abspath(state_dir)))
    except FileExistsError:
        return
    except OSError as error:
        raise UnavailableError("state_unwritable", "the state cannot be made there") from error


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _body(state_dir: str, made: Meta, *, created: bool) -> Answer:
    body: dict[str, Json] = {
        "state": state_dir,
        "profile": made.profile,
        "project_id": made.project_id,
        "owner": made.owner,
        "schema_version": len(migrations.MANIFEST),
        "created": created,
    }
    return Answer(body)


def migrate(connection: sqlite3.Connection, probe: Probe) -> Answer:
    """Run the migrations that are missing on a store opened for writing."""
    applied = migrations.migrate(connection, probe)
    return Answer({"schema_version": migrations.version(connection), "applied": applied})
