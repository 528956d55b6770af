"""The fitted cost model: a step at what `batchscope calibrate` learned from recorded steps of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.config import Layout, SchedulerConfig
from scheduler.errors import ConfigError
from scheduler.plan import StepShape

from .. import models
from ..devices import sheet_of_device
from ..models import ModelSheet
from .base import CostModel, OwnSetup, StepCost, number_option
from .fit_terms import REACH, Curve, Terms, features_of
from .fitted_file import MODES, SHAPE, LayoutFit, cost_file, modes_of, read_cost_file

WIDTHS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
"""Engine's name of a dtype -> ours."""

BUSY = 1.5
"""A mean so many times that of the quick steps says that much else ran; on a shared machine at peace it was 1.2."""
NEVER = 1e9
"""Times beyond the range, of what was not fitted on at all."""


class FittedCost(CostModel):
    """Prices a step by the terms of its layout; docs/cost-models.md gives the formula.

    Args:
        path: file of ``batchscope calibrate``.
        fit: the content of such a file, as a trace's meta keeps it; `path` is then only what it is called.
        mean: prices are means of all steps, those too that something held up; False: of the undisturbed ones.
        slowdown: all seconds times this: above 1 for a machine that is slower now than when it was recorded.
        setup: ``model``, ``hardware`` and ``tensor_parallel`` must be those that the file is of; None: they are.

    Raises:
        InputError: the file cannot be read or says something wrong.
        ConfigError: prices of another model, device or tensor parallelism; in `prepare`, of another layout.
    """

    name = "fitted"

    def __init__(
        self,
        *,
        path: str = "",
        fit: Mapping[str, Any] | None = None,
        mean: bool = True,
        slowdown: float = 1.0,
        **setup: Any,
    ) -> None:
        super().__init__(**setup)
        if not path and fit is None:
            raise ConfigError("cost model fitted needs path=FILE, made by batchscope calibrate")
        if not isinstance(mean, bool):
            raise ConfigError(f"cost model option mean is {mean!r}; expected true or false")
        self._path, self._mean = str(path), mean
        self._slowdown = number_option("slowdown", slowdown)
        if not self._slowdown:
            raise ConfigError("cost model option slowdown is 0; expected a number > 0")
        self.file = read_cost_file(self._path) if fit is None else cost_file(fit, self._path or "the fit")
        self._check_setup()
        self.model = self.file.model if self.model is None else self.model
        self._layouts = {name: _Prices(layout, self._slowdown, mean) for name, layout in self.file.layouts.items()}
        self._mode = ""
        self._furthest = (0.0, "")

    @classmethod
    def own_setup(cls, options: Mapping[str, Any]) -> OwnSetup | None:
        """Model, device and width that the file is of: what is simulated where the user names none."""
        if not options.get("path"):
            return None
        file = read_cost_file(str(options["path"]))
        card = sheet_of_device(file.hardware)
        settings: dict[str, Any] = {"model": file.model.name, "hardware": card.name if card else file.hardware}
        settings["tensor_parallel"] = file.tensor_parallel
        width = WIDTHS.get(file.dtype, file.dtype)
        if width in models.WIDTHS:
            settings.update(weight_dtype=width, kv_dtype=width)
        return OwnSetup(settings, file.model, card)

    def prepare(self, config: SchedulerConfig, layout: Layout) -> None:
        """Refuse a layout without prices; note a mode of the engine that was not recorded."""
        if layout not in self._layouts:
            raise ConfigError(
                f"{self.file.name} has no prices of the {layout} layout, which policy {config.policy} uses here; "
                f"expected {' or '.join(self._layouts)}, or traces of it in batchscope calibrate"
            )
        self._mode = _unlike(self.file.layouts[layout].modes, config)

    def step_cost(self, shape: StepShape) -> StepCost:
        """The price of a step of this shape."""
        prices = self._layouts[shape.layout]
        if self._mode or not prices.reaches(shape):
            self._flag(shape, prices)
        return prices.cost(shape, self)

    def padding_s(self, cost: StepCost, real: StepShape, layout: Layout) -> float:
        """As every model, the real rows at the prices of the layout in which they were computed."""
        bare = self._layouts[layout].cost(real)
        return max(cost.device_s + cost.host_s - bare.device_s - bare.host_s, 0.0)

    def breakdown(self, shape: StepShape) -> dict[str, float]:
        """Seconds by part: step, gemm, lm_head, attention, request and host."""
        return self._layouts[shape.layout].parts(shape)

    def options(self) -> dict[str, Any]:
        """The options it was built with."""
        return {"path": self._path, "mean": self._mean, "slowdown": self._slowdown}

    def describe(self) -> dict[str, Any]:
        """As every model, and the file itself: a file may change, a trace should not."""
        return {**super().describe(), "fit": self.file.document}

    def caveat(self) -> str | None:
        """Whether the steps it was fitted to were measured, and in peace."""
        if self.file.source != "measured":
            return f"{self.file.name} was fitted to simulated steps"
        busy = max(fit.mean_over_fit[0] for fit in self.file.layouts.values())
        return f"{self.file.name} was fitted on a busy machine (mean_over_fit {busy:.2g})" if busy > BUSY else None

    def extrapolation(self) -> dict[str, Any] | None:
        """Steps beyond what was fitted on, and what went furthest; None where there were none."""
        found = super().extrapolation()
        if found is None:
            return None
        return {**found, "reason": "; ".join(part for part in (self._mode, self._furthest[1]) if part)}

    def reset(self) -> None:
        """Forget how far the run before went."""
        super().reset()
        self._furthest = (0.0, "")

    def _flag(self, shape: StepShape, prices: _Prices) -> None:
        self.extrapolated_steps += 1
        times, name, value = prices.furthest(shape)
        if times > self._furthest[0] and times > 1:
            self._furthest = (times, prices.sentence(name, value))

    def _check_setup(self) -> None:
        file = self.file
        if self.model is not None and not _alike(self.model, file.model):
            raise ConfigError(f"{file.name} was fitted to {_named(file.model)}; the model is {_named(self.model)}")
        card = sheet_of_device(file.hardware)
        if card is not None and self.hardware is not None and card.name != self.hardware.name:
            raise ConfigError(f"{file.name} was fitted on {file.hardware}; the hardware is {self.hardware.name}")
        if self.tensor_parallel != file.tensor_parallel:
            raise ConfigError(
                f"{file.name} was fitted with tensor_parallel {file.tensor_parallel}; it is {self.tensor_parallel} here"
            )


