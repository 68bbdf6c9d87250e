"""Wrong arguments are errors that name them, before anything is sent."""

import dataclasses

import kvstow
import numpy as np
import pytest
from conftest import SPEC, Prompt, outcomes

PAGE = Prompt(tokens=64).pages[0]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (PAGE.astype(np.float32), r"pages\[0\].data: holds float32, but the space holds float16"),
        (PAGE.astype(np.int64), r"pages\[0\].data: holds uint64, but the space holds float16"),
        (PAGE.transpose(0, 1, 3, 2, 4), r"pages\[0\].data: is not contiguous"),
        (PAGE[:, :, ::2], r"pages\[0\].data: is not contiguous"),
        (PAGE.reshape(12, 2, 64, 64, 3), r"pages\[0\].data: has the shape \(12, 2, 64, 64, 3\)"),
        (PAGE.ravel()[:-1], r"pages\[0\].data: has 589822 bytes, but a page has 9216 for each of 1 to 64"),
        (np.empty(0, np.float16), r"pages\[0\].data: has 0 bytes"),
        (np.zeros(PAGE.size * 2, np.float16), r"pages\[0\].data: has 1179648 bytes"),
        ("text", r"pages\[0\].data: a str gives no memory"),
        (None, r"pages\[0\].data: a NoneType gives no memory"),
    ],
)
def test_data_that_is_no_page_is_refused(space, data, error):
    with pytest.raises(ValueError, match=error):
        space.put([kvstow.Page(b"k", data)])
    assert not space.lookup([b"k"])


@pytest.mark.parametrize(
    "data",
    [
        PAGE.tobytes(),
        bytearray(PAGE.tobytes()),
        memoryview(PAGE),
        PAGE.ravel(),
        PAGE.view(np.uint16),
        PAGE.view(np.uint8),
        PAGE[np.newaxis][0],
    ],
    ids=["bytes", "bytearray", "memoryview", "flat", "bits", "uint8", "view"],
)
def test_anything_that_holds_a_page_is_taken(space, data):
    assert outcomes(space.put([kvstow.Page(b"k", data)])) == ["STORED"]
    assert bytes(space.get([b"k"])[0].data) == PAGE.tobytes()


class Dlpack:
    """A tensor of another library: DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_a_tensor_of_another_library_is_taken(space):
    assert outcomes(space.put([kvstow.Page(b"k", Dlpack(PAGE))])) == ["STORED"]
    out = SPEC.empty(1)
    assert space.get([b"k"], [Dlpack(out[0])])[0].hit
    np.testing.assert_array_equal(out[0], PAGE)
    with pytest.raises(ValueError, match=r"pages\[0\].data: holds float32"):
        space.put([kvstow.Page(b"k", Dlpack(PAGE.astype(np.float32)))])
    with pytest.raises(ValueError, match=r"pages\[0\].data: is not contiguous"):
        space.put([kvstow.Page(b"k", Dlpack(PAGE[:, :, ::2]))])


def test_read_only_memory_takes_no_page(space):
    frozen = SPEC.empty(1)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"out\[0\]: is read-only"):
        space.get([b"k"], frozen)
    with pytest.raises(ValueError, match=r"out\[0\]: is read-only"):
        space.get([b"k"], [PAGE.tobytes()])


def test_buffers_are_one_for_each_key(space):
    with pytest.raises(ValueError, match="out: has 2 buffers for 3 keys"):
        space.get([b"a", b"b", b"c"], SPEC.empty(2))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"layers": (12, 1)}, "layers: the space has 12"),
        ({"layers": (0, 13)}, "layers: the space has 12"),
        ({"layers": (-1, 1)}, "layers: "),
        ({"tokens": (0, 0)}, "tokens: "),
        ({"max_levels": -1}, "max_levels: "),
    ],
)
def test_ranges_that_no_page_has_are_refused(space, arguments, error):
    with pytest.raises(ValueError, match=error):
        space.get([b"k"], **arguments)


@pytest.mark.parametrize("key", ["text", b"", b"x" * 65, 7])
def test_keys_are_bytes(space, key):
    with pytest.raises(ValueError, match="key"):
        space.lookup([key])
    with pytest.raises(ValueError, match="key"):
        kvstow.Page(key, PAGE)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("layers", 0, "layers"),
        ("kv_heads", 5000, "kv_heads"),
        ("head_dim", -1, "head_dim"),
        ("dtype", "int8", "dtype: 'int8' is not one of"),
        ("page_tokens", 0, "page_tokens"),
        ("rope", kvstow.Rope(layout="spiral"), "rope.layout: 'spiral'"),
        ("revision", "", "revision"),
    ],
)
def test_a_spec_out_of_range_names_the_field(client, field, value, error):
    with pytest.raises(ValueError, match=error):
        client.open_space("x", dataclasses.replace(SPEC, **{field: value}))


def test_options_of_a_client_are_checked(server):
    with pytest.raises(ValueError, match="payload: 'zip' is not one of"):
        kvstow.Client(server.address, payload="zip")
    with pytest.raises(ValueError, match="timeout"):
        kvstow.Client(server.address, timeout=0)
    with pytest.raises(ValueError, match="attempts"):
        kvstow.Client(server.address, attempts=0)
    with pytest.raises(ValueError, match="bytes: 0"):
        kvstow.Client(server.address).buffer(0)


def test_a_closed_client_says_so(server):
    client = kvstow.Client(server.address)
    space = client.open_space("closed", SPEC, recipe="raw")
    client.close()
    client.close()
    assert client.closed
    for call in (
        lambda: space.lookup([b"k"]),
        lambda: space.get([b"k"]),
        lambda: space.put([kvstow.Page(b"k", PAGE)]),
        lambda: client.open_space("closed", SPEC),
        lambda: client.buffer(4096),
    ):
        with pytest.raises(ValueError, match="the client is closed"):
            call()


def test_a_gpu_that_is_not_there_is_named(server):
    with pytest.raises(ValueError, match="gpu: "):
        kvstow.Client(server.address, gpu=99)
