-- The whole schema, to read. Migrations build the same one; a test compares them.
-- Words in CHECKs are the words of domain/machines.py; every legal tuple of a state is spelled out,
-- each with IS NOT NULL, because a CHECK that yields NULL passes. Times named *_tick are ticks,
-- times named *_at_ms are milliseconds for people; only deadline-time values stand in CHECKs.

CREATE TABLE migrations (
  number INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  sha256 TEXT NOT NULL CHECK (length(sha256) = 64)
) STRICT;

CREATE TABLE boots (
  epoch INTEGER PRIMARY KEY CHECK (epoch BETWEEN 1 AND 2097151),
  boot_id TEXT NOT NULL,
  first_wall_ms INTEGER NOT NULL CHECK (first_wall_ms >= 0),
  first_boot_ms INTEGER NOT NULL CHECK (first_boot_ms >= 0)
) STRICT;

CREATE TABLE clock (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  mark_ms INTEGER NOT NULL CHECK (mark_ms >= 0),
  mark_epoch INTEGER NOT NULL CHECK (mark_epoch BETWEEN 1 AND 2097151),
  mark_boot_ms INTEGER NOT NULL CHECK (mark_boot_ms >= 0),
  seen_epoch INTEGER CHECK (seen_epoch BETWEEN 1 AND 2097151),
  seen_boot_ms INTEGER CHECK (seen_boot_ms >= 0),
  seen_wall_ms INTEGER CHECK (seen_wall_ms >= 0),
  CHECK ((seen_epoch IS NULL) = (seen_boot_ms IS NULL) AND (seen_epoch IS NULL) = (seen_wall_ms IS NULL))
) STRICT;