class _Prices:
    """The prices of one layout, made ready: a step takes a few products and two look-ups."""

    def __init__(self, fit: LayoutFit, slowdown: float, mean: bool) -> None:
        on_device, on_host = fit.mean_over_fit if mean else (1.0, 1.0)
        device, host = fit.device.scaled(slowdown * on_device), fit.host.scaled(slowdown * on_host)
        self._step_s, self._host_s = device.step_s, host.step_s
        self._rows, self._logits = _curve(device, "rows"), _curve(device, "logits_rows")
        self._host_rows = _curve(host, "rows")
        self._decode_s, self._prefill_s = _slope(device, "decodes"), _slope(device, "prefills")
        self._context_s, self._pairs_s = _slope(device, "decode_context"), _slope(device, "prefill_pairs")
        self._prefill_context_s = _slope(device, "prefill_context")
        self._request_host_s, self._prefill_host_s = _slope(host, "requests"), _slope(host, "prefills")
        self._known_rows: dict[int, tuple[float, float]] = {}
        self._known_logits: dict[int, float] = {}
        self._most = {name: fit.reach.get(name, (0, 0))[1] for name in REACH}
        self._limits = tuple(self._most.values())
        self._least_rows = fit.reach["rows"][0]
        self._mixes = bool(fit.kinds["mixed"])

    def cost(self, shape: StepShape, model: CostModel | None = None) -> StepCost:
        """The price of a step."""
        rows, logits, decodes, requests = shape.computed_tokens, shape.logits_rows, shape.decode_tokens, shape.num_reqs
        known = self._known_rows.get(rows)
        if known is None:
            known = self._known_rows[rows] = (self._rows.seconds(rows), self._host_rows.seconds(rows))
        logits_s = self._known_logits.get(logits)
        if logits_s is None:
            logits_s = self._known_logits[logits] = self._logits.seconds(logits)
        device_s = (
            self._step_s + known[0] + logits_s + self._decode_s * decodes + self._context_s * shape.decode_context
        )
        host_s = self._host_s + known[1] + self._request_host_s * requests
        if shape.prefill_tokens:
            prefills = requests - decodes
            device_s += (
                self._prefill_s * prefills + self._pairs_s * shape.prefill_pairs
                + self._prefill_context_s * shape.prefill_context
            )  # fmt: skip
            host_s += self._prefill_host_s * prefills
        return StepCost(device_s, host_s, model, shape)

    def reaches(self, shape: StepShape) -> bool:
        """Whether steps as large as this one in every feature were fitted on."""
        rows, requests, logits, decodes, context, mean, prefills, tokens, prefill_context, pairs = self._limits
        running, read, new = shape.decode_tokens, shape.decode_context, shape.prefill_tokens
        decode = (
            self._least_rows <= shape.computed_tokens <= rows and shape.num_reqs <= requests
            and shape.logits_rows <= logits and running <= decodes and read <= context and read <= mean * running
        )  # fmt: skip
        if not decode or not new:
            return decode
        return (
            new <= tokens and shape.num_reqs - running <= prefills and shape.prefill_context <= prefill_context
            and shape.prefill_pairs <= pairs and (self._mixes or not running)
        )  # fmt: skip

    def furthest(self, shape: StepShape) -> tuple[float, str, float]:
        """The feature in which a step goes furthest beyond what was fitted on: how many times, which, and its value."""
        told: dict[str, float] = dict(features_of(shape))
        told["mean_decode_context"] = told["decode_context"] / (told["decodes"] or 1)
        if told["decodes"] and told["prefills"] and not self._mixes:
            return NEVER, "mixed", 0.0
        if told["rows"] < self._least_rows:
            return self._least_rows / (told["rows"] or 1), "few rows", told["rows"]
        times = {name: told[name] / most if most else NEVER * bool(told[name]) for name, most in self._most.items()}
        name = max(times, key=lambda name: times[name])
        return times[name], name, told[name]

    def sentence(self, name: str, value: float) -> str:
        """What `furthest` found, for people."""
        if name == "mixed":
            return "prefills and decodes in one step, fitted on none such"
        if name == "few rows":
            return f"rows as few as {value:,.0f} in a step, fitted on at least {self._least_rows:,.0f}"
        most = self._most[name]
        fitted = f"at most {most:,.0f}" if most else "none"
        return f"{REACH[name]} up to {value:,.0f} in a step, fitted on {fitted}"

    def parts(self, shape: StepShape) -> dict[str, float]:
        """The same by part."""
        told = features_of(shape)
        return {
            "step": self._step_s,
            "gemm": self._rows.seconds(told["rows"]),
            "lm_head": self._logits.seconds(told["logits_rows"]),
            "attention": self._context_s * told["decode_context"]
            + self._pairs_s * told["prefill_pairs"]
            + self._prefill_context_s * told["prefill_context"],
            "request": self._decode_s * told["decodes"] + self._prefill_s * told["prefills"],
            "host": self.cost(shape).host_s,
        }


def _curve(terms: Terms, name: str) -> Curve:
    return terms.curves.get(name, Curve((0,), (0.0,)))


def _slope(terms: Terms, name: str) -> float:
    return _curve(terms, name).slopes_s[0]


def _unlike(modes: Mapping[str, bool], config: SchedulerConfig) -> str:
    """What the engine does otherwise than when its steps were recorded; empty where nothing."""
    now = modes_of(config.async_scheduling, config.cudagraph_capture_sizes)
    other = [name for name in MODES if modes[name] != now[name]]
    words = (f"{name} is {_on(now[name])}, fitted with it {_on(modes[name])}" for name in other)
    return "; ".join(words)


def _on(value: bool) -> str:
    return "on" if value else "off"


def _alike(one: ModelSheet, other: ModelSheet) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in SHAPE)


def _named(model: ModelSheet) -> str:
    return f"{model.name} ({model.layers} layers, hidden {model.hidden:,})"
