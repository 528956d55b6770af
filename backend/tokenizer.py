"""Text to token ids and back, and conversations to prompts, from the tokenizer of a model directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduler.errors import ConfigError, InputError, RequestRefused

if TYPE_CHECKING:
    import tokenizers

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class Tokenizer:
    """The tokenizer of one model.

    Attributes:
        backend: the Rust tokenizer itself (for ``tokenizers.decoders.DecodeStream``).
        eos_token_ids: tokens that end an answer, as the model's generation configuration names them.
        chat_template: Jinja source that lays a conversation out as text; None: the model has none.
        special_tokens: names such as ``bos_token`` and their texts, for the template.
    """

    backend: tokenizers.Tokenizer
    eos_token_ids: tuple[int, ...]
    chat_template: str | None
    special_tokens: Mapping[str, str]

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Read a model directory.

        Without a ``tokenizer.json`` transformers makes one from the model's older files, which takes seconds.

        Raises:
            ConfigError: the directory holds no tokenizer.
            InputError: one of its files cannot be read.
        """
        folder = Path(folder)
        config = _read_json(folder / "tokenizer_config.json")
        backend = _backend(folder)
        special = _special_tokens(folder, config)
        return cls(backend, _eos_ids(folder, backend, special), _chat_template(folder, config), special)

    @property
    def vocab_size(self) -> int:
        """How many tokens it knows, added ones included; a model may have more rows than that."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; `add_special_tokens` puts what the model expects around it (mostly a first token)."""
        return list(self.backend.encode(_encodable(text), add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of token ids; bytes that are no whole UTF-8 character become U+FFFD."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special))

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation, up to where the assistant begins to speak.

        Args:
            messages: dicts with ``role`` and ``content`` (text, or a list of ``{"type": "text", "text": ...}``).

        Raises:
            ConfigError: the model has no chat template.
            RequestRefused: the template does not take these messages (roles out of turn...); says why.
        """
        if self.chat_template is None:
            raise ConfigError("this model has no chat template; send its prompt as plain text (completions)")
        return self.encode(self._laid_out(messages), add_special_tokens=False)

    def _laid_out(self, messages: Sequence[Mapping[str, Any]]) -> str:
        from jinja2.exceptions import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template  # its sandbox: templates are code

        plain = [{**message, "content": _content_text(message.get("content"))} for message in messages]
        try:
            # whatever its signature says, it returns the texts and where each answer of the assistant lies
            rendered: Any = render_jinja_template(
                [plain],
                chat_template=self.chat_template,
                add_generation_prompt=True,
                **dict[str, Any](self.special_tokens),
            )
        except (TemplateError, TypeError) as error:  # a template that adds None to a string raises TypeError
            raise RequestRefused(f"the chat template of this model refuses these messages: {error}") from error
        return str(rendered[0][0])


def _backend(folder: Path) -> tokenizers.Tokenizer:
    import tokenizers

    path = folder / "tokenizer.json"
    if not path.is_file():
        return _converted(folder)
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises plain Exception, whatever is wrong
        raise InputError(f"cannot be read as a tokenizer ({error})", path=path) from error


def _converted(folder: Path) -> tokenizers.Tokenizer:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer
    except (OSError, ValueError, ImportError, AttributeError) as error:
        raise ConfigError(
            f"model directory {folder} has no tokenizer.json, nor files that one can be made of"
        ) from error


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Names and texts, from tokenizer_config.json or else special_tokens_map.json, where older models have them."""
    found = {
        **_read_json(folder / "special_tokens_map.json"),
        **{name: text for name, text in config.items() if text is not None},
    }
    texts = {name: found[name] for name in _SPECIAL if found.get(name) is not None}
    return {name: str(text["content"] if isinstance(text, dict) else text) for name, text in texts.items()}


def _eos_ids(folder: Path, backend: tokenizers.Tokenizer, special: Mapping[str, str]) -> tuple[int, ...]:
    """The first that says so: generation_config.json, config.json, the tokenizer's own end token."""
    for name in ("generation_config.json", "config.json"):
        ids = _read_json(folder / name).get("eos_token_id")
        if ids is not None:
            return tuple(ids) if isinstance(ids, list) else (int(ids),)
    own = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
    return () if own is None else (own,)


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """A file of its own wins over tokenizer_config.json, as in transformers; of several, the one named default."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = _read_json(folder / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template if isinstance(template, str) else None


def _content_text(content: object) -> str:
    """A message's text; text parts are joined."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, (list, tuple)) else [None]
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise RequestRefused("content must be text, or a list of parts of type 'text'; this model reads nothing else")
    return "".join(map(str, texts))


def _encodable(text: str) -> str:
    """The text itself, halves of surrogate pairs (JSON can hold them) replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"is not valid JSON ({error})", path=path) from error
    if not isinstance(value, dict):
        raise InputError("expected a JSON object", path=path)
    return value
