-- name: resolve
-- A project and the newest binding of one subject, active or revoked, in one read.
SELECT p.key, p.project_id, p.name, p.slug, p.status, p.version AS project_version,
  p.created_at_ms AS project_created_at_ms, p.updated_at_ms, b.subject, b.version, b.state, b.role,
  b.mutation_id, b.changed_by, b.created_at_ms
FROM projects p LEFT JOIN role_bindings b ON b.project = p.key AND b.subject = :subject
  AND b.version = (SELECT max(n.version) FROM role_bindings n
    WHERE n.project = p.key AND n.subject = :subject)
WHERE p.project_id = :project_id

-- name: binding_of_mutation
-- The binding that a mutation id wrote.
SELECT p.project_id, b.subject, b.version, b.state, b.role, b.mutation_id, b.changed_by,
  b.created_at_ms
FROM projects p JOIN role_bindings b ON b.project = p.key AND b.mutation_id = :mutation_id
WHERE p.project_id = :project_id

-- name: add_binding
-- The next row of a role history.
INSERT INTO role_bindings (project, subject, version, state, role, mutation_id, changed_by,
  created_at_ms)
VALUES (:project, :subject, :version, :state, :role, :mutation_id, :changed_by, :created_at_ms)

-- name: active_owners
-- Active users whose newest binding is that of an owner; two are enough to know of a last one.
SELECT i.subject FROM identities i JOIN role_bindings b
  ON b.project = :project AND b.subject = i.subject
  AND b.version = (SELECT max(n.version) FROM role_bindings n
    WHERE n.project = :project AND n.subject = i.subject)
WHERE i.state = 'active' AND i.subject GLOB 'user:*' AND b.role = 'owner'
LIMIT 2
