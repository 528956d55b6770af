from __future__ import annotations

import contextlib
import csv
import gzip
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import InputError
from traces.formats import FORMATS, read_workload
from traces.workload import Workload
from traces.write_workload import write_workload

OWN = "arrival_s,prompt_tokens,output_tokens\n"


def read(tmp_path: Path, text: str | bytes, **options: object) -> Workload:
    file = tmp_path / "no-hint-in-the-name"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_workload(file, **options)  # type: ignore[arg-type] # options under test


def rows(workload: Workload) -> list[tuple[float, int, int]]:
    columns = (workload.arrival_s, workload.prompt_tokens, workload.output_tokens)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def mooncake(*records: tuple[float, int, int, list[int]]) -> str:
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(json.dumps(dict(zip(keys, record, strict=True))) + "\n" for record in records)


# every format, with its traps


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OWN + "0.25,10,1\n0.25,20,2\n", [(0.25, 10, 1), (0.25, 20, 2)]),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
            "2023-11-16 18:15:50.9951690,396,109",
            [(0, 374, 44), (4.314579, 396, 109)],
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
            "2024-05-10 00:00:01+00:00,2399,6\n2024-05-10 02:00:01.5+02:00,1,1\n2024-05-10T00:00:02Z,7,8\n",
            [(0, 2162, 5), (0.99007, 2399, 6), (1.49007, 1, 1), (1.99007, 7, 8)],
        ),
        (
            "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.5,396.0,109\n",
            [(0, 374, 44), (4.5, 396, 109)],
        ),
        ("arrival_time_ns,input_toks,output_toks\r\n46926808,2358,531\r\n", [(0.046926808, 2358, 531)]),
        (
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,API log\n",
            [(5, 472, 18)],
        ),
        (
            "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            '5,abc,1.5,ChatGPT,472,18,490,"Conversation, log"\n6,,2,GPT-4,1,2,3,API log\n7,abc,2,GPT-4,1,2,3,API log\n',
            [(5, 472, 18), (6, 1, 2), (7, 1, 2)],
        ),
        ('{"timestamp": 3000, "input_length": 6, "output_length": 5}\n', [(3, 6, 5)]),
        ('{"chat_id": 9, "timestamp": 61.114, "input_length": 6, "output_length": 5}', [(61.114, 6, 5)]),
        ('{"arrival_s": 1, "prompt_tokens": 6, "output_tokens": 5}\n\n', [(1, 6, 5)]),
    ],
)
def test_each_format_is_found_by_its_content(tmp_path: Path, text: str, expected: list[tuple[float, int, int]]) -> None:
    assert rows(read(tmp_path, text)) == expected


def test_a_byte_order_mark_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    assert rows(read(tmp_path, "\ufeff" + OWN + "\n1,2,3\n\n")) == [(1, 2, 3)]


def test_columns_are_read_by_name_in_any_order(tmp_path: Path) -> None:
    assert rows(read(tmp_path, "x,output_tokens, arrival_s ,prompt_tokens\n?,3,1,2\n")) == [(1, 2, 3)]


def test_sessions_are_numbered_in_order_of_appearance(tmp_path: Path) -> None:
    text = "Timestamp,Session ID,Request tokens,Response tokens\n1,b,1,1\n2,,1,1\n3,a,1,1\n4,b,1,1\n"
    session = read(tmp_path, text).session
    assert session is not None
    assert session.tolist() == [0, -1, 1, 0]


def test_every_optional_column_of_ours_arrives(tmp_path: Path) -> None:
    header = "arrival_s,prompt_tokens,output_tokens,max_tokens,priority,request_id,session,turn\n"
    workload = read(tmp_path, header + "0,5,2,9,-1,a,3,0\n1,5,2,2,4,b,3,1\n")
    requests = list(workload.requests())
    assert [(r.request_id, r.max_tokens, r.eos_at, r.priority) for r in requests] == [
        ("a", 9, 2, -1),
        ("b", 2, None, 4),
    ]
    assert workload.session is not None
    assert workload.turn is not None
    assert (workload.session.tolist(), workload.turn.tolist()) == ([3, 3], [0, 1])


