"""Sampling against transformers' filters, against its definition in float64, and its laws."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from backend.draws import draw, draw_among, likeliest
from backend.filters import candidates_by_floor, candidates_by_mass, masked_logits, nucleus
from backend.logprobs import Logprobs
from backend.philox import uniform
from backend.sampler import Sampled, SamplingBatch, SamplingTable, _choose_on_gpu, sample
from backend.sampling import SamplingParams

FloatArray = npt.NDArray[np.float64]
Choice = dict[str, Any]

torch.set_num_threads(1)  # more of them on busy cores only wait for one another
LAW = settings(deadline=None)

SIZES = st.sampled_from([2, 7, 127, 128, 300, 1000, 5003])
CHOICES = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.01, 0.6, 1.0, 1.7, 50.0]),
        "top_k": st.sampled_from([0, 0, 1, 2, 40, 10_000]),
        "top_p": st.sampled_from([1.0, 1.0, 0.05, 0.5, 0.9, 0.999]),
        "min_p": st.sampled_from([0.0, 0.0, 0.02, 0.5, 1.0]),
        "min_tokens": st.sampled_from([0, 0, 3]),
        "logprobs": st.sampled_from([None, None, 0, 3]),
    }
)


def logits_of(
    seed: int, rows: int, size: int, *, spread: float = 3.0, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return (
        torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        .mul(spread)
        .to(dtype)
    )


def batch_of(
    choices: list[Choice], size: int, seeds: list[int], positions: list[int], stop_ids: tuple[int, ...] = ()
) -> SamplingBatch | None:
    """A step in which row i is the request in slot i."""
    table = SamplingTable(len(choices), size)
    for slot, (choice, seed) in enumerate(zip(choices, seeds, strict=True)):
        table.seat(slot, SamplingParams(**choice), seed, stop_ids, prompt_len=4)
    return table.batch(np.arange(len(choices)), np.array(positions))


def one_each(logits: torch.Tensor, choice: Choice, count: int, seed: int = 11) -> list[int]:
    """Tokens drawn from the same logits at positions 0, 1, 2..."""
    batch = batch_of([choice] * count, logits.shape[-1], [seed] * count, list(range(count)))
    return sample(logits.expand(count, -1), batch).token_ids.tolist()


def warped(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """What transformers' processors leave, in vLLM's order: min-p, top-k, top-p; the others are -inf."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.generation.logits_process import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
    ids: Any = torch.zeros(1, 1, dtype=torch.long)  # the outputs so far, which these do not look at
    scores = logits / temperature
    for cut in (MinPLogitsWarper(min_p), TopKLogitsWarper(top_k), TopPLogitsWarper(top_p)):
        scores = cut(ids, scores)
    return scores


