"""The profile cost model: a step from operator times that were measured on the card itself."""

from __future__ import annotations

from typing import Any

from scheduler.errors import ConfigError
from scheduler.plan import StepShape

from ..devices import sheet_of_device
from ..hardware import HardwareSheet
from ..models import MODELS, ModelSheet, get_model
from .attention_fit import Card
from .attention_table import AttentionTable
from .base import CostModel, StepCost, number_option
from .operator_tables import OperatorTables, read_tables
from .roofline import HOST_REQUEST_S, RooflineCost

OTHER_KERNELS = (9, 10)
"""Major compute capabilities on which vLLM serves with FlashAttention 3 and 4: their blocks we do not know."""


class ProfileCost(CostModel):
    """Prices each operator at what a table says; docs/cost-models.md gives the formulas.

    Args:
        dir: folder of operator tables (see `simulator.costs.operator_tables`), or Vidur's ``mlp.csv``: that has no
            attention, LM head and sampler, which the roofline then prices.
        uneven: decodes of unequal contexts cost more than as many of their mean; False: they do not.
        host_step_s, host_request_s: host seconds a step, and for each of its requests; the default is that of the
            roofline. An engine that plans ahead hides them behind the device.
        setup: ``model`` (needed), ``hardware`` and ``tensor_parallel``. Where the profile names a card that we have a
            sheet of, it must be this one.

    Raises:
        InputError: a table that cannot be read.
        ConfigError: tables of another model, card or tensor parallelism.
    """

    name = "profile"

    def __init__(
        self,
        *,
        dir: str,  # the option's name
        uneven: bool = True,
        host_step_s: float = 0.0,
        host_request_s: float = HOST_REQUEST_S,
        **setup: Any,
    ) -> None:
        super().__init__(**setup)
        if self.model is None:
            raise ConfigError("cost model profile needs a model")
        if not isinstance(uneven, bool):
            raise ConfigError(f"cost model option uneven is {uneven!r}; expected true or false")
        self._dir, self._even = str(dir), not uneven
        self._host_step = number_option("host_step_s", host_step_s)
        self._host_request = number_option("host_request_s", host_request_s)
        tables = read_tables(self._dir, self.tensor_parallel)
        _check_model(tables, self.model, self.tensor_parallel)
        card = _card(tables, self.hardware)
        self.hardware = card if self.hardware is None else self.hardware
        self._parts = _Parts(tables, self.model, self.hardware, self.tensor_parallel)
        self._attention = None
        known = None
        if tables.attention is not None:
            known = None if self._even else _blocks(tables, self.model, card, self.tensor_parallel)
            self._attention = AttentionTable(tables.attention, known)
        self._doubt = _doubt(tables, card) if known is None and not self._even else None
        self._rows: dict[int, float] = {}
        self._logits: dict[int, float] = {}
        self._most_rows, self._most_sequences = tables.layer.at[-1], self._parts.most_sequences

    def step_cost(self, shape: StepShape) -> StepCost:
        """The price of a step of this shape."""
        rows, logits = shape.computed_tokens, shape.logits_rows
        row_s = self._rows.get(rows)
        if row_s is None:
            row_s = self._rows[rows] = sum(self._parts.rows(rows).values())
        logits_s = self._logits.get(logits)
        if logits_s is None:
            logits_s = self._logits[logits] = sum(self._parts.logits(logits).values())
        attention_s, beyond = self._attention_s(shape)
        if beyond or rows > self._most_rows or logits > self._most_sequences:
            self.extrapolated_steps += 1
        host_s = self._host_step + self._host_request * shape.num_reqs
        return StepCost(row_s + logits_s + attention_s, host_s, self, shape)

    def breakdown(self, shape: StepShape) -> dict[str, float]:
        """Seconds by part: gemm, memory_bound, attention, lm_head, sampler, host (and allreduce)."""
        return {
            **self._parts.rows(shape.computed_tokens),
            "attention": self._attention_s(shape)[0],
            **self._parts.logits(shape.logits_rows),
            "host": self._host_step + self._host_request * shape.num_reqs,
        }

    def options(self) -> dict[str, Any]:
        """The options it was built with."""
        return {
            "dir": self._dir,
            "uneven": not self._even,
            "host_step_s": self._host_step,
            "host_request_s": self._host_request,
        }

    def caveat(self) -> str | None:
        """Whether unequal contexts could not be told."""
        return self._doubt

    def extrapolation(self) -> dict[str, Any] | None:
        """Steps that were priced beyond the tables, and how far those reach; None where there were none."""
        found = super().extrapolation()
        return None if found is None else {**found, "reason": self._parts.reason}

    def reset(self) -> None:
        """Forget the batches of the run before."""
        super().reset()
        if self._attention is not None:
            self._attention.reset()

    def _attention_s(self, shape: StepShape) -> tuple[float, bool]:
        """Of all layers, and whether the table does not reach so far."""
        if self._attention is None:
            return self._parts.roofline_attention(shape), True
        seconds = self._parts.layers * self._attention.seconds(shape)
        return seconds, self._attention.beyond


