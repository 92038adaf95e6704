"""Find the handler of a type: carried by this build and enabled by the manifest, or none."""

import enum
from collections.abc import Iterable

from qinglong_edge.actions.manifest import EMPTY, Manifest
from qinglong_edge.domain.action import ACTION_TYPES, Capability, is_automatic
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.errors import InvariantBroken, QinglongError, RefusedError, UsageError
from qinglong_edge.ports.evidence import EvidenceProvider
from qinglong_edge.ports.handlers import ActionHandler


class Reach(enum.StrEnum):
    """Name how far a type can be reached here."""

    ENABLED = "enabled"
    DISABLED = "disabled"
    NOT_AVAILABLE = "not_available"


class Registry:
    """Hold the handlers of this build behind one manifest; immutable, so any thread may ask.

    In place of a manifest that cannot be believed it holds the reason, and raises it wherever the
    answer would rest on the manifest: who only reads other things is not stopped by it. Evidence is
    looked for whatever the manifest says: a type that was disabled since must not keep its unknown
    outcomes.
    """

    def __init__(
        self,
        manifest: Manifest | QinglongError,
        handlers: Iterable[ActionHandler],
        providers: Iterable[EvidenceProvider] = (),
    ) -> None:
        """Take one handler and one provider a type.

        A second one or an unknown type is `InvariantBroken`, and so is a provider that claims to be
        automatic for a type that is manual_only.
        """
        self._read = manifest
        self._carried: dict[str, ActionHandler] = {}
        self._providers: dict[str, EvidenceProvider] = {}
        for provider in providers:
            name = provider.action_type
            if name not in ACTION_TYPES or name in self._providers:
                raise InvariantBroken(f"two providers of one type, or of none: {name}")
            if provider.capability is not Capability.MANUAL_ONLY and not is_automatic(name):
                raise InvariantBroken(f"an automatic provider of a manual_only type: {name}")
            self._providers[name] = provider
        for handler in handlers:
            name = handler.action_type
            if name not in ACTION_TYPES or name in self._carried:
                raise InvariantBroken(f"two handlers of one type, or of none: {name}")
            self._carried[name] = handler

    @property
    def damage(self) -> QinglongError | None:
        """Return why the manifest cannot be believed; None where it can."""
        return self._read if isinstance(self._read, QinglongError) else None

    @property
    def _manifest(self) -> Manifest:
        if isinstance(self._read, QinglongError):
            raise self._read
        return self._read

    def with_manifest(self, manifest: Manifest) -> "Registry":
        """Return the same handlers behind another manifest."""
        return Registry(manifest, self._carried.values(), self._providers.values())

    def find(self, action_type: str) -> ActionHandler | None:
        """Return the handler of an enabled type, or None."""
        if self.reach(action_type) is not Reach.ENABLED:
            return None
        return self._carried[action_type]

    def provider(self, action_type: str) -> EvidenceProvider | None:
        """Return who looks for evidence of a type, or None."""
        return self._providers.get(action_type)

    def inspect_deadline_ms(self, action_type: str) -> int:
        """Return how long looking may take, also for evidence: whatever became of the manifest."""
        manifest = EMPTY if isinstance(self._read, QinglongError) else self._read
        return manifest.inspect_deadline_ms(action_type)

    def require(self, action_type: str) -> ActionHandler:
        """Return the handler of a type that somebody wants to propose.

        Raises `UsageError` (`unknown_action_type`), or `RefusedError`: `handler_not_available`
        where this build carries none, `handler_not_enabled` where the manifest does not list it.
        """
        details = {"action_type": action_type[:64]}
        if action_type not in ACTION_TYPES:
            known = ", ".join(sorted(ACTION_TYPES))
            raise UsageError("unknown_action_type", f"no such action type; there are {known}")
        reach = self.reach(action_type)
        if reach is Reach.NOT_AVAILABLE:
            message = f"{action_type}: not carried by this build"
            raise RefusedError("handler_not_available", message, {**details})
        if reach is Reach.DISABLED:
            message = f"{action_type}: not enabled on this machine"
            raise RefusedError("handler_not_enabled", message, {**details})
        return self._carried[action_type]

    def reach(self, action_type: str) -> Reach:
        """Tell how far a type can be reached; an unknown one is not available."""
        if action_type not in self._carried:
            return Reach.NOT_AVAILABLE
        return Reach.ENABLED if action_type in self._manifest.enabled else Reach.DISABLED

    def describe(self) -> list[JsonObject]:
        """Return one row for every action type, by name."""
        return [
            {
                "action_type": name,
                "permission": kind.permission,
                "capability": kind.capability.value,
                "least_risk": kind.least_risk.value,
                "state": self.reach(name).value,
            }
            for name, kind in sorted(ACTION_TYPES.items())
        ]
