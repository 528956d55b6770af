"""The linear cost model: seconds as a straight line in the counts of a step, coefficients given by the user."""

from __future__ import annotations

from typing import Any

from scheduler.plan import StepShape

from .base import CostModel, StepCost, number_option


class LinearCost(CostModel):
    """``device_s = step_s + token_s x rows + context_s x KV positions read + logits_s x logits rows + request_s x requests``.

    KV positions read are those of the decode rows, and the pairs of the prefill rows. There are no default
    coefficients beside 0: a line has to come from somewhere.

    Args:
        step_s: seconds a step.
        token_s: seconds a row through the layers, padding included.
        context_s: seconds a KV position that a row attends to.
        logits_s: seconds a row through the LM head.
        request_s: device seconds a request.
        host_s, host_request_s: host seconds a step, and a request.
        setup: model, hardware and tensor_parallel; the price does not depend on them.
    """  # noqa: E501 (a formula on one line)

    name = "linear"

    def __init__(
        self,
        *,
        step_s: float,
        token_s: float = 0.0,
        context_s: float = 0.0,
        logits_s: float = 0.0,
        request_s: float = 0.0,
        host_s: float = 0.0,
        host_request_s: float = 0.0,
        **setup: Any,
    ) -> None:
        super().__init__(**setup)
        self.step_s = number_option("step_s", step_s)
        self.token_s = number_option("token_s", token_s)
        self.context_s = number_option("context_s", context_s)
        self.logits_s = number_option("logits_s", logits_s)
        self.request_s = number_option("request_s", request_s)
        self.host_s = number_option("host_s", host_s)
        self.host_request_s = number_option("host_request_s", host_request_s)

    def step_cost(self, shape: StepShape) -> StepCost:
        """The price of a step of this shape."""
        device_s = (
            self.step_s
            + self.token_s * shape.computed_tokens
            + self.context_s * (shape.decode_context + shape.prefill_pairs)
            + self.logits_s * shape.logits_rows
            + self.request_s * shape.num_reqs
        )
        return StepCost(device_s, self.host_s + self.host_request_s * shape.num_reqs, self, shape)

    def breakdown(self, shape: StepShape) -> dict[str, float]:
        """Seconds by part: step, gemm, attention, lm_head, request and host."""
        return {
            "step": self.step_s,
            "gemm": self.token_s * shape.computed_tokens,
            "attention": self.context_s * (shape.decode_context + shape.prefill_pairs),
            "lm_head": self.logits_s * shape.logits_rows,
            "request": self.request_s * shape.num_reqs,
            "host": self.host_s + self.host_request_s * shape.num_reqs,
        }

    def options(self) -> dict[str, Any]:
        """The coefficients."""
        names = ("step_s", "token_s", "context_s", "logits_s", "request_s", "host_s", "host_request_s")
        return {name: getattr(self, name) for name in names}
