"""Prefix hashes: what makes two blocks the same block."""

from __future__ import annotations

from hashlib import sha256

from .request import Request


def hash_blocks(request: Request, count: int, block_size: int) -> list[bytes]:
    """The digests of the request's first `count` full blocks; known ones are reused, the rest computed.

    A digest covers the parent's digest and the block's token ids, from a root of the cache salt (vLLM's rule), so
    equal digests mean equal tokens at equal positions. SHA-256: the same on every machine, and no two contents of one
    run share a digest.
    """
    hashes = request.block_hashes
    if len(hashes) < count:
        extend_hashes(request, count, block_size)
    return hashes if len(hashes) == count else hashes[:count]


def extend_hashes(request: Request, count: int, block_size: int) -> None:
    """Compute digests up to the request's block number `count`, or to the last whole block of known tokens."""
    hashes, tokens = request.block_hashes, request.tokens
    assert tokens is not None
    known = len(hashes)
    parent = hashes[-1] if known else sha256(request.cache_salt.encode()).digest()
    data = tokens[known * block_size : count * block_size].tobytes()
    width = block_size * tokens.itemsize
    for at in range(width, len(data) + 1, width):
        parent = sha256(parent + data[at - width : at]).digest()
        hashes.append(parent)