def kept_on_cpu(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> list[set[int]]:
    rows, size = logits.shape
    full = np.full(rows, 1.0)
    if top_k < size or min_p > 0:
        tops = np.full(rows, min(top_k, size))
        ids, weights = candidates_by_floor(logits.numpy(), full * temperature, tops, full * min_p)
        weights = nucleus(weights, full * top_p)
    else:
        probs = (logits / temperature).softmax(-1).numpy()
        ids, weights = candidates_by_mass(probs, full * top_p)
        weights = nucleus(weights, full * top_p, 1.0)
    return [set(row[weight > 0].tolist()) for row, weight in zip(ids, weights, strict=True)]


def kept_on_gpu(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> list[set[int]]:
    """The GPU's filters, run on the CPU."""
    rows, size = logits.shape
    full = torch.ones(rows, dtype=torch.float64)
    tops = torch.full((rows,), min(top_k, size))
    masked = masked_logits(logits, full * temperature, tops, full * top_p, full * min_p)
    return [set(row.isfinite().nonzero()[:, 0].tolist()) for row in masked]


FILTERS = [
    (1.0, 10, 1.0, 0.0), (0.7, 1, 1.0, 0.0), (1.3, 5000, 1.0, 0.0), (1.0, 5000, 0.9, 0.0), (0.5, 5000, 0.1, 0.0),
    (2.0, 5000, 0.97, 0.0), (1.0, 5000, 1.0, 0.05), (1.4, 5000, 1.0, 0.3), (0.8, 40, 0.9, 0.0), (1.0, 40, 0.8, 0.1),
    (1.5, 5000, 0.9, 0.02),
]  # fmt: skip


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_filters_keep_the_tokens_that_transformers_keeps(
    filters: tuple[float, int, float, float], spread: float
) -> None:
    logits = logits_of(1, 6, 5000, spread=spread, dtype=torch.float64)
    expected = [set(row.isfinite().nonzero()[:, 0].tolist()) for row in warped(logits, *filters)]
    assert kept_on_cpu(logits, *filters) == expected
    assert kept_on_gpu(logits, *filters) == expected
    assert kept_on_cpu(logits.float(), *filters) == expected


@given(st.integers(0, 10**6), SIZES, st.floats(0.3, 3.0), st.integers(1, 100), st.floats(0.05, 0.99), st.floats(0, 0.9))
@settings(LAW, max_examples=60)
def test_both_ways_to_filter_keep_the_same(
    seed: int, size: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = logits_of(seed, 3, size, dtype=torch.float64)
    filters = (temperature, top_k, top_p, min_p)
    assert kept_on_cpu(logits, *filters) == kept_on_gpu(logits, *filters)


def test_of_equal_logits_top_k_keeps_all_and_top_p_only_as_many_as_it_needs_from_the_front() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    level = torch.zeros(1, 8)
    for kept in (kept_on_cpu, kept_on_gpu):
        assert kept(logits, 1.0, 3, 1.0, 0.0) == [{0, 1, 2, 3, 4, 5}]
        assert kept(logits, 1.0, 2, 1.0, 0.0) == [{1, 4}]
        assert kept(level, 1.0, 8, 0.5, 0.0) == [{0, 1, 2, 3}]
        assert kept(level, 1.0, 8, 0.51, 0.0) == [{0, 1, 2, 3, 4}]
        assert kept(level, 1.0, 3, 0.3, 0.0) == [{0, 1, 2}]


def test_top_p_counts_after_top_k_and_keeps_at_least_one() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()
    for kept in (kept_on_cpu, kept_on_gpu):
        assert kept(logits, 1.0, 2, 0.61, 0.0) == [{0}]  # 0.5 of 0.8 is 0.625
        assert kept(logits, 1.0, 2, 0.63, 0.0) == [{0, 1}]
        assert kept(logits, 1.0, 3, 1e-9, 0.0) == [{0}]


@given(st.integers(0, 10**6), SIZES, CHOICES.map(lambda choice: {**choice, "min_tokens": 0}))
@settings(LAW, max_examples=80)
def test_a_token_is_the_first_in_vocabulary_order_whose_cumulative_probability_exceeds_the_uniform_number(
    seed: int, size: int, choice: Choice
) -> None:
    logits = logits_of(seed, 1, size, dtype=torch.float64)
    (token,) = one_each(logits, choice, 1, seed)
    if choice["temperature"] == 0:
        assert token == int(logits.argmax())
        return
    top_k = choice["top_k"] or size
    scores = warped(logits, choice["temperature"], min(top_k, size), choice["top_p"], choice["min_p"])
    ends = scores.softmax(-1)[0].cumsum(0).numpy()
    (number,) = uniform([seed], [0])
    assert (ends[token - 1] if token else 0.0) <= number + 1e-9
    assert ends[token] > number - 1e-9
    assert scores[0, token].isfinite()


DISTRIBUTIONS: list[Choice] = [
    {}, {"temperature": 0.7}, {"top_k": 12}, {"top_p": 0.8}, {"min_p": 0.1},
    {"top_k": 30, "top_p": 0.9, "temperature": 1.5},
]  # fmt: skip


@pytest.mark.parametrize("choice", DISTRIBUTIONS)
def test_draws_follow_the_filtered_distribution(choice: Choice) -> None:
    size, count = 50, 10_000
    logits = logits_of(3, 1, size, spread=1.5)
    tokens = one_each(logits, choice, count)
    full = {"temperature": 1.0, "top_k": size, "top_p": 1.0, "min_p": 0.0, **choice}
    probs = warped(logits.double(), full["temperature"], full["top_k"], full["top_p"], full["min_p"]).softmax(-1)[0]
    expected = probs.numpy() * count
    counts = np.bincount(tokens, minlength=size)
    assert counts[expected == 0].sum() == 0
    often = expected >= 5
    rest = expected[(expected > 0) & ~often].sum()
    observed = np.append(counts[often], counts[~often].sum()) if rest else counts[often]
    wanted = np.append(expected[often], rest) if rest else expected[often]
    assert stats.chisquare(observed, wanted).pvalue > 1e-3


def told(sampled: Sampled, row: int) -> object:
    return None if sampled.logprobs is None else sampled.logprobs[row]


@given(
    st.integers(0, 10**6), SIZES,
    st.lists(st.tuples(CHOICES, st.integers(0, 2**64 - 1), st.integers(4, 9)), min_size=2, max_size=9),
    st.sampled_from([torch.float32, torch.float64]), st.randoms(use_true_random=False),
)  # fmt: skip
@settings(LAW, max_examples=60)
def test_a_row_is_the_same_bit_for_bit_whatever_else_is_in_the_batch(
    seed: int, size: int, rows: list[tuple[Choice, int, int]], dtype: torch.dtype, random: Any
) -> None:
    choices, seeds, positions = (list(column) for column in zip(*rows, strict=True))
    logits = logits_of(seed, len(rows), size, spread=random.choice([0.1, 3.0]), dtype=dtype)
    stops = (0, 1) if size > 2 else ()
    together = sample(logits, batch_of(choices, size, seeds, positions, stops))
    for row in range(len(rows)):
        alone = sample(logits[row : row + 1], batch_of([choices[row]], size, [seeds[row]], [positions[row]], stops))
        assert int(alone.token_ids) == int(together.token_ids[row])
        assert told(alone, 0) == told(together, row)


@pytest.mark.parametrize("size", [127, 128, 5003, 32_000])
@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
def test_sums_and_exponentials_of_a_row_do_not_depend_on_the_number_of_rows(size: int, spread: float) -> None:
    logits = logits_of(5, 9, size, spread=spread)
    probs = logits.softmax(-1)
    numbers = uniform(np.arange(9), np.arange(9))
    together = draw(probs, numbers)
    for row in range(9):
        assert (logits[row : row + 1].softmax(-1) == probs[row]).all()
        assert draw(probs[row : row + 1], numbers[row : row + 1])[0] == together[row]
        lone = np.exp(logits[row : row + 1, 1:].numpy())
        assert (lone[0] == np.exp(logits.numpy())[row, 1:]).all()


def test_more_rows_than_one_chunk_holds_are_sampled_alike() -> None:
    size, count = 40_000, 30
    kinds: list[Choice] = [{}, {"top_k": 20}, {"top_p": 0.9}, {"temperature": 0.0}]
    choices = [kinds[row % 4] for row in range(count)]
    logits = logits_of(8, count, size)
    seeds, positions = list(range(count)), [5] * count
    together = sample(logits, batch_of(choices, size, seeds, positions)).token_ids.tolist()
    alone = [
        int(sample(logits[row : row + 1], batch_of([choices[row]], size, [row], [5])).token_ids) for row in range(count)
    ]
    assert together == alone


@given(st.integers(0, 10**6), CHOICES, st.integers(0, 2**63), st.integers(4, 99))
@settings(LAW, max_examples=30)
def test_only_seed_and_position_matter_not_the_slot_nor_who_sat_there(
    seed: int, choice: Choice, noise: int, position: int
) -> None:
    logits = logits_of(seed, 1, 300)
    table = SamplingTable(5, 300)
    tokens = []
    for slot in (0, 3):
        table.seat(slot, SamplingParams(top_k=3, logprobs=2), 1, (), 2)
        table.seat(slot, SamplingParams(**choice), noise, (), 4)
        tokens.append(int(sample(logits, table.batch(np.array([slot]), np.array([position]))).token_ids))
    assert tokens[0] == tokens[1]


def test_another_seed_or_position_gives_other_draws() -> None:
    logits = torch.zeros(1, 1000)
    first = one_each(logits, {}, 50, seed=1)
    assert first == one_each(logits, {}, 50, seed=1)
    assert first != one_each(logits, {}, 50, seed=2)
    assert len(set(first)) > 40


@given(st.integers(0, 10**6), SIZES, st.integers(1, 3))
@settings(LAW, max_examples=40)
def test_one_candidate_and_vanishing_temperature_are_greedy(seed: int, size: int, ties: int) -> None:
    logits = logits_of(seed, 1, size)
    logits[0, torch.randperm(size, generator=torch.Generator().manual_seed(seed))[:ties]] = 20.0
    greedy = int(likeliest(logits))
    assert greedy == (logits[0] == 20.0).nonzero()[0]  # the first of equal ones
    for choice in ({"temperature": 0.0}, {"top_k": 1}, {"top_k": 1, "temperature": 2.0}, {"top_p": 1e-6}):
        assert set(one_each(logits, choice, 5)) == {greedy}
    logits[0, greedy] = 21.0
    for choice in ({"temperature": 1e-3}, {"temperature": 1e-5}, {"min_p": 1.0}):
        assert set(one_each(logits, choice, 5)) == {greedy}


def test_a_token_of_no_probability_is_never_drawn_even_at_the_ends_of_the_unit_interval() -> None:
    weights = torch.zeros(3, 300)
    weights[:, 100:200] = torch.rand(100, generator=torch.Generator().manual_seed(0)) + 0.1
    numbers = np.array([0.0, 1 - 2.0**-24, 0.5], dtype=np.float32)
    ids = np.broadcast_to(np.arange(300), (3, 300))
    for drawn in (draw(weights, numbers), draw_among(ids, weights.numpy(), numbers)):
        assert drawn[0] == 100
        assert drawn[1] == 199
        assert 100 < drawn[2] < 199


def test_stop_tokens_are_masked_until_min_tokens_outputs_exist() -> None:
    logits = torch.zeros(1, 10)
    logits[0, 7], logits[0, 3] = 9.0, 5.0
    table = SamplingTable(1, 10)
    table.seat(0, SamplingParams(temperature=0, min_tokens=2), 0, (7, 10_000), prompt_len=4)
    tokens = [
        sample(logits, table.batch(np.array([0]), np.array([position]))).token_ids.tolist() for position in (4, 5, 6)
    ]
    assert tokens == [[3], [3], [7]]
    assert table.batch(np.array([0]), np.array([6])) is None
    assert logits[0, 7] == 9.0  # the caller's logits are not touched


def test_plain_greedy_rows_need_no_batch() -> None:
    table = SamplingTable(3, 10)
    table.seat(0, SamplingParams(temperature=0), 5, (7,), 4)
    table.seat(1, SamplingParams(top_k=1), 5, (7,), 4)
    table.seat(2, SamplingParams(temperature=0, logprobs=0), 5, (7,), 4)
    assert table.batch(np.array([0, 1]), np.array([9, 9])) is None
    assert table.batch(np.array([0, 2]), np.array([9, 9])) is not None
    table.seat(2, SamplingParams(temperature=0), 5, (7,), 4)
    assert table.batch(np.array([0, 2]), np.array([9, 9])) is None


def test_logprobs_are_those_of_the_raw_logits_for_the_rows_that_asked() -> None:
    logits = logits_of(4, 3, 200)
    choices: list[Choice] = [
        {"temperature": 0.5, "logprobs": 4, "top_k": 5}, {}, {"temperature": 0.0, "min_tokens": 9, "logprobs": 0},
    ]  # fmt: skip
    best = int(logits[2].argmax())
    sampled = sample(logits, batch_of(choices, 200, [1, 2, 3], [4, 4, 4], stop_ids=(best,)))
    tokens, raw = sampled.token_ids.tolist(), logits.double().log_softmax(-1)
    assert sampled.logprobs is not None
    first, second, third = (sampled.logprobs[row] for row in range(3))
    assert first is not None
    assert first.token_id == tokens[0]
    assert first.logprob == pytest.approx(raw[0, tokens[0]].item(), abs=1e-5)
    assert [token for token, _ in first.top] == raw[0].topk(4).indices.tolist()
    assert [value for _, value in first.top] == pytest.approx(raw[0].topk(4).values.tolist(), abs=1e-5)
    assert first.rank == [*raw[0].sort(descending=True).indices.tolist()].index(tokens[0]) + 1
    assert second is None
    assert third is not None
    assert (third.top, third.rank) == ((), 2)  # the likeliest was masked, its probability still counts
    assert third.logprob == pytest.approx(raw[2, tokens[2]].item(), abs=1e-5)


@LAW
@given(st.lists(st.integers(-3, 3), min_size=2, max_size=60), st.integers(1, 20))
def test_of_equal_logits_the_first_come_first_among_the_likeliest(values: list[int], count: int) -> None:
    logits = torch.tensor([values], dtype=torch.float32)
    told = Logprobs(logits, logits.argmax(-1), np.array([count]))[0]
    assert told is not None
    expected = sorted(range(len(values)), key=lambda token: (-values[token], token))[:count]
    assert [token for token, _ in told.top] == expected


def test_float64_logits_are_sampled_in_float64() -> None:
    logits = torch.zeros(1, 2, dtype=torch.float64)
    logits[0, 1] = 1e-12  # no difference in float32
    assert int(sample(logits, None).token_ids) == 1
    told = sample(logits, batch_of([{"temperature": 0.0, "logprobs": 1}], 2, [0], [4])).logprobs
    assert told is not None
    assert told[0] is not None
    assert told[0].logprob == pytest.approx(float(logits.log_softmax(-1)[0, 1]), abs=1e-15)


def test_the_gpus_way_chooses_as_the_cpus() -> None:
    import triton

    if not triton.knobs.runtime.interpret:
        pytest.skip("Triton runs compiled here: set TRITON_INTERPRET=1 to run its kernels on the CPU")
    choices: list[Choice] = [
        {"temperature": 0.0}, {}, {"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.7, "min_p": 0.01}, {"top_p": 0.9},
    ]  # fmt: skip
    for seed in range(5):
        logits, seeds = logits_of(seed, 6, 300), [seed * 6 + row for row in range(6)]
        batch = batch_of(choices, 300, [2**64 - 1 - noise for noise in seeds], [4 + seed] * 6)
        assert batch is not None
        assert _choose_on_gpu(logits, batch).tolist() == sample(logits, batch).token_ids.tolist()
