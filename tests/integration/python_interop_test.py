"""The service as a worker in another language sees it: generated code and grpcio, nothing of ours.

  python_interop_test.py KVSTOWD GENERATED

KVSTOWD: the server to start. GENERATED: the folder with kvstow/v1/*_pb2.py and *_pb2_grpc.py.
"""

import pathlib
import re
import struct
import subprocess
import sys
import unittest

KVSTOWD, GENERATED = sys.argv[1:3]
sys.path.insert(0, GENERATED)

import grpc  # noqa: E402
from kvstow.v1 import admin_pb2, admin_pb2_grpc, kv_cache_pb2, kv_cache_pb2_grpc, types_pb2  # noqa: E402

TOKENS, LAYERS, HEADS, DIM = 64, 12, 3, 64
CHUNK = 1 << 20
SECONDS = 20


def spec(revision="1"):
    return types_pb2.KvSpec(
        model="python/interop",
        revision=revision,
        layers=LAYERS,
        kv_heads=HEADS,
        head_dim_k=DIM,
        head_dim_v=DIM,
        dtype=types_pb2.F16,
        page_tokens=TOKENS,
        rope=types_pb2.Rope(layout=types_pb2.Rope.HALF, theta=100000),
    )


def page(seed, tokens=TOKENS):
    """Finite F16 numbers, others for each seed."""
    state, values = seed * 2654435761 % 2**32, []
    for _ in range(LAYERS * 2 * tokens * HEADS * DIM):
        state = (state * 1664525 + 1013904223) % 2**32
        values.append(state / 2**31 - 1)
    return struct.pack(f"<{len(values)}e", *values)


def put_requests(space, pages, chunk=CHUNK):
    """`space` is a name and a fingerprint, as every call names it."""
    yield kv_cache_pb2.PutRequest(open=kv_cache_pb2.PutOpen(space=space[0], fingerprint=space[1]))
    for number, (key, raw) in enumerate(pages, 1):
        for offset in range(0, len(raw), chunk):
            request = kv_cache_pb2.PutRequest(page=number, offset=offset, data=raw[offset : offset + chunk])
            if offset == 0:
                request.begin.key = key
                request.begin.tokens = TOKENS
                request.begin.payload_bytes = len(raw)
            yield request


