"""Models, health, headers, the description of the API."""

from __future__ import annotations

from .running import Running


def test_every_name_is_listed(server: Running) -> None:
    models = server.openai().models.list().data
    assert [model.id for model in models] == ["tiny", "other-name"]
    assert {model.object for model in models} == {"model"}
    assert server.openai().models.retrieve("tiny") == models[0]


def test_healthy_while_it_runs(server: Running) -> None:
    with server.http() as client:
        reply = client.get("/health")
    assert (reply.status_code, reply.json()) == (200, {"status": "ok"})
    assert reply.headers["server"] == "batchscope"


def test_no_page_of_another_site_may_call(server: Running) -> None:
    with server.http() as client:
        reply = client.get("/v1/models", headers={"origin": "https://page.example"})
    assert "access-control-allow-origin" not in reply.headers


def test_the_api_describes_its_bodies(server: Running) -> None:
    with server.http() as client:
        paths = client.get("/openapi.json").json()["paths"]
    body = paths["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"prompt", "max_tokens", "stream_options"} <= body["properties"].keys()
    assert "$ref" not in str(body)
    assert "$ref" not in str(paths["/v1/chat/completions"]["post"]["requestBody"])
