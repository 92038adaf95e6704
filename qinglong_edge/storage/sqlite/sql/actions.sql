-- name: record
-- One action whole: approval and dispatch, execution and control.
SELECT a.key, p.project_id, a.approval_request_id, a.version, a.state, a.permission, a.action_type,
  a.action_ref, a.action_digest, a.preview_digest, a.risk, a.requested_by, a.requested_at_ms,
  a.expires_at_ms, a.repeats, a.decision_id, a.approved, a.decision_reason, a.decided_by,
  a.decided_at_ms, a.consumption_id, a.dispatch_id, a.consumed_by, a.consumed_at_ms,
  a.fence_project_version, a.fence_binding_version, a.cancel_id, a.cancelled_by, a.cancelled_at_ms,
  e.status, e.version AS execution_version, e.attempt_count, e.max_attempts, e.eligible_tick,
  e.lease_owner, e.lease_token, e.lease_from_tick, e.lease_expires_tick, e.started_at_ms,
  e.result_mutation_id, e.last_result_code, e.completed_at_ms, e.created_at_ms, e.updated_at_ms,
  e.control_status, e.control_version, e.next_scan_tick, e.scan_owner, e.scan_token,
  e.scan_from_tick, e.scan_expires_tick, e.finding_count, e.finding_mutation_id, e.finding,
  e.finding_code, e.evidence_digest, e.control_updated_at_ms,
  r.execution_version AS settled_version, r.mutation_id AS settled_id, r.source, r.decision,
  r.evidence_digest AS settled_digest, r.reason_code, r.resolved_by, r.resolved_at_ms, r.unprobed
FROM actions a JOIN projects p ON p.key = a.project LEFT JOIN executions e ON e.action = a.key
  LEFT JOIN resolutions r ON r.action = a.key

-- name: record_of_id
-- The action that an approval id or a dispatch id names.
{record} WHERE a.key = (SELECT action FROM ids WHERE id = :id AND kind IN ('approval', 'dispatch'))

-- name: owner_of_id
-- Which action drew this id, and as what.
SELECT kind, action FROM ids WHERE id = :id

-- name: lost_resolutions
-- Ids of resolutions that are not there any more, for `verify`: one look at the whole tree.
SELECT i.action FROM ids i LEFT JOIN resolutions r ON r.action = i.action AND r.mutation_id = i.id
WHERE i.kind = 'resolution' AND r.action IS NULL LIMIT :limit

-- name: add_id
-- An id is taken for ever.
INSERT INTO ids (id, kind, action) VALUES (:id, :kind, :action)

-- name: policy_fence
-- The versions that prove under which policy a subject stands.
SELECT p.key, p.version, (SELECT max(b.version) FROM role_bindings b
  WHERE b.project = p.key AND b.subject = :subject) AS binding_version
FROM projects p WHERE p.project_id = :project_id

-- name: count_open
-- Open approvals of a project; at most a few hundred by the bound they feed.
SELECT count(*) AS in_project, coalesce(sum(requested_by = :requested_by), 0) AS by_requester
FROM actions INDEXED BY actions_open
WHERE project = :project AND state IN ('pending', 'approved') AND expires_at_ms > :at_ms

-- name: unknown_outcomes
-- Dispatches past their barrier whose outcome nobody knows and that carry this digest: not yet
-- settled, in the manual queue, or ended as blocked by an answer that did not know itself.
SELECT a.dispatch_id FROM executions e INDEXED BY executions_scan
CROSS JOIN actions a ON a.key = e.action
WHERE e.next_scan_tick IS NOT NULL AND e.lease_expires_tick <= :tick
  AND a.action_digest = :action_digest
UNION ALL
SELECT a.dispatch_id FROM executions e INDEXED BY executions_manual
CROSS JOIN actions a ON a.key = e.action
WHERE e.control_status = 'manual_required' AND a.action_digest = :action_digest
UNION ALL
SELECT a.dispatch_id FROM executions e INDEXED BY executions_unknown
CROSS JOIN actions a ON a.key = e.action
WHERE e.status = 'blocked' AND e.started_at_ms IS NOT NULL AND a.action_digest = :action_digest

-- name: add_action
-- A new approval request.
INSERT INTO actions (project, approval_request_id, version, state, permission, action_type,
  action_ref, action_digest, preview_digest, risk, requested_by, requested_at_ms, expires_at_ms,
  repeats)