class Interop(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = subprocess.Popen(
            [KVSTOWD, "--listen", "127.0.0.1:0", "--http-listen", "off", "--host-bytes", "256MiB"],
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in cls.server.stderr:
            listening = re.search(r"listening grpc=(\S+)", line)
            if listening:
                break
        options = [("grpc.max_receive_message_length", 8 << 20)]
        cls.channel = grpc.insecure_channel(listening.group(1), options=options)
        cls.kv = kv_cache_pb2_grpc.KvCacheStub(cls.channel)
        cls.admin = admin_pb2_grpc.AdminStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.server.terminate()
        cls.server.stderr.read()
        cls.server.wait()

    def open(self, name, recipe, revision="1"):
        """The space, as calls name it."""
        opened = self.kv.OpenSpace(
            kv_cache_pb2.OpenSpaceRequest(space=name, spec=spec(revision), recipe=recipe), timeout=SECONDS
        )
        return name, opened.fingerprint

    def put(self, space, pages, chunk=CHUNK):
        """Results by page, of a stream that fits into the first credit."""
        results = {}
        for response in self.kv.Put(put_requests(space, pages, chunk), timeout=SECONDS):
            results.update({result.page: result for result in response.results})
        return [results[number] for number in range(1, len(pages) + 1)]

    def get(self, space, asked, **fields):
        """(reply, payload) of each page."""
        request = kv_cache_pb2.GetRequest(
            open=kv_cache_pb2.GetOpen(space=space[0], fingerprint=space[1], **fields), pages=asked, credit_bytes=1 << 30
        )
        pages = {}
        for response in self.kv.Get(iter([request]), timeout=SECONDS):
            if response.HasField("begin"):
                pages[response.page] = [response.begin, b""]
            self.assertEqual(response.offset, len(pages[response.page][1]))
            pages[response.page][1] += response.data
        return [pages[page.page] for page in asked]

    def test_pages_come_back_as_they_were_put(self):
        exact = self.open("exact", "raw")
        pages = [(b"key-%d" % seed, page(seed)) for seed in (1, 2, 3)]
        for result in self.put(exact, pages, chunk=300_001):
            self.assertEqual(result.status, types_pb2.STORED, result.message)
            self.assertEqual(result.ack, types_pb2.MEMORY)
        keys = [key for key, _ in pages] + [b"none"]
        found = self.kv.Lookup(
            kv_cache_pb2.LookupRequest(space=exact[0], fingerprint=exact[1], keys=keys, lease=True), timeout=SECONDS
        )
        self.assertEqual((found.pages, found.tokens), (3, 3 * TOKENS))
        asked = [kv_cache_pb2.GetPage(page=i, key=key) for i, key in enumerate(keys, 1)]
        got = self.get(exact, asked, lease=found.lease)
        for (reply, payload), (_, raw) in zip(got, pages):
            self.assertEqual(reply.status, types_pb2.HIT, reply.message)
            self.assertTrue(reply.exact)
            self.assertEqual(reply.payload_bytes, len(raw))
            self.assertEqual(payload, raw)
        self.assertEqual(got[3][0].status, types_pb2.MISS)
        self.assertEqual(self.put(exact, pages[:1])[0].status, types_pb2.ALREADY_THERE)

    def test_encoded_pages_are_smaller_and_have_their_header(self):
        lossy = self.open("lossy", "int8")
        raw = page(7)
        self.assertEqual(self.put(lossy, [(b"k", raw)])[0].status, types_pb2.STORED)
        asked = [kv_cache_pb2.GetPage(page=1, key=b"k")]
        (reply, decoded), = self.get(lossy, asked)
        self.assertEqual(len(decoded), len(raw))
        self.assertFalse(reply.exact)
        self.assertLess(reply.estimated_error, 1e-3)
        (reply, encoded), = self.get(lossy, asked, payload=types_pb2.ENCODED)
        self.assertLess(len(encoded), 0.6 * len(raw))
        header_bytes, segments = struct.unpack_from("<II", encoded)
        header = encoded[8 + 2 * segments :][:header_bytes]
        self.assertIn(reply.recipe.encode(), header)

    def test_a_layer_comes_alone(self):
        layers = self.open("layers", "raw")
        raw = page(9)
        self.put(layers, [(b"k", raw)])
        (_, payload), = self.get(
            layers, [kv_cache_pb2.GetPage(page=5, key=b"k", first_layer=2, layer_count=1)]
        )
        size = len(raw) // LAYERS
        self.assertEqual(payload, raw[2 * size : 3 * size])

    def test_mistakes_are_named(self):
        with self.assertRaises(grpc.RpcError) as no_deadline:
            self.kv.Usage(kv_cache_pb2.UsageRequest())
        self.assertEqual(no_deadline.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        with self.assertRaises(grpc.RpcError) as no_space:
            self.kv.Lookup(kv_cache_pb2.LookupRequest(space="nowhere", fingerprint=bytes(16), keys=[b"k"]), timeout=SECONDS)
        self.assertEqual(no_space.exception.code(), grpc.StatusCode.NOT_FOUND)
        self.assertIn("nowhere", no_space.exception.details())
        small = self.open("small", "raw")
        refused = self.put(small, [(b"k", page(1)[:-2])])[0]
        self.assertEqual(refused.status, types_pb2.REFUSED)
        self.assertIn("payload_bytes", refused.message)

    def test_a_second_model_of_the_name_is_refused(self):
        space = self.open("llama", "raw", revision="a")
        raw = page(3)
        self.assertEqual(self.put(space, [(b"k", raw)])[0].status, types_pb2.STORED)
        with self.assertRaises(grpc.RpcError) as second:
            self.open("llama", "raw", revision="b")
        self.assertEqual(second.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        self.assertIn("revision: a here, b asked", second.exception.details())
        # Another server had the second model under that name; its worker comes here with what it knows.
        asked = [kv_cache_pb2.GetPage(page=1, key=b"k")]
        other = ("llama", bytes(16))
        lookup = kv_cache_pb2.LookupRequest(space=other[0], fingerprint=other[1], keys=[b"k"])
        for call in (
            lambda: self.get(other, asked),
            lambda: self.put(other, [(b"k", raw)]),
            lambda: self.kv.Lookup(lookup, timeout=SECONDS),
        ):
            with self.assertRaises(grpc.RpcError) as refused:
                call()
            self.assertEqual(refused.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
            self.assertIn("fingerprint", refused.exception.details())
        (reply, payload), = self.get(space, asked)
        self.assertEqual((reply.status, payload), (types_pb2.HIT, raw))

    def test_unknown_fields_of_a_later_version_are_let_pass(self):
        request = admin_pb2.StatusRequest()
        request.MergeFromString(b"\xfa\x7f\x03new")  # field 2047, which nobody has
        self.assertTrue(self.admin.Status(request, timeout=SECONDS).ready)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
