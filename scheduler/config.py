"""Every setting of the scheduler, validated where it enters."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from .errors import ConfigError, unknown_name

Layout = Literal["padded", "ragged"]
KvMemory = Literal["paged", "reserve-max-tokens", "reserve-max-model-len"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "layout": ("auto", "padded", "ragged"),
    "scheduling_policy": ("fcfs", "priority"),
    "kv_memory": ("paged", "reserve-max-tokens", "reserve-max-model-len"),
    "padding_side": ("left", "right"),
    "release": ("batch", "request"),
}
_AT_LEAST: dict[str, float] = {
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "max_model_len": 2,
    "long_prefill_token_threshold": 0,
    "block_size": 1,
    "num_blocks": 2,
    "watermark": 0,
    "model_len_margin": 0,
    "batch_timeout_s": 0,
}
_AT_MOST: dict[str, float] = {
    "max_num_seqs": 1_000_000,
    "max_num_batched_tokens": 2**31 - 1,
    "max_model_len": 100_000_000,
    "long_prefill_token_threshold": 2**31 - 1,
    "block_size": 100_000_000,
    "num_blocks": 10_000_000,
    "model_len_margin": 100_000_000,
    "batch_timeout_s": 1_000_000_000,
}
"""Far beyond any server there is; what is larger is a slip of the pen, and would take memory without end."""


@dataclass(frozen=True)
class SchedulerConfig:
    """Settings of a scheduler; names are vLLM's where it has one. Raises ConfigError naming a bad field.

    Attributes:
        policy: who runs: ``chunked``, ``static``, ``slots``, ``orca``, ``prefill-first``, an entry point of
            ``batchscope.policies`` or ``module:Class``.
        layout: shape of the batch; ``auto`` is the policy's own (``padded`` for ``static``, else ``ragged``).
        max_num_seqs: slots.
        max_num_batched_tokens: token budget of a step.
        max_model_len: longest prompt + output, in tokens.
        num_blocks: KV blocks, of which block 0 is the null block (usable: ``num_blocks - 1``).
        block_size: tokens a block.
        scheduling_policy: order of the waiting queue and of preemption.
        long_prefill_token_threshold: most tokens of one request in a step when it is not alone; 0 is no limit.
        enable_chunked_prefill: a prompt may be computed in several steps.
        enable_prefix_caching: blocks of equal content are shared, where the workload gives contents.
        watermark: fraction of the usable blocks kept free at admission (not when nothing runs).
        kv_memory: ``paged``, or the whole of ``prompt + max_tokens`` / ``max_model_len`` reserved at admission.
        model_len_margin: a request ends at ``max_model_len - model_len_margin`` tokens (1 in some engines).
        cudagraph_capture_sizes: row counts a ragged step is padded up to; none: no graph padding.
        async_scheduling: step n+1 is planned before the tokens of step n are known.
        eos_token_ids: tokens that end a request unless it ignores them.
        batch_timeout_s: ``static``: a batch starts at the latest so long after its first request came.
        padding_side: ``static``: ``left`` pads occupy KV, ``right`` pads do not.
        release: ``static``: results leave at the end of the ``batch`` or of each ``request``.
    """

    policy: str = "chunked"
    layout: Literal["auto", "padded", "ragged"] = "auto"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    num_blocks: int = 8193
    block_size: int = 16
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    watermark: float = 0.0
    kv_memory: KvMemory = "paged"
    model_len_margin: int = 0
    cudagraph_capture_sizes: tuple[int, ...] = ()
    async_scheduling: bool = False
    eos_token_ids: tuple[int, ...] = ()
    batch_timeout_s: float = 0.05
    padding_side: Literal["left", "right"] = "left"
    release: Literal["batch", "request"] = "batch"

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise unknown_name(name, str(getattr(self, name)), allowed)
        for name, least in _AT_LEAST.items():
            self._check_number(name, least)
        for name in ("enable_chunked_prefill", "enable_prefix_caching", "async_scheduling"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected true or false")
        for name in ("cudagraph_capture_sizes", "eos_token_ids"):
            object.__setattr__(self, name, _whole_numbers(name, getattr(self, name)))
        sizes = self.cudagraph_capture_sizes
        if any(size < 1 for size in sizes) or list(sizes) != sorted(set(sizes)):
            raise ConfigError(f"cudagraph_capture_sizes is {list(sizes)}; expected rising whole numbers >= 1")
        if self.watermark >= 1:
            raise ConfigError(f"watermark is {self.watermark}; expected a fraction of the blocks, 0 <= watermark < 1")
        if self.model_len_margin >= self.max_model_len - 1:
            raise ConfigError(f"model_len_margin is {self.model_len_margin}; expected < max_model_len - 1")

    def _check_number(self, name: str, least: float) -> None:
        value = getattr(self, name)
        whole = isinstance(getattr(type(self), name), int)
        kind = "a whole number" if whole else "a number"
        wrong_type = isinstance(value, bool) or not isinstance(value, int if whole else (int, float))
        if wrong_type or not least <= value < float("inf"):
            raise ConfigError(f"{name} is {value!r}; expected {kind} >= {least}")
        most = _AT_MOST.get(name, value)
        if value > most:
            raise ConfigError(f"{name} is {value!r}; expected {kind} from {least} to {most:,}")

    @property
    def usable_blocks(self) -> int:
        """Blocks requests can hold: all but the null block."""
        return self.num_blocks - 1

    @property
    def length_cap(self) -> int:
        """Tokens (prompt + output) at which a request ends whatever its ``max_tokens``."""
        return self.max_model_len - self.model_len_margin

    def replaced(self, **settings: Any) -> SchedulerConfig:
        """A copy with some settings changed; raises ConfigError for a name that is no setting."""
        known = [field.name for field in fields(self)]
        for name in settings:
            if name not in known:
                raise unknown_name("scheduler setting", name, known)
        return replace(self, **settings)


def _whole_numbers(name: str, given: Any) -> tuple[int, ...]:
    if isinstance(given, (list, tuple)) and all(isinstance(n, int) and not isinstance(n, bool) for n in given):
        return tuple(given)
    kind = "rising whole numbers >= 1" if name == "cudagraph_capture_sizes" else "whole numbers"
    raise ConfigError(f"{name} is {given!r}; expected a list of {kind}")
