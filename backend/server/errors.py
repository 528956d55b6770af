"""Errors as OpenAI's API shapes them: ``{"error": {"message", "type", "param", "code"}}`` with a status code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from scheduler.errors import UserError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

INVALID = "invalid_request_error"
_TYPES = {401: "authentication_error", 404: "not_found_error", 500: "server_error", 503: "server_error"}
_WISHES = {
    "bool_type": "true or false",
    "extra_forbidden": "no such field",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "list_type": "a list",
    "string_type": "text",
    "too_long": "at most {max_length} entries",
    "too_short": "at least {min_length} entries",
}
"""Kind of validation error -> what was expected, in our words."""
_RETRY_S = 1
"""What a full queue advises: a step takes far less, so a seat may well be free by then."""


class ApiError(Exception):
    """What a client is told instead of an answer.

    Args:
        status: HTTP status.
        message: one sentence.
        param: the field of the request that is wrong, such as ``messages[0].content``.
        code: a word for programs, such as ``context_length_exceeded``.
        headers: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The error as JSON holds it."""
        kind = _TYPES.get(self.status, INVALID)
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The error as a response of its own."""
        return JSONResponse(self.body(), self.status, headers=self.headers)


def invalid(message: str, param: str | None, code: str = "invalid_value") -> ApiError:
    """A request that names something impossible."""
    return ApiError(400, message, param=param, code=code)


def busy(message: str, code: str) -> ApiError:
    """A server that cannot take the request now; says when to try again."""
    return ApiError(503, message, code=code, headers={"Retry-After": str(_RETRY_S)})


def of_user_error(error: UserError, fields: Sequence[str]) -> ApiError:
    """A refusal by the engine; its sentence begins with the field's name where one field is to blame."""
    message = str(error)
    word = message.split(" ", 1)[0].strip(":")
    return invalid(message, word if word in fields else None)


def of_validation(error: ValidationError | RequestValidationError) -> ApiError:
    """The first thing that is wrong with a body or with query parameters."""
    first: ErrorDetails = error.errors()[0]
    param = path_of([part for part in first["loc"] if part not in ("body", "query", "path")]) or None
    if first["type"] == "json_invalid":
        return invalid(f"the body is not valid JSON: {first['ctx']['error']}", None, "invalid_json")
    if first["type"] == "missing":
        return invalid(f"{param} is missing", param, "missing_field")
    said = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    wish = _WISHES.get(first["type"], said).format_map(first.get("ctx", {}))
    return invalid(f"{param or 'the body'} is {shown(first['input'])}; expected {wish}", param)


def path_of(parts: Sequence[str | int]) -> str:
    """A place in a JSON document: ``messages[0].content``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".")


def shown(value: object) -> str:
    """A value of a request, short enough for a sentence."""
    if isinstance(value, (dict, list, tuple)):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def install(app: FastAPI) -> None:
    """Give every error of the app this shape: our own, those of routing, and those nobody foresaw."""
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(UserError, _on_user_error)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_surprise)


def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


def _on_user_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, UserError)
    return of_user_error(error, ()).response()


def _on_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return of_validation(error).response()


def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {404: f"there is no {request.url.path}", 405: f"{request.url.path} does not take {request.method}"}
    message = words.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, message, headers=error.headers).response()


def _on_disconnect(request: Request, error: Exception) -> Response:
    """The client went away while it sent its body: nobody reads this."""
    return Response(status_code=400)


def _on_surprise(request: Request, error: Exception) -> Response:
    """Starlette raises the error again after this answer, so that it is logged with its trace."""
    return ApiError(500, f"internal error ({type(error).__name__})", code="internal_error").response()
