"""Policies are found by name: built in, by entry point, or as `module:Class`; a user adds one without touching ours."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from scheduler import ConfigError, Policy, Scheduler, SchedulerConfig, Step, find_policy, policy_names
from scheduler.policies.chunked import Chunked

from .harness import Ask, Run


class ShortestFirst(Policy):
    """Serves whole prompts, the shortest first."""

    name: ClassVar[str] = "shortest-first"

    def plan(self, step: Step) -> None:
        """All decodes, then the shortest prompts that fit."""
        step.run_all()
        for request in sorted(step.waiting, key=lambda request: request.num_prompt_tokens):
            if step.preempted or not step.admit(request=request, whole=True, over_budget=not step.rows):
                break


def test_the_built_in_policies_are_known_by_name() -> None:
    names = ("chunked", "static", "slots", "orca", "prefill-first")
    assert set(names) <= set(policy_names())
    for name in names:
        assert find_policy(name).name == name
    assert find_policy("chunked") is Chunked


def test_static_is_padded_by_itself_and_the_others_ragged() -> None:
    layouts = {name: Scheduler(SchedulerConfig(policy=name)).layout for name in ("static", "chunked", "slots", "orca")}
    assert layouts == {"static": "padded", "chunked": "ragged", "slots": "ragged", "orca": "ragged"}
    assert Scheduler(SchedulerConfig(policy="static", layout="ragged")).layout == "ragged"


def test_a_policy_of_the_users_own_serves_requests() -> None:
    config = SchedulerConfig(policy=f"{__name__}:ShortestFirst", max_num_seqs=1, max_num_batched_tokens=8)
    run = Run(config, [Ask(5, 2), Ask(3, 2), Ask(20, 2), Ask(4, 1)], physical=True).finish()
    assert [int(r.request_id) for step in run.steps for r in step.plan.admitted] == [1, 3, 0, 2]
    assert sorted(run.ends) == [0, 1, 2, 3]


def test_an_entry_point_makes_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "queue_tricks.py").write_text("from scheduler.policies.chunked import Chunked as Mine\nother = 3\n")
    info = tmp_path / "queue_tricks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: queue-tricks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[batchscope.policies]\nmine = queue_tricks:Mine\nbroken = queue_tricks:gone\nnumber = queue_tricks:other\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_policy("mine") is Chunked
    assert "mine" in policy_names()
    with pytest.raises(ConfigError, match="policy 'broken' cannot be loaded"):
        find_policy("broken")
    with pytest.raises(ConfigError, match="policy 'number' is not a class derived from"):
        find_policy("number")


@pytest.mark.parametrize("name", ["nowhere:X", "json:Nothing", ":X", "..x:Y", "x y:Z", "json:"])
def test_what_cannot_be_loaded_is_said_in_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded") as caught:
        find_policy(name)
    assert repr(name) in str(caught.value)


def test_what_is_no_policy_is_said_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="not a class derived from"):
        find_policy("json:JSONEncoder")
    with pytest.raises(ConfigError, match="not a class derived from"):
        find_policy("json:dumps")


def test_a_typo_gets_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown policy 'chunkd' \(did you mean 'chunked'\?\)"):
        Scheduler(SchedulerConfig(policy="chunkd"))
