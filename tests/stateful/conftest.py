"""How long hypothesis plays: HYPOTHESIS_PROFILE is `dev` (seconds, default) or `ci` (minutes)."""

import os
from importlib.util import find_spec

PROFILES = {"dev": (400, 40), "ci": (4_000, 80)}

if find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, settings

    for name, (examples, steps) in PROFILES.items():
        settings.register_profile(
            name,
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow],
        )
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
