"""The bounds of the program, unit last, with their reasons; relations are checked at import.

A bound that only one module knows stands in that module.
"""

from qinglong_edge.domain.errors import InvariantBroken

# Identities (contract 16.1): widths are interoperability facts.
ID_CHARS_MAX = 64
ACTION_REF_CHARS_MAX = 255
SUBJECT_ID_CHARS_MAX = 255
PROJECT_ID_CHARS_MAX = 128
SLUG_CHARS_MAX = 128
PERMISSION_CHARS_MAX = 255
LEASE_NAME_CHARS_MAX = 128

# Numbers.
SAFE_INTEGER_MAX = 2**53 - 1  # what JSON readers in other languages keep exactly
VERSION_MAX = 2**31 - 1
EPOCH_MAX = 2**21 - 1  # a tick is epoch << 42 | ms and must stay a positive 63-bit integer
TICK_MS_BITS = 42  # 139 years of uptime

# Approvals.
APPROVAL_LIFETIME_MS_MAX = 86_400_000
APPROVAL_LIFETIME_MS_DEFAULT = 3_600_000
OPEN_APPROVALS_PER_REQUESTER_MAX = 32
OPEN_APPROVALS_PER_PROJECT_MAX = 256
STRONG_AUTHENTICATION_AGE_MS_MAX = 300_000

# Plans: whole in one line of 64 KiB both ways, with room for the frame.
PLAN_BYTES_MAX = 32_768
PREVIEW_BYTES_MAX = 40_960  # repeats the whole plan and adds warnings
JSON_DEPTH_MAX = 16
PLAN_FILES_MAX = 64
ARGV_ITEMS_MAX = 256
PATH_CHARS_MAX = 4_096

# Execution.
ATTEMPTS_MAX = 16
ATTEMPTS_DEFAULT = 5
LEASE_MS_MAX = 600_000
PAGE_ITEMS_MAX = 64
PHASE_PAGES_MAX = 64
RETRY_BASE_MS = 1_000
RETRY_MS_MAX = 60_000
RETRY_EXPONENT_MAX = 30
WAITING_RETRY_MS_MIN = 30_000  # handler or plan not there yet: does not eat the budget, so slower
WAITING_RETRY_MS_MAX = 600_000
HANDLER_DEADLINE_MS_DEFAULT = 30_000
HANDLER_DEADLINE_MS_MAX = 600_000
PAGE_SLACK_MS = 30_000  # added to the sum of a page's handler deadlines for its commits
CYCLE_START_MS_MAX = 60_000  # no item is started later than this in a cycle
COMPLETE_HELD_MS_MAX = 200  # a result waits at most this long for the next barrier's commit

# Recovery.
SCAN_BASE_MS = 5_000
SCAN_MS_MAX = 21_600_000  # six hours: a stuck action costs flash eight small commits a day
FINDINGS_MAX = 16  # about a day of looking; after that a person is asked
RECEIPT_BYTES_MAX = 4_096

# Tasks and runs.
TASK_ID_CHARS_MAX = 48  # with its revision it is the id of a resource
TASK_NAME_CHARS_MAX = 255
TASK_BODY_BYTES_MAX = 65_536  # a plan of 32 KiB with every default filled in stays far below
PRIORITY_MIN = -(2**31)
PRIORITY_MAX = 2**31 - 1
RUN_TIMEOUT_MS_MAX = 604_800_000
RUN_TIMEOUT_MS_DEFAULT = 3_600_000

# shell.exec.
SHELL_TIMEOUT_MS_DEFAULT = 30_000
SHELL_TIMEOUT_MS_MAX = 590_000
SHELL_STOP_MS = 10_000  # TERM, 5 s, KILL, proof of an empty group
SHELL_TERM_GRACE_MS = 5_000
ACTION_LOG_BYTES_MAX = 1_048_576

# Clock trust (architecture 3.1).
BUILD_WALL_MS = 1_790_812_800_000  # 2026-10-01, raised at a release: no honest clock shows less
CLOCK_BACK_MS_MAX = 300_000
CLOCK_STEP_MS_MAX = 86_400_000
CLOCK_SETTLE_MS = 600_000

# Identities.
SESSION_MS = 3_600_000
PASSWORD_CHARS_MIN = 8
PASSWORD_BYTES_MAX = 1_024

# Lifecycle.
INTERVAL_MS_MAX = 86_400_000
OWNER_WAIT_MS = 5_000
BUSY_WAIT_MS = 5_000
COMMIT_TRIES_MAX = 3

if SHELL_TIMEOUT_MS_MAX + SHELL_STOP_MS > HANDLER_DEADLINE_MS_MAX:
    raise InvariantBroken("a shell action's own deadline must end before its handler's")
if HANDLER_DEADLINE_MS_MAX > LEASE_MS_MAX:
    raise InvariantBroken("one handler call must fit into one lease")
if SHELL_TERM_GRACE_MS >= SHELL_STOP_MS:
    raise InvariantBroken("the stop of a shell action must leave time for its proof")
