-- name: meta
-- What init recorded about this state.
SELECT m.state_id, p.project_id, m.profile, m.owner, m.enable, m.volatile, m.journal, m.file_system,
  m.created_at_ms
FROM meta m JOIN projects p ON p.key = m.project

-- name: add_project
-- The project of a new state.
INSERT INTO projects (key, project_id, name, slug, status, version, created_at_ms, updated_at_ms)
VALUES (1, :project_id, :name, :slug, 'active', 1, :at_ms, :at_ms)

-- name: add_meta
-- What init was asked for; a second init is compared with it.
INSERT INTO meta (one, state_id, profile, project, owner, enable, volatile, journal, file_system,
  created_at_ms)
VALUES (1, :state_id, :profile, 1, :owner, :enable, :volatile, :journal, :file_system, :at_ms)

-- name: add_owner
-- The first user.
INSERT INTO identities (subject, state, version, password_scheme, password_salt, password_value,
  created_at_ms, updated_at_ms)
VALUES (:subject, 'active', 1, :scheme, :salt, :value, :at_ms, :at_ms)

-- name: add_owner_binding
-- The first role.
INSERT INTO role_bindings (project, subject, version, state, role, mutation_id, changed_by,
  created_at_ms)
VALUES (1, :subject, 1, 'active', 'owner', 'init', :subject, :at_ms)

-- name: plans_in_order
-- Plans in key order, for verifying their digests page by page.
SELECT a.key, a.approval_request_id AS id, s.action AS plan FROM actions a
LEFT JOIN plans s ON s.action = a.key WHERE a.key > :after_key ORDER BY a.key LIMIT :limit
