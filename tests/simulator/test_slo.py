from __future__ import annotations

from typing import Any

import pytest

from scheduler.errors import ConfigError
from simulator.slo import NAMES, Figure, Slo


def record(**changes: Any) -> dict[str, Any]:
    spread = {"mean": 1.0, "p50": 1.0, "p90": 2.0, "p95": 3.0, "p99": 4.0}
    latencies = {f"{metric}_s": spread for metric in ("ttft", "tpot", "itl", "e2e", "queue")}
    return {**latencies, "saturated": False, "requests": 10, "finished": 10, **changes}


def test_limits_are_read_in_seconds_unless_they_say_milliseconds() -> None:
    assert Slo.parse("ttft_p99=1.5, tpot_mean=50ms,e2e_p90 = 2s").as_dict() == {
        "ttft_p99": 1.5,
        "tpot_mean": 0.05,
        "e2e_p90": 2.0,
    }


def test_text_and_mapping_mean_the_same() -> None:
    assert Slo.parse("queue_p95=0.25") == Slo.of({"queue_p95": 0.25})


def test_every_metric_has_every_figure() -> None:
    assert len(NAMES) == 25
    assert all(Figure(name).of(record()) in (1.0, 2.0, 3.0, 4.0) for name in NAMES)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tfft_p99=1", "did you mean 'ttft_p99'"),
        ("ttft_p98=1", "did you mean 'ttft_p9"),
        ("ttft=1", "unknown latency figure 'ttft'"),
        ("ttft_p99", "expected limits such as"),
        ("", "slo is empty"),
        ("ttft_p99=0", "expected seconds > 0"),
        ("ttft_p99=-1", "expected seconds > 0"),
        ("ttft_p99=nan", "expected seconds > 0"),
        ("ttft_p99=1.2.3", "expected seconds > 0"),
        ("ttft_p99=5min", "expected seconds > 0"),
    ],
)
def test_what_is_no_limit_is_refused_with_a_sentence(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Slo.parse(text)


def test_a_run_meets_limits_that_it_just_reaches() -> None:
    assert Slo.parse("ttft_p99=4,e2e_mean=1").misses(record()) == []


def test_a_run_misses_what_it_exceeds_and_says_by_how_much() -> None:
    assert Slo.parse("ttft_p99=3.5,e2e_mean=1").misses(record()) == ["ttft_p99 4 s > 3.5 s"]


def test_saturated_and_unserved_runs_meet_nothing() -> None:
    generous = Slo.parse("ttft_p99=100")
    assert generous.misses(record(saturated=True)) == ["saturated"]
    assert generous.misses(record(finished=7)) == ["3 requests not served"]
    assert generous.misses(record(saturated=None)) == []


def test_a_figure_that_no_request_has_meets_its_limit() -> None:
    assert Slo.parse("tpot_p99=0.001").misses(record(tpot_s=None)) == []


def test_strain_is_the_worst_figure_as_a_multiple_of_its_limit() -> None:
    assert Slo.parse("ttft_p99=8,e2e_p99=1").strain(record()) == 4.0


def test_limits_on_tokens_are_refused_for_a_policy_that_delivers_all_at_once() -> None:
    Slo.parse("tpot_p99=1").check_policy("chunked")
    Slo.parse("ttft_p99=1").check_policy("static")
    with pytest.raises(ConfigError, match=r"policy static .* has no tpot"):
        Slo.parse("tpot_p99=1").check_policy("static")
