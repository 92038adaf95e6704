-- name: newest_boot
-- The boot generation of the newest write.
SELECT epoch, boot_id, first_wall_ms, first_boot_ms FROM boots ORDER BY epoch DESC LIMIT 1

-- name: boots
-- Boot generations for showing old ticks.
SELECT epoch, boot_id, first_wall_ms, first_boot_ms FROM boots ORDER BY epoch DESC LIMIT 64

-- name: add_boot
-- A new boot generation, with the first write of that boot.
INSERT INTO boots (epoch, boot_id, first_wall_ms, first_boot_ms)
VALUES (:epoch, :boot_id, :first_wall_ms, :first_boot_ms)

-- name: clock
-- The mark and the sighting.
SELECT mark_ms, mark_epoch, mark_boot_ms, seen_epoch, seen_boot_ms, seen_wall_ms FROM clock

-- name: create_clock
-- The first mark of a new store.
INSERT INTO clock (one, mark_ms, mark_epoch, mark_boot_ms) VALUES (1, :wall_ms, :epoch, :boot_ms)

-- name: store_clock
-- The mark and the sighting, carried by a commit that happens anyway.
UPDATE clock SET mark_ms = :wall_ms, mark_epoch = :epoch, mark_boot_ms = :boot_ms,
  seen_epoch = :seen_epoch, seen_boot_ms = :seen_boot_ms, seen_wall_ms = :seen_wall_ms
