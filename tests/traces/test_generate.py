from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.config import SchedulerConfig
from scheduler.errors import ConfigError
from scheduler.scheduler import Scheduler
from traces.arrivals import AllAtOnce, Constant, Poisson, check_times, parse_arrivals
from traces.generate import UNIT, Generator, Prefixes, Sessions
from traces.lengths import ConstantLength, Uniform, parse_lengths
from traces.workload import Workload

SPECS = [
    "all-at-once",
    "constant:rate=5",
    "poisson:5",
    "gamma:rate=5,cv=3",
    "bursts:rate=20,on=2,off=6",
    "ramp:start=1,end=9,seconds=60",
]


def times(spec: str, n: int = 20_000, seed: int = 1) -> np.ndarray:
    return parse_arrivals(spec).times_s(n, np.random.Generator(np.random.PCG64(seed)))


def lengths(spec: str, n: int = 50_000, what: str = "prompt") -> np.ndarray:
    return parse_lengths(spec, what).at(np.random.Generator(np.random.PCG64(2)).random(n))


def grid(n: int) -> np.ndarray:
    return (np.arange(n) + 0.5) / n


# arrivals


@pytest.mark.parametrize("spec", SPECS)
def test_arrivals_never_decrease_and_start_at_or_after_zero(spec: str) -> None:
    made = times(spec, 5000)
    assert made.shape == (5000,)
    assert made[0] >= 0
    assert (np.diff(made) >= 0).all()


def test_constant_arrivals_are_exact() -> None:
    assert times("constant:rate=4", 5).tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert times("all-at-once", 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("spec", "cv"), [("poisson:rate=5", 1.0), ("gamma:rate=5,cv=0.3", 0.3), (SPECS[3], 3.0)])
def test_gaps_have_the_given_mean_and_coefficient_of_variation(spec: str, cv: float) -> None:
    gaps = np.diff(times(spec, 200_000))
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_bursts_are_silent_while_off_and_poisson_while_on() -> None:
    made = times("bursts:rate=20,on=2,off=6")
    assert (made % 8 <= 2).all()
    assert len(made) / made[-1] == pytest.approx(20 * 2 / 8, rel=0.03)


def test_bursts_have_their_off_rate_too() -> None:
    made = times("bursts:rate=20,on=2,off=6,off_rate=4", 60_000)
    on = (made % 8) < 2
    cycles = made[-1] / 8
    assert on.sum() / (2 * cycles) == pytest.approx(20, rel=0.03)
    assert (~on).sum() / (6 * cycles) == pytest.approx(4, rel=0.03)


@pytest.mark.parametrize(("start", "end"), [(1, 9), (9, 1), (0, 10), (5, 5)])
def test_a_ramp_meets_the_integral_of_its_rate(start: float, end: float) -> None:
    made = times(f"ramp:start={start},end={end},seconds=1000")
    for t in (250, 500, 1000, 1500):
        expected = start * min(t, 1000) + (end - start) * min(t, 1000) ** 2 / 2000 + end * max(t - 1000, 0)
        assert np.searchsorted(made, t) == pytest.approx(expected, abs=4 * np.sqrt(expected))


def test_times_past_all_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="a higher rate or fewer"):
        check_times(Poisson(1e-9).times_s(1000, np.random.Generator(np.random.PCG64(0))))


# lengths


def test_constant_and_uniform_are_exact() -> None:
    assert parse_lengths("constant:512").at(grid(3)).tolist() == [512] * 3
    values, counts = np.unique(parse_lengths("uniform:low=3,high=7").at(grid(500)), return_counts=True)
    assert (values.tolist(), counts.tolist()) == ([3, 4, 5, 6, 7], [100] * 5)


def test_lognormal_has_the_given_mean_and_sigma() -> None:
    made = parse_lengths("lognormal:mean=500,sigma=0.7").at(grid(100_000))
    assert made.mean() == pytest.approx(500, rel=0.002)
    assert np.log(made).std() == pytest.approx(0.7, rel=0.01)
    limited = lengths("lognormal:mean=500,sigma=2,min=16,max=800")
    assert (limited.min(), limited.max()) == (16, 800)


def test_the_normal_quantile_is_that_of_the_standard_library() -> None:
    from statistics import NormalDist

    from traces.lengths import normal_quantile

    u = np.concatenate([grid(999), [1e-9, 1e-5, 0.02425, 0.97575, 1 - 1e-6]])
    assert normal_quantile(u) == pytest.approx([NormalDist().inv_cdf(p) for p in u.tolist()], rel=2e-9, abs=1e-9)


def test_zipf_has_the_closed_form_probabilities() -> None:
    values, counts = np.unique(parse_lengths("zipf:a=1.2,max=10").at(grid(1_000_000)), return_counts=True)
    weights = np.arange(1, 11) ** -1.2
    assert values.tolist() == list(range(1, 11))
    assert counts / 1e6 == pytest.approx(weights / weights.sum(), abs=2e-6)