# what hash_ids stand for


@pytest.mark.parametrize(
    ("records", "unit"),
    [
        ([(0, 1000, 9, [1, 2]), (0, 512, 9, [1])], (512, "prompt")),
        ([(0, 20, 30, [1, 2, 3]), (1, 40, 9, [1, 2, 4])], (16, "sequence")),
        ([(0, 40, 100, [1, 2, 3]), (1, 16, 100, [1])], (16, "prompt")),
        ([(0, 100, 300, [1, 2]), (1, 64, 100, [1])], (64, "prompt")),
        ([(0, 600, 9, [1, 2]), (1, 40, 9, [])], (512, "prompt")),
    ],
)
def test_the_unit_of_hash_ids_follows_from_their_number(
    tmp_path: Path, records: list[tuple[float, int, int, list[int]]], unit: tuple[int, str]
) -> None:
    workload = read(tmp_path, mooncake(*records))
    assert (workload.hash_block, workload.hash_covers) == unit


def test_a_forced_unit_allows_fewer_ids_but_never_more(tmp_path: Path) -> None:
    text = mooncake((0, 100, 9, [1, 2, 3]), (1, 100, 9, [1]))
    with pytest.raises(InputError, match=r"line 1: has 3 hash_ids; expected 1 .*--hash-block"):
        read(tmp_path, text)
    workload = read(tmp_path, text, hash_block=32)
    assert (workload.hash_block, workload.hash_covers) == (32, "prompt")
    with pytest.raises(InputError, match=r"line 1: has 3 hash_ids of 100 tokens; its lengths allow at most 2"):
        read(tmp_path, text, hash_block=100)
    with pytest.raises(InputError, match="has no hash_ids"):
        read(tmp_path, OWN + "1,2,3\n", hash_block=16)


def test_a_bad_id_names_the_field(tmp_path: Path) -> None:
    for ids in ("[1, 2.5]", '["a"]', "7", "[[1]]", "[null]", "[1e30]"):
        text = f'{{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": {ids}}}\n'
        with pytest.raises(InputError, match=r"line 1: hash_ids is .*expected a list of whole numbers"):
            read(tmp_path, text)


# mistakes


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("0,-3,1", "line 3: prompt_tokens is '-3'; expected a whole number >= 1"),
        ("0,0,1", "line 3: prompt_tokens is '0'; expected a whole number >= 1"),
        ("0,1,0", "line 3: output_tokens is '0'; expected a whole number >= 1"),
        ("0,nan,1", "line 3: prompt_tokens is 'nan'; expected a whole number >= 1"),
        ("0,inf,1", "line 3: prompt_tokens is 'inf'; expected a whole number >= 1"),
        ("0,1e300,1", "line 3: prompt_tokens is '1e300'"),
        ("0,2.5,1", "line 3: prompt_tokens is '2.5'; expected a whole number >= 1"),
        ("0,,1", "line 3: prompt_tokens is missing; expected a whole number >= 1"),
        ("0,ten,1", "line 3: prompt_tokens is 'ten'"),
        ("-1,1,1", "line 3: arrival_s is '-1'; expected a time, a number >= 0"),
        ("nan,1,1", "line 3: arrival_s is 'nan'; expected a time"),
        ("inf,1,1", "line 3: arrival_s is 'inf'; expected a time"),
        ("0,1", r"line 3: has 2 fields; expected 3 \(is the line cut off\?\)"),
        ("0,1,1,1", "line 3: has 4 fields; expected 3"),
    ],
)
def test_a_bad_row_is_one_sentence_with_line_field_and_expectation(tmp_path: Path, row: str, sentence: str) -> None:
    with pytest.raises(InputError, match=rf"no-hint-in-the-name, {sentence}.*--skip-bad"):
        read(tmp_path, OWN + "0,1,1\n" + row + "\n0,1,1")


