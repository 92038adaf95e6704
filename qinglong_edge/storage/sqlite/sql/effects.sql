-- name: add_receipt
-- What an action on this database left, in the commit of its effect.
INSERT INTO action_receipts (action, resource_type, resource_id, body, evidence_digest)
VALUES (:action, :resource_type, :resource_id, :body, :evidence_digest)

-- name: receipt_of_action
-- The receipt of an action.
SELECT resource_type, resource_id, body, evidence_digest FROM action_receipts
WHERE action = :action

-- name: receipt_of_resource
-- Whether something was made under this name before.
SELECT action FROM action_receipts
WHERE resource_type = :resource_type AND resource_id = :resource_id

-- name: revision
-- One revision of a task with the dispatch that published it.
SELECT t.key, t.task_id, p.project_id, t.number, t.name, t.body, t.digest, a.dispatch_id,
  t.created_at_ms
FROM task_revisions t JOIN projects p ON p.key = t.project JOIN actions a ON a.key = t.action

-- name: newest_revision
-- The revision that a new run of a task is pinned to.
{revision} WHERE t.project = (SELECT project FROM meta) AND t.task_id = :task_id
ORDER BY t.number DESC LIMIT 1

-- name: numbered_revision
-- One revision of a task.
{revision} WHERE t.project = (SELECT project FROM meta) AND t.task_id = :task_id
  AND t.number = :number

-- name: revision_of_action
-- What an action published.
{revision} WHERE t.action = :action

-- name: list_tasks
-- The newest revision of each task; the key of its first one orders the pages.
SELECT f.key AS first_key, t.key, t.task_id, p.project_id, t.number, t.name, t.body, t.digest,
  a.dispatch_id, t.created_at_ms
FROM task_revisions f INDEXED BY task_revisions_first
  CROSS JOIN task_revisions t ON t.project = f.project AND t.task_id = f.task_id
  AND t.number = (SELECT max(n.number) FROM task_revisions n
    WHERE n.project = f.project AND n.task_id = f.task_id)
  JOIN projects p ON p.key = t.project JOIN actions a ON a.key = t.action
WHERE f.number = 1 AND f.key > :after_key ORDER BY f.key LIMIT :limit

-- name: project_key
-- The store's own number of a project.
SELECT key FROM projects WHERE project_id = :project_id

-- name: add_revision
-- The next revision of a task; never changed afterwards.
INSERT INTO task_revisions (project, task_id, number, name, body, digest, action, created_at_ms)
VALUES (:project, :task_id, :number, :name, :body, :digest, :action, :created_at_ms)

-- name: run_of_key
-- The run that stands under a dispatch's idempotency key, whoever made it.
SELECT r.key, r.run_id, p.project_id, r.task_id, r.task_revision, r.task_name, r.priority,
  r.trigger_type, r.execution_origin, r.execution_owner, r.triggered_by, r.request_id,
  r.idempotency_key, r.status, r.version, r.event_sequence, r.created_at_ms, r.queued_at_ms
FROM runs r JOIN projects p ON p.key = r.project
WHERE p.project_id = :project_id AND r.idempotency_key = :idempotency_key

-- name: latest_attempt
-- The latest attempt of a run.
SELECT attempt_id, number, status, executor_type, callback_sequence, created_at_ms
FROM run_attempts WHERE run = :run ORDER BY number DESC LIMIT 1

-- name: add_run
-- A run as it was admitted: queued, with both events counted.
INSERT INTO runs (run_id, project, task_id, task_revision, task_name, priority, trigger_type,
  execution_origin, execution_owner, triggered_by, request_id, idempotency_key, status, version,
  event_sequence, created_at_ms, queued_at_ms)
VALUES (:run_id, :project, :task_id, :task_revision, :task_name, :priority, :trigger_type,
  :execution_origin, :execution_owner, :triggered_by, :request_id, :idempotency_key, :status,
  :version, :event_sequence, :created_at_ms, :queued_at_ms)

-- name: add_attempt
-- The first attempt of a run.
INSERT INTO run_attempts (attempt_id, run, number, status, executor_type, callback_sequence,
  created_at_ms)
VALUES (:attempt_id, :run, :number, :status, :executor_type, :callback_sequence, :created_at_ms)

-- name: add_event
-- One event of a run.
INSERT INTO run_events (run, sequence, event_id, type, dedupe_key, actor_type, actor_id, payload,
  created_at_ms)
VALUES (:run, :sequence, :event_id, :type, :dedupe_key, :actor_type, :actor_id, :payload,
  :created_at_ms)
