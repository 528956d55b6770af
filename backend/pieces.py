"""Tokens to pieces of text, one at a time: what a token adds as soon as it is whole characters."""

from __future__ import annotations

import codecs
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import tokenizers


class Pieces(Protocol):
    """Text of tokens that come one by one; the pieces together are the decoded whole."""

    def push(self, token_id: int) -> str:
        """The characters that are whole with this token."""

    def flush(self) -> str:
        """What bytes are left over, as U+FFFD."""


def pieces_of(backend: tokenizers.Tokenizer, *, skip_special: bool) -> Pieces:
    """The pieces of a tokenizer; byte-level ones (GPT-2's manner: Llama 3, Qwen, SmolLM2) are exact for any bytes."""
    from tokenizers.decoders import ByteLevel

    kind = ByteLevelPieces if isinstance(backend.decoder, ByteLevel) else StreamedPieces
    return kind(backend, skip_special)


class ByteLevelPieces:
    """Bytes of tokens through an incremental UTF-8 decoder.

    Python and Rust agree on which bytes become one U+FFFD: the maximal subpart (Unicode 15, section 3.9).
    """

    def __init__(self, backend: tokenizers.Tokenizer, skip_special: bool) -> None:
        self._backend = backend
        self._skipped = _special_ids(backend) if skip_special else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters that are whole with this token."""
        piece = None if token_id in self._skipped else self._backend.id_to_token(token_id)
        return "" if piece is None else self._utf8.decode(_bytes_of(piece))

    def flush(self) -> str:
        """What bytes are left over, as U+FFFD."""
        return self._utf8.decode(b"", final=True)


class StreamedPieces:
    """Any other tokenizer, by its own `DecodeStream`, which holds back what ends in U+FFFD."""

    def __init__(self, backend: tokenizers.Tokenizer, skip_special: bool) -> None:
        self._backend = backend
        self._skip_special = skip_special
        self._stream = self._new_stream()
        self._ids: list[int] = []
        self._given: list[str] = []

    def push(self, token_id: int) -> str:
        """The characters that are whole with this token."""
        self._ids.append(token_id)
        try:
            piece = self._stream.step(self._backend, token_id)
        except Exception as error:  # the Rust side raises plain Exception
            if not str(error).startswith("Invalid prefix"):
                raise
            # bytes that turned out not to be UTF-8 changed what was given already; go on after them, as vLLM does
            self._stream = self._new_stream()
            piece = self._stream.step(self._backend, token_id)
        self._given.append(piece or "")
        return piece or ""

    def flush(self) -> str:
        """What the whole has beyond the pieces given."""
        whole = self._backend.decode(self._ids, skip_special_tokens=self._skip_special)
        given = "".join(self._given)
        rest = whole[len(given) :] if whole.startswith(given) else ""
        self._given.append(rest)
        return rest

    def _new_stream(self) -> tokenizers.decoders.DecodeStream:
        from tokenizers.decoders import DecodeStream

        return DecodeStream(skip_special_tokens=self._skip_special)


@lru_cache(maxsize=16)
def _special_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    return frozenset(token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special)


def _bytes_of(piece: str) -> bytes:
    """A token's bytes; one with a letter outside GPT-2's alphabet (an added token) stands for itself."""
    table = _alphabet()
    try:
        return bytes([table[letter] for letter in piece])
    except KeyError:
        return piece.encode()


@lru_cache(maxsize=1)
def _alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable Latin-1 stands for itself, the others for U+0100 and up, in order.

    `bytes_to_unicode` of https://github.com/openai/gpt-2/blob/master/src/encoder.py.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