@pytest.mark.parametrize("row", ["0,-3,1", "0,nan,1", "0,x,1", "0,1", "0,1,1,1", "nan,1,1"])
def test_skip_bad_leaves_the_row_out_and_counts_it(tmp_path: Path, row: str) -> None:
    workload = read(tmp_path, OWN + "0,1,1\n" + row + "\n0,2,2", skip_bad=True)
    assert rows(workload) == [(0, 1, 1), (0, 2, 2)]
    assert list(workload.skipped.values()) == [1]


def test_the_first_of_several_mistakes_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 3: arrival_s"):
        read(tmp_path, OWN + "0,1,1\nx,1,1\n0,0,1\n0,1\n")


def test_burstgpt_failures_suggest_skipping_and_are_counted(tmp_path: Path) -> None:
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,G,4,2,6,x\n6,G,4,0,4,x\n7,G,0,0,0,x\n"
    )
    with pytest.raises(InputError, match=r"line 3: Response tokens is '0'; .* \(--skip-bad leaves such rows out\)"):
        read(tmp_path, text)
    workload = read(tmp_path, text, skip_bad=True)
    assert len(workload) == 1
    assert workload.skipped == {"Response tokens below 1": 1, "Request tokens below 1": 1}


def test_times_that_go_back_need_sort_and_equal_times_keep_their_order(tmp_path: Path) -> None:
    text = OWN + "1,1,1\n3,2,1\n2,3,1\n3,4,1\n1,5,1\n"
    with pytest.raises(InputError, match=r"line 4: arrival_s goes back by 1 s; .*--sort"):
        read(tmp_path, text)
    with pytest.raises(InputError, match="goes back"):
        read(tmp_path, text, skip_bad=True)
    assert read(tmp_path, text, sort=True).prompt_tokens.tolist() == [1, 5, 3, 2, 4]


def test_sorting_dates_makes_the_earliest_second_zero(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:02,1,1\n2024-05-10 00:00:01.5,2,1\n"
    assert rows(read(tmp_path, text, sort=True)) == [(0, 2, 1), (0.5, 1, 1)]


def test_a_bad_date_is_named(tmp_path: Path) -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:02,1,1\n"
    for date in ("yesterday", "", "2024-13-10 00:00:00", "NaT"):
        with pytest.raises(InputError, match=r"line 3: TIMESTAMP is .*; expected a date and time like"):
            read(tmp_path, f"{head}{date},1,1\n")
        assert len(read(tmp_path, f"{head}{date},1,1\n", skip_bad=True)) == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (gzip.compress(b"x", mtime=0), "is gzip-compressed; unpack it first"),
        (b"PK\x03\x04rest", "is a zip archive"),
        (b"PAR1....", "is a Parquet file"),
        (b"\x7fELF\0\0\x01", "is binary data"),
        (b"arrival_s,prompt_tokens,output_tokens\n1,\xff\xfe,3\n", "is not UTF-8 text"),
        (b"[1, 2]\n", "line 1: is a JSON array; expected one JSON object a line"),
        (b"a,b,c\n1,2,3\n", "line 1: fields 'a, b, c' fit no known format; expected one of batchscope: arrival_s"),
        (b"TIMESTAMP,ContextTokens\n", "line 1: misses GeneratedTokens of the azure format; expected one of"),
        (b"arrival_s,prompt_token,output_tokens\n", r"misses prompt_tokens .*\(there is 'prompt_token'\)"),
        (b"0.5,10,20\n", "has numbers where the column names should be"),
        (b"0,0,0,,0,0\n", "a single ServeGen window file"),
        (b"arrival_s,prompt_tokens,output_tokens\n", "has no requests"),
        (b'{"timestamp": 1, "input_le', "line 1: is not a whole JSON object"),
        (b'{"timestamp": 1}\n', "line 1: misses input_length, output_length of the mooncake format"),
        (b'arrival_s,prompt_tokens,output_tokens\n"' + b"x" * 200_000, "is not CSV"),
    ],
)
def test_what_is_no_workload_is_refused_in_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    with pytest.raises(InputError, match=f"no-hint-in-the-name.*{sentence}") as caught:
        read(tmp_path, content)
    assert "\n" not in str(caught.value)


