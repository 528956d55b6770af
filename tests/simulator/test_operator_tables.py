"""Tests of reading operator tables: units, calls, holes and mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scheduler.errors import ConfigError, InputError
from simulator.costs.operator_tables import line, read_tables
from tests.simulator.profiles import attention_us, write_profile


def test_times_come_in_seconds_and_a_layer_has_two_norms(tmp_path: Path) -> None:
    tables = read_tables(write_profile(tmp_path / "p"))
    at_16 = tables.layer.read(16)
    assert at_16["qkv_proj"] == pytest.approx(11.6e-6)
    assert at_16["layernorm"] == pytest.approx(2 * 11.6e-6)
    assert tables.step.read(16) == pytest.approx({"embedding": 11.6e-6, "final_layernorm": 11.6e-6})
    assert tables.sequences is not None
    assert tables.sequences.read(8)["lm_head"] == pytest.approx(24e-6)
    assert (tables.device, tables.model) == ("NVIDIA GeForce RTX 4090", "meta-llama/Llama-3.1-8B")


def test_attention_lands_at_its_place(tmp_path: Path) -> None:
    grid = read_tables(write_profile(tmp_path / "p")).attention
    assert grid is not None
    assert grid.decode_s[1, 2] == pytest.approx(attention_us(0, 0, 4, 2048) * 1e-6)
    assert grid.prefill_s[2, 1] == pytest.approx(attention_us(256, 128, 0, 0) * 1e-6)
    assert grid.mixed_s[0, 3, 2, 1] == pytest.approx(attention_us(16, 2048, 16, 512) * 1e-6)
    assert not grid.mixed_filled.any()


def test_holes_are_continued_on_a_line_and_known_as_such(tmp_path: Path) -> None:
    grid = read_tables(write_profile(tmp_path / "p", mixed_most=16)).attention
    assert grid is not None
    assert grid.mixed_filled[:, :, 3].all()
    assert not grid.mixed_filled[:, :, :3].any()
    wanted = attention_us(64, 512, 64, 2048) * 1e-6  # the closed form is a line in the decodes
    assert grid.mixed_s[1, 2, 3, 2] == pytest.approx(wanted)


def test_lines_go_through_the_points_and_on_beyond_the_last() -> None:
    xs, ys = np.array([1.0, 2.0, 4.0]), np.array([10.0, 30.0, 20.0])
    assert [line(x, xs, ys) for x in (0.5, 1, 1.5, 2, 3, 4)] == [10, 10, 20, 30, 25, 20]
    assert line(8, xs, ys) == 20  # a falling end is not continued downwards
    assert line(3, xs[:2], ys[:2]) == 50


def test_vidurs_table_has_products_alone(data_dir: Path) -> None:
    tables = read_tables(data_dir / "profiles" / "vidur_a100_llama-3-8b_mlp.csv", 2)
    assert tables.attention is None
    assert tables.sequences is None
    assert tables.heads == (32, 8)
    assert set(tables.layer.parts) >= {"attn_pre_proj", "mlp_up_proj", "add"}
    assert 1e-6 < tables.layer.read(1)["mlp_up_proj"] < 1e-3


@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        ("profile_dense.csv", "layer,tokens,time_us", "layer,tokens,ms", "profile_dense.csv, line 1: has no column"),
        ("profile_dense.csv", "layernorm,16,11.6", "layernorm,16,0", "line 3: time_us is '0'; expected a time > 0"),
        ("profile_dense.csv", "layernorm,16,", "layernorm,1.5,", "line 3: tokens is '1.5'; expected a whole number"),
        ("profile_dense.csv", "layernorm,16,", "layernorm,64,", "stands here again"),
        ("profile_dense.csv", "qkv_proj,16,", "kqv_proj,16,", "layer is 'kqv_proj'; expected one of"),
        ("profile_dense.csv", "qkv_proj,16,", "qkv_proj,17,", "measured at other tokens"),
        ("profile_dense.csv", "down_proj", "act_fn", "stands here again"),
        ("profile_per_sequence.csv", "sampler", "lm_head", "stands here again"),
        ("profile_attention.csv", "\n0,0,1,128,", "\n0,5,1,128,", "line 2: prefill_chunk"),
        ("profile_attention.csv", "\n0,0,1,512,", "\n0,0,1,128,", "line 3: a point that stands in the file already"),
        ("profile_attention.csv", "\n0,0,1,128,", "\n0,0,-1,128,", "line 2: n_decode is '-1'"),
        ("profile_meta.yaml", "gpu:", "gpu: [", "is not YAML"),
        ("profile_meta.yaml", "gpu: NVIDIA GeForce RTX 4090\nmodel: meta-llama/Llama-3.1-8B\ntp_degrees: [1]", "text",
         "is no YAML mapping"),
    ],
)  # fmt: skip
def test_mistakes_get_one_sentence(tmp_path: Path, file: str, old: str, new: str, sentence: str) -> None:
    path = write_profile(tmp_path / "p") / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=sentence):
        read_tables(tmp_path / "p")


def test_missing_files_rows_and_degrees_get_one_sentence(tmp_path: Path) -> None:
    folder = write_profile(tmp_path / "p")
    with pytest.raises(ConfigError, match=r"tensor_parallel is 2; .* was profiled at \[1\]"):
        read_tables(folder, 2)
    with pytest.raises(InputError, match="is no folder with profile_dense"):
        read_tables(tmp_path / "nowhere")
    header, *rows = (folder / "profile_attention.csv").read_text().splitlines()
    (folder / "profile_attention.csv").write_text("\n".join([header, *rows[:10]]))
    with pytest.raises(InputError, match="expected a grid"):
        read_tables(folder)
    (folder / "profile_attention.csv").unlink()
    with pytest.raises(InputError, match=r"profile_attention\.csv: cannot be read"):
        read_tables(folder)
