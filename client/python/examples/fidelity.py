"""The fidelity contract: every reply says how faithful it is, and a request says what it accepts."""

import kvstow
import numpy as np

SPEC = kvstow.KvSpec(
    model="example", layers=8, kv_heads=4, head_dim=64, dtype="float16", page_tokens=64
)


def main():
    page = np.random.default_rng(0).standard_normal(SPEC.page_shape()).astype(np.float16)
    with kvstow.Server() as server, kvstow.Client(server.address) as client:
        for recipe in ("lossless", "int8", "int4", "kvstow"):
            space = client.open_space(recipe, SPEC, recipe=recipe)
            stored = space.put([kvstow.Page(b"page", page)])[0]
            result = space.get([b"page"])[0]
            strict = space.get([b"page"], max_error=1e-4)[0]
            print(
                f"{recipe:9} {page.nbytes / stored.stored_bytes:4.1f} x smaller, "
                f"error {result.estimated_error:.1e}, exact: {result.exact}; "
                f"with max_error=1e-4 it is a {strict.outcome}"
            )


if __name__ == "__main__":
    main()
