"""Cost models: what a step costs, in device and host seconds."""

from __future__ import annotations

from .base import CostModel, StepCost, cost_model_class, cost_model_names, make_cost_model

__all__ = ["CostModel", "StepCost", "cost_model_class", "cost_model_names", "make_cost_model"]
