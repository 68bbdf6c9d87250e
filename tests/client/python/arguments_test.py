"""Wrong arguments are errors that name them, before anything is sent."""

import ctypes
import dataclasses
import mmap
import weakref

import kvstow
import kvstow.aio
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
        (PAGE.astype(">f2"), r"pages\[0\].data: holds big-endian numbers"),
        (PAGE.astype(">u2"), r"pages\[0\].data: holds big-endian numbers"),
        (PAGE.astype("c8"), r"pages\[0\].data: holds items of 8 bytes of the format 'Zf'"),
        (PAGE.view([("a", "<f2")]), r"pages\[0\].data: holds items of 2 bytes of the format 'T{e:a:}'"),
        (np.zeros(PAGE.nbytes, "V33"), r"pages\[0\].data: holds items of 33 bytes of the format '33x'"),
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
        PAGE.view("V2"),
        (ctypes.c_uint16 * PAGE.size).from_buffer(PAGE),
        PAGE[np.newaxis][0],
    ],
    ids=["bytes", "bytearray", "memoryview", "flat", "bits", "uint8", "void", "ctypes", "view"],
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


class Described(Dlpack):
    """A tensor whose description is changed: on another device, or of freed memory."""

    def __init__(self, array, device=(1, 0), data=None):
        super().__init__(array)
        self.device = device
        self.data = data

    def __dlpack__(self, **arguments):
        capsule = self.array.__dlpack__(max_version=None)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype = ctypes.c_void_p
        pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        at = pointer(capsule, b"dltensor")  # DLTensor: void* data, int32 device type, int32 device
        ctypes.c_int32.from_address(at + 8).value, ctypes.c_int32.from_address(at + 12).value = self.device
        if self.data is not None:
            ctypes.c_void_p.from_address(at).value = self.data
        return capsule

    def __dlpack_device__(self):
        return self.device


CUDA, METAL = 2, 8


def test_a_tensor_on_a_gpu_needs_a_client_of_that_gpu(space):
    there = Described(PAGE, device=(CUDA, 1))
    error = r"\.data: is on CUDA GPU 1, but the client has none: make it with gpu=1"
    with pytest.raises(ValueError, match=r"pages\[0\]" + error):
        space.put([kvstow.Page(b"k", there)])
    with pytest.raises(ValueError, match=r"pages\[1\]" + error):
        space.put_layers([kvstow.Page(b"j", PAGE), kvstow.Page(b"k", there)])
    with pytest.raises(ValueError, match=r"out\[0\]: is on CUDA GPU 1"):
        space.get([b"k"], [there])
    assert not space.lookup([b"j"]) and not space.lookup([b"k"])


class Event:
    """A torch.cuda.Event, as far as a call looks at it."""

    cuda_event = 1234


def test_what_is_no_event_is_refused(space):
    with pytest.raises(ValueError, match=r"pages\[0\].ready: a str is no event: pass a torch.cuda.Event"):
        space.put([kvstow.Page(b"k", PAGE, ready="soon")])
    with pytest.raises(ValueError, match=r"^ready: a NoneType is no event"):
        space.get([b"k"], ready=None)
    assert outcomes(space.put([kvstow.Page(b"k", PAGE, ready=Event())])) == ["STORED"]
    assert outcomes(space.get([b"k"], ready=Event())) == ["HIT"]
    assert outcomes(space.get([b"k"], ready=Event.cuda_event)) == ["HIT"]


def test_a_call_keeps_its_events_until_it_has_ended(space):
    event = Event()
    alive = weakref.ref(event)
    pages = Prompt().puts(ready=event)
    call, put = space.client._native.put_layers(space._info, pages, None)
    del event, pages
    assert alive() is not None
    put.filled(SPEC.layers)
    assert call.wait()
    space.lookup([b"k"])  # lets go of what the call had
    assert alive() is None


def test_an_array_of_jax_never_changes(space):
    """engines/hf_test.py has JAX itself, whose DLPack does not say that its memory is read-only."""
    array = type("ArrayImpl", (Dlpack,), {"__module__": "jaxlib._jax"})(PAGE)
    assert outcomes(space.put([kvstow.Page(b"k", array)])) == ["STORED"]
    with pytest.raises(ValueError, match=r"out\[0\]: is read-only"):
        space.get([b"k"], [array])


def test_a_tensor_on_another_kind_of_device_gives_no_memory(space):
    with pytest.raises(ValueError, match=r"pages\[0\].data: a Described gives no memory"):
        space.put([kvstow.Page(b"k", Described(PAGE, device=(METAL, 0)))])


def test_memory_that_was_freed_is_refused(space):
    view = memoryview(PAGE.tobytes())
    view.release()
    pages = mmap.mmap(-1, PAGE.nbytes)
    pages.close()
    for freed in (view, pages):
        with pytest.raises(ValueError, match=r"pages\[0\].data: a (memoryview|mmap) gives no memory"):
            space.put([kvstow.Page(b"k", freed)])
        with pytest.raises(ValueError, match=r"out\[0\]: a (memoryview|mmap) gives no memory"):
            space.get([b"k"], [freed])
    with pytest.raises(ValueError, match=r"pages\[0\].data: has no memory any more: it was freed"):
        space.put([kvstow.Page(b"k", Described(PAGE, data=0))])


def test_memory_is_kept_while_a_call_needs_it(space):
    room = bytearray(PAGE.tobytes())
    call = space.start_put([kvstow.Page(b"k", room)])
    try:
        room.extend(b"more")  # moves the memory
    except BufferError:
        pass  # the call is not done
    call.wait()
    assert outcomes(space.put([kvstow.Page(b"k", PAGE)])) == ["ALREADY_THERE"]


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


async def test_a_closed_client_of_asyncio_says_so(server):
    client = kvstow.aio.Client(server.address)
    space = await client.open_space("closed", SPEC, recipe="raw")
    await client.close()
    for call in (
        space.lookup([b"k"]),
        space.get([b"k"]),
        space.put([kvstow.Page(b"k", PAGE)]),
        client.open_space("closed", SPEC),
    ):
        with pytest.raises(ValueError, match="the client is closed"):
            await call


def test_a_space_that_is_not_there_is_none(client):
    assert client.find_space("nobody made it") is None
    with pytest.raises(ValueError, match="name: a space needs one"):
        client.open_space("", SPEC)


def test_a_space_that_was_dropped_has_misses_until_it_is_made_again(client):
    space = client.open_space("dropped", SPEC, recipe="raw")
    space.put([kvstow.Page(b"k", PAGE)])
    assert client.drop_space("dropped") == 1
    assert not space.lookup([b"k"])
    assert space.get([b"k"])[0].outcome == "MISS"
    assert outcomes(space.put([kvstow.Page(b"k", PAGE)])) == ["STORED"]
    assert space.get([b"k"])[0].hit


def test_a_gpu_that_is_not_there_is_named(server):
    with pytest.raises(ValueError, match="gpu: "):
        kvstow.Client(server.address, gpu=99)