CREATE TABLE projects (
  key INTEGER PRIMARY KEY,
  project_id TEXT NOT NULL UNIQUE CHECK (length(project_id) BETWEEN 1 AND 128),
  name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 255),
  slug TEXT NOT NULL UNIQUE CHECK (length(slug) BETWEEN 1 AND 128),
  status TEXT NOT NULL CHECK (status IN ('active', 'archived')),
  version INTEGER NOT NULL CHECK (version BETWEEN 1 AND 2147483647),
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE meta (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  state_id TEXT NOT NULL,
  profile TEXT NOT NULL CHECK (profile IN ('edge', 'standalone')),
  project INTEGER NOT NULL REFERENCES projects (key),
  owner TEXT NOT NULL,
  enable TEXT NOT NULL,
  volatile INTEGER NOT NULL CHECK (volatile IN (0, 1)),
  journal TEXT NOT NULL CHECK (journal IN ('wal', 'truncate')),
  file_system TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE role_bindings (
  project INTEGER NOT NULL REFERENCES projects (key),
  subject TEXT NOT NULL CHECK (subject GLOB '?*:?*'),
  version INTEGER NOT NULL CHECK (version BETWEEN 1 AND 2147483647),
  state TEXT NOT NULL CHECK (state IN ('active', 'revoked')),
  role TEXT CHECK (role IN ('owner', 'admin', 'operator', 'viewer')),
  mutation_id TEXT NOT NULL,
  changed_by TEXT NOT NULL CHECK (changed_by GLOB '?*:?*'),
  created_at_ms INTEGER NOT NULL,
  PRIMARY KEY (project, subject, version),
  UNIQUE (project, mutation_id),
  CHECK ((state = 'active') = (role IS NOT NULL)),
  CHECK (NOT (subject GLOB 'agent:*' AND role IS NOT NULL AND role = 'owner'))
) STRICT;

CREATE TABLE identities (
  key INTEGER PRIMARY KEY,
  subject TEXT NOT NULL UNIQUE CHECK (subject GLOB 'user:?*' OR subject GLOB 'agent:?*'),
  state TEXT NOT NULL CHECK (state IN ('active', 'disabled')),
  version INTEGER NOT NULL CHECK (version BETWEEN 1 AND 2147483647),
  password_scheme TEXT,
  password_salt BLOB,
  password_value BLOB,
  token_digest BLOB UNIQUE CHECK (length(token_digest) = 32),
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  CHECK (
    (subject GLOB 'user:*' AND password_scheme IS NOT NULL AND password_salt IS NOT NULL
      AND password_value IS NOT NULL AND token_digest IS NULL)
    OR (subject GLOB 'agent:*' AND password_scheme IS NULL AND password_salt IS NULL
      AND password_value IS NULL AND token_digest IS NOT NULL)
  )
) STRICT;

CREATE TABLE sessions (
  session_id TEXT PRIMARY KEY,
  token_digest BLOB NOT NULL UNIQUE CHECK (length(token_digest) = 32),
  subject TEXT NOT NULL REFERENCES identities (subject),
  assurance TEXT NOT NULL CHECK (assurance IN ('single_factor', 'multi_factor')),
  authenticated_at_ms INTEGER NOT NULL,
  authenticated_tick INTEGER NOT NULL,
  expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The secret of a second factor is shared with the user's authenticator, so it stands here itself.
CREATE TABLE totp_keys (
  subject TEXT PRIMARY KEY REFERENCES identities (subject) CHECK (subject GLOB 'user:?*'),
  secret BLOB NOT NULL CHECK (length(secret) = 20),
  last_step INTEGER NOT NULL CHECK (last_step >= 0),
  enrolled_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE recovery_codes (
  subject TEXT NOT NULL REFERENCES identities (subject) CHECK (subject GLOB 'user:?*'),
  digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32),
  used_at_ms INTEGER,
  PRIMARY KEY (subject, digest)
) STRICT, WITHOUT ROWID;

-- What the owner of the state did without a session: a user's new password.
CREATE TABLE identity_resets (
  reset_id TEXT PRIMARY KEY CHECK (length(reset_id) BETWEEN 1 AND 64),
  subject TEXT NOT NULL REFERENCES identities (subject) CHECK (subject GLOB 'user:?*'),
  version INTEGER NOT NULL CHECK (version BETWEEN 2 AND 2147483647),
  at_ms INTEGER NOT NULL,
  UNIQUE (subject, version)
) STRICT, WITHOUT ROWID;

-- Every id that a client may draw, in one tree: unique across kinds, found by one lookup.
CREATE TABLE ids (
  id TEXT PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
  kind TEXT NOT NULL CHECK (kind IN
    ('approval', 'decision', 'consumption', 'dispatch', 'cancel', 'resolution')),
  action INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Approval and dispatch: one row, written forward only.
CREATE TABLE actions (
  key INTEGER PRIMARY KEY,
  project INTEGER NOT NULL REFERENCES projects (key),
  approval_request_id TEXT NOT NULL,
  version INTEGER NOT NULL CHECK (version BETWEEN 1 AND 3),
  state TEXT NOT NULL
    CHECK (state IN ('pending', 'approved', 'rejected', 'consumed', 'cancelled', 'expired')),
  permission TEXT NOT NULL,
  action_type TEXT NOT NULL CHECK (length(action_type) BETWEEN 1 AND 64),
  action_ref TEXT CHECK (length(action_ref) BETWEEN 1 AND 255),
  action_digest BLOB NOT NULL CHECK (length(action_digest) = 32),
  preview_digest BLOB NOT NULL CHECK (length(preview_digest) = 32),
  risk TEXT NOT NULL CHECK (risk IN ('low', 'medium', 'high', 'critical')),
  requested_by TEXT NOT NULL CHECK (requested_by GLOB '?*:?*'),
  requested_at_ms INTEGER NOT NULL CHECK (requested_at_ms >= 0),
  expires_at_ms INTEGER NOT NULL,
  repeats TEXT,
  decision_id TEXT,
  approved INTEGER CHECK (approved IN (0, 1)),
  decision_reason TEXT,
  decided_by TEXT CHECK (decided_by GLOB 'user:?*' AND decided_by <> requested_by),
  decided_at_ms INTEGER,
  consumption_id TEXT,
  dispatch_id TEXT,
  consumed_by TEXT CHECK (consumed_by GLOB 'system:?*' OR consumed_by GLOB 'worker:?*'),
  consumed_at_ms INTEGER,
  fence_project_version INTEGER CHECK (fence_project_version >= 1),
  fence_binding_version INTEGER CHECK (fence_binding_version >= 1),
  cancel_id TEXT,
  cancelled_by TEXT CHECK (cancelled_by GLOB '?*:?*'),
  cancelled_at_ms INTEGER,
  CHECK (expires_at_ms - requested_at_ms BETWEEN 1 AND 86400000),
  CHECK (
    (decision_id IS NULL AND approved IS NULL AND decision_reason IS NULL AND decided_by IS NULL
      AND decided_at_ms IS NULL)
    OR (decision_id IS NOT NULL AND approved IS NOT NULL AND decision_reason IS NOT NULL
      AND decided_by IS NOT NULL AND decided_at_ms IS NOT NULL)
  ),
  CHECK (
    (consumption_id IS NULL AND dispatch_id IS NULL AND consumed_by IS NULL
      AND consumed_at_ms IS NULL AND fence_project_version IS NULL
      AND fence_binding_version IS NULL)
    OR (consumption_id IS NOT NULL AND dispatch_id IS NOT NULL AND consumed_by IS NOT NULL
      AND consumed_at_ms IS NOT NULL AND fence_project_version IS NOT NULL)
  ),
  CHECK (
    (cancel_id IS NULL AND cancelled_by IS NULL AND cancelled_at_ms IS NULL)
    OR (cancel_id IS NOT NULL AND cancelled_by IS NOT NULL AND cancelled_at_ms IS NOT NULL)
  ),
  CHECK (
    (state = 'pending' AND version = 1 AND decision_id IS NULL AND consumption_id IS NULL
      AND cancel_id IS NULL)
    OR (state = 'approved' AND version = 2 AND approved IS NOT NULL AND approved = 1
      AND consumption_id IS NULL AND cancel_id IS NULL)
    OR (state = 'rejected' AND version = 2 AND approved IS NOT NULL AND approved = 0
      AND consumption_id IS NULL AND cancel_id IS NULL)
    OR (state = 'consumed' AND version = 3 AND approved IS NOT NULL AND approved = 1
      AND consumption_id IS NOT NULL)
    OR (state = 'cancelled' AND consumption_id IS NULL AND cancel_id IS NOT NULL
      AND ((version = 2 AND decision_id IS NULL)
        OR (version = 3 AND approved IS NOT NULL AND approved = 1)))
    OR (state = 'expired' AND consumption_id IS NULL AND cancel_id IS NULL
      AND ((version = 2 AND decision_id IS NULL)
        OR (version = 3 AND approved IS NOT NULL AND approved = 1)))
  )
) STRICT;

CREATE INDEX actions_open ON actions (project, expires_at_ms)
  WHERE state IN ('pending', 'approved');
CREATE INDEX actions_repeating ON actions (repeats) WHERE repeats IS NOT NULL;

-- Execution and recovery control: one row, because every verdict writes both.
-- The control's execution version is the row's version; its resolution id is the row's result id.
CREATE TABLE executions (
  action INTEGER PRIMARY KEY REFERENCES actions (key),
  status TEXT NOT NULL CHECK (status IN
    ('pending', 'leased', 'executing', 'retry_wait', 'succeeded', 'failed', 'blocked')),
  version INTEGER NOT NULL CHECK (version BETWEEN 0 AND 2147483647),
  attempt_count INTEGER NOT NULL CHECK (attempt_count BETWEEN 0 AND max_attempts),
  max_attempts INTEGER NOT NULL CHECK (max_attempts BETWEEN 1 AND 16),
  eligible_tick INTEGER,
  lease_owner TEXT CHECK (length(lease_owner) BETWEEN 1 AND 128),
  lease_token TEXT CHECK (length(lease_token) BETWEEN 1 AND 128),
  lease_from_tick INTEGER,
  lease_expires_tick INTEGER,
  started_at_ms INTEGER,
  result_mutation_id TEXT CHECK (length(result_mutation_id) BETWEEN 1 AND 64),
  last_result_code TEXT CHECK (length(last_result_code) BETWEEN 1 AND 64),
  completed_at_ms INTEGER,
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  control_status TEXT
    CHECK (control_status IN ('armed', 'leased', 'manual_required', 'resolved')),
  control_version INTEGER CHECK (control_version BETWEEN 0 AND 2147483647),
  next_scan_tick INTEGER,
  scan_owner TEXT CHECK (length(scan_owner) BETWEEN 1 AND 128),
  scan_token TEXT CHECK (length(scan_token) BETWEEN 1 AND 128),
  scan_from_tick INTEGER,
  scan_expires_tick INTEGER,
  finding_count INTEGER CHECK (finding_count BETWEEN 0 AND 2147483647),
  finding_mutation_id TEXT,
  finding TEXT CHECK (finding IN ('verified_succeeded', 'verified_failed', 'still_running',
    'missing', 'conflict', 'unsupported', 'unavailable')),
  finding_code TEXT CHECK (length(finding_code) BETWEEN 1 AND 64),
  evidence_digest BLOB CHECK (length(evidence_digest) = 32),
  control_updated_at_ms INTEGER,
  CHECK (
    (lease_owner IS NULL AND lease_token IS NULL AND lease_from_tick IS NULL
      AND lease_expires_tick IS NULL)
    OR (lease_owner IS NOT NULL AND lease_token IS NOT NULL AND lease_from_tick IS NOT NULL
      AND lease_expires_tick IS NOT NULL
      AND lease_expires_tick - lease_from_tick BETWEEN 0 AND 600000)
  ),
  CHECK (
    (scan_owner IS NULL AND scan_token IS NULL AND scan_from_tick IS NULL
      AND scan_expires_tick IS NULL)
    OR (scan_owner IS NOT NULL AND scan_token IS NOT NULL AND scan_from_tick IS NOT NULL
      AND scan_expires_tick IS NOT NULL
      AND scan_expires_tick - scan_from_tick BETWEEN 0 AND 600000)
  ),
  CHECK (
    (status = 'pending' AND version = 0 AND attempt_count = 0 AND eligible_tick IS NOT NULL
      AND lease_owner IS NULL AND started_at_ms IS NULL AND result_mutation_id IS NULL
      AND last_result_code IS NULL AND completed_at_ms IS NULL AND control_status IS NULL)
    OR (status = 'leased' AND attempt_count >= 1 AND eligible_tick IS NOT NULL
      AND lease_expires_tick IS NOT NULL AND eligible_tick = lease_expires_tick
      AND started_at_ms IS NULL AND result_mutation_id IS NULL AND completed_at_ms IS NULL
      AND control_status IS NULL)
    OR (status = 'executing' AND attempt_count >= 1 AND eligible_tick IS NULL
      AND lease_owner IS NOT NULL AND started_at_ms IS NOT NULL AND result_mutation_id IS NULL
      AND completed_at_ms IS NULL AND control_status IS NOT NULL
      AND control_status IN ('armed', 'leased', 'manual_required'))
    OR (status = 'retry_wait' AND attempt_count < max_attempts AND eligible_tick IS NOT NULL
      AND lease_owner IS NULL AND started_at_ms IS NULL AND result_mutation_id IS NOT NULL
      AND last_result_code IS NOT NULL AND completed_at_ms IS NULL AND control_status IS NULL)
    OR (status IN ('succeeded', 'failed') AND eligible_tick IS NULL AND lease_owner IS NULL
      AND started_at_ms IS NOT NULL AND result_mutation_id IS NOT NULL
      AND last_result_code IS NOT NULL AND completed_at_ms IS NOT NULL
      AND control_status IS NOT NULL AND control_status = 'resolved')
    OR (status = 'blocked' AND eligible_tick IS NULL AND lease_owner IS NULL
      AND result_mutation_id IS NOT NULL AND last_result_code IS NOT NULL
      AND completed_at_ms IS NOT NULL
      AND ((started_at_ms IS NULL AND control_status IS NULL)
        OR (started_at_ms IS NOT NULL AND control_status IS NOT NULL
          AND control_status = 'resolved')))
  ),
  CHECK (
    (control_status IS NULL AND control_version IS NULL AND next_scan_tick IS NULL
      AND scan_owner IS NULL AND finding_count IS NULL AND finding IS NULL
      AND control_updated_at_ms IS NULL)
    OR (control_status IS NOT NULL AND control_version IS NOT NULL
      AND finding_count IS NOT NULL AND control_updated_at_ms IS NOT NULL
      AND ((control_status = 'armed' AND next_scan_tick IS NOT NULL AND scan_owner IS NULL)
        OR (control_status = 'leased' AND next_scan_tick IS NOT NULL
          AND scan_expires_tick IS NOT NULL AND next_scan_tick = scan_expires_tick)
        OR (control_status IN ('manual_required', 'resolved') AND next_scan_tick IS NULL
          AND scan_owner IS NULL)))
  ),
  CHECK (
    (finding IS NULL AND finding_mutation_id IS NULL AND finding_code IS NULL
      AND evidence_digest IS NULL AND (finding_count IS NULL OR finding_count = 0))
    OR (finding IS NOT NULL AND finding_mutation_id IS NOT NULL AND finding_code IS NOT NULL
      AND finding_count IS NOT NULL AND finding_count >= 1)
  )
) STRICT;

CREATE INDEX executions_due ON executions (eligible_tick) WHERE eligible_tick IS NOT NULL;
CREATE INDEX executions_scan ON executions (next_scan_tick) WHERE next_scan_tick IS NOT NULL;
CREATE INDEX executions_manual ON executions (action) WHERE control_status = 'manual_required';
CREATE INDEX executions_unknown ON executions (action)
  WHERE status = 'blocked' AND started_at_ms IS NOT NULL;

CREATE TABLE plans (
  action INTEGER PRIMARY KEY REFERENCES actions (key),
  body BLOB NOT NULL CHECK (length(body) BETWEEN 2 AND 32768),
  preview BLOB NOT NULL CHECK (length(preview) BETWEEN 2 AND 40960)
) STRICT;

-- How recovery settled an outcome; the execution and its control were closed in the same commit.
CREATE TABLE resolutions (
  action INTEGER PRIMARY KEY REFERENCES executions (action),
  execution_version INTEGER NOT NULL CHECK (execution_version BETWEEN 1 AND 2147483646),
  mutation_id TEXT NOT NULL CHECK (length(mutation_id) BETWEEN 1 AND 64),
  source TEXT NOT NULL CHECK (source IN ('automatic_evidence', 'human')),
  decision TEXT NOT NULL
    CHECK (decision IN ('confirm_succeeded', 'confirm_failed', 'abandon_unknown')),
  evidence_digest BLOB CHECK (length(evidence_digest) = 32),
  reason_code TEXT NOT NULL CHECK (length(reason_code) BETWEEN 1 AND 64),
  resolved_by TEXT CHECK (resolved_by GLOB 'user:?*'),
  resolved_at_ms INTEGER NOT NULL,
  unprobed INTEGER NOT NULL CHECK (unprobed IN (0, 1)),
  CHECK (
    (source = 'automatic_evidence' AND decision <> 'abandon_unknown'
      AND evidence_digest IS NOT NULL AND resolved_by IS NULL AND unprobed = 0)
    OR (source = 'human' AND resolved_by IS NOT NULL)
  )
) STRICT;

-- What an action on this database left, in the commit that had its effect: the bytes are the proof.
CREATE TABLE action_receipts (
  action INTEGER PRIMARY KEY REFERENCES executions (action),
  resource_type TEXT NOT NULL CHECK (resource_type IN ('run', 'task_revision')),
  resource_id TEXT NOT NULL CHECK (length(resource_id) BETWEEN 1 AND 64),
  body BLOB NOT NULL CHECK (length(body) BETWEEN 2 AND 4096),
  evidence_digest BLOB NOT NULL CHECK (length(evidence_digest) = 32),
  UNIQUE (resource_type, resource_id)
) STRICT;

-- Every revision of every task; the newest one of a task is what a run is pinned to.
CREATE TABLE task_revisions (
  key INTEGER PRIMARY KEY,
  project INTEGER NOT NULL REFERENCES projects (key),
  task_id TEXT NOT NULL CHECK (length(task_id) BETWEEN 1 AND 48),
  number INTEGER NOT NULL CHECK (number BETWEEN 1 AND 2147483647),
  name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 255),
  body BLOB NOT NULL CHECK (length(body) BETWEEN 2 AND 65536),
  digest BLOB NOT NULL CHECK (length(digest) = 32),
  action INTEGER NOT NULL REFERENCES actions (key),
  created_at_ms INTEGER NOT NULL,
  UNIQUE (project, task_id, number)
) STRICT;
CREATE UNIQUE INDEX task_revisions_of_action ON task_revisions (action);
CREATE INDEX task_revisions_first ON task_revisions (key) WHERE number = 1;

CREATE TABLE runs (
  key INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL UNIQUE CHECK (length(run_id) BETWEEN 1 AND 64),
  project INTEGER NOT NULL REFERENCES projects (key),
  task_id TEXT NOT NULL,
  task_revision TEXT NOT NULL,
  task_name TEXT NOT NULL,
  priority INTEGER NOT NULL CHECK (priority BETWEEN -2147483648 AND 2147483647),
  trigger_type TEXT NOT NULL,
  execution_origin TEXT NOT NULL,
  execution_owner TEXT NOT NULL,
  triggered_by TEXT NOT NULL,
  request_id TEXT NOT NULL,
  idempotency_key TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('queued')),
  version INTEGER NOT NULL CHECK (version BETWEEN 0 AND 2147483647),
  event_sequence INTEGER NOT NULL CHECK (event_sequence BETWEEN 0 AND 2147483647),
  created_at_ms INTEGER NOT NULL,
  queued_at_ms INTEGER NOT NULL,
  UNIQUE (project, idempotency_key)
) STRICT;

CREATE TABLE run_attempts (
  attempt_id TEXT PRIMARY KEY CHECK (length(attempt_id) BETWEEN 1 AND 64),
  run INTEGER NOT NULL REFERENCES runs (key),
  number INTEGER NOT NULL CHECK (number >= 1),
  status TEXT NOT NULL CHECK (status IN ('claimed')),
  executor_type TEXT NOT NULL CHECK (executor_type IN ('local_process')),
  callback_sequence INTEGER NOT NULL CHECK (callback_sequence >= 0),
  created_at_ms INTEGER NOT NULL,
  UNIQUE (run, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE run_events (
  run INTEGER NOT NULL REFERENCES runs (key),
  sequence INTEGER NOT NULL CHECK (sequence >= 1),
  event_id TEXT NOT NULL CHECK (length(event_id) BETWEEN 1 AND 64),
  type TEXT NOT NULL,
  dedupe_key TEXT,
  actor_type TEXT NOT NULL,
  actor_id TEXT,
  payload TEXT NOT NULL CHECK (length(payload) BETWEEN 2 AND 16384),
  created_at_ms INTEGER NOT NULL,
  PRIMARY KEY (run, sequence)
) STRICT, WITHOUT ROWID;

-- Who proved what for an approval of high or critical risk, and for an outcome that a person
-- settled; no token, no code.
CREATE TABLE authorization_facts (
  action INTEGER NOT NULL REFERENCES actions (key),
  kind TEXT NOT NULL CHECK (kind IN ('decision', 'resolution')),
  mutation_id TEXT NOT NULL CHECK (length(mutation_id) BETWEEN 1 AND 64),
  authorized_by TEXT NOT NULL CHECK (authorized_by GLOB 'user:?*'),
  authentication_id TEXT NOT NULL CHECK (length(authentication_id) BETWEEN 1 AND 128),
  assurance TEXT NOT NULL
    CHECK (assurance IN ('multi_factor', 'hardware', 'local_console')),
  authenticated_at_ms INTEGER NOT NULL,
  project_version INTEGER NOT NULL CHECK (project_version BETWEEN 1 AND 2147483647),
  binding_version INTEGER NOT NULL CHECK (binding_version BETWEEN 1 AND 2147483647),
  authorized_at_ms INTEGER NOT NULL,
  fact_digest BLOB NOT NULL CHECK (length(fact_digest) = 32),
  PRIMARY KEY (action, kind)
) STRICT, WITHOUT ROWID;

-- Deleting is possible only while this one row stands, inside the transaction that prunes.
CREATE TABLE prune_permit (one INTEGER PRIMARY KEY CHECK (one = 1)) STRICT;

CREATE TRIGGER actions_identity_is_immutable BEFORE UPDATE OF
  key, project, approval_request_id, permission, action_type, action_ref, action_digest,
  preview_digest, risk, requested_by, requested_at_ms, expires_at_ms, repeats ON actions
BEGIN SELECT RAISE(ABORT, 'immutable'); END;

CREATE TRIGGER actions_facts_are_immutable BEFORE UPDATE ON actions
WHEN (OLD.decision_id IS NOT NULL AND (
    NEW.decision_id IS NOT OLD.decision_id OR NEW.approved IS NOT OLD.approved
    OR NEW.decision_reason IS NOT OLD.decision_reason OR NEW.decided_by IS NOT OLD.decided_by
    OR NEW.decided_at_ms IS NOT OLD.decided_at_ms))
  OR (OLD.consumption_id IS NOT NULL AND (
    NEW.consumption_id IS NOT OLD.consumption_id OR NEW.dispatch_id IS NOT OLD.dispatch_id
    OR NEW.consumed_by IS NOT OLD.consumed_by OR NEW.consumed_at_ms IS NOT OLD.consumed_at_ms
    OR NEW.fence_project_version IS NOT OLD.fence_project_version
    OR NEW.fence_binding_version IS NOT OLD.fence_binding_version))
  OR (OLD.cancel_id IS NOT NULL AND (
    NEW.cancel_id IS NOT OLD.cancel_id OR NEW.cancelled_by IS NOT OLD.cancelled_by
    OR NEW.cancelled_at_ms IS NOT OLD.cancelled_at_ms))
BEGIN SELECT RAISE(ABORT, 'immutable'); END;

CREATE TRIGGER actions_move_by_the_table BEFORE UPDATE ON actions
WHEN (OLD.state, NEW.state) NOT IN (VALUES
    ('pending', 'approved'), ('pending', 'rejected'), ('pending', 'cancelled'),
    ('pending', 'expired'), ('approved', 'consumed'), ('approved', 'cancelled'),
    ('approved', 'expired'), ('consumed', 'consumed'))
  OR NEW.version <> OLD.version + (OLD.state <> NEW.state)
BEGIN SELECT RAISE(ABORT, 'no such transition'); END;

CREATE TRIGGER executions_move_by_the_table BEFORE UPDATE ON executions
WHEN (OLD.status, NEW.status) NOT IN (VALUES
    ('pending', 'leased'), ('pending', 'blocked'), ('retry_wait', 'leased'),
    ('retry_wait', 'blocked'), ('leased', 'leased'), ('leased', 'retry_wait'),
    ('leased', 'blocked'), ('leased', 'executing'), ('executing', 'executing'),
    ('executing', 'succeeded'), ('executing', 'failed'), ('executing', 'blocked'))
  OR NEW.version NOT IN (OLD.version, OLD.version + 1)
  OR (NEW.version = OLD.version AND NEW.status <> OLD.status)
  OR NEW.action <> OLD.action OR NEW.created_at_ms <> OLD.created_at_ms
  OR NEW.max_attempts <> OLD.max_attempts
  OR (OLD.started_at_ms IS NOT NULL AND NEW.started_at_ms IS NOT OLD.started_at_ms)
BEGIN SELECT RAISE(ABORT, 'no such transition'); END;

CREATE TRIGGER controls_move_by_the_table BEFORE UPDATE ON executions
WHEN OLD.control_status IS NOT NULL AND (
  NEW.control_status IS NULL
  OR (OLD.control_status, NEW.control_status) NOT IN (VALUES
    ('armed', 'armed'), ('armed', 'leased'), ('armed', 'resolved'), ('leased', 'leased'),
    ('leased', 'armed'), ('leased', 'manual_required'), ('leased', 'resolved'),
    ('manual_required', 'manual_required'), ('manual_required', 'resolved')))
BEGIN SELECT RAISE(ABORT, 'no such transition'); END;

CREATE TRIGGER plans_are_immutable BEFORE UPDATE ON plans
BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER role_bindings_are_immutable BEFORE UPDATE ON role_bindings
BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER ids_are_immutable BEFORE UPDATE ON ids
BEGIN SELECT RAISE(ABORT, 'immutable'); END;

CREATE TRIGGER resolutions_are_immutable BEFORE UPDATE ON resolutions
BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER action_receipts_are_immutable BEFORE UPDATE ON action_receipts
BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER task_revisions_are_immutable BEFORE UPDATE ON task_revisions
BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER run_events_are_immutable BEFORE UPDATE ON run_events
BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER authorization_facts_are_immutable BEFORE UPDATE ON authorization_facts
BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER identity_resets_are_immutable BEFORE UPDATE ON identity_resets
BEGIN SELECT RAISE(ABORT, 'immutable'); END;

CREATE TRIGGER totp_steps_only_rise BEFORE UPDATE ON totp_keys
WHEN NEW.last_step <= OLD.last_step OR NEW.subject <> OLD.subject OR NEW.secret <> OLD.secret
  OR NEW.enrolled_at_ms <> OLD.enrolled_at_ms
BEGIN SELECT RAISE(ABORT, 'no such transition'); END;
CREATE TRIGGER recovery_codes_are_used_once BEFORE UPDATE ON recovery_codes
WHEN OLD.used_at_ms IS NOT NULL OR NEW.used_at_ms IS NULL
  OR NEW.subject <> OLD.subject OR NEW.digest <> OLD.digest
BEGIN SELECT RAISE(ABORT, 'no such transition'); END;

-- INSERT OR REPLACE would delete without asking the triggers below.
CREATE TRIGGER plans_are_not_replaced BEFORE INSERT ON plans
WHEN EXISTS (SELECT 1 FROM plans WHERE action = NEW.action)
BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER ids_are_not_replaced BEFORE INSERT ON ids
WHEN EXISTS (SELECT 1 FROM ids WHERE id = NEW.id)
BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER role_bindings_are_not_replaced BEFORE INSERT ON role_bindings
WHEN EXISTS (SELECT 1 FROM role_bindings WHERE project = NEW.project
  AND ((subject = NEW.subject AND version = NEW.version) OR mutation_id = NEW.mutation_id))
BEGIN SELECT RAISE(ABORT, 'immutable'); END;

CREATE TRIGGER resolutions_are_not_replaced BEFORE INSERT ON resolutions
WHEN EXISTS (SELECT 1 FROM resolutions WHERE action = NEW.action)
BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER action_receipts_are_not_replaced BEFORE INSERT ON action_receipts
WHEN EXISTS (SELECT 1 FROM action_receipts WHERE action = NEW.action
  OR (resource_type = NEW.resource_type AND resource_id = NEW.resource_id))
BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER task_revisions_are_not_replaced BEFORE INSERT ON task_revisions
WHEN EXISTS (SELECT 1 FROM task_revisions WHERE key = NEW.key OR action = NEW.action
  OR (project = NEW.project AND task_id = NEW.task_id AND number = NEW.number))
BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER run_events_are_not_replaced BEFORE INSERT ON run_events
WHEN EXISTS (SELECT 1 FROM run_events WHERE run = NEW.run AND sequence = NEW.sequence)
BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER authorization_facts_are_not_replaced BEFORE INSERT ON authorization_facts
WHEN EXISTS (SELECT 1 FROM authorization_facts WHERE action = NEW.action AND kind = NEW.kind)
BEGIN SELECT RAISE(ABORT, 'immutable'); END;
CREATE TRIGGER identity_resets_are_not_replaced BEFORE INSERT ON identity_resets
WHEN EXISTS (SELECT 1 FROM identity_resets WHERE reset_id = NEW.reset_id
  OR (subject = NEW.subject AND version = NEW.version))
BEGIN SELECT RAISE(ABORT, 'immutable'); END;

CREATE TRIGGER actions_stay BEFORE DELETE ON actions
WHEN NOT EXISTS (SELECT 1 FROM prune_permit) BEGIN SELECT RAISE(ABORT, 'no permit'); END;
CREATE TRIGGER executions_stay BEFORE DELETE ON executions
WHEN NOT EXISTS (SELECT 1 FROM prune_permit) BEGIN SELECT RAISE(ABORT, 'no permit'); END;
CREATE TRIGGER plans_stay BEFORE DELETE ON plans
WHEN NOT EXISTS (SELECT 1 FROM prune_permit) BEGIN SELECT RAISE(ABORT, 'no permit'); END;
CREATE TRIGGER ids_stay BEFORE DELETE ON ids
WHEN NOT EXISTS (SELECT 1 FROM prune_permit) BEGIN SELECT RAISE(ABORT, 'no permit'); END;
CREATE TRIGGER resolutions_stay BEFORE DELETE ON resolutions
WHEN NOT EXISTS (SELECT 1 FROM prune_permit) BEGIN SELECT RAISE(ABORT, 'no permit'); END;
CREATE TRIGGER action_receipts_stay BEFORE DELETE ON action_receipts
WHEN NOT EXISTS (SELECT 1 FROM prune_permit) BEGIN SELECT RAISE(ABORT, 'no permit'); END;
CREATE TRIGGER task_revisions_stay BEFORE DELETE ON task_revisions
WHEN NOT EXISTS (SELECT 1 FROM prune_permit) BEGIN SELECT RAISE(ABORT, 'no permit'); END;
CREATE TRIGGER runs_stay BEFORE DELETE ON runs
WHEN NOT EXISTS (SELECT 1 FROM prune_permit) BEGIN SELECT RAISE(ABORT, 'no permit'); END;
CREATE TRIGGER run_attempts_stay BEFORE DELETE ON run_attempts
WHEN NOT EXISTS (SELECT 1 FROM prune_permit) BEGIN SELECT RAISE(ABORT, 'no permit'); END;
CREATE TRIGGER run_events_stay BEFORE DELETE ON run_events
WHEN NOT EXISTS (SELECT 1 FROM prune_permit) BEGIN SELECT RAISE(ABORT, 'no permit'); END;
CREATE TRIGGER authorization_facts_stay BEFORE DELETE ON authorization_facts
WHEN NOT EXISTS (SELECT 1 FROM prune_permit) BEGIN SELECT RAISE(ABORT, 'no permit'); END;
CREATE TRIGGER identity_resets_stay BEFORE DELETE ON identity_resets
BEGIN SELECT RAISE(ABORT, 'no permit'); END;
CREATE TRIGGER role_bindings_stay BEFORE DELETE ON role_bindings
BEGIN SELECT RAISE(ABORT, 'no permit'); END;
