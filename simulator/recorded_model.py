"""The model sheet of a measured run, from the architecture that its trace's meta tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .models import ModelSheet


def recorded_model(meta: Mapping[str, Any]) -> ModelSheet:
    """The sheet of the model that an engine ran; raises KeyError or TypeError where the meta says too little."""
    shape = meta["architecture"]
    return ModelSheet(
        name=str(meta["model"]), hidden=shape["hidden_size"], layers=shape["num_layers"], heads=shape["num_heads"],
        kv_heads=shape["num_kv_heads"], head_dim=shape["head_dim"], intermediate=shape["intermediate_size"],
        vocab=shape["vocab_size"], max_positions=shape["max_positions"], source="the architecture in the run's meta",
        tied_embeddings=shape["tie_word_embeddings"], qkv_bias=shape["qkv_bias"], qk_norm=shape["qk_norm"],
    )  # fmt: skip
