"""What watching a server through its `/metrics` leaves unsaid."""

from __future__ import annotations

from collections.abc import Iterable

from traces.metric_names import BATCHSCOPE, LATENCIES, SGLANG, Dialect

_WORDS = {
    "running": "how many requests run",
    "waiting": "how many requests wait",
    "kv_use": "how full the KV cache is",
    "preemptions": "preemptions",
    "prompt_tokens": "prompt tokens per second",
    "generation_tokens": "output tokens per second",
    "iteration_tokens": "how many tokens a step has",
    **LATENCIES,
}


def cannot_tell(dialect: Dialect, known: Iterable[str]) -> list[str]:
    """What this source leaves unsaid, in sentences.

    Args:
        dialect: the server's.
        known: what was found there, by our names.
    """
    who = dialect.server
    sentences = [
        "Who sits in which slot: there are counts here, no requests.",
        "What a single step did: numbers are sums and means between two looks.",
        "Percentiles exactly: latencies come as counts per bucket, so each lies between two bounds.",
        "Why the head of the queue waits: for a slot, for tokens of the budget, or for KV blocks.",
    ]
    if dialect is not BATCHSCOPE:
        sentences[1:1] = ["Padding: rows computed for nothing are not counted.", f"How many slots {who} has."]
    if dialect is SGLANG:
        sentences.append("When prompt tokens were computed: SGLang counts them when their request ends.")
    missing = [words for name, words in _WORDS.items() if name not in set(known)]
    return [*sentences, *(f"This server does not tell {words}." for words in missing)]