def test_a_file_of_bad_rows_only_has_no_requests(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no requests \(2 bad ones left out\)"):
        read(tmp_path, OWN + "0,0,0\n1,1\n", skip_bad=True)


def test_a_torn_json_line_is_named_and_can_be_skipped(tmp_path: Path) -> None:
    text = mooncake((0, 600, 5, [1, 2]), (1, 600, 5, [1, 3]))[:-20]
    with pytest.raises(InputError, match=r"line 2: is not a whole JSON object \(is the line cut off\?\)"):
        read(tmp_path, text)
    assert len(read(tmp_path, text + "\n7\n", skip_bad=True)) == 1
    missing = mooncake((0, 600, 5, [1, 2])) + '{"timestamp": 3, "input_length": 4}\n'
    with pytest.raises(InputError, match="line 2: output_length is missing"):
        read(tmp_path, missing)


def test_a_missing_file_a_folder_and_a_forbidden_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gone: cannot be read: No such file"):
        read_workload(tmp_path / "gone")
    with pytest.raises(InputError, match="is a directory without ServeGen's"):
        read_workload(tmp_path)
    with pytest.raises(InputError, match="is no file"):
        read_workload("/dev/null")
    forbidden = tmp_path / "f"
    forbidden.write_text(OWN)
    forbidden.chmod(0)
    if os.access(forbidden, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        read_workload(forbidden)


def test_ids_must_differ_and_limits_must_hold_the_output(tmp_path: Path) -> None:
    head = "arrival_s,prompt_tokens,output_tokens,max_tokens,request_id\n"
    with pytest.raises(InputError, match="line 3: request_id 'a' is also on line 2"):
        read(tmp_path, head + "0,1,1,1,a\n1,1,1,1,a\n")
    with pytest.raises(InputError, match="line 2: max_tokens is 3; expected at least the 5 output tokens"):
        read(tmp_path, head + "0,1,5,3,a\n")


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_rubbish_never_escapes_as_another_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("rubbish") / "x"
    for start in (b"", OWN.encode(), b'{"timestamp": 1, "input_length": 2, "output_length": 3}\n'):
        file.write_bytes(start + content)
        for skip_bad in (False, True):
            with contextlib.suppress(InputError):
                read_workload(file, skip_bad=skip_bad)


# ours, written and read


def random_workload(seed: int, n: int = 50) -> Workload:
    rng = random.Random(seed)
    counts = [rng.randrange(4) for _ in range(n)]
    output = np.array([rng.randint(1, 9) for _ in range(n)])
    return Workload(
        np.cumsum([rng.random() for _ in range(n)]),
        np.array([64 + rng.randint(1, 9) for _ in range(n)]),
        output,
        max_tokens=output + rng.randrange(3),
        priority=np.array([rng.randint(-3, 3) for _ in range(n)]),
        request_ids=np.array([f"r,{i}" for i in range(n)]),
        session=np.array([rng.randint(-1, 3) for _ in range(n)]),
        turn=np.array([rng.randint(0, 3) for _ in range(n)]),
        hash_ids=np.array([rng.randrange(2**60) for _ in range(sum(counts))], dtype=np.int64),
        hash_offsets=np.concatenate([[0], np.cumsum(counts)]),
        hash_block=16,
        hash_covers=rng.choice(["prompt", "sequence"]),  # type: ignore[arg-type] # one of the two
    )


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_what_is_written_is_read_back_with_the_same_digest(tmp_path: Path, suffix: str) -> None:
    for seed in range(5):
        made = random_workload(seed)
        for workload in (made, made.head(1), Workload(made.arrival_s, made.prompt_tokens, made.output_tokens)):
            write_workload(workload, tmp_path / f"w{suffix}")
            assert read_workload(tmp_path / f"w{suffix}").digest() == workload.digest()


def test_a_stated_unit_must_be_the_same_in_all_rows(tmp_path: Path) -> None:
    write_workload(random_workload(0), tmp_path / "w.jsonl")
    text = (tmp_path / "w.jsonl").read_text()
    with pytest.raises(InputError, match="line 3: hash_block is 32; expected 16"):
        read(tmp_path, "".join(text.splitlines(True)[:2]) + text.splitlines(True)[2].replace(":16,", ":32,"))
    with pytest.raises(InputError, match="states a hash_block of 16, not 8"):
        read(tmp_path, text, hash_block=8)


# the public files


def file(data_dir: Path, name: str) -> Path:
    return data_dir / "workloads" / name


def test_azure_conv_and_vidurs_copy_of_it_are_the_same_requests(data_dir: Path) -> None:
    azure = read_workload(file(data_dir, "AzureLLMInferenceTrace_conv.csv"))
    vidur = read_workload(file(data_dir, "vidur_splitwise_conv.csv"))
    assert len(azure) == len(vidur) == 19_366
    assert np.array_equal(azure.prompt_tokens, vidur.prompt_tokens)
    assert np.array_equal(azure.output_tokens, vidur.output_tokens)
    assert np.abs(azure.arrival_s - vidur.arrival_s).max() < 1e-6


@pytest.mark.parametrize("name", ["AzureLLMInferenceTrace_code.csv", "AzureLLMInferenceTrace_conv.csv"])
def test_azure_is_what_pandas_reads(data_dir: Path, name: str) -> None:
    import pandas as pd

    frame = pd.read_csv(file(data_dir, name))
    times = pd.to_datetime(frame.TIMESTAMP).astype("datetime64[ns]").astype("int64").to_numpy()
    workload = read_workload(file(data_dir, name))
    assert np.array_equal(workload.prompt_tokens, frame.ContextTokens)
    assert np.array_equal(workload.output_tokens, frame.GeneratedTokens)
    assert np.array_equal(workload.arrival_s, (times - times[0]) / 1e9)


def test_mooncake_is_what_json_reads(data_dir: Path) -> None:
    records = [json.loads(line) for line in file(data_dir, "mooncake_conversation.jsonl").read_text().splitlines()]
    workload = read_workload(file(data_dir, "mooncake_conversation.jsonl"))
    assert rows(workload) == [(r["timestamp"] / 1000, r["input_length"], r["output_length"]) for r in records]
    assert workload.hash_ids is not None
    assert workload.hash_ids.tolist() == [i for r in records for i in r["hash_ids"]]
    assert (workload.hash_block, workload.hash_covers, len(workload)) == (512, "prompt", 12_031)


def test_sharegpt_with_and_without_hashes_are_the_same_requests(data_dir: Path) -> None:
    lengths = read_workload(file(data_dir, "sharegpt_300_sps10.lengths.csv"))
    with_ids = read_workload(file(data_dir, "sharegpt_300_sps10.hashed.jsonl"))
    assert (with_ids.hash_block, with_ids.hash_covers) == (16, "sequence")
    assert np.array_equal(lengths.prompt_tokens, with_ids.prompt_tokens)
    assert np.abs(lengths.arrival_s - with_ids.arrival_s).max() < 1e-9
    table = list(csv.DictReader(file(data_dir, "sharegpt_300_sps10.lengths.csv").open()))
    assert rows(lengths)[0] == (int(table[0]["arrival_time_ns"]) / 1e9, 2358, 531)


def test_every_public_file_survives_conversion(data_dir: Path, tmp_path: Path) -> None:
    for name in ("AzureLLMInferenceTrace_code.csv", "mooncake_conversation.jsonl", "sharegpt_300_sps10.hashed.jsonl"):
        workload = read_workload(file(data_dir, name)).head(1000)
        for suffix in (".csv", ".jsonl"):
            write_workload(workload, tmp_path / f"w{suffix}")
            assert read_workload(tmp_path / f"w{suffix}").digest() == workload.digest()


def test_formats_of_one_kind_can_be_told_apart() -> None:
    for first in FORMATS:
        for later in FORMATS[FORMATS.index(first) + 1 :]:
            assert first.kind != later.kind or not set(first.fields()) <= set(later.fields())
