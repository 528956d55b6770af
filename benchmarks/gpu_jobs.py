"""Requests for the engine parts of `gpu.py`, and whoever answers them: the engine, and transformers' own batching."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, LlamaForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from backend import Engine, SamplingParams
from backend.outputs import StepEvent
from backend.weights import Weights

BLOCK_SIZE = 16
PAGE_SIZE = 256
"""Of transformers' cache: its default."""
PATIENCE_S = 30.0
"""Longest wait for an answer of transformers."""

Tokens = list[list[int]]


@dataclass(frozen=True, slots=True)
class Job:
    """Requests that arrive together: prompts, and how many tokens each answers."""

    prompts: Tokens
    outputs: list[int]

    @property
    def num_tokens(self) -> int:
        """Prompts and answers."""
        return sum(map(len, self.prompts)) + sum(self.outputs)

    @property
    def longest(self) -> int:
        return max(len(prompt) + count for prompt, count in zip(self.prompts, self.outputs, strict=True))

    def facts(self) -> dict[str, int]:
        return {
            "requests": len(self.prompts), "prompt_tokens": sum(map(len, self.prompts)),
            "output_tokens": sum(self.outputs),
        }  # fmt: skip


def random_job(count: int, prompts: tuple[int, int], outputs: tuple[int, int], vocab_size: int, seed: int = 0) -> Job:
    """Random tokens; lengths evenly between the bounds, both included."""
    draw = np.random.Generator(np.random.PCG64(seed))
    lengths = draw.integers(prompts[0], prompts[1] + 1, count).tolist()
    answers = draw.integers(outputs[0], outputs[1] + 1, count).tolist()
    return Job([draw.integers(3, vocab_size, length).tolist() for length in lengths], answers)


class Ours:
    """The engine on given weights; ``with Ours(...) as engine``."""

    def __init__(self, weights: Weights, job: Job, *, slots: int, **settings: Any) -> None:
        model: Any = weights
        self._slots = slots
        self._steps: list[StepEvent] = []
        wanted = {
            "max_num_seqs": slots, "block_size": BLOCK_SIZE, "max_model_len": job.longest + 1, "batch_timeout_s": 0.0,
            "num_blocks": 1 + 2 * slots * -(-(job.longest + 1) // BLOCK_SIZE), "ops": "triton", "threads": 1,
        }  # fmt: skip
        self._engine = Engine(model, **{**wanted, **settings})
        self._engine.observe(self._note)

    def run(self, job: Job) -> tuple[dict[str, Any], Tokens]:
        """Answer all; figures and tokens."""
        self._steps = []
        params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in job.outputs]
        began_s = time.perf_counter()
        answers = self._engine.generate(job.prompts, params)
        wall_s = time.perf_counter() - began_s
        wrong = next((answer for answer in answers if answer.finish_reason != "length"), None)
        if wrong is not None:
            raise RuntimeError(f"{wrong.request_id} ended by {wrong.finish_reason}: {wrong.error}")
        return {**rates(job, wall_s), **self._facts(wall_s)}, [answer.token_ids for answer in answers]

    def close(self) -> None:
        self._engine.close()
        gc.collect()  # the engine's parts refer to each other, and hold the device's memory

    def __enter__(self) -> Ours:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _note(self, event: StepEvent) -> None:
        if event.plan is not None:
            self._steps.append(event)

    def _facts(self, wall_s: float) -> dict[str, Any]:
        """What the steps were. Occupancy: unfinished requests in seats over seats, by time."""
        plans = [(event.plan, event) for event in self._steps if event.plan is not None]
        padded = sum(
            plan.padding_prompt + plan.padding_finished + plan.padding_graph + plan.padding_overrun for plan, _ in plans
        )
        decodes = [event.device_s for plan, event in plans if not plan.prefill_tokens]
        return {
            "steps": len(plans),
            "device_s": sum(event.device_s for _, event in plans),
            "host_s": sum(event.host_s for _, event in plans),
            "decode_step_device_s": float(np.median(decodes)) if decodes else None,
            "occupancy": sum(plan.running * (event.t_end_s - event.t_start_s) for plan, event in plans)
            / (self._slots * sum(event.t_end_s - event.t_start_s for _, event in plans)),
            "padding_fraction": padded / sum(plan.computed_tokens for plan, _ in plans),
            "padding_s_by_share": sum(event.padding_s for _, event in plans),
        }


class Theirs:
    """transformers' continuous batching: what `generate_batch` runs, with a length a request, kept from job to job.

    Its settings are its own choice (CUDA graphs and asynchronous batching where it thinks they pay) but for the pages,
    the tokens of a step and the attention.
    """

    def __init__(self, model: LlamaForCausalLM, job: Job, *, attention: str, step_tokens: int, slots: int) -> None:
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)  # it asks for psutil, and needs it not
        model.set_attn_implementation(attention)
        pages = slots * (-(-job.longest // PAGE_SIZE) + 1)
        self._manager = model.init_continuous_batching(  # type: ignore[operator]  # a mixin's, untyped
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=1),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE_SIZE, num_blocks=pages, max_batch_tokens=step_tokens, max_requests_per_batch=slots,
                auto_switch_to_flash=False,  # it would ask the network for a kernel
            ),
        )  # fmt: skip
        with torch.inference_mode():
            self._manager.warmup()
            self._manager.start()

    def run(self, job: Job) -> tuple[dict[str, Any], Tokens]:
        """Answer all; figures and tokens."""
        began_s = time.perf_counter()
        tokens = self._answers(job)
        return rates(job, time.perf_counter() - began_s), tokens

    def close(self) -> None:
        self._manager.stop(block=True)

    def __enter__(self) -> Theirs:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _answers(self, job: Job) -> Tokens:
        names = [
            self._manager.add_request(prompt, max_new_tokens=count)
            for prompt, count in zip(job.prompts, job.outputs, strict=True)
        ]
        done: dict[str, list[int]] = {}
        ends_s = time.perf_counter() + PATIENCE_S
        while len(done) < len(names):
            result = self._manager.get_result(timeout=1)
            if result is not None and result.error is not None:
                raise RuntimeError(f"transformers' continuous batching: {result.error}")
            if result is None and not self._manager.is_running():
                raise RuntimeError("transformers' continuous batching has ended by itself")
            if time.perf_counter() > ends_s:
                raise RuntimeError(f"{len(done)} of {len(names)} answers after {PATIENCE_S:g} s")
            if result is not None and result.is_finished():
                done[result.request_id] = result.generated_tokens
        return [done[name] for name in names]


def rates(job: Job, wall_s: float) -> dict[str, float]:
    """Seconds, output tokens a second."""
    return {"seconds": wall_s, "output_tokens_per_s": sum(job.outputs) / wall_s}


def equal_share(some: Sequence[list[int]], others: Sequence[list[int]]) -> float:
    """Share of the tokens that agree before the first that differs in its answer (after it nothing has to)."""
    agreed = total = 0
    for mine, other in zip(some, others, strict=True):
        first = next((at for at, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), len(mine))
        agreed, total = agreed + first, total + len(mine)
    return agreed / total
