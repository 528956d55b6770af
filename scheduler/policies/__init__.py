"""Batching policies, one small class a file."""

from .base import Policy, find_policy, policy_names

__all__ = ["Policy", "find_policy", "policy_names"]
