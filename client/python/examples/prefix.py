"""Two sessions share a prefix: the second finds what the first computed.

    python prefix.py [ADDRESS]      starts a server of its own without an address
"""

import contextlib
import sys

import kvstow
import numpy as np

SPEC = kvstow.KvSpec(
    model="example", layers=8, kv_heads=4, head_dim=64, dtype="float16", page_tokens=64
)


def compute(tokens, first):
    """Stands for the model: K and V of a page."""
    random = np.random.default_rng(list(tokens[: first + SPEC.page_tokens]))
    return random.standard_normal(SPEC.page_shape()).astype(np.float16)


def session(space, tokens):
    keys = kvstow.page_keys(tokens, SPEC.page_tokens)
    hit = space.lookup(keys)
    cached = space.get(keys[: hit.pages], SPEC.empty(hit.pages), lease=hit.lease)
    good = next((i for i, result in enumerate(cached) if not result.hit), len(cached))
    new = [
        kvstow.Page(keys[i], compute(tokens, i * SPEC.page_tokens), i * SPEC.page_tokens)
        for i in range(good, len(keys))
    ]
    stored = space.put(new)
    print(
        f"{len(tokens)} tokens: {good * SPEC.page_tokens} from the cache, "
        f"{sum(result.stored for result in stored)} pages stored"
    )


def main():
    with contextlib.ExitStack() as stack:
        if len(sys.argv) > 1:
            address = sys.argv[1]
        else:
            address = stack.enter_context(kvstow.Server()).address
        client = stack.enter_context(kvstow.Client(address))
        space = client.open_space("example", SPEC, recipe="int8")
        system = list(range(512))
        session(space, system + [1000 + i for i in range(128)])
        session(space, system + [2000 + i for i in range(256)])


if __name__ == "__main__":
    main()
