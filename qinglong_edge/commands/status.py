"""The commands that only look at the whole: `status`, `profile show`, `verify`, `handler list`."""

from qinglong_edge.actions.manifest import read_manifest
from qinglong_edge.commands.authority import require, require_or_owner
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.domain import profile
from qinglong_edge.domain.canonical import Fields, Json, JsonObject
from qinglong_edge.domain.errors import QinglongError, UsageError
from qinglong_edge.domain.tick import Trust

CONVERGING = 10
ATTENTION = 20


def status(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Show health, backlog, admission, clock and storage; pending approvals change nothing."""
    Fields(args, "status").done()
    require_or_owner(engine, caller, "project.read")
    backlog, now = engine.overview.backlog(), engine.overview.instant().now
    trusted, damage = now.trust is Trust.TRUSTED, engine.registry.damage
    reasons: list[Json] = [] if trusted else ["clock_untrusted"]
    if damage is not None:
        reasons.append(damage.code)
    health, code = "ok", 0
    if backlog.due or backlog.waiting or backlog.executing or backlog.recovery_due:
        health, code = "converging", CONVERGING
    if backlog.manual_required or reasons:
        health, code = "attention", ATTENTION
    facts = engine.facts
    body: JsonObject = {
        "health": health,
        "backlog": backlog._asdict(),
        "admission": {"open": not reasons, "reasons": reasons},
        "runs": {"live": 0},
        "clock": {
            "trusted": trusted,
            "wall_at_ms": now.reading.wall_ms,
            "deadline_at_ms": now.at_ms,
            "epoch": now.epoch,
        },
        "storage": {
            "journal": facts.journal,
            "file_system": facts.file_system,
            "volatile": facts.volatile,
            "bytes": engine.overview.bytes_on_disk(),
            "schema_version": facts.schema_version,
        },
        "profile": facts.policy.profile.value,
        "project_id": facts.project_id,
    }
    return Answer(body, code)


def verify(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Check database, references, rows, plan digests and manifest; exit 20 if a person is needed.

    The manifest is read anew: an owner that serves goes on with the one that it believed last.
    """
    Fields(args, "verify").done()
    require_or_owner(engine, caller, "project.read")
    found = engine.overview.problems()
    try:
        read_manifest(engine.facts.state_dir)
    except QinglongError as error:
        found.append({"row": None, "problem": error.code})
    return Answer({"ok": not found, "problems": found}, ATTENTION if found else 0)


def handlers(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """List every action type with how far it can be reached here."""
    Fields(args, "handlers").done()
    require(engine, caller, "project.read")
    return Answer({"items": engine.registry.describe(), "next_cursor": None})


def show_profile(args: JsonObject) -> Answer:
    """Show the resource policy of a local profile; needs no state."""
    fields = Fields(args, "profile")
    name = fields.take("name")
    fields.done()
    if not isinstance(name, str):
        raise UsageError("invalid_value", "profile: must be a name", {"field": "profile"})
    policy = profile.local_policy(profile.parse_profile(name))
    return Answer(
        {
            "profile": policy.profile.value,
            "interval_ms": policy.interval_ms,
            "initial_delay_ms": policy.initial_delay_ms,
            "stop_timeout_ms": policy.stop_ms,
            "recovery": policy.recovery._asdict(),
            "dispatch": policy.dispatch._asdict(),
        }
    )
