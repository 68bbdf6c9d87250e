"""Pages in memory that the server shares: nothing travels."""

import time

import kvstow
import numpy as np

SPEC = kvstow.KvSpec(
    model="example", layers=16, kv_heads=8, head_dim=64, dtype="float16", page_tokens=64
)  # 2 MiB a page: a multiple of 4 KiB, as pages in shared memory should be


def main():
    pages = 16
    size = SPEC.token_bytes * SPEC.page_tokens
    with kvstow.Server(host_bytes="512MiB") as server, kvstow.Client(server.address) as client:
        space = client.open_space("example", SPEC, recipe="int8")
        memory = client.buffer(pages * size)
        rooms = memory.view(np.float16).reshape(pages, *SPEC.page_shape())
        rooms[:] = np.random.default_rng(0).standard_normal(rooms.shape)
        keys = [b"page %d" % i for i in range(pages)]
        for name, out in (("shared memory", rooms), ("own memory", SPEC.empty(pages))):
            if name == "shared memory":
                space.put([kvstow.Page(key, room) for key, room in zip(keys, rooms)])
            space.get(keys, out)  # warms up
            start = time.perf_counter()
            results = space.get(keys, out)
            took = time.perf_counter() - start
            assert all(result.hit for result in results)
            print(f"{name}: {pages * size / took / 1e9:.1f} GB/s of K and V")


if __name__ == "__main__":
    main()
