"""The description of request bodies in `/openapi.json`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """What FastAPI adds to a route that reads its body itself: one schema, whole in its place."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    content = {"application/json": {"schema": _inlined(schema, definitions)}}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """A schema whose references to `definitions` are replaced by what they name (ours never contain themselves)."""
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(value, definitions) for name, value in node.items()}
