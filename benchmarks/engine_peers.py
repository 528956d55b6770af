"""Who takes part in `engine.py`: the engine, transformers in both of its ways, and the matrix products alone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from backend import Engine, SamplingParams
from backend.ops.packed_linear import PackedLinear
from backend.outputs import StepEvent

MODEL: dict[str, Any] = {
    "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 32_000, "tie_word_embeddings": False,
    "max_position_embeddings": 1024,
}  # fmt: skip
"""A Llama of 63 million parameters."""
BLOCK_SIZE, NUM_BLOCKS = 16, 1025
"""Of every contestant's KV cache: room for 16,384 tokens, more than 64 requests ever hold here."""
STEP_TOKENS = {"engine": 2048, "transformers": 256}
"""Token budget of a step. The engine has its default; transformers did as well, within 5%, with 128, 256, 512 and
2,048."""
CLOSE = 1e-4
"""Top logits closer than this may swap between two ways of rounding in float32."""


@dataclass(frozen=True, slots=True)
class Job:
    """Requests that arrive together: prompts, and how many tokens each answers."""

    prompts: list[list[int]]
    outputs: list[int]

    @property
    def num_outputs(self) -> int:
        return sum(self.outputs)


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What a step of the engine was: rows through the layers, rows through the LM head, seconds."""

    rows: int
    logits_rows: int
    running: int
    decodes_only: bool
    padding_rows: int
    device_s: float
    host_s: float
    padding_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A job done: seconds by the clock and of the processor, and the answers."""

    wall_s: float
    cpu_s: float
    tokens: list[list[int]]


class Contestant(Protocol):
    def run(self, job: Job) -> Measured: ...

    def close(self) -> None: ...


def save_model(folder: Path, dtype: torch.dtype, seed: int) -> LlamaForCausalLM:
    """A random model, in a directory for the engine and as an object for transformers."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**MODEL, bos_token_id=1, eos_token_id=2, attn_implementation="sdpa"))
    model = model.to(dtype).eval()
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    return model


def timed(run: Callable[[], list[list[int]]]) -> Measured:
    """Both clocks around a call."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    tokens = run()
    return Measured(time.perf_counter() - wall_s, time.process_time() - cpu_s, tokens)


class Ours:
    """The engine, kept from job to job. `steps` are those of the last job."""

    def __init__(self, folder: Path, dtype: str, *, policy: str = "chunked", slots: int = 32) -> None:
        self._events: list[StepEvent] = []
        self._engine = Engine(
            folder, device="cpu", dtype=dtype, threads=1, policy=policy, max_num_seqs=slots, num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE, max_num_batched_tokens=STEP_TOKENS["engine"], max_model_len=1024,
            batch_timeout_s=0.0,
        )  # fmt: skip
        self._engine.observe(lambda event: self._events.append(event))

    @property
    def steps(self) -> list[StepFacts]:
        return [_facts(event) for event in self._events if event.plan is not None]

    def run(self, job: Job) -> Measured:
        self._events = []
        params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in job.outputs]
        return timed(lambda: [answer.token_ids for answer in self._engine.generate(job.prompts, params)])

    def run_without_clients(self, job: Job) -> None:
        """The same, but nobody is told of any token."""
        ended = threading.Semaphore(0)
        self._events = []
        self._engine.observe_ends(lambda _: ended.release())
        lives = [
            self._engine.make(prompt, SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True), None)
            for prompt, count in zip(job.prompts, job.outputs, strict=True)
        ]
        self._engine.send(lives)
        for _ in lives:
            ended.acquire()

    def close(self) -> None:
        self._engine.close()


def _facts(event: StepEvent) -> StepFacts:
    plan = event.plan
    assert plan is not None
    padding = plan.padding_prompt + plan.padding_finished + plan.padding_graph + plan.padding_overrun
    return StepFacts(
        plan.computed_tokens, plan.sampled, plan.running, not plan.prefill_tokens, padding, event.device_s,
        event.host_s, event.padding_s,
    )  # fmt: skip


class Continuous:
    """transformers' continuous batching: what `generate_batch` does, with one length a request, kept from job to job.

    `generate_batch` itself knows one `max_new_tokens` for all, and sets its cache up anew in each call.
    """

    def __init__(self, model: LlamaForCausalLM, *, step_tokens: int = STEP_TOKENS["transformers"]) -> None:
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)  # it asks for psutil, and needs it not
        config = ContinuousBatchingConfig(
            page_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, max_batch_tokens=step_tokens, max_requests_per_batch=64,
        )  # fmt: skip
        self._manager = model.init_continuous_batching(  # type: ignore[operator]  # a mixin's, untyped
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=1),
            continuous_batching_config=config,
        )
        with torch.inference_mode():
            self._manager.warmup()
            self._manager.start()

    def run(self, job: Job) -> Measured:
        return timed(lambda: self._answers(job))

    def _answers(self, job: Job) -> list[list[int]]:
        names = [
            self._manager.add_request(prompt, max_new_tokens=count)
            for prompt, count in zip(job.prompts, job.outputs, strict=True)
        ]
        done: dict[str, list[int]] = {}
        while len(done) < len(names):
            result = self._manager.get_result(timeout=1)
            if result is None:
                if not self._manager.is_running():
                    raise RuntimeError("transformers' continuous batching has ended by itself")
            elif result.error is not None:
                raise RuntimeError(f"transformers' continuous batching: {result.error}")
            elif result.is_finished():
                done[result.request_id] = result.generated_tokens
        return [done[name] for name in names]

    def close(self) -> None:
        self._manager.stop(block=True)