VALUES (:project, :approval_request_id, :version, :state, :permission, :action_type, :action_ref,
  :action_digest, :preview_digest, :risk, :requested_by, :requested_at_ms, :expires_at_ms, :repeats)

-- name: add_plan
-- The immutable plan and what its approver is shown.
INSERT INTO plans (action, body, preview) VALUES (:action, :body, :preview)

-- name: plan_of_id
-- The plan of an approval id or a dispatch id.
SELECT s.body, s.preview, a.action_digest, a.preview_digest
FROM ids i JOIN actions a ON a.key = i.action LEFT JOIN plans s ON s.action = a.key
WHERE i.id = :id AND i.kind IN ('approval', 'dispatch')

-- name: move_action
-- Store an approval transition: a compare-and-swap on version and state.
UPDATE actions SET version = :version, state = :state, decision_id = :decision_id,
  approved = :approved, decision_reason = :decision_reason, decided_by = :decided_by,
  decided_at_ms = :decided_at_ms, consumption_id = :consumption_id, dispatch_id = :dispatch_id,
  consumed_by = :consumed_by, consumed_at_ms = :consumed_at_ms,
  fence_project_version = :fence_project_version, fence_binding_version = :fence_binding_version,
  cancel_id = :cancel_id, cancelled_by = :cancelled_by, cancelled_at_ms = :cancelled_at_ms
WHERE key = :key AND version = :expected_version AND state = :expected_state

-- name: add_fact
-- The authorization fact of a decision or a resolution, in its commit.
INSERT INTO authorization_facts (action, kind, mutation_id, authorized_by, authentication_id,
  assurance, authenticated_at_ms, project_version, binding_version, authorized_at_ms, fact_digest)
VALUES (:action, :kind, :mutation_id, :authorized_by, :authentication_id, :assurance,
  :authenticated_at_ms, :project_version, :binding_version, :authorized_at_ms, :fact_digest)

-- name: fact_of_action
-- The authorization fact of an action's decision, or of how a person settled it.
SELECT mutation_id, authorized_by, authentication_id, assurance, authenticated_at_ms,
  project_version, binding_version, authorized_at_ms, fact_digest
FROM authorization_facts WHERE action = :action AND kind = :kind

-- name: add_execution
-- The execution that the consume commit creates.
INSERT INTO executions (action, status, version, attempt_count, max_attempts, eligible_tick,
  created_at_ms, updated_at_ms)
VALUES (:action, :status, :version, :attempt_count, :max_attempts, :eligible_tick, :created_at_ms,
  :updated_at_ms)

-- name: move_execution
-- Store an execution transition with its control: a compare-and-swap on version and status.
UPDATE executions SET status = :status, version = :version, attempt_count = :attempt_count,
  eligible_tick = :eligible_tick, lease_owner = :lease_owner, lease_token = :lease_token,
  lease_from_tick = :lease_from_tick, lease_expires_tick = :lease_expires_tick,
  started_at_ms = :started_at_ms, result_mutation_id = :result_mutation_id,
  last_result_code = :last_result_code, completed_at_ms = :completed_at_ms,
  updated_at_ms = :updated_at_ms, control_status = :control_status,
  control_version = :control_version, next_scan_tick = :next_scan_tick, scan_owner = :scan_owner,
  scan_token = :scan_token, scan_from_tick = :scan_from_tick,
  scan_expires_tick = :scan_expires_tick, finding_count = :finding_count,
  finding_mutation_id = :finding_mutation_id, finding = :finding, finding_code = :finding_code,
  evidence_digest = :evidence_digest, control_updated_at_ms = :control_updated_at_ms
WHERE action = :action AND version = :expected_version AND status = :expected_status
  AND control_version IS :expected_control_version

-- name: add_resolution
-- How recovery settled an outcome, in the commit that closes it.
INSERT INTO resolutions (action, execution_version, mutation_id, source, decision, evidence_digest,
  reason_code, resolved_by, resolved_at_ms, unprobed)
VALUES (:action, :execution_version, :mutation_id, :source, :decision, :evidence_digest,
  :reason_code, :resolved_by, :resolved_at_ms, :unprobed)

-- name: repeated_by
-- The newest requests that name a dispatch as what they repeat.
SELECT approval_request_id FROM actions INDEXED BY actions_repeating
WHERE repeats = :dispatch_id ORDER BY key DESC LIMIT :limit

