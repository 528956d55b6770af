"""Text as it comes, token by token, against the text decoded whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from backend.pieces import _alphabet
from backend.sampling import SamplingParams
from backend.text import TextStream
from backend.tokenizer import Tokenizer
from scheduler.errors import ConfigError

END = "<|end|>"
LETTER = {byte: letter for letter, byte in _alphabet().items()}
LAW = settings(deadline=None)
TEXT = st.text(st.sampled_from("ab c€é\U0001f600"), max_size=30)
STOPS = st.lists(st.text(st.sampled_from("ab c€é"), min_size=1, max_size=5), max_size=4).map(tuple)
CHUNKS = st.lists(
    st.binary(max_size=3) | st.sampled_from([b"a", b"b", "€".encode(), b"\xe2\x82", b"\xac"]), max_size=20
)


def byte_level(chunks: Sequence[bytes]) -> tuple[Tokenizer, list[int]]:
    """A byte-level tokenizer whose tokens are these chunks of bytes, and their ids; its last id is a special end."""
    names = ["".join(LETTER[byte] for byte in chunk) for chunk in chunks if chunk]
    vocab = {name: index for index, name in enumerate(dict.fromkeys(names))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END])
    return wrapped(backend, [id_of(backend, END)]), [vocab[name] for name in names]


def id_of(backend: tokenizers.Tokenizer, name: str) -> int:
    token = backend.token_to_id(name)
    assert token is not None
    return token


def wrapped(backend: tokenizers.Tokenizer, eos: Sequence[int] = ()) -> Tokenizer:
    return Tokenizer(backend, tuple(eos), None, {})


def first_stop(text: str, stops: Sequence[str], start: int = 0) -> tuple[int, str] | None:
    """Where the first stop string that ends after `start` ends, and the longest that ends there; by trying all."""
    for end in range(start + 1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


def cut(text: str, stops: Sequence[str], *, include: bool) -> str:
    found = first_stop(text, stops)
    if found is None:
        return text
    return text[: found[0]] if include else text[: found[0] - len(found[1])]


def streamed(stream: TextStream, ids: Sequence[int]) -> str:
    """All deliveries, no token after the stop string."""
    deliveries = []
    for token in ids:
        stopped = stream.push(token)
        deliveries.append(stream.take())
        if stopped:
            break
    deliveries.append(stream.finish())
    assert stream.text == "".join(deliveries)
    assert stream.finish() == ""
    return stream.text


@LAW
@given(CHUNKS, STOPS, st.booleans())
@example([b"\xe2\x82", b"\xac"], ("€",), False)
@example([b"\xf0\x90", b"a"], (), False)
def test_deliveries_are_the_decoded_whole_cut_at_the_first_stop_string(
    chunks: list[bytes], stops: tuple[str, ...], include: bool
) -> None:
    tokenizer, ids = byte_level(chunks)
    params = SamplingParams(stop=stops, include_stop_str_in_output=include)
    assert streamed(TextStream(tokenizer, params), ids) == cut(tokenizer.decode(ids), stops, include=include)


@LAW
@given(TEXT, st.lists(st.integers(1, 4), min_size=1), STOPS)
def test_push_says_so_at_the_token_that_completes_the_first_stop_string_and_only_what_may_become_one_is_held(
    text: str, sizes: list[int], stops: tuple[str, ...]
) -> None:
    chunks = split(text.encode(), sizes)
    tokenizer, ids = byte_level(chunks)
    found = first_stop(text, stops)
    stream, known = TextStream(tokenizer, SamplingParams(stop=stops)), b""
    for chunk, token in zip(chunks, ids, strict=True):
        known += chunk
        whole = known.decode(errors="ignore")
        complete = found is not None and len(whole) >= found[0]
        assert stream.push(token) == complete
        stream.take()
        if complete:
            assert found is not None
            assert stream.stop_reason == found[1]
            break
        assert whole == stream.text + longest_beginning(whole, stops)


def split(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    chunks, turn = [], 0
    while data:
        size = sizes[turn % len(sizes)]
        chunks.append(data[:size])
        data, turn = data[size:], turn + 1
    return chunks


def longest_beginning(text: str, stops: Sequence[str]) -> str:
    """The longest end of the text with which a stop string begins."""
    ends = [text[len(text) - n :] for n in range(len(text) + 1)]
    return max((end for end in ends if any(s.startswith(end) and s != end for s in stops) or not end), key=len)


@LAW
@given(TEXT.filter(bool), STOPS.filter(bool), st.integers(0, 12))
def test_no_stop_string_is_complete_within_the_first_min_tokens(
    text: str, stops: tuple[str, ...], min_tokens: int
) -> None:
    chunks = [letter.encode() for letter in text]  # a token a character
    tokenizer, ids = byte_level(chunks)
    params = SamplingParams(stop=stops, min_tokens=min_tokens, max_tokens=None)
    found = first_stop(text, stops, start=min_tokens)
    expected = text if found is None else text[: found[0] - len(found[1])]
    assert streamed(TextStream(tokenizer, params), ids) == expected


def test_a_stop_string_may_begin_before_min_tokens_and_text_after_it_is_never_delivered() -> None:
    tokenizer, ids = byte_level([b"x", b"EN", b"D. more", b"y"])
    stream = TextStream(tokenizer, SamplingParams(stop=("END",), min_tokens=2))
    assert [stream.push(ids[0]), stream.push(ids[1])] == [False, False]
    assert stream.take() == "x"
    assert stream.push(ids[2])
    assert (stream.take(), stream.finish(), stream.text, stream.stop_reason) == ("", "", "x", "END")
    with pytest.raises(RuntimeError, match="follows the stop string"):
        stream.push(ids[3])


def test_the_stop_string_that_ends_first_wins_and_of_two_that_end_together_the_longer() -> None:
    tokenizer, ids = byte_level([b"1 abcde"])
    assert streamed(TextStream(tokenizer, SamplingParams(stop=("bcde", "c"))), ids) == "1 ab"
    assert streamed(TextStream(tokenizer, SamplingParams(stop=("d", "bcd"))), ids) == "1 a"


def test_special_tokens_are_left_out_or_kept_as_asked() -> None:
    tokenizer, ids = byte_level([b"hi", b"!"])
    end = id_of(tokenizer.backend, END)
    tokens = [ids[0], end, ids[1]]
    assert streamed(TextStream(tokenizer, SamplingParams(ignore_eos=True)), tokens) == "hi!"
    kept = SamplingParams(ignore_eos=True, skip_special_tokens=False)
    assert streamed(TextStream(tokenizer, kept), tokens) == "hi" + END + "!"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "hi"),
        ({"skip_special_tokens": False}, "hi"),
        ({"skip_special_tokens": False, "include_stop_str_in_output": True}, "hi" + END),
        ({"skip_special_tokens": False, "min_tokens": 3}, "hi" + END),
    ],
)
def test_the_text_of_an_eos_that_ends_it_is_left_out(settings: dict[str, object], expected: str) -> None:
    tokenizer, ids = byte_level([b"hi"])
    stream = TextStream(tokenizer, SamplingParams(**settings))  # type: ignore[arg-type]  # settings by name
    assert streamed(stream, [*ids, id_of(tokenizer.backend, END)]) == expected


def test_the_text_of_a_stop_token_is_left_out_unless_asked_for() -> None:
    tokenizer, ids = byte_level([b"hi", b"."])
    assert streamed(TextStream(tokenizer, SamplingParams(stop_token_ids=(ids[1],))), ids) == "hi"
    shown = SamplingParams(stop_token_ids=(ids[1],), include_stop_str_in_output=True)
    assert streamed(TextStream(tokenizer, shown), ids) == "hi."


def test_half_a_character_waits_for_its_rest() -> None:
    tokenizer, ids = byte_level([b"\xf0\x9f", b"\x98\x80"])
    stream = TextStream(tokenizer, SamplingParams())
    stream.push(ids[0])
    assert stream.take() == ""
    stream.push(ids[1])
    assert stream.take() == "\U0001f600"


def test_without_a_tokenizer_there_is_no_text_and_no_stop_string() -> None:
    stream = TextStream(None, SamplingParams())
    assert not stream.push(3)
    assert stream.take() + stream.finish() + stream.text == ""
    with pytest.raises(ConfigError, match="no tokenizer"):
        TextStream(None, SamplingParams(stop=("x",)))


def sentencepiece_like() -> tokenizers.Tokenizer:
    """Llama 2's manner: words with a leading mark, single bytes as a last resort."""
    words = ["<unk>", "▁a", "▁b", "b", "c", "▁", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {word: index for index, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    ])  # fmt: skip
    backend.add_special_tokens(["<unk>"])
    return backend


