"""Where whatever a model wrote runs or is parsed: confined processes, hard limits, plain data only."""

from env.sandbox.outcome import Limits, Outcome
from env.sandbox.sandbox import Box, Sandbox, shared_sandbox

__all__ = ["Box", "Limits", "Outcome", "Sandbox", "shared_sandbox"]