def test_empirical_draws_each_length_of_the_file_as_often_as_it_is_there(tmp_path: Path) -> None:
    file = tmp_path / "w.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,1\n1,9,2\n2,5,3\n3,7,4\n")
    assert parse_lengths(f"empirical:file={file}", "prompt").at(grid(8)).tolist() == [5, 5, 5, 5, 7, 7, 9, 9]
    assert parse_lengths(f"empirical:{file}", "output").at(grid(4)).tolist() == [1, 2, 3, 4]
    assert parse_lengths(f"empirical:file={file},column=prompt", "output").at(grid(4)).tolist() == [5, 5, 7, 9]


# specs


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("poison:rate=1", r"unknown kind of arrivals 'poison' \(did you mean 'poisson'\?\)"),
        ("", "unknown kind of arrivals ''"),
        ("poisson", "arrivals poisson needs rate; write poisson:rate=..."),
        ("poisson:rate=0", "arrival rate is 0.0; expected a number > 0"),
        ("poisson:rate=inf", "arrival rate is inf"),
        ("poisson:rate=fast", "has rate=fast; expected a number"),
        ("poisson:rats=1", r"unknown setting of arrivals poisson 'rats' \(did you mean 'rate'\?\)"),
        ("poisson:rate=1,rate=2", "gives rate twice"),
        ("gamma:rate=1,cv=-1", "arrival cv is -1.0; expected a number > 0"),
        ("all-at-once:rate=1", "unknown setting"),
        ("bursts:rate=1,on=0,off=1", "burst on is 0.0"),
        ("ramp:start=1,end=0,seconds=9", "ramp end is 0.0"),
    ],
)
def test_a_wrong_arrival_spec_is_one_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_arrivals(spec)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("lognorm:mean=1", "did you mean 'lognormal'"),
        ("constant:0", "length value is 0; expected a number >= 1"),
        ("constant:1.5", "has value=1.5; expected a whole number"),
        ("uniform:low=5,high=4", "length high is 4; expected a number >= 5"),
        ("lognormal:mean=5,sigma=-1", "length sigma is -1.0"),
        ("zipf:a=1.2,max=100000000", "expected at most 10000000"),
        ("empirical:file=x,column=both", "empirical column is 'both'; expected prompt or output"),
    ],
)
def test_a_wrong_length_spec_is_one_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_lengths(spec)


# whole workloads


def generator(**settings: object) -> Generator:
    base = {"arrivals": Poisson(2.0), "prompt": Uniform(10, 90), "output": Uniform(1, 40)}
    return Generator(**{**base, **settings})  # type: ignore[arg-type] # settings under test


@pytest.mark.parametrize("spec", SPECS)
def test_same_seed_same_bytes_other_seed_other_bytes(spec: str) -> None:
    made = generator(arrivals=parse_arrivals(spec), sessions=Sessions(3), prefixes=Prefixes(3, 40))
    digests = [made.workload(300, seed=seed).digest() for seed in (5, 5, 6)]
    assert digests[0] == digests[1] != digests[2]


def test_the_bytes_are_those_recorded() -> None:
    made = generator(sessions=Sessions(3), prefixes=Prefixes(3, 40)).workload(200, seed=7)
    assert made.digest() == RECORDED_DIGEST


RECORDED_DIGEST = "c7454adb6ab31c384fb1341c8fa5ed599ebb1e6502ca94e1557b7c2cd04cf2aa"


def test_the_limit_cuts_outputs_and_is_sent_along() -> None:
    made = generator(max_tokens=20).workload(500)
    assert made.max_tokens is not None
    assert set(made.max_tokens.tolist()) == {20}
    assert made.output_tokens.max() == 20
    assert {request.eos_at for request in made.requests()} == {None, *range(1, 20)}


def test_same_quantile_is_the_rank_correlation() -> None:
    made = generator(prompt=Uniform(1, 10**6), output=Uniform(1, 10**6), same_quantile=0.6).workload(50_000)
    assert np.corrcoef(made.prompt_tokens, made.output_tokens)[0, 1] == pytest.approx(0.6, abs=0.02)


def test_prefix_groups_share_content_exactly_where_they_should() -> None:
    made = generator(prefixes=Prefixes(groups=2, length=64, zipf=0, share=0.8), prompt=ConstantLength(20)).workload(60)
    scripts = [made.script(i) for i in range(60)]
    heads = {tuple(script[:64].tolist()) for script, p in zip(scripts, made.prompt_tokens, strict=True) if p == 84}
    assert len(heads) == 2
    plain = np.flatnonzero(made.prompt_tokens == 20)
    assert 2 < len(plain) < 30
    tails = [tuple(script[-20:].tolist()) for script in scripts]
    assert len(set(tails)) == 60
    with_prefix = 60 - len(plain)
    assert made.prefix_share() == pytest.approx((with_prefix - 2) * 64 / made.prompt_tokens.sum())