@LAW
@given(st.lists(st.sampled_from(["▁a", "▁b", "b", "c", "▁", "€", "é"]), max_size=12), STOPS)
def test_byte_fallback_tokenizers_deliver_the_decoded_whole_too(words: list[str], stops: tuple[str, ...]) -> None:
    tokenizer = wrapped(sentencepiece_like())
    ids: list[int] = []
    for word in words:
        known = tokenizer.backend.token_to_id(word)
        names = [word] if known is not None else [f"<0x{byte:02X}>" for byte in word.encode()]
        ids += [id_of(tokenizer.backend, name) for name in names]
    whole = tokenizer.decode(ids)
    assert streamed(TextStream(tokenizer, SamplingParams(stop=stops)), ids) == cut(whole, stops, include=False)


def test_byte_fallback_tokenizers_survive_bytes_that_are_no_text() -> None:
    tokenizer = wrapped(sentencepiece_like())
    names = ["▁a", "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>", "b", "▁b", "<0xE2>"]
    text = streamed(TextStream(tokenizer, SamplingParams()), [id_of(tokenizer.backend, name) for name in names])
    assert text.startswith("a€")
    assert "b b" in text


def test_a_trained_byte_level_tokenizer_streams_as_it_decodes() -> None:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder, backend.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    corpus = ["the cat sat on the mat", "naïve café, 10 €", "\U0001f600\U0001f44d the end"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[END]
    )
    backend.train_from_iterator(corpus, trainer)
    for text in corpus:
        ids = backend.encode(text).ids
        assert streamed(TextStream(wrapped(backend), SamplingParams()), ids) == text
        assert streamed(TextStream(wrapped(backend), SamplingParams(stop=("the e", "10"))), ids) == cut(
            text, ("the e", "10"), include=False
        )
