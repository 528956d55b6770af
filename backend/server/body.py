"""Reading a request's body: of bounded size, JSON only, checked against its model."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from .errors import ApiError, of_validation

Model = TypeVar("Model", bound=BaseModel)

TIMEOUT_S = 60.0
"""A body that takes longer to arrive is given up."""
_READ_ON = 64 << 20
"""So much of a body that is too large is read and thrown away: a client that still sends would not see the answer."""


async def read(request: Request, model: type[Model], most: int) -> Model:
    """The body as `model`.

    At most `most` bytes are kept.

    Raises:
        ApiError: it is too large, no JSON, or not what the model expects; names the field.
    """
    _check_type(request)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            body = await _bounded(request, most)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {TIMEOUT_S:.0f} s", code="timeout") from None
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise of_validation(error) from None


def _check_type(request: Request) -> None:
    """JSON must say so: what a foreign web page can send without asking first never does."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"content type is {kind or 'missing'}; expected application/json", code="unsupported_type")


async def _bounded(request: Request, most: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > _READ_ON + most:
        raise _too_large(int(declared), most)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= most:
            chunks.append(chunk)
        elif size > _READ_ON + most:
            break
        else:
            chunks.clear()
    if size > most:
        raise _too_large(size, most)
    return b"".join(chunks)


def _too_large(size: int, most: int) -> ApiError:
    message = f"the body has {size:,} bytes or more; expected at most {most:,}"
    return ApiError(413, message, code="body_too_large", headers={"Connection": "close"})