def test_zipf_choice_of_prefixes_favours_the_first() -> None:
    group = Prefixes(groups=4, length=16, zipf=1.0).choose(100_000, np.random.Generator(np.random.PCG64(0)))
    weights = 1 / np.arange(1, 5)
    assert np.bincount(group) / 1e5 == pytest.approx(weights / weights.sum(), abs=0.005)


def by_session(made: Workload) -> dict[int, list[int]]:
    assert made.session is not None
    sessions: dict[int, list[int]] = {}
    for row, session in enumerate(made.session.tolist()):
        sessions.setdefault(session, []).append(row)
    return sessions


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1000),
    turns=st.floats(1, 6),
    prefix=st.none() | st.builds(Prefixes, st.integers(1, 3), st.integers(1, 70), share=st.sampled_from([0.5, 1.0])),
    max_context=st.sampled_from([0, 300]),
)
def test_each_next_prompt_contains_all_that_was_said_before(
    seed: int, turns: float, prefix: Prefixes | None, max_context: int
) -> None:
    sessions = Sessions(turns, max_context=max_context)
    made = generator(sessions=sessions, prefixes=prefix).workload(80, seed=seed)
    assert len(made) == 80
    if max_context:
        assert (made.prompt_tokens + made.output_tokens).max() <= max_context
    seen: dict[tuple[int, ...], int] = {}
    for session, rows in by_session(made).items():
        assert made.turn is not None
        assert made.turn[rows].tolist() == list(range(len(rows)))
        said: list[int] = []
        for row in rows:
            script = made.script(row).tolist()
            assert script[: len(said)] == said
            assert 10 <= made.prompt_tokens[row] - len(said) <= 90 + (prefix.length if prefix and not said else 0)
            said = script
        own = tuple(said[-UNIT:])
        assert seen.setdefault(own, session) == session


def test_a_next_turn_comes_after_the_nominal_service_and_the_think_time() -> None:
    sessions = Sessions(turns=4, think=0, ttft=0.5, tpot=0.25)
    made = generator(arrivals=Constant(1.0), sessions=sessions).workload(100)
    for rows in by_session(made).values():
        gaps = np.diff(made.arrival_s[rows])
        assert gaps == pytest.approx(0.5 + 0.25 * made.output_tokens[rows][:-1], abs=2e-6)
    thinking = generator(sessions=Sessions(turns=50, think=8, ttft=0, tpot=0)).workload(20_000)
    gaps = np.concatenate([np.diff(thinking.arrival_s[rows]) for rows in by_session(thinking).values()])
    assert gaps.mean() == pytest.approx(8, rel=0.05)


def test_the_number_of_turns_has_the_given_mean() -> None:
    made = generator(arrivals=AllAtOnce(), sessions=Sessions(turns=5)).workload(50_000)
    assert 50_000 / len(by_session(made)) == pytest.approx(5, rel=0.03)


@pytest.mark.parametrize("prefixes", [None, Prefixes(groups=2, length=70)])
def test_the_schedulers_prefix_hits_are_the_estimated_share(prefixes: Prefixes | None) -> None:
    made = generator(sessions=Sessions(turns=4), prefixes=prefixes).workload(120)
    scheduler = Scheduler(SchedulerConfig(num_blocks=20_000, block_size=UNIT, max_num_batched_tokens=8192))
    cached = 0
    for request in made.requests():  # one after the other: all that came before is in the cache
        scheduler.add(request)
        while scheduler.has_work:
            scheduler.update(scheduler.schedule())
        cached += request.num_cached_tokens
    assert cached > 0.5 * made.prompt_tokens.sum()
    assert cached / made.prompt_tokens.sum() == made.prefix_share()


@pytest.mark.parametrize(
    ("settings_", "sentence"),
    [
        ({"sessions": {"turns": 0.5}}, "session turns is 0.5; expected a number >= 1"),
        ({"sessions": {"turns": 2, "think": -1}}, "session think is -1"),
        ({"prefixes": {"groups": 0, "length": 5}}, "prefix groups is 0"),
        ({"prefixes": {"groups": 1, "length": 5, "share": 0}}, "expected 0 < share <= 1"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"same_quantile": 2}, "expected a fraction from 0 to 1"),
    ],
)
def test_settings_out_of_range_are_one_sentence(settings_: dict[str, object], sentence: str) -> None:
    kinds = {"sessions": Sessions, "prefixes": Prefixes}
    with pytest.raises(ConfigError, match=sentence):
        generator(**{k: kinds[k](**v) if k in kinds else v for k, v in settings_.items()})  # type: ignore[arg-type] # settings under test


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ConfigError, match="requests is 0"):
        generator().workload(0)
    with pytest.raises(ConfigError, match=r"max_context 12 leaves .* of 100 requests; raise it"):
        generator(sessions=Sessions(2, max_context=12)).workload(100)


def test_a_million_requests_take_seconds_and_little_memory() -> None:
    made = generator().workload(1_000_000)
    assert len(made) == 1_000_000
    assert made.hash_ids is None