-- name: list_due
-- Due dispatches in keyset order.
{record} WHERE e.eligible_tick <= :tick
  AND (e.eligible_tick, e.action) > (:after_order, :after_key)
ORDER BY e.eligible_tick, e.action LIMIT :limit

-- name: list_recovery_due
-- Executions past their lease whose next scan is due.
{record} WHERE e.next_scan_tick <= :tick AND e.lease_expires_tick <= :tick
  AND (e.next_scan_tick, e.action) > (:after_order, :after_key)
ORDER BY e.next_scan_tick, e.action LIMIT :limit

-- name: list_executing
-- Everything past its barrier that recovery still watches.
{record} WHERE e.next_scan_tick IS NOT NULL
  AND (e.next_scan_tick, e.action) > (:after_order, :after_key)
ORDER BY e.next_scan_tick, e.action LIMIT :limit

-- name: list_manual
-- The manual queue, oldest first.
{record} WHERE e.control_status = 'manual_required' AND e.action > :after_key
ORDER BY e.action LIMIT :limit

-- name: list_open
-- Open approvals of one state, the first to expire first.
{record} WHERE a.project = (SELECT project FROM meta) AND a.state IN ('pending', 'approved')
  AND a.state = :state
  AND a.expires_at_ms > :at_ms AND (a.expires_at_ms, a.key) > (:after_order, :after_key)
ORDER BY a.expires_at_ms, a.key LIMIT :limit

-- name: list_newest
-- All actions, newest first.
{record} WHERE a.key < :before_key ORDER BY a.key DESC LIMIT :limit

-- name: leased_by_others
-- Leases that an earlier owner of this store left behind.
{record} WHERE e.eligible_tick IS NOT NULL AND e.status = 'leased' AND e.lease_owner <> :owner
ORDER BY a.dispatch_id

-- name: executing_by_others
-- Live executions that an earlier owner of this store left behind.
{record} WHERE e.next_scan_tick IS NOT NULL AND e.lease_owner <> :owner
  AND e.lease_expires_tick > :tick
ORDER BY a.dispatch_id

-- name: open_actions
-- Every open approval, for a reset of the clock.
{record} WHERE a.state IN ('pending', 'approved') ORDER BY a.key

-- name: not_started
-- Every dispatch before its barrier, for a reset of the clock.
{record} WHERE e.eligible_tick IS NOT NULL ORDER BY a.key

-- name: void_sessions
-- No session survives a reset of the clock.
DELETE FROM sessions

-- name: count_dispatches
-- How many dispatches are due and how many wait, from the due index.
SELECT coalesce(sum(eligible_tick <= :tick), 0) AS due,
  coalesce(sum(eligible_tick > :tick), 0) AS waiting, min(created_at_ms) AS oldest_at_ms
FROM executions WHERE eligible_tick IS NOT NULL

-- name: count_executing
-- How many run and how many wait for recovery, from the scan index.
SELECT coalesce(sum(lease_expires_tick > :tick), 0) AS executing,
  coalesce(sum(lease_expires_tick <= :tick), 0) AS recovery_due, min(created_at_ms) AS oldest_at_ms
FROM executions WHERE next_scan_tick IS NOT NULL

-- name: count_manual
-- How many wait for a person.
SELECT count(*) AS manual_required, min(created_at_ms) AS oldest_at_ms
FROM executions WHERE control_status = 'manual_required'

-- name: count_pending
-- How many approvals wait for a decision.
SELECT count(*) AS pending FROM actions
WHERE state IN ('pending', 'approved') AND state = 'pending' AND expires_at_ms > :at_ms

-- name: work_waits
-- Whether a cycle that owns this store would write anything.
SELECT EXISTS (SELECT 1 FROM executions WHERE eligible_tick IS NOT NULL AND
    (eligible_tick <= :tick OR (status = 'leased' AND lease_owner <> :owner)))
  OR EXISTS (SELECT 1 FROM executions WHERE next_scan_tick IS NOT NULL
    AND lease_owner <> :owner AND lease_expires_tick > :tick)
  OR EXISTS (SELECT 1 FROM executions WHERE next_scan_tick <= :tick
    AND lease_expires_tick <= :tick) AS waits

-- name: bytes_on_disk
-- The size of the database file in pages, as bytes.
SELECT c.page_count * s.page_size AS bytes FROM pragma_page_count c, pragma_page_size s
