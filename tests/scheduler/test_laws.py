"""Laws that hold for every policy, layout, memory and load: nothing lost, nothing twice, nothing stuck."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from scheduler import WAIT_REASONS, FinishReason, SchedulerConfig

from .harness import Ask, Row, Run, StepRecord, padding_rows

POLICIES = ("chunked", "static", "slots", "orca", "prefill-first")
BUDGETED = ("chunked", "orca", "prefill-first")
QUICK, LONG = 60, 2000
Law = Callable[..., None]

asks = st.builds(
    Ask,
    prompt=st.integers(1, 60),
    max_tokens=st.integers(1, 30),
    stop_at=st.one_of(st.none(), st.integers(1, 30)),
    stop_token=st.booleans(),
    min_tokens=st.integers(0, 4),
    ignore_eos=st.booleans(),
    priority=st.integers(0, 3),
    group=st.integers(0, 1),
    shared=st.integers(0, 70),
    salt=st.sampled_from(["", "", "", "x"]),
    arrive=st.integers(0, 25),
    abort=st.one_of(st.none(), st.none(), st.none(), st.integers(0, 40)),
    abort_in_flight=st.booleans(),
)
"""Requests; `min_tokens` is cut to `max_tokens` by `runs`."""


def lasting(ask: Ask) -> Ask:
    """The same request with many more outputs, so that most steps are decodes alone."""
    stop_at = None if ask.stop_at is None else 7 * ask.stop_at
    return Ask(**vars(ask) | {"max_tokens": 7 * ask.max_tokens, "stop_at": stop_at})


@st.composite
def cases(draw: st.DrawFn, policies: tuple[str, ...] = POLICIES, *, long_decodes: bool = False) -> dict[str, Any]:
    """Settings and requests of a run, from a pool that is barely enough to one with plenty."""
    requests = draw(st.lists(asks.map(lasting) if long_decodes else asks, min_size=1, max_size=9))
    block_size = draw(st.integers(1, 16))
    longest = max(-(-(ask.prompt + ask.max_tokens) // block_size) for ask in requests)
    config = SchedulerConfig(
        policy=draw(st.sampled_from(policies)),
        layout=draw(st.sampled_from(["auto", "padded", "ragged"])),
        max_num_seqs=draw(st.integers(1, 8)),
        max_num_batched_tokens=draw(st.integers(1, 64)),
        max_model_len=draw(st.sampled_from([40, 64, 96, 300])),
        num_blocks=1 + max(1, longest + draw(st.integers(-2, 6)) * draw(st.sampled_from([1, 1, 8]))),
        block_size=block_size,
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority"])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 7, 20])),
        enable_chunked_prefill=draw(st.booleans()),
        enable_prefix_caching=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1, 0.5])),
        kv_memory=draw(st.sampled_from(["paged", "paged", "paged", "reserve-max-tokens", "reserve-max-model-len"])),
        model_len_margin=draw(st.integers(0, 2)),
        cudagraph_capture_sizes=draw(st.sampled_from([(), (1, 2, 4, 8, 16), (3, 50)])),
        async_scheduling=draw(st.booleans()),
        batch_timeout_s=draw(st.sampled_from([0.0, 0.05, 0.2])),
        padding_side=draw(st.sampled_from(["left", "right"])),
        release=draw(st.sampled_from(["batch", "request"])),
    )
    content = draw(st.sampled_from(["counts", "script", "tokens"]))
    return {"config": config, "asks": [fair(ask, content) for ask in requests], "content": content}


def fair(ask: Ask, content: str) -> Ask:
    """A request without contradictions: `min_tokens` within `max_tokens`; stop tokens only where contents come."""
    changed = vars(ask) | {"min_tokens": min(ask.min_tokens, ask.max_tokens)}
    if content != "tokens":
        changed["stop_token"] = False
    return Ask(**changed)


def law(*policies: str, drawn: Any = None, long: bool = False) -> Callable[[Law], Law]:
    """`@given` random cases: a sample in the quick suite; thousands, and a search for the smallest, in the long one."""
    many = settings(
        max_examples=LONG if long else QUICK,
        deadline=None,
        derandomize=not long,
        database=None,
        phases=list(Phase) if long else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    drawn = cases(policies or POLICIES) if drawn is None else drawn
    return lambda test: many(given(case=drawn)(test))


def check_ends(run: Run) -> None:
    """Every accepted request ended exactly once, with all that it asked for."""
    for index, ask in enumerate(run.asks):
        request, positions = run.requests[index], run.delivered[index]
        assert positions == list(range(ask.prompt, ask.prompt + len(positions))), "outputs in order, each once"
        if index in run.refused:
            assert index not in run.ends
            continue
        reason, outputs = ask.ends(run.config)
        assert request.num_output_tokens == len(positions)
        if index in run.aborted:
            assert request.finish_reason is FinishReason.ABORT
            assert len(positions) <= outputs
            continue
        end = run.ends[index]
        assert request.finish_reason is end.reason
        if end.reason is FinishReason.ERROR:
            held = -(-(ask.prompt + len(positions)) // run.config.block_size)
            assert held > run.config.usable_blocks, "an error only for what outgrew the whole pool"
            assert len(positions) < outputs
        else:
            assert (end.reason, end.outputs, len(positions)) == (reason, outputs, outputs)
        if run.content == "tokens":
            known = [ask.token(index, at) for at in range(ask.prompt + end.outputs)]
            assert request.tokens is not None
            assert request.tokens.tolist() == known


def check_conservation(run: Run) -> None:
    """Scheduled + cached tokens of each request = those it has in the end + those thrown away at preemptions."""
    scheduled = dict.fromkeys(range(len(run.asks)), 0)
    for step in run.steps:
        for row in step.rows:
            scheduled[row.request] += row.scheduled
    for index, request in enumerate(run.requests):
        assert scheduled[index] + run.cached[index] == request.num_computed_tokens + run.lost[index]


def check_sums(run: Run) -> None:
    """Every sum of a plan is what its rows, counted one token at a time, add up to."""
    reached = dict.fromkeys(range(len(run.asks)), 0)
    for step in run.steps:
        plan = step.plan
        for index, lost in step.lost.items():
            reached[index] = max(reached[index], lost)
        kinds = {"recomputed": 0, "prefill": 0, "decode": 0}
        for row in step.rows:
            for at in range(row.computed, row.computed + row.scheduled):
                prompt = at < run.asks[row.request].prompt
                kinds["recomputed" if at < reached[row.request] else "prefill" if prompt else "decode"] += 1
        total = sum(row.scheduled for row in step.rows)
        assert plan.prefill_tokens == kinds["prefill"]
        assert plan.recomputed_tokens == kinds["recomputed"]
        assert plan.decode_tokens + plan.padding_overrun == kinds["decode"]
        assert plan.padding_overrun == len(step.overrun)
        real = plan.prefill_tokens + plan.decode_tokens + plan.recomputed_tokens
        assert real + padding_rows(plan) == plan.computed_tokens == plan.shape.computed_tokens
        assert real == plan.real_shape.computed_tokens == total - len(step.overrun)
        assert plan.context_tokens == sum(row.computed + row.scheduled for row in step.rows)
        assert plan.sampled == sum(row.samples and run.requests[row.request] not in plan.dropped for row in step.rows)
        check_shapes(run, step)
        assert plan.blocks_used == step.blocks_held
        assert plan.blocks_total == run.config.usable_blocks
        assert plan.slots_busy == step.seated
        assert plan.running == len(step.running)
        assert (plan.wait_reason != 0) == (plan.waiting > 0), WAIT_REASONS[plan.wait_reason]


def check_shapes(run: Run, step: StepRecord) -> None:
    """A ragged shape has the sums of the real rows, and its arrays are those rows; a padded one is its rectangle."""
    plan, real = step.plan, step.plan.real_shape
    rows = [row for row in step.rows if row.request not in step.overrun]
    decode = [row for row in rows if is_decode(row)]
    prefill = [row for row in rows if not is_decode(row)]
    assert real.num_reqs == real.logits_rows == len(rows)
    assert real.decode_tokens == len(decode)
    assert real.decode_context == sum(row.computed + 1 for row in decode)
    assert real.prefill_tokens == sum(row.scheduled for row in prefill)
    assert real.prefill_context == sum(row.computed + row.scheduled for row in prefill)
    assert real.prefill_pairs == sum(
        at + 1 for row in prefill for at in range(row.computed, row.computed + row.scheduled)
    )
    if run.scheduler.padded:
        assert plan.computed_tokens == plan.rows * plan.cols
        assert plan.cols == max(row.scheduled for row in step.rows)
        assert plan.shape.num_reqs == plan.shape.logits_rows == plan.rows == len(step.rows) + step.burning
        width = (plan.context_tokens + plan.padding_context) / plan.rows
        assert width >= max(row.computed + row.scheduled for row in step.rows)
    else:
        sizes = [size for size in run.config.cudagraph_capture_sizes if size >= sum(row.scheduled for row in step.rows)]
        assert plan.padding_graph == (min(sizes) - sum(row.scheduled for row in step.rows) if sizes else 0)
        assert plan.padding_prompt == plan.padding_finished == plan.padding_context == 0
        assert plan.rows == plan.logits_rows == len(step.rows)


def is_decode(row: Row) -> bool:
    return row.scheduled == 1


def check_limits(run: Run) -> None:
    """Slots are unique, running requests at most `max_num_seqs`, and the budget holds where the policy has one."""
    for step in run.steps:
        slots = [row.slot for row in step.rows]
        assert len(set(slots)) == len(slots)
        assert all(0 <= slot < run.config.max_num_seqs for slot in slots)
        assert len(step.running) <= run.config.max_num_seqs
        assert step.plan.slots_busy <= run.config.max_num_seqs
        over = sum(row.scheduled for row in step.rows) - run.config.max_num_batched_tokens
        if run.config.policy not in BUDGETED or over <= 0:
            continue
        prefills = [row for row in step.rows if row.request in ids(step.plan.admitted)]
        assert run.config.policy != "chunked"
        assert len(prefills) == 1, "over the budget only for one whole prompt"
        assert len(step.rows) == 1 or run.config.policy == "orca"
        assert sum(row.scheduled for row in step.rows if row not in prefills) <= run.config.max_num_batched_tokens


def ids(requests: Any) -> list[int]:
    return [int(request.request_id) for request in requests]


def check_order(run: Run) -> None:
    """The queue is served from its front, and preemption takes the last (or least urgent) of the running."""
    first: list[int] = []
    for step in run.steps:
        admitted, preempted = ids(step.plan.admitted), ids(step.plan.preempted)
        assert admitted == step.waiting_before[: len(admitted)]
        first += [index for index in admitted if index not in first]
        survivors = [index for index in step.running_before if index not in preempted]
        queue = step.waiting_before
        if run.config.scheduling_policy == "priority":
            assert queue == sorted(queue, key=lambda index: urgency(run, index))
            if preempted and survivors:
                assert max(urgency(run, i) for i in survivors) < min(urgency(run, i) for i in preempted)
        elif run.config.policy == "slots":  # the list goes by seat, the last to arrive gives way
            ages = [[run.requests[index].index for index in group] for group in (survivors, preempted)]
            assert not all(ages) or max(ages[0]) < min(ages[1])
        else:
            assert step.running_before == [*survivors, *reversed(preempted)]
    if run.config.scheduling_policy == "fcfs":
        arrivals = [run.requests[index].index for index in first]
        assert arrivals == sorted(arrivals), "no request overtakes an earlier one"


def urgency(run: Run, index: int) -> tuple[int, float, int]:
    request = run.requests[index]
    return request.priority, request.arrival_s, request.index


def check_batches(run: Run) -> None:
    """`static` admits only into empty seats, so that a batch starts together, and never preempts."""
    if run.config.policy == "static":
        batch = 0
        for step in run.steps:
            assert not step.plan.preempted
            if step.plan.admitted:
                batch = len(step.plan.admitted)
                assert len(step.rows) == batch
                assert not step.running_before
                assert step.held_before == 0
            assert step.plan.rows == (batch if run.scheduler.padded else len(step.rows)), "all rows burn to the end"


def check_empty(run: Run) -> None:
    """After the last end everything is given back."""
    scheduler = run.scheduler
    assert not scheduler.has_work
    assert scheduler.kv.pool.num_free == run.config.usable_blocks
    assert scheduler.kv.pool.num_used == 0
    assert scheduler.seats.num_taken == 0
    assert all(scheduler.find(index) is None for index in range(len(run.asks)))
    assert not scheduler.in_flight
    assert set(run.ends) | run.aborted | set(run.refused) == set(range(len(run.asks)))


CHECKS = [check_ends, check_conservation, check_sums, check_limits, check_order, check_batches, check_empty]


@law()
def test_every_accepted_request_ends_once_with_what_it_asked_for(case: dict[str, Any]) -> None:
    check_ends(Run(**case).finish())


@law()
def test_tokens_are_conserved(case: dict[str, Any]) -> None:
    check_conservation(Run(**case).finish())


@law()
def test_sums_of_a_step_are_those_of_its_rows(case: dict[str, Any]) -> None:
    check_sums(Run(**case).finish())


@law()
def test_seats_and_budget_hold(case: dict[str, Any]) -> None:
    check_limits(Run(**case).finish())


@law()
def test_nobody_overtakes_and_the_least_entitled_is_preempted(case: dict[str, Any]) -> None:
    check_order(Run(**case).finish())


@law("static")
def test_static_batches_start_and_end_together(case: dict[str, Any]) -> None:
    check_batches(Run(**case).finish())


@law()
def test_everything_is_given_back_in_the_end(case: dict[str, Any]) -> None:
    check_empty(Run(**case).finish())


@law()
def test_every_row_reads_the_kv_of_its_own_tokens(case: dict[str, Any]) -> None:
    Run(**case, physical=True).finish()


@pytest.mark.long
@pytest.mark.parametrize("long_decodes", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_all_laws_hold_over_thousands_of_runs(policy: str, long_decodes: bool) -> None:
    def all_laws(case: dict[str, Any]) -> None:
        run = Run(**case, physical=True).finish()
        for check in CHECKS:
            check(run)

    law(drawn=cases((policy,), long_decodes=long_decodes), long=True)(all_laws)()
