"""What the tests of the Python package share: a server, a client, pages of a small model."""

import re

import kvstow
import numpy as np
import pytest

SPEC = kvstow.KvSpec(
    model="test/small",
    layers=12,
    kv_heads=3,
    head_dim=64,
    dtype="float16",
    page_tokens=64,
    rope=kvstow.Rope(theta=100000.0),
)


class Prompt:
    """Pages of a prompt of `tokens` tokens: K and V that depend on the seed alone."""

    def __init__(self, tokens=4 * 64, seed=0, spec=SPEC):
        self.spec = spec
        self.tokens = np.random.default_rng(seed).integers(0, 32000, tokens)
        self.keys = kvstow.page_keys(self.tokens, spec.page_tokens)
        random = np.random.default_rng(seed)
        counts = [min(spec.page_tokens, tokens - at) for at in range(0, tokens, spec.page_tokens)]
        self.pages = [
            random.standard_normal(spec.page_shape(count)).astype(spec.numpy_dtype())
            for count in counts
        ]

    def puts(self, **fields):
        step = self.spec.page_tokens
        return [
            kvstow.Page(key, page, first_position=i * step, **fields)
            for i, (key, page) in enumerate(zip(self.keys, self.pages))
        ]


def outcomes(results):
    return [result.outcome for result in results]


@pytest.fixture(scope="session")
def server():
    """One server for all tests that leave it alive."""
    with kvstow.Server(host_bytes="256MiB") as server:
        yield server


@pytest.fixture
def own_server():
    """A server that the test may kill, freeze and start again."""
    with kvstow.Server(host_bytes="64MiB", local_bytes=0) as server:
        yield server
        server.kill()


@pytest.fixture
def client(server):
    with kvstow.Client(server.address) as client:
        yield client


@pytest.fixture
def space(client, request):
    """A space of the test's own, of exact pages."""
    name = re.sub("[^a-z0-9_]", "-", request.node.name[:100])
    return client.open_space(name, SPEC, recipe="raw")
