-- name: identity
-- One user or agent.
SELECT i.key, i.subject, i.state, i.version, i.password_scheme, i.password_salt, i.password_value,
  i.token_digest, i.created_at_ms, i.updated_at_ms FROM identities i

-- name: identity_of_subject
-- The identity of a name.
{identity} WHERE i.subject = :subject

-- name: identity_of_token
-- The agent of a token, disabled or not.
{identity} WHERE i.token_digest = :token_digest

-- name: list_members
-- Users or agents with the roles they have now, oldest first.
SELECT m.*, (SELECT b.role FROM role_bindings b
  WHERE b.project = (SELECT project FROM meta) AND b.subject = m.subject
  ORDER BY b.version DESC LIMIT 1) AS role
FROM ({identity}) m
WHERE m.key > :after_key AND m.subject GLOB :pattern ORDER BY m.key LIMIT :limit

-- name: add_identity
-- A new user or agent.
INSERT INTO identities (subject, state, version, password_scheme, password_salt, password_value,
  token_digest, created_at_ms, updated_at_ms)
VALUES (:subject, :state, :version, :password_scheme, :password_salt, :password_value,
  :token_digest, :created_at_ms, :updated_at_ms)

-- name: move_identity
-- Store a change of an identity: a compare-and-swap on its version.
UPDATE identities SET state = :state, version = :version, password_scheme = :password_scheme,
  password_salt = :password_salt, password_value = :password_value, token_digest = :token_digest,
  updated_at_ms = :updated_at_ms
WHERE subject = :subject AND version = :expected_version

-- name: session
-- One session.
SELECT s.session_id, s.token_digest, s.subject, s.assurance, s.authenticated_at_ms,
  s.authenticated_tick, s.expires_at_ms FROM sessions s

-- name: session_of_token
-- The session of a token while its user is active.
{session} JOIN identities i ON i.subject = s.subject
WHERE s.token_digest = :token_digest AND i.state = 'active'

-- name: sessions_taken
-- The sessions that hold this id or this token already.
{session} WHERE s.session_id = :session_id OR s.token_digest = :token_digest

-- name: sessions_of_subject
-- The sessions of one subject: at most as many as the domain allows.
{session} WHERE s.subject = :subject

-- name: add_session
-- A new login.
INSERT INTO sessions (session_id, token_digest, subject, assurance, authenticated_at_ms,
  authenticated_tick, expires_at_ms)
VALUES (:session_id, :token_digest, :subject, :assurance, :authenticated_at_ms,
  :authenticated_tick, :expires_at_ms)

-- name: drop_session
-- The end of one session.
DELETE FROM sessions WHERE session_id = :session_id

-- name: close_session
-- The end of the session of a token.
DELETE FROM sessions WHERE token_digest = :token_digest

-- name: drop_sessions_of_subject
-- The end of all sessions of one subject.
DELETE FROM sessions WHERE subject = :subject
