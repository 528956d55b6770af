"""The engine's front: answers, streams, aborts, limits, ends, failures."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from backend import Engine, SamplingParams, TokenOutput
from backend.answers import expand
from backend.engine import EngineClosed, EngineFull
from backend.outputs import StepEvent
from scheduler.errors import ConfigError, RequestRefused
from traces.check import check

from .small_models import EOS, VOCAB, random_prompts, save_small_llama

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_llama(tmp_path_factory.mktemp("model"))


def started(model: Path | str, **settings: Any) -> Engine:
    defaults = {"threads": 1, "max_num_seqs": 8, "max_model_len": 128, "num_blocks": 200}
    return Engine(model, **{**defaults, **settings})


def test_a_stream_delivers_the_answer_token_by_token_and_its_end_once(model: Path) -> None:
    prompt = random_prompts(1)[0]
    with started(model) as engine:
        whole = engine.generate(prompt, GREEDY)[0]
        told = list(engine.stream(prompt, GREEDY))
    assert [output.token_id for output in told] == whole.token_ids
    assert [output.finish_reason for output in told[:-1]] == [None] * (len(told) - 1)
    assert told[-1].finish_reason == whole.finish_reason
    assert [output.num_output_tokens for output in told] == list(range(1, len(told) + 1))
    assert [output.time_s for output in told] == sorted(output.time_s for output in told)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_leaving_a_stream_early_frees_its_seat_and_blocks(model: Path, async_scheduling: bool) -> None:
    endless = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    with started(model, async_scheduling=async_scheduling) as engine:
        for _, _ in zip(range(3), engine.stream([30, 40, 50], endless), strict=False):
            pass
        engine.generate([[60]], GREEDY)  # whatever ran beside it has gone by now
        assert engine.stats().running == 0
        assert engine.stats().blocks_used == 0
    assert engine.trace is not None
    assert engine.trace.requests["finish_reason"].tolist()[0] == "abort"


def test_static_delivers_every_answer_whole_when_its_batch_ends(model: Path) -> None:
    told: list[TokenOutput] = []
    with started(model, policy="static") as engine:
        ended = threading.Event()

        def take(output: TokenOutput) -> None:
            told.append(output)
            if sum(o.finish_reason is not None for o in told) == 3:
                ended.set()

        engine.send([engine.make(prompt, GREEDY, take) for prompt in random_prompts(3)])
        ended.wait()
    assert len({output.time_s for output in told}) == 1


def test_n_answers_come_from_n_seeds_and_share_the_prompt(model: Path) -> None:
    prompt = random_prompts(1, longest=40)[0] * 2
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=8)
    with started(model, block_size=4) as engine:
        output = engine.generate([prompt], params)[0]
        alone = [engine.generate([prompt], one)[0] for one in expand(params)]
    assert [choice.token_ids for choice in output.choices] == [one.token_ids for one in alone]
    assert len({tuple(choice.token_ids) for choice in output.choices}) == 3
    assert sum(choice.num_cached_tokens > 0 for choice in output.choices) == 2


def test_a_seed_gives_the_same_tokens_whatever_else_is_in_the_batch(model: Path) -> None:
    prompts = random_prompts(40)
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=10, top_p=0.95 if i % 2 else 1.0) for i in range(40)]
    with started(model, dtype="float64") as engine:
        together = [output.token_ids for output in engine.generate(prompts, params)]
        alone = [engine.generate([p], one)[0].token_ids for p, one in zip(prompts, params, strict=True)]
    with started(model, dtype="float64", policy="slots", layout="padded", async_scheduling=True) as other:
        elsewhere = [output.token_ids for output in other.generate(prompts[::-1], params[::-1])][::-1]
    assert together == alone
    assert elsewhere == alone


def test_min_tokens_keeps_eos_away_and_stop_tokens_end(model: Path) -> None:
    prompts = random_prompts(30)
    with started(model) as engine:
        least = engine.generate(prompts, SamplingParams(temperature=0.0, min_tokens=9, max_tokens=12))
        free = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))
        first = free[0].token_ids[2]
        stopped = engine.generate(
            [prompts[0]], SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, stop_token_ids=(first,))
        )[0]
    assert all(len(output.token_ids) >= 9 for output in least)
    assert not any(set(output.token_ids[:8]) & set(EOS) for output in least)
    assert all(len(output.token_ids) == 12 for output in free)
    assert stopped.token_ids == free[0].token_ids[: free[0].token_ids.index(first) + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", first)


def test_log_probabilities_are_those_of_the_sampled_tokens(model: Path) -> None:
    with started(model) as engine:
        output = engine.generate([[30, 31]], SamplingParams(temperature=0.0, max_tokens=4, logprobs=2))[0]
    assert output.logprobs is not None
    assert [told.token_id for told in output.logprobs] == output.token_ids
    assert all(told.rank == 1 and told.top[0] == (told.token_id, told.logprob) for told in output.logprobs)


@pytest.mark.parametrize(
    ("prompt", "params", "said"),
    [
        ([], GREEDY, "prompt and max_tokens must be at least 1"),
        ([1] * 128, GREEDY, "leaves no room for output; shorten it to 127"),
        ([VOCAB], GREEDY, f"token id {VOCAB}; expected whole numbers from 0 to {VOCAB - 1}"),
        ("text", GREEDY, "has no tokenizer; give the prompt as token ids"),
    ],
)
def test_what_can_never_run_is_refused_at_once(model: Path, prompt: Any, params: SamplingParams, said: str) -> None:
    with started(model) as engine, pytest.raises((RequestRefused, ConfigError), match=said):
        engine.submit(prompt, params, lambda output: None)


def test_a_full_queue_refuses_and_takes_again_when_it_has_room(model: Path) -> None:
    outputs: list[TokenOutput] = []
    ended = threading.Event()

    def take(output: TokenOutput) -> None:
        outputs.append(output)
        if sum(o.finish_reason is not None for o in outputs) == 3:
            ended.set()

    with started(model, max_num_seqs=1, max_queue=2) as engine:
        lives = [engine.make([30 + i], GREEDY, take) for i in range(4)]
        with pytest.raises(EngineFull, match="at most 2 may"):
            engine.send(lives)
        engine.send(lives[:3])  # one has a seat
        ended.wait()
        assert engine.generate([[50]], GREEDY)[0].finish_reason in ("stop", "length")


def test_an_id_in_use_is_refused(model: Path) -> None:
    endless = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    with started(model) as engine:
        engine.submit([1], endless, lambda output: None, request_id="mine")
        with pytest.raises(RequestRefused, match="mine"):
            engine.submit([1], endless, lambda output: None, request_id="mine")


@pytest.mark.parametrize("drain", [False, True])
def test_closing_finishes_or_aborts_what_is_there(model: Path, drain: bool) -> None:
    outputs: list[TokenOutput] = []
    engine = started(model, max_num_seqs=2)
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    engine.send([engine.make([20 + i], params, outputs.append) for i in range(6)])
    aborted = engine.close(drain=drain)
    reasons = [output.finish_reason for output in outputs if output.finish_reason is not None]
    assert len(reasons) == 6
    assert set(reasons) == ({"length"} if drain else {"abort"}) or (not drain and reasons.count("abort") == aborted > 0)
    with pytest.raises(EngineClosed, match="has stopped"):
        engine.submit([1], params, outputs.append)
    engine.check_integrity()


def test_a_failure_reaches_everybody_and_leaves_a_readable_trace(model: Path, tmp_path: Path) -> None:
    told: list[TokenOutput] = []

    def break_down(event: StepEvent) -> None:
        if event.plan is not None and event.plan.step == 3:
            raise RuntimeError("broken on purpose")

    engine = started(model, trace=tmp_path / "x.trace")
    engine.observe(break_down)
    endless = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    engine.send([engine.make([20 + i], endless, told.append) for i in range(3)])
    with pytest.raises(RuntimeError, match="broken on purpose"), engine:
        engine._done.wait()
    ends = [output for output in told if output.finish_reason is not None]
    assert [output.finish_reason for output in ends] == ["error"] * 3
    assert all("broken on purpose" in (output.error or "") for output in ends)
    with pytest.raises(EngineClosed, match="broken on purpose"):
        engine.submit([1], GREEDY, told.append)
    assert engine.trace is not None
    assert engine.trace.status == "stopped"
    assert len(engine.trace.steps) == 4


def test_a_request_that_outgrows_the_cache_ends_with_an_error_that_says_so(model: Path) -> None:
    with started(model, block_size=4, num_blocks=6, enable_prefix_caching=False) as engine:
        output = engine.generate([[20] * 10], SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True))[0]
    assert output.finish_reason == "error"
    assert "outgrew the whole KV cache" in (output.error or "")


@pytest.mark.parametrize("policy", ["static", "slots", "orca", "prefill-first", "chunked"])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_the_trace_is_measured_whole_and_consistent(
    model: Path, tmp_path: Path, policy: str, async_scheduling: bool
) -> None:
    folder = tmp_path / "x.trace"
    with started(model, policy=policy, async_scheduling=async_scheduling, trace=folder) as engine:
        engine.generate(random_prompts(20), GREEDY)
    assert engine.trace is not None
    assert engine.trace.meta["source"] == "measured"
    assert engine.trace.status == "finished"
    assert check(engine.trace)[0] == []
    steps = engine.trace.steps
    assert (steps["device_s"] > 0).all()
    assert (steps["host_s"] > 0).all()


@pytest.mark.parametrize("steps", [False, True])
def test_a_with_block_left_by_an_error_leaves_a_stopped_trace_or_none_at_all(
    model: Path, tmp_path: Path, steps: bool
) -> None:
    folder = tmp_path / "x.trace"
    engine = started(model, trace=folder)
    if steps:
        engine.generate(random_prompts(2), GREEDY)
    with pytest.raises(RequestRefused), engine:
        engine.generate([[1] * 500], GREEDY)
    assert folder.exists() == steps
    assert (engine.trace.status if engine.trace is not None else None) == ("stopped" if steps else None)
