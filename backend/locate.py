"""Where a model lives: a name becomes the directory that holds its configuration, weights and tokenizer."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from scheduler.errors import ConfigError

from .fetch import SOURCES

EMBEDDED = "embedded"
"""The name of the small model that is part of the package."""
WANTED = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
"""What is fetched of a Hugging Face repository: configuration, tokenizer and safetensors, no other weights."""
_UNWANTED = ("original/*", "onnx/*")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def locate(name: str | Path) -> Path:
    """The directory of the model that `name` means.

    Args:
        name: ``"embedded"``, a directory with a ``config.json``, or a Hugging Face id such as ``"Qwen/Qwen3-0.6B"``,
            which is taken from the local cache or downloaded into it.

    Raises:
        ConfigError: there is no such model; says what was tried and which names come near.
    """
    text = str(name)
    if text == EMBEDDED:
        return embedded_folder()
    folder = Path(text).expanduser()
    if folder.is_dir():
        return _checked(folder)
    if folder.exists():
        raise ConfigError(f"model {text!r} is a file; expected a directory with config.json and safetensors weights")
    if _HUB_ID.fullmatch(text) and not _near_directories(folder):
        return _from_hub(text)
    raise _unknown(text, folder)


def embedded_folder() -> Path:
    """The directory of the model that ships with the package."""
    return Path(__file__).parent / EMBEDDED


def known_models() -> list[Path]:
    """The embedded model, then every model directory in ``models/`` under the current folder."""
    return [embedded_folder(), *sorted(_model_folders(Path("models")))]


def _checked(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model directory {folder} has no config.json; expected what save_pretrained writes")
    return folder


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    tried = f"there is no directory {name}{_fetch_hint(Path(name))}, and Hugging Face"
    try:
        folder = Path(snapshot_download(name, allow_patterns=[*WANTED], ignore_patterns=[*_UNWANTED]))
    except GatedRepoError as error:
        raise ConfigError(f"model {name!r}: {tried} gives it only to those who accepted its licence") from error
    except RepositoryNotFoundError as error:
        raise ConfigError(f"model {name!r}: {tried} has no public model of that name") from error
    # the hub's own errors, and those of the network below it, are OSErrors; a malformed id is a ValueError
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0].split(". ")[0].removeprefix("Got: ").rstrip(".")
        raise ConfigError(f"model {name!r}: {tried} could not be asked ({reason})") from error
    return _checked(folder)


def _unknown(text: str, folder: Path) -> ConfigError:
    near = _near_directories(folder) or difflib.get_close_matches(text, [EMBEDDED], n=1)
    hint = f" (did you mean {', '.join(near)}?)" if near else _fetch_hint(folder)
    return ConfigError(
        f"unknown model {text!r}{hint}; expected 'embedded', a directory with config.json, or a Hugging Face id"
    )


def _fetch_hint(folder: Path) -> str:
    """How to get a model that can be fetched, for a name like it."""
    near = [name for name, source in SOURCES.items() if _alike(folder.name, source.folder) or _alike(folder.name, name)]
    return f" (`batchscope model fetch {near[0]}` makes {Path('models') / SOURCES[near[0]].folder})" if near else ""


def _near_directories(folder: Path) -> list[str]:
    """Model directories beside `folder`, or in ``models/``, with a name like its own."""
    paths = dict.fromkeys(str(path) for parent in (folder.parent, Path("models")) for path in _model_folders(parent))
    return [path for path in paths if _alike(folder.name, Path(path).name)]


def _alike(name: str, known: str) -> bool:
    """Letters swapped or left out, or only the beginning given."""
    name, known = name.lower(), known.lower()
    return (len(name) > 2 and known.startswith(name)) or difflib.SequenceMatcher(None, name, known).ratio() >= 0.6


def _model_folders(parent: Path) -> Iterator[Path]:
    try:
        children = list(parent.iterdir())
    except OSError:  # no such folder, or not ours to read: nothing to suggest from it
        return
    yield from (child for child in children if (child / "config.json").is_file())
