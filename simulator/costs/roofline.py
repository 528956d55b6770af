"""The roofline cost model: a step from the operations and bytes of each operator, and how near kernels come to peak."""

from __future__ import annotations

from typing import Any

from scheduler.errors import ConfigError, unknown_name
from scheduler.plan import StepShape

from ..models import WIDTHS
from .base import CostModel, StepCost, number_option
from .memo import Memo
from .roofline_attention import Attention, windowed_sums
from .roofline_dense import Dense

HOST_REQUEST_S = 13.5e-6
"""Host seconds a request and step: vLLM 0.33's `schedule` and `update_from_output`, with prefix caching, took 0.42 ms
at 32 running requests, 3.16 at 256 and 14.0 at 1,024 on a 2-core machine; the least-squares line through the origin."""


class RooflineCost(CostModel):
    """Prices each operator at the slower of its arithmetic and its memory traffic.

    docs/cost-models.md gives the formulas and how well they meet measured tables. What depends only on the number of
    rows is computed once for each number and kept, so a step costs about a microsecond to price.

    Args:
        weight_dtype: width of the layers' weights: ``bf16``, ``fp8``, ``int8`` or ``int4`` (embedding and LM head stay
            at 16 bits, as vLLM keeps them). ``fp8`` and ``int8`` are computed at the device's 8-bit rate where it has
            one; ``int4`` is widened on the way and computed in bf16.
        kv_dtype: width of the KV cache: ``bf16`` or ``fp8``.
        mixed_attention: ``fused``: prefills and decodes of a step share one kernel, as with vLLM's FlashAttention
            backend; ``separate``: a kernel each.
        layer_launch_s: seconds a layer in which the device waits for launches; 0 with captured graphs.
        host_step_s, host_request_s: host seconds a step, and for each of its requests.
        setup: ``model`` and ``hardware`` (both needed) and ``tensor_parallel``.
    """

    name = "roofline"
    out_of_range = "beyond the measurements that this hardware's efficiencies were fitted to"

    def __init__(
        self,
        *,
        weight_dtype: str = "bf16",
        kv_dtype: str = "bf16",
        mixed_attention: str = "fused",
        layer_launch_s: float = 0.0,
        host_step_s: float = 0.0,
        host_request_s: float = HOST_REQUEST_S,
        **setup: Any,
    ) -> None:
        super().__init__(**setup)
        if self.model is None or self.hardware is None:
            raise ConfigError("cost model roofline needs a model and hardware")
        self.model.check_tensor_parallel(self.tensor_parallel)
        for option, value in (("weight_dtype", weight_dtype), ("kv_dtype", kv_dtype)):
            if value not in WIDTHS:
                raise unknown_name(option, str(value), WIDTHS)
        if mixed_attention not in ("fused", "separate"):
            raise unknown_name("mixed_attention", str(mixed_attention), ("fused", "separate"))
        self._options = {
            "weight_dtype": weight_dtype,
            "kv_dtype": kv_dtype,
            "mixed_attention": mixed_attention,
            "layer_launch_s": number_option("layer_launch_s", layer_launch_s),
            "host_step_s": number_option("host_step_s", host_step_s),
            "host_request_s": number_option("host_request_s", host_request_s),
        }
        self._host_step, self._host_request = float(host_step_s), float(host_request_s)
        self._dense = Dense(self.model, self.hardware, self.tensor_parallel, weight_dtype, float(layer_launch_s))
        self._attention = Attention(
            self.model, self.hardware, self.tensor_parallel, WIDTHS[kv_dtype], mixed_attention == "separate"
        )
        self._row_s = Memo(lambda rows: sum(self._dense.parts(rows).values()))
        self._logits_s = Memo(lambda rows: sum(self._dense.logits_parts(rows).values()))
        self._mixed_s, self._decode = self._attention.mixed_s, self._attention.decode
        self._window = self.model.sliding_window or 0
        efficiency, unbounded = self.hardware.efficiency, float("inf")
        self._most_rows = efficiency.measured_tokens or unbounded
        self._most_positions = efficiency.measured_positions or unbounded
        self._longest = efficiency.measured_context or unbounded
        self._bounds_context = bool(efficiency.measured_positions or efficiency.measured_context)
        self._beyond: dict[str, float] = {}

    def step_cost(self, shape: StepShape) -> StepCost:
        """The price of a step of this shape."""
        rows, tokens, requests = shape.computed_tokens, shape.prefill_tokens, shape.num_reqs
        if rows > self._most_rows or self._bounds_context:
            self._count_beyond(rows, shape.decode_context + shape.prefill_context, requests)
        if self._window:
            attention = self._attention_s(shape)
        elif tokens:
            decodes = shape.decode_tokens
            attention = self._mixed_s(
                decodes,
                shape.decode_context,
                tokens,
                shape.prefill_context,
                shape.prefill_pairs,
                requests - decodes,
            )
        else:
            decodes = shape.decode_tokens
            floor, tile_s, block_s, position_s = self._decode
            blocks_s = block_s * decodes + position_s * shape.decode_context
            least_s = tile_s * decodes
            attention = floor + (blocks_s if blocks_s > least_s else least_s)
        return StepCost(
            self._row_s[rows] + self._logits_s[shape.logits_rows] + attention,
            self._host_step + self._host_request * requests,
            self,
            shape,
        )

    def breakdown(self, shape: StepShape) -> dict[str, float]:
        """Seconds by part: gemm, attention, lm_head, sampler, memory_bound, kv_write, launch, allreduce and host."""
        return {
            **self._dense.parts(shape.computed_tokens),
            "attention": self._attention_s(shape),
            **self._dense.logits_parts(shape.logits_rows),
            "host": self._host_step + self._host_request * shape.num_reqs,
        }

    def dense_parts(self, rows: int) -> dict[str, float]:
        """Seconds by part of the layers (less attention) and the embedding, for `rows` rows."""
        return self._dense.parts(rows)

    def logits_parts(self, rows: int) -> dict[str, float]:
        """Seconds of the LM head and the sampler, for `rows` rows."""
        return self._dense.logits_parts(rows)

    def attention_s(self, rows: int, read: int, tokens: int, context: int, pairs: int, prefills: int) -> float:
        """Seconds of all layers' attention: `rows` decode rows that read `read` KV positions in all, and `prefills`
        prefills of `tokens` rows that end with `context` positions and attend to `pairs`.
        """
        if tokens:
            return self._attention.mixed_s(rows, read, tokens, context, pairs, prefills)
        return self._attention.decode_s(rows, read)

    def options(self) -> dict[str, Any]:
        """The options it was built with."""
        return dict(self._options)

    def caveat(self) -> str | None:
        """Whether kernels were ever timed on this device."""
        if self.hardware is None or self.hardware.efficiency.measured_tokens:
            return None
        return f"nothing was measured on {self.hardware.name}: how near its kernels come to its peaks is generic"

    def extrapolation(self) -> dict[str, Any] | None:
        """How many steps were beyond the measurements, and in what; None: none."""
        told = super().extrapolation()
        if told is not None:
            limits = "; ".join(f"{what} above {limit:,.0f}" for what, limit in self._beyond.items())
            told["reason"] = f"{self.out_of_range}: {limits}"
        return told

    def reset(self) -> None:
        """Forget what earlier steps were beyond."""
        super().reset()
        self._beyond.clear()

    def _count_beyond(self, rows: int, positions: int, requests: int) -> None:
        if rows <= self._most_rows and positions <= self._most_positions and positions <= self._longest * requests:
            return
        self.extrapolated_steps += 1
        if rows > self._most_rows:
            self._beyond["rows of a step"] = self._most_rows
        if positions > self._most_positions:
            self._beyond["KV positions of a step"] = self._most_positions
        if positions > self._longest * requests:
            self._beyond["mean context of a step's requests"] = self._longest

    def _attention_s(self, shape: StepShape) -> float:
        rows, read = shape.decode_tokens, shape.decode_context
        tokens, context, pairs = shape.prefill_tokens, shape.prefill_context, shape.prefill_pairs
        prefills = shape.num_reqs - rows
        if self._window and read + context > self._window:  # else no request's context can exceed the window
            rows, read, tokens, context, pairs, prefills = windowed_sums(shape, self._window)
        return self.attention_s(rows, read, tokens, context, pairs, prefills)