class _Parts:
    """Everything but attention, by the rows of the step and by its logits rows."""

    def __init__(self, tables: OperatorTables, model: ModelSheet, hardware: HardwareSheet | None, tp: int) -> None:
        self.tables, self.layers = tables, model.layers
        self.most_sequences = float("inf") if tables.sequences is None else float(tables.sequences.at[-1])
        self._roofline = None
        if tables.sequences is None or tp > 1:
            self._roofline = RooflineCost(model=model, hardware=hardware, tensor_parallel=tp)
        self.reason = _reach(tables)

    def rows(self, rows: int) -> dict[str, float]:
        """Seconds of the layers' products, of their memory-bound operators with the embedding, and of all-reduces."""
        parts = {"gemm": 0.0, "memory_bound": 0.0}
        if not rows:
            return parts
        for name, seconds in self.tables.layer.read(rows).items():
            parts["gemm" if name.endswith("proj") else "memory_bound"] += self.layers * seconds
        parts["memory_bound"] += sum(self.tables.step.read(rows).values())
        if self._roofline is not None:
            parts["allreduce"] = self._roofline.dense_parts(rows)["allreduce"]
        return parts

    def logits(self, rows: int) -> dict[str, float]:
        """Seconds of LM head and sampler."""
        if not rows:
            return {"lm_head": 0.0, "sampler": 0.0}
        if self.tables.sequences is not None:
            return self.tables.sequences.read(rows)
        return self._of_roofline().logits_parts(rows)

    def roofline_attention(self, shape: StepShape) -> float:
        """Seconds of attention where the table has none."""
        decodes = shape.decode_tokens
        prefill = (shape.prefill_tokens, shape.prefill_context, shape.prefill_pairs, shape.num_reqs - decodes)
        return self._of_roofline().attention_s(decodes, shape.decode_context, *prefill)

    def _of_roofline(self) -> RooflineCost:
        if self._roofline is None:
            raise LookupError("the tables lack nothing")
        return self._roofline


def _reach(tables: OperatorTables) -> str:
    """Why a step was counted as extrapolated."""
    if tables.attention is None:
        return f"{tables.path.name} has no times of attention, LM head and sampler; the roofline priced them"
    grid = tables.attention
    return (
        f"more than was profiled ({tables.layer.at[-1]:,.0f} rows, {grid.decodes[-1]:,.0f} decodes, "
        f"{grid.context[-1]:,.0f} positions of history, or a mixture that was not measured); those steps are continued "
        "on a straight line"
    )


def _check_model(tables: OperatorTables, model: ModelSheet, tp: int) -> None:
    if tables.heads not in (None, (model.heads, model.kv_heads)):
        raise ConfigError(
            f"{tables.path} is of a model with {tables.heads} query and KV heads; {model.name} has "
            f"{model.heads} and {model.kv_heads}"
        )
    model.check_tensor_parallel(tp)
    if tables.model is None:
        return
    try:
        profiled = get_model(tables.model)
    except ConfigError:  # a model that we have no sheet of: nothing to compare with
        return
    if model.name in MODELS and profiled.name != model.name:
        raise ConfigError(f"{tables.path} is a profile of {profiled.name}; the model is {model.name}")


def _doubt(tables: OperatorTables, card: HardwareSheet | None) -> str | None:
    """Why decodes are priced at their mean context; None where there is no attention to price so."""
    if tables.attention is None:
        return None
    name = tables.device or "the card"
    why = f"no sheet of {name} says how many SMs it has" if card is None else f"{name} shares their work in another way"
    return f"decodes of unequal contexts are priced at their mean: {why}"


def _card(tables: OperatorTables, hardware: HardwareSheet | None) -> HardwareSheet | None:
    """The sheet of the card that was profiled; where its name says nothing to us, the one given, or None: tables that
    have every operator need none.
    """
    profiled = None if tables.device is None else sheet_of_device(tables.device)
    if profiled is not None and hardware is not None and profiled.name != hardware.name:
        raise ConfigError(f"{tables.path} is a profile of {profiled.name}; the hardware is {hardware.name}")
    card = hardware or profiled
    if card is None and (tables.attention is None or tables.sequences is None):
        raise ConfigError(
            f"{tables.path} is a profile of {tables.device or 'no named device'} and lacks operators that the roofline "
            "would price; give the hardware sheet"
        )
    return card


def _blocks(tables: OperatorTables, model: ModelSheet, card: HardwareSheet | None, tp: int) -> Card | None:
    """What decides how blocks of FlashAttention 2 run; None where another kernel serves, or of an unknown card."""
    if card is None:
        return None
    if tables.capability is not None and int(tables.capability) in OTHER_KERNELS:
        return None
    return Card(
        sms=card.sms,
        heads=model.heads // tp,
        kv_heads=max(1, model.kv_heads // tp),
        head_dim=model.head_dim,
        longest=tables.longest or model.max_positions,
        captured=tables.captured,
    )
