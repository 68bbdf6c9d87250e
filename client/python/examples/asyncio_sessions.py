"""Many sessions at once on one event loop, and layers as they arrive."""

import asyncio

import kvstow
import kvstow.aio
import numpy as np

SPEC = kvstow.KvSpec(
    model="example", layers=8, kv_heads=4, head_dim=64, dtype="float16", page_tokens=64
)


async def session(space, number):
    keys = kvstow.page_keys(range(number, number + 256), SPEC.page_tokens)
    pages = np.random.default_rng(number).standard_normal((4, *SPEC.page_shape()))
    await space.put([kvstow.Page(k, p) for k, p in zip(keys, pages.astype(np.float16))])
    out = SPEC.empty(4)
    arrived = []
    async for layers, results in space.get_layers(keys, out):
        if not all(result.hit for result in results):
            return f"session {number}: compute it"
        arrived += layers  # a worker computes with these while the next ones travel
    return f"session {number}: layers {arrived[0]} to {arrived[-1]} in order"


async def main():
    with kvstow.Server() as server:
        async with kvstow.aio.Client(server.address) as client:
            space = await client.open_space("example", SPEC, recipe="int8")
            for line in await asyncio.gather(*(session(space, i) for i in range(4))):
                print(line)


if __name__ == "__main__":
    asyncio.run(main())
