"""Tasks in pages: the first published first, each with its newest revision."""

import pytest

from qinglong_edge.domain.effect import PublishTask
from qinglong_edge.domain.paging import Cursor, advances
from tests.contract.adapters import Repositories
from tests.contract.recovery_story import done_effect, publish_of, task_of
from tests.contract.story import Story


def published(story: Story) -> None:
    """Publish task-4, task-1 and task-3, then another revision of task-4 and two of task-1."""
    for n in (4, 1, 3):
        done_effect(story, n, publish_of(n))
    for action, n in ((11, 4), (12, 1), (13, 1)):
        done_effect(story, action, PublishTask(task_of(n, name=f"Anew {action}")))


@pytest.mark.parametrize(("limit", "pages"), [(1, 3), (2, 2), (3, 1), (64, 1)])
def test_tasks_are_listed_once_each_with_what_is_newest(
    story: Story, repositories: Repositories, limit: int, pages: int
) -> None:
    published(story)
    tasks, seen, after = repositories.second_session().tasks, [], None
    for _ in range(pages):
        page = tasks.page(after, limit)
        assert (len(page.items) <= limit, page.damaged) == (True, 0)
        assert page.cursor is None or advances(after, page.cursor)
        seen += [(each.task_id, each.number, each.name) for each in page.items]
        after = page.cursor
    assert after is None
    assert seen == [("task-4", 2, "Anew 11"), ("task-1", 3, "Anew 13"), ("task-3", 1, "Task 3")]


def test_a_page_of_no_tasks_is_empty(story: Story) -> None:
    page = story.ports.tasks.page(None, 64)
    assert (page.items, page.cursor, page.damaged) == ([], None, 0)
    story.started(1)
    assert story.ports.tasks.page(Cursor(0, 0), 64).items == []
