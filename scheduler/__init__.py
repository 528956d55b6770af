"""The scheduler: decides, step by step, who computes which tokens. Shared by the simulator and the real engine."""

from .batch import BatchRequest, FlatBatch, PaddedBatch, PersistentBatch, flat_batch, padded_batch, ragged_mask
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
    "BatchRequest",
    "ConfigError",
    "FinishReason",
    "FlatBatch",
    "InputError",
    "Layout",
    "PaddedBatch",
    "PersistentBatch",
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
    "flat_batch",
    "padded_batch",
    "policy_names",
    "ragged_mask",
]
