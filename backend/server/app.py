"""The app: an engine's HTTP endpoints, put together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse

from . import chat, completions, errors, metrics, trace_routes
from .errors import ApiError
from .guard import KeyGuard
from .metrics import EngineMetrics, registry_of
from .service import Service, service_of

if TYPE_CHECKING:
    from backend.engine import Engine

MAX_BODY = 4 << 20
"""Bytes of a request: a prompt of 500,000 token ids fits."""

router = APIRouter()


def create_app(
    engine: Engine,
    *,
    names: Sequence[str] = (),
    api_key: str | None = None,
    max_body: int = MAX_BODY,
    max_queue: int | None = None,
    allow_origins: Sequence[str] = (),
) -> FastAPI:
    """An app that answers for an engine; it neither starts nor closes it.

    Args:
        engine: runs the requests.
        names: of the model; empty: the engine's own.
        api_key: what clients must bring; None: nothing.
        max_body: largest request body, bytes.
        max_queue: what the engine was told; a request for more answers than may wait is refused.
        allow_origins: web origins whose pages may call (CORS); none unless given.
    """
    app = FastAPI(title="batchscope", version=_version(), lifespan=_lifespan, docs_url=None, redoc_url=None)
    app.state.service = Service(engine, list(names) or [engine.name], max_body=max_body, max_queue=max_queue)
    app.state.registry = registry_of(EngineMetrics(engine, app.state.service.names[0]))
    if api_key is not None:
        app.add_middleware(KeyGuard, key=api_key)
    if allow_origins:  # added last, so outermost: a browser's question before the request carries no key
        app.add_middleware(
            CORSMiddleware, allow_origins=list(allow_origins), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    errors.install(app)
    for part in (router, completions.router, chat.router, metrics.router, trace_routes.router):
        app.include_router(part)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    await app.state.service.start()
    yield


@router.get("/health")
async def health(request: Request) -> JSONResponse:
    """200 while the engine takes requests, 503 afterwards."""
    engine = service_of(request).engine
    if engine.failure is not None:
        return JSONResponse({"status": "failed", "error": f"{type(engine.failure).__name__}: {engine.failure}"}, 503)
    return JSONResponse({"status": "stopping"}, 503) if engine.closed else JSONResponse({"status": "ok"})


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """The names under which the model is served."""
    service = service_of(request)
    return {"object": "list", "data": [_card(service, name) for name in service.names]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """One of them."""
    service = service_of(request)
    service.check_model(name)
    return _card(service, name)


@router.get("/version")
async def server_version() -> dict[str, str]:
    """The version of batchscope."""
    return {"version": _version()}


def _card(service: Service, name: str) -> dict[str, Any]:
    engine = service.engine
    return {
        "id": name, "object": "model", "created": int(engine.started_s), "owned_by": "batchscope",
        "root": engine.name, "max_model_len": engine.config.length_cap,
    }  # fmt: skip


def _version() -> str:
    try:
        return version("batchscope")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "0"


__all__ = ["MAX_BODY", "ApiError", "create_app"]
