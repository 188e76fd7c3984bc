#!/usr/bin/env python3
"""Hand a block of a KV cache from one node to another.

    kv_cache.py publish SOCKET              stage a block on the node of SOCKET, print its name, wait for stdin's end
    kv_cache.py attend SOCKET NAME          map the block on another node, run one step of attention over it

The publisher computes the block straight into memory that it shares with its daemon, and names it: no copy. The
consumer's daemon fetches it (one RDMA read where there is RDMA), and the consumer's arrays are views of where it
landed: no copy either. Shapes and types travel in front of the data, in a header of 64 bytes.
"""
from __future__ import annotations

import struct
import sys
from typing import Any

import numpy as np

import rv

HEADER = struct.Struct("<8s4I")
HEADER_LEN = 64
MAGIC = b"KVBLOCK1"
LAYERS, TOKENS, HEADS, WIDTH = 4, 256, 8, 64


def layout(layers: int, tokens: int, heads: int, width: int) -> tuple[tuple[int, ...], int]:
    """Keys and values of each layer, and how many bytes that is."""
    shape = (layers, 2, tokens, heads, width)
    return shape, HEADER_LEN + 2 * int(np.prod(shape))


def fill(block: np.ndarray[Any, Any]) -> None:
    """What a model would have computed: any numbers, the same for every run."""
    block[...] = np.random.default_rng(7).standard_normal(block.shape, dtype=np.float32)


def attention(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """One query over every layer's keys and values."""
    keys, values = block[:, 0].astype(np.float32), block[:, 1].astype(np.float32)
    query = np.ones(block.shape[-2:], dtype=np.float32)
    scores = np.einsum("hw,lthw->lht", query, keys) / np.sqrt(block.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    result: np.ndarray[Any, Any] = np.einsum("lht,lthw->lhw", weights, values)
    return result


def publish(client: rv.Client) -> tuple[rv.Ref, float]:
    """Compute a block in shared memory and name it. Returns its reference, and what a consumer should compute."""
    shape, size = layout(LAYERS, TOKENS, HEADS, WIDTH)
    buffer = client.alloc(size)
    HEADER.pack_into(buffer.data, 0, MAGIC, LAYERS, TOKENS, HEADS, WIDTH)
    block = np.frombuffer(buffer.data[HEADER_LEN:], np.float16).reshape(shape)
    fill(block)
    want = float(attention(block).sum())
    del block  # nothing may write there once it has a name
    return client.reference(client.commit(buffer, ttl=600)), want


def map_block(view: rv.View) -> np.ndarray[Any, Any]:
    """The array in a fetched block, where it lies."""
    magic, *numbers = HEADER.unpack_from(view.data)
    shape, size = layout(*numbers)
    if magic != MAGIC or size != len(view):
        raise ValueError("that is no block of a KV cache")
    return np.frombuffer(view.data[HEADER_LEN:], np.float16).reshape(shape)


def main() -> None:
    if sys.argv[1:2] == ["publish"] and len(sys.argv) == 3:
        with rv.Client(sys.argv[2]) as client:
            name, want = publish(client)
            print(name, "%.6f" % want, flush=True)
            sys.stdin.read()
            client.drop(name)
    elif sys.argv[1:2] == ["attend"] and len(sys.argv) == 4:
        with rv.Client(sys.argv[2]) as client, client.get(sys.argv[3]) as view:
            block = map_block(view)
            print("%.6f" % attention(block).sum(), view.path, block.flags.owndata, flush=True)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
