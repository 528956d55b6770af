"""The tokenizer agrees with transformers', loads fast, and says what is wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.locate import embedded_folder
from backend.tokenizer import Tokenizer
from scheduler.errors import ConfigError, InputError, RequestRefused
from tests.conftest import ROOT

EMBEDDED = Tokenizer.load(embedded_folder())
TALK = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": " What is 2+2?\n"},
    {"role": "assistant", "content": "2 + 2 = 4."},
    {"role": "user", "content": "Näme ein Wört 日本 🙂"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model's small files, to spoil."""
    for path in embedded_folder().glob("*.json"):
        shutil.copy(path, tmp_path / path.name)
    return tmp_path


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_comes_back_from_its_tokens(text: str) -> None:
    assert EMBEDDED.decode(EMBEDDED.encode(text), skip_special=text == "") == (
        "" if text == "" else f"<|begin_of_text|>{text}"
    )
    assert EMBEDDED.decode(EMBEDDED.encode(text, add_special_tokens=False), skip_special=False) == text


def test_tokens_are_those_of_transformers() -> None:
    from transformers import AutoTokenizer

    peer = AutoTokenizer.from_pretrained(embedded_folder())
    for text in ("", "What is 2+2?", "a  b\n\n c", "<|eot_id|> x", "日本 🙂", "12345"):
        assert EMBEDDED.encode(text) == peer.encode(text)
        assert EMBEDDED.encode(text, add_special_tokens=False) == peer.encode(text, add_special_tokens=False)
        assert EMBEDDED.decode(EMBEDDED.encode(text)) == peer.decode(peer.encode(text), skip_special_tokens=True)
    assert EMBEDDED.chat(TALK) == peer.apply_chat_template(TALK, add_generation_prompt=True)["input_ids"]
    assert EMBEDDED.vocab_size == len(peer)


def test_a_conversation_is_laid_out_as_llama_3_does() -> None:
    assert EMBEDDED.decode(EMBEDDED.chat(TALK[:2]), skip_special=False) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nAnswer briefly.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWhat is 2+2?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_content_may_come_as_a_list_of_text_parts() -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "2+2?"}]
    whole = [{"role": "user", "content": "What is 2+2?"}]
    assert EMBEDDED.chat([{"role": "user", "content": parts}]) == EMBEDDED.chat(whole)


def test_content_that_is_no_text_is_refused() -> None:
    for content in (None, 5, [None], [{"type": "image_url", "image_url": {"url": "x"}}]):
        with pytest.raises(RequestRefused, match="type 'text'"):
            EMBEDDED.chat([{"role": "user", "content": content}])


def test_a_template_that_raises_is_a_refusal_with_its_words(folder: Path) -> None:
    change(folder / "tokenizer_config.json", chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestRefused, match="roles must alternate"):
        Tokenizer.load(folder).chat(TALK)


def test_a_model_without_template_says_so(folder: Path) -> None:
    change(folder / "tokenizer_config.json", chat_template=None)
    with pytest.raises(ConfigError, match="no chat template"):
        Tokenizer.load(folder).chat(TALK)


def test_a_template_file_wins_and_a_list_has_a_default(folder: Path) -> None:
    listed = [{"name": "tools", "template": "no"}, {"name": "default", "template": "{{ eos_token }}yes"}]
    change(folder / "tokenizer_config.json", chat_template=listed)
    assert Tokenizer.load(folder).decode(Tokenizer.load(folder).chat(TALK), skip_special=False) == "<|end_of_text|>yes"
    (folder / "chat_template.jinja").write_text("from a file")
    assert Tokenizer.load(folder).decode(Tokenizer.load(folder).chat(TALK)) == "from a file"


def test_end_tokens_come_from_the_generation_config_first(folder: Path) -> None:
    change(folder / "generation_config.json", eos_token_id=7)
    change(folder / "config.json", eos_token_id=[8, 9])
    assert Tokenizer.load(folder).eos_token_ids == (7,)
    (folder / "generation_config.json").unlink()
    assert Tokenizer.load(folder).eos_token_ids == (8, 9)
    (folder / "config.json").unlink()
    assert Tokenizer.load(folder).eos_token_ids == (EMBEDDED.backend.token_to_id("<|end_of_text|>"),)


def test_half_a_surrogate_pair_becomes_the_replacement_character() -> None:
    assert EMBEDDED.decode(EMBEDDED.encode("a\ud83db", add_special_tokens=False)) == "a\ufffdb"
    assert EMBEDDED.decode(EMBEDDED.encode("\ud83d\ude42", add_special_tokens=False)) == "🙂"


def test_bytes_that_are_no_character_yet_decode_to_the_replacement_character() -> None:
    ids = EMBEDDED.encode("日", add_special_tokens=False)
    assert len(ids) == 3
    assert EMBEDDED.decode(ids[:2]) == "\ufffd"


def test_a_model_with_the_older_files_gets_the_tokenizer_that_transformers_makes(folder: Path) -> None:
    from transformers import AutoTokenizer

    parts = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(parts["vocab"]))
    (folder / "merges.txt").write_text("\n".join(" ".join(pair) for pair in parts["merges"]))
    special = {"bos_token": "<|begin_of_text|>", "eos_token": {"content": "<|end_of_text|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", "bos_token": None}))
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    made = Tokenizer.load(folder)
    assert made.encode("What is 2+2?") == AutoTokenizer.from_pretrained(folder).encode("What is 2+2?")
    assert made.decode(made.encode("What is 2+2?")) == "What is 2+2?"
    assert made.special_tokens == {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}


def test_a_directory_without_tokenizer_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_broken_files_are_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer\.json: cannot be read"):
        Tokenizer.load(folder)
    (folder / "tokenizer_config.json").write_text("[]")
    with pytest.raises(InputError, match=r"tokenizer_config\.json: expected a JSON object"):
        Tokenizer.load(folder)


def test_loading_and_encoding_need_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from backend.tokenizer import Tokenizer; from backend.locate import locate;"
        "Tokenizer.load(locate('embedded')).encode('hello'); print({'torch', 'transformers'} & {*sys.modules})"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "set()"
