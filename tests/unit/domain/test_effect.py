"""The effect of an action on this database is exactly what was approved."""

import pytest

from qinglong_edge.domain.action import ACTION_TYPES, Capability, bind, plan_body, plan_from_body
from qinglong_edge.domain.effect import CreateRun, Effect, PublishTask, plan_of
from qinglong_edge.domain.receipt import WORDS
from qinglong_edge.domain.run import RunIds, RunPlan, run_plan
from qinglong_edge.domain.task import parse_task
from tests.support.builders import PREVIEW, PROJECT

TASK = parse_task(
    {"schema_version": 1, "task_id": "t", "name": "T", "argv": ["x"], "env": {"B": "", "A": ""}},
    "task",
)
CREATE = CreateRun(RunPlan("t", "r1", "T", 0), RunIds("run-1", "att-1", "ev-1", "ev-2"))
EFFECTS: list[tuple[Effect, str]] = [(PublishTask(TASK), "task.publish"), (CREATE, "run.create")]


@pytest.mark.scenario(197)
@pytest.mark.parametrize(("effect", "name"), EFFECTS)
def test_the_plan_of_an_effect_survives_its_stored_bytes(effect: Effect, name: str) -> None:
    """So that the digest, computed again behind the barrier, is the one that was approved."""
    plan = plan_of(effect, PROJECT)
    stored = plan_from_body(plan_body(plan))
    assert (stored.action_type, stored.project_id, stored.files) == (name, PROJECT, ())
    assert bind(stored, "x", PREVIEW) == bind(plan, "x", PREVIEW)
    if isinstance(effect, PublishTask):
        assert PublishTask(parse_task(stored.params, "plan.params")) == effect
    else:
        assert run_plan(stored) == effect.plan


@pytest.mark.adr("0033", "4.3")
@pytest.mark.parametrize(("effect", "name"), EFFECTS)
def test_every_effect_on_this_database_leaves_a_receipt(effect: Effect, name: str) -> None:
    assert plan_of(effect, PROJECT).action_type == name
    assert ACTION_TYPES[name].capability is Capability.AUTOMATIC
    assert name in WORDS


@pytest.mark.scenario(184)
def test_a_run_is_bound_by_its_task_and_a_task_by_its_digest() -> None:
    run, task = (bind(plan_of(effect, PROJECT), "x", PREVIEW) for effect in (CREATE, EFFECTS[0][0]))
    assert run.action_ref == "task:t"
    assert task.action_ref == task.action_digest
