-- name: totp_key
-- The second factor of a user.
SELECT subject, secret, last_step, enrolled_at_ms FROM totp_keys WHERE subject = :subject

-- name: add_totp_key
-- A new second factor; the one before it is dropped in the same commit.
INSERT INTO totp_keys (subject, secret, last_step, enrolled_at_ms)
VALUES (:subject, :secret, :last_step, :enrolled_at_ms)

-- name: use_step
-- A code was accepted: a compare-and-swap on the newest step, upwards only.
UPDATE totp_keys SET last_step = :last_step
WHERE subject = :subject AND last_step = :expected_step AND secret = :secret

-- name: drop_totp_key
-- The end of a second factor.
DELETE FROM totp_keys WHERE subject = :subject

-- name: recovery_code
-- One recovery code, whoever's it is.
SELECT subject, digest, used_at_ms FROM recovery_codes WHERE digest = :digest

-- name: add_recovery_code
-- One of the codes of a new second factor.
INSERT INTO recovery_codes (subject, digest) VALUES (:subject, :digest)

-- name: use_recovery_code
-- A recovery code was accepted: a compare-and-swap on its being unused.
UPDATE recovery_codes SET used_at_ms = :used_at_ms
WHERE subject = :subject AND digest = :digest AND used_at_ms IS NULL

-- name: drop_recovery_codes
-- The end of all recovery codes of a user.
DELETE FROM recovery_codes WHERE subject = :subject

-- name: reset_of_id
-- Whom a reset of this id was for.
SELECT subject, version FROM identity_resets WHERE reset_id = :reset_id

-- name: add_reset
-- The record of a reset, for ever.
INSERT INTO identity_resets (reset_id, subject, version, at_ms)
VALUES (:reset_id, :subject, :version, :at_ms)
