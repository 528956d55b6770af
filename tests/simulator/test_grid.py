from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import ConfigError
from simulator.grid import check_grid, parse_grid, points


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ("max_num_seqs=16,32,64", [16, 32, 64]),
        ("max-num-seqs=16", [16]),
        ("max_num_seqs=16:64:16", [16, 32, 48, 64]),
        ("max_num_seqs=16:60:16", [16, 32, 48]),
        ("max_num_seqs=4,16:32:8,100", [4, 16, 24, 32, 100]),
        ("max_num_seqs=log:8:512:7", [8, 16, 32, 64, 128, 256, 512]),
        ("rate=0.1:0.5:0.1", [0.1, 0.2, 0.3, 0.4, 0.5]),
        ("rate=log:1:100:3", [1.0, 10.0, 100.0]),
        ("watermark=0,0.01", [0.0, 0.01]),
        ("policy=static,chunked", ["static", "chunked"]),
        ("enable_prefix_caching=true,off", [True, False]),
        ("concurrency=none,4", [None, 4]),
        ("cudagraph_capture_sizes=none,1+2+4", [(), (1, 2, 4)]),
        ("cost=roofline,linear:step_s=0.01,token_s=2e-5", ["roofline", "linear:step_s=0.01,token_s=2e-5"]),
        ("max_num_seqs=8,8,16", [8, 16]),
    ],
)
def test_values_are_read_as_their_setting_takes_them(spec: str, values: list[object]) -> None:
    (found,) = parse_grid([spec]).values()
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@given(first=st.floats(0.01, 100), ratio=st.floats(1.1, 1000), count=st.integers(2, 30))
def test_a_logarithmic_range_has_equal_ratios_and_exact_ends(first: float, ratio: float, count: int) -> None:
    last = first * ratio
    found = check_grid({"rate": f"log:{first}:{last}:{count}"})["rate"]
    assert (found[0], found[-1], len(found)) == (first, last, count)
    step = math.log(last / first) / (count - 1)
    for low, high in itertools.pairwise(found):
        assert math.log(high / low) == pytest.approx(step, abs=3e-5)


def test_the_last_axis_changes_fastest() -> None:
    grid = parse_grid(["policy=static,chunked", "rate=1,2"])
    assert points(grid) == [
        {"policy": "static", "rate": 1.0},
        {"policy": "static", "rate": 2.0},
        {"policy": "chunked", "rate": 1.0},
        {"policy": "chunked", "rate": 2.0},
    ]


def test_a_mapping_takes_lists_values_and_texts() -> None:
    assert check_grid({"max_num_seqs": [4, 8], "policy": "static", "rate": "1:3:1", "block_size": 16}) == {
        "max_num_seqs": [4, 8],
        "policy": ["static"],
        "rate": [1.0, 2.0, 3.0],
        "block_size": [16],
    }


@pytest.mark.parametrize(
    ("specs", "says"),
    [
        ([], "the grid is empty"),
        (["max_num_sqs=4"], "did you mean 'max_num_seqs'"),
        (["max_num_seqs"], "expected NAME=VALUE"),
        (["max_num_seqs="], "expected NAME=VALUE"),
        (["max_num_seqs=4", "max-num-seqs=8"], "names max_num_seqs twice"),
        (["max_num_seqs=four"], "'four' is not a whole number"),
        (["max_num_seqs=0"], "max_num_seqs is 0; expected a whole number >= 1"),
        (["max_num_seqs=1:2:0.5"], "gives fractions"),
        (["max_num_seqs=9:1:1"], "is no range"),
        (["max_num_seqs=1:9:0"], "is no range"),
        (["max_num_seqs=1:9"], "is no range"),
        (["rate=log:0:9:3"], "is no range"),
        (["rate=0"], "expected a number > 0"),
        (["rate=inf"], "expected a number > 0"),
        (["requests=0"], "expected a whole number >= 1"),
        (["seed=-1"], "expected a whole number >= 0"),
        (["policy=statik"], "did you mean 'static'"),
        (["model=lama"], "unknown model"),
        (["hardware=a1000"], "unknown hardware"),
        (["cost=rooftop"], "did you mean 'roofline'"),
        (["kv_dtype=fp7"], "unknown kv_dtype"),
        (["layout=raged"], "did you mean 'ragged'"),
        (["async_scheduling=maybe"], "is not true or false"),
    ],
)
def test_what_could_never_run_is_refused_before_anything_does(specs: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_grid(specs)
