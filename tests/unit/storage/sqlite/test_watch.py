"""A database that loses its name while it is open: nothing is committed into a hidden file."""

import os
from pathlib import Path

import pytest

from qinglong_edge.domain.errors import UnavailableError
from qinglong_edge.ports.probe import Step
from qinglong_edge.storage.sqlite import clockwork, database
from qinglong_edge.storage.sqlite.migrations import MANIFEST, migrate
from qinglong_edge.storage.sqlite.transaction import Database, Tx
from qinglong_edge.storage.sqlite.watch import Watch
from tests.support.clock import FakeClocks


@pytest.mark.adr("0004", "8")
@pytest.mark.parametrize("lost", ["removed", "moved", "replaced"])
def test_a_commit_into_a_file_without_its_name_is_refused(tmp_path: Path, lost: str) -> None:
    path = tmp_path / "state.db"
    clocks = FakeClocks()
    connection = database.create(str(path), "wal")
    assert migrate(connection, lambda _point: None) == len(MANIFEST)
    connection.execute("BEGIN IMMEDIATE")
    clockwork.create(connection, clocks.read())
    connection.execute("COMMIT")
    store = Database(connection, clocks, probe=lambda _point: None, still_there=Watch(str(path)))

    def add(tx: Tx) -> None:
        tx.run("INSERT INTO prune_permit VALUES (1)")

    def drop(tx: Tx) -> None:
        tx.run("DELETE FROM prune_permit")

    store.write(Step.IDENTITY, add)
    store.write(Step.IDENTITY, drop)
    if lost == "removed":
        path.unlink()
    else:
        os.rename(path, tmp_path / "elsewhere")
    if lost == "replaced":
        path.write_bytes(b"another file")
    commits = store.commits
    with pytest.raises(UnavailableError) as caught:
        store.write(Step.IDENTITY, add)
    assert caught.value.code == "store_vanished"
    assert store.commits == commits
    assert connection.execute("SELECT count(*) FROM prune_permit").fetchone()[0] == 0
    connection.close()
