"""The engine: a model, a scheduler and a recorder behind a thread-safe front; ``with Engine(...) as engine``."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduler import Request, Scheduler
from scheduler.errors import RequestRefused, UserError
from scheduler.request import TokenArray
from traces.store import remove_if_useless

from .answers import Answer, Prompt, as_params, as_prompts, expand, with_choices
from .inbox import Inbox
from .live import Live, OnOutput
from .outputs import EngineStats, RequestOutput, StepEvent, TokenOutput
from .sampling import SamplingParams
from .text import TextStream

if TYPE_CHECKING:
    from traces.trace import Trace

    from .weights import Weights


class EngineFull(UserError):
    """So many requests wait that no more is taken."""


class EngineClosed(UserError):
    """The engine has stopped, or has failed."""


class Engine:
    """Runs requests on a model, step by step as the scheduler decides, and records every step.

    Args:
        model: ``embedded``, a model directory, a Hugging Face id, or weights that are there already (no tokenizer).
        device: ``cpu``, ``cuda``, or ``auto`` (a GPU where there is one).
        dtype: ``float32``, ``bfloat16``, ``float16``, ``float64``; ``auto``: float32 on the CPU, else the checkpoint's.
        ops: ``torch`` or ``triton``; ``auto``: Triton kernels on a GPU, torch operators on the CPU.
        threads: of torch on the CPU; None: as many as cores.
        trace: folder ``NAME.trace`` for the step trace; None: a temporary one.
        max_queue: waiting requests beyond which `submit` raises `EngineFull`; None: no limit.
        kv_cache_gib: memory for K/V; None: 1 GiB on the CPU, on a GPU what `gpu_memory_utilization` leaves.
        gpu_memory_utilization: share of a GPU's memory the engine may use.
        seed: of the sampling noise of requests that bring none.
        note: facts for the trace's meta.
        settings: of the scheduler (`scheduler.SchedulerConfig`), by name.

    Raises:
        UserError: a setting is wrong, or the model cannot be had.
    """

    def __init__(
        self,
        model: str | Path | Weights = "embedded",
        *,
        device: str = "auto",
        dtype: str = "auto",
        ops: str = "auto",
        threads: int | None = None,
        trace: str | Path | None = None,
        max_queue: int | None = None,
        kv_cache_gib: float | None = None,
        gpu_memory_utilization: float = 0.9,
        seed: int = 0,
        note: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        from .build import build

        parts = build(
            model, device=device, dtype=dtype, ops=ops, threads=threads, trace=trace, kv_cache_gib=kv_cache_gib,
            gpu_memory_utilization=gpu_memory_utilization, note={"seed": seed, **(note or {})}, settings=settings,
            on_step=self._tell_step, on_end=self._note_end,
        )  # fmt: skip
        self.name = parts.name
        self.config = parts.scheduler.config
        self.model_config = parts.model_config
        self.tokenizer = parts.tokenizer
        self.trace_path = parts.recorder.path
        self.started_s = parts.clock.started_s
        self.failure: BaseException | None = None
        self.trace: Trace | None = None
        """The step trace, once the engine is closed."""
        self._scheduler: Scheduler = parts.scheduler
        self._core, self._recorder, self._clock = parts.core, parts.recorder, parts.clock
        self._executor = parts.executor
        self._max_queue = max_queue
        self._seed = seed
        self._inbox = Inbox()
        self._watchers: list[Callable[[StepEvent], None]] = []
        self._enders: list[Callable[[Live], None]] = []
        self._ids: set[str] = set()
        self._num_submitted = 0
        self._stats = self._core.stats()
        self._lock = threading.Lock()
        self._abort_all = threading.Event()
        self._abandoned = False
        """Whether a ``with`` block was left by an error: what was recorded is not the whole run."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self._thread.start()

    # -- asking --------------------------------------------------------------------------------------------------

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; ids are checked and pass. Raises RequestRefused."""
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise RequestRefused(f"model {self.name} has no tokenizer; give the prompt as token ids")
            return self.tokenizer.encode(prompt)
        ids, size = list(prompt), self.model_config.vocab_size
        wrong = next((i for i in ids if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < size), None)
        if wrong is not None:
            raise RequestRefused(f"prompt holds the token id {wrong!r}; expected whole numbers from 0 to {size - 1}")
        return ids

    def submit(
        self, prompt: Prompt, params: SamplingParams, on_output: OnOutput, *, request_id: str | None = None,
        priority: int = 0, cache_salt: str = "",
    ) -> str:  # fmt: skip
        """Ask for one answer; returns the request's id at once. Thread-safe.

        `on_output` is called in the engine's thread for every token that is delivered, and once with a finish reason.

        Raises:
            RequestRefused: it could never run.
            EngineFull: too many wait.
            EngineClosed: the engine has stopped.
        """
        live = self.make(
            prompt, params, on_output, request_id=request_id, priority=priority, cache_salt=cache_salt
        )  # fmt: skip
        self.send([live])
        return str(live.request.request_id)

    def make(
        self, prompt: Prompt, params: SamplingParams, on_output: OnOutput | None, *, request_id: str | None = None,
        priority: int = 0, cache_salt: str = "", arrival_s: float | None = None, text: bool = True,
        script: TokenArray | None = None, eos_at: int | None = None,
    ) -> Live:  # fmt: skip
        """A request ready to be sent: what `submit` takes, and what replays need besides.

        `arrival_s` is when it arrived on the engine's clock (None: now); without `text` nobody decodes its tokens; a
        `script` is prompt and known outputs (what is sampled is computed, and replaced), of which the `eos_at`-th
        (1-based) ends it.
        """
        tokens = self.encode(prompt)
        with self._lock:
            index = self._num_submitted
            self._num_submitted += 1
        limit = params.max_tokens
        room = self.config.length_cap - len(tokens)
        request = Request(
            f"r{index}" if request_id is None else request_id,
            tokens,
            max(room, 1) if limit is None else limit,
            min_tokens=params.min_tokens,
            ignore_eos=params.ignore_eos,
            stop_token_ids=params.stop_token_ids,
            priority=priority,
            arrival_s=self._clock.now() if arrival_s is None else arrival_s,
            cache_salt=cache_salt,
            eos_at=eos_at,
        )
        self._scheduler.refuse_if_never(request)
        stream = None
        if text and self.tokenizer is not None:
            stream = TextStream(self.tokenizer, params, eos_token_ids=self.config.eos_token_ids)
        seed = _request_seed(self._seed, index) if params.seed is None else params.seed
        return Live(request, params, seed, on_output, stream, script)

    def send(self, lives: Sequence[Live]) -> None:
        """Let requests arrive, all at the same time. Raises EngineFull or EngineClosed; then none has."""
        ids = [str(live.request.request_id) for live in lives]
        with self._lock:
            if self._max_queue is not None and self._would_wait(len(lives)) > self._max_queue:
                raise EngineFull(f"{self.num_waiting} requests wait and at most {self._max_queue} may; try again later")
            taken = [name for name in ids if name in self._ids]
            if taken or len(set(ids)) < len(ids):
                raise RequestRefused(f"request {(taken or ids)[0]}: another unfinished request has this id")
            self._ids.update(ids)
        if not self._inbox.put(lives, self._clock.now()):
            with self._lock:
                self._ids.difference_update(ids)
            raise EngineClosed(self._closed_sentence())

    def abort(self, request_id: str) -> None:
        """End a request at once, wherever it is; nothing happens when it has ended. Thread-safe."""
        self._inbox.abort(request_id, self._clock.now())

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Answers to all prompts, which arrive together, in their order.

        Args:
            prompts: texts or lists of token ids.
            params: one for all, or one each; default: greedy, as long as the model goes on.
        """
        many = as_prompts(prompts)
        each = as_params(params, len(many))
        gathered = [[Answer(self, prompt, one) for one in expand(each[at])] for at, prompt in enumerate(many)]
        self.send([answer.live for answers in gathered for answer in answers])
        return [with_choices([answer.wait() for answer in answers]) for answers in gathered]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[TokenOutput]:
        """Deliveries of one answer as they come; leaving the loop early aborts it."""
        told: queue.SimpleQueue[TokenOutput] = queue.SimpleQueue()
        request_id = self.submit(prompt, as_params(params, 1)[0], told.put)
        try:
            while True:
                output = told.get()
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            self.abort(request_id)

    # -- watching ------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._inbox.closed

    @property
    def num_waiting(self) -> int:
        """Requests that have no seat yet."""
        return self._inbox.num_requests + len(self._scheduler.waiting)

    def _would_wait(self, more: int) -> int:
        """Requests that would have no seat with so many more: free seats count, unless nobody gets one now."""
        queued = len(self._scheduler.waiting)
        return max(len(self._ids) + more - self.config.max_num_seqs, queued + more if queued else 0)

    def now(self) -> float:
        """Seconds on the engine's clock."""
        return self._clock.now()

    def stats(self) -> EngineStats:
        """Where it stands, as of the last step."""
        return self._stats

    def annotate(self, **facts: Any) -> None:
        """Add facts to the trace's meta, which is written at the end."""
        self._recorder.annotate(**facts)

    def observe(self, callback: Callable[[StepEvent], None]) -> None:
        """Have `callback` called in the engine's thread after every step. It must be quick and must not raise."""
        self._watchers.append(callback)

    def observe_ends(self, callback: Callable[[Live], None]) -> None:
        """Have `callback` called in the engine's thread when a request ends, with all that is known of it."""
        self._enders.append(callback)

    def off_the_clock(self) -> AbstractContextManager[None]:
        """Within, no time passes on the engine's clock; for observers of an engine that does not plan ahead.

        So a measurement can be interleaved with the steps of a run without a trace of it in the run's times.
        """
        if self.config.async_scheduling:
            raise RuntimeError("with async scheduling a step is running meanwhile, and its time must be counted")
        return self._clock.held()

    def check_integrity(self) -> None:
        """Raise AssertionError unless blocks, seats and queue agree; only while nothing runs or after `close`."""
        self._core.check_integrity()

    # -- ending --------------------------------------------------------------------------------------------------

    def close(self, *, drain: bool = False, timeout_s: float | None = None) -> int:
        """Take no more requests, finish (`drain`) or abort those there are, and end the trace.

        Args:
            drain: let them finish.
            timeout_s: but no longer than this; then the rest is aborted.

        Returns:
            how many were aborted.
        """
        self._inbox.close()
        if drain:
            self._done.wait(timeout_s)
        with self._lock:
            left = len(self._ids)
        if not self._done.is_set():
            self._abort_all.set()
            self._inbox.close()
        self._thread.join()
        return left

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._abandoned = kind is not None
        self.close()
        if self.failure is not None:
            raise self.failure

    # -- the engine's thread -------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # whoever waits must hear of it, whatever it is
            self.failure = error
            self._inbox.close()
        finally:
            self._shut_down()

    def _loop(self) -> None:
        core, inbox = self._core, self._inbox
        while True:
            if self._abort_all.is_set():
                with self._lock:
                    aborted = list(self._ids)
                core.take_in(inbox.take(self._clock.now())[0], aborted)
            elif not inbox.empty:
                core.take_in(*inbox.take(core.now_s))
            if core.round():
                continue
            if inbox.closed and inbox.empty and not core.has_work:
                return
            inbox.wait(self._patience_s())
            core.now_s = self._clock.now()

    def _patience_s(self) -> float | None:
        wake_s = self._core.wake_s
        if self._inbox.closed and wake_s is None and self._core.has_work and not self._abort_all.is_set():
            raise RuntimeError("the scheduler has work but plans nothing and waits for nothing")
        return None if wake_s is None else max(wake_s - self._clock.now(), 0.0)

    def _shut_down(self) -> None:
        try:
            self._executor.close()
            sentence = self._closed_sentence()
            self._core.fail_all(sentence)
            for live in self._inbox.take(float("inf"))[0]:
                live.request.finish_reason = None
                live.end(self._clock.now(), sentence)
            self.trace = self._recorder.close(complete=self.failure is None and not self._abandoned)
            if self._abandoned and not self._stats.steps:
                self.trace = None
                remove_if_useless(self.trace_path)
        except BaseException as error:  # the first failure is the one to tell
            self.failure = self.failure or error
        finally:
            self._ids.clear()
            self._done.set()

    def _closed_sentence(self) -> str:
        if self.failure is None:
            return "the engine has stopped"
        return f"the engine has failed: {type(self.failure).__name__}: {self.failure}"

    def _tell_step(self, event: StepEvent) -> None:
        self._stats = self._core.stats()
        if event.finished:
            with self._lock:
                self._ids.difference_update(ended.request_id for ended in event.finished)
        for watcher in self._watchers:
            watcher(event)

    def _note_end(self, live: Live) -> None:
        for ender in self._enders:
            ender(live)


def _request_seed(seed: int, index: int) -> int:
    """A seed of its own for each request, below 2**63: the engine's and the request's number, kept apart."""
    return ((seed & 0x7FFF_FFFF) << 32) + index