class Padded:
    """transformers' `generate` on left-padded batches in the order of arrival, each as long as its longest answer."""

    def __init__(self, model: LlamaForCausalLM, batch: int) -> None:
        self._model = model
        self._batch = batch

    def run(self, job: Job) -> Measured:
        return timed(lambda: self._answers(job))

    def _answers(self, job: Job) -> list[list[int]]:
        answers: list[list[int]] = []
        for first in range(0, len(job.prompts), self._batch):
            some = slice(first, first + self._batch)
            answers += self._generate(job.prompts[some], job.outputs[some])
        return answers

    @torch.inference_mode()
    def _generate(self, prompts: list[list[int]], outputs: list[int]) -> list[list[int]]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        config = GenerationConfig(do_sample=False, max_new_tokens=max(outputs), pad_token_id=0)
        whole = self._model.generate(ids, attention_mask=mask, generation_config=config)
        new: list[list[int]] = whole[:, longest:].tolist()
        return [tokens[:count] for tokens, count in zip(new, outputs, strict=True)]

    def close(self) -> None:
        pass


class Products:
    """The matrix products alone of a schedule: every linear layer on a step's rows, the LM head on those that sample.

    Plain weights through `torch.nn.functional.linear`, each layer its own; or, `packed`, laid out as the engine does.
    """

    def __init__(self, dtype: torch.dtype, *, packed: bool = False) -> None:
        hidden, mlp, head = MODEL["hidden_size"], MODEL["intermediate_size"], MODEL["head_dim"]
        heads, kv_heads = MODEL["num_attention_heads"], MODEL["num_key_value_heads"]
        shapes = [(head * (heads + 2 * kv_heads), hidden), (hidden, head * heads), (2 * mlp, hidden), (hidden, mlp)]
        lay = PackedLinear if packed else _plain
        self._layers = [[lay(torch.randn(shape, dtype=dtype)) for shape in shapes] for _ in range(8)]
        self._head = lay(torch.randn(MODEL["vocab_size"], hidden, dtype=dtype))
        self._x = {width: torch.randn(1 << 14, width, dtype=dtype) for width in {hidden, head * heads, mlp}}
        self._widths = [shape[1] for shape in shapes]
        self.schedule: Sequence[tuple[int, int]] = ()

    @torch.inference_mode()
    def run(self, job: Job) -> Measured:
        return timed(self._multiply)

    def _multiply(self) -> list[list[int]]:
        for rows, logits_rows in self.schedule:
            inputs = [self._x[width][:rows] for width in self._widths]
            for layer in self._layers:
                for x, linear in zip(inputs, layer, strict=True):
                    linear(x, None)
            if logits_rows:
                self._head(inputs[0][:logits_rows], None)
        return []

    def close(self) -> None:
        pass


def _plain(weight: Tensor) -> Callable[[Tensor, None], Tensor]:
    return lambda x, _: F.linear(x, weight)


@torch.inference_mode()
def differences(
    model: LlamaForCausalLM, job: Job, ours: list[list[int]], theirs: list[list[int]], *, explain: bool
) -> dict[str, int]:
    """How many tokens and answers differ; and, to `explain` it, how many answers first differ where the model's top
    two logits are not close.
    """
    differ = unexplained = tokens = 0
    for prompt, mine, other in zip(job.prompts, ours, theirs, strict=True):
        tokens += sum(a != b for a, b in zip(mine, other, strict=True))
        differ += mine != other
        if mine != other and explain:
            place = next(at for at, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b)
            logits = model(torch.tensor([[*prompt, *mine[:place]]])).logits[0, -1]
            top = torch.topk(logits, 2).values
            unexplained += bool(top[0] - top[1] > CLOSE)
    found = {"tokens": tokens, "answers": differ}
    return {**found, "answers_not_explained_by_rounding": unexplained} if explain else found


class Field:
    """Contestants by name; closes them all at the end."""

    def __init__(self, contestants: dict[str, Contestant]) -> None:
        self.by_name = contestants

    def __enter__(self) -> dict[str, Contestant]:
        return self.by_name

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for contestant in self.by_name.values():
            contestant.close()
