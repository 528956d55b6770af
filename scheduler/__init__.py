"""The scheduler: decides, step by step, who computes which tokens. Shared by the simulator and the real engine."""

from .config import Layout, SchedulerConfig
from .errors import ConfigError, InputError, RequestRefused, UserError
from .plan import PADDING_CAUSES, WAIT_REASONS, StepPlan, StepShape
from .policies import Policy, find_policy, policy_names
from .request import FinishReason, Request, RequestStatus
from .rows import PlanRows
from .scheduler import Scheduler
from .step import Step

__all__ = [
    "PADDING_CAUSES",
    "WAIT_REASONS",
    "ConfigError",
    "FinishReason",
    "InputError",
    "Layout",
    "PlanRows",
    "Policy",
    "Request",
    "RequestRefused",
    "RequestStatus",
    "Scheduler",
    "SchedulerConfig",
    "Step",
    "StepPlan",
    "StepShape",
    "UserError",
    "find_policy",
    "policy_names",
]
