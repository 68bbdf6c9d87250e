"""Where SGLang keeps a page of a host pool, and where a page of kvstow has it.

SGLang describes a page by pieces of memory: one, two, or two for each layer, by the layout of the
pool. kvstow's page is `[layers, K and V, tokens, heads, width]`. A Part tells where K or V of all
layers is in both, so that engines of different layouts read each other's pages. Pools that are not
known to hold K and V are kept as the flat bytes that SGLang itself gives to storage.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Addresses: TypeAlias = npt.NDArray[np.int64]
"""The addresses of the pieces of pages: `[pages, pieces]`."""
DType: TypeAlias = Literal["float16", "bfloat16", "float32"]

_DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
_MHA = ("MHATokenToKVPoolHost", "AsymmetricMHATokenToKVPoolHost")
_MLA = ("MLATokenToKVPoolHost",)
_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
_UNITS = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}
_ROW = 1024  # bytes of what stands for a token in flat bytes: 8 "heads" of 64
_MAX_ROWS = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """K or V of all layers: pieces of memory, and where a page has them.

    pieces: their numbers, among all pieces of a page.
    shape: `[pieces, *axes of a piece]`. A piece is contiguous; its last axis is in bytes.
    offset, strides: of these axes in kvstow's page, in bytes.
    flat: where the first piece begins in the flat page that SGLang gives to storage.
    """

    pieces: slice
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]
    flat: int

    @property
    def piece_bytes(self) -> int:
        return math.prod(self.shape[1:])


@dataclasses.dataclass(frozen=True, slots=True)
class PageFormat:
    """The pages of a pool.

    layers ... page_tokens: the axes of kvstow's page.
    layout: "" where they are those of the model, else what tells these bytes from others.
    data_bytes: what SGLang has in a page. The page of kvstow may be longer.
    """

    layers: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    dtype: DType
    page_tokens: int
    parts: tuple[Part, ...]
    layout: str
    data_bytes: int

    @property
    def known(self) -> bool:
        return not self.layout

    @property
    def page_bytes(self) -> int:
        width = self.kv_heads * (self.head_dim + self.head_dim_v) * _DTYPE_BYTES[self.dtype]
        return self.layers * self.page_tokens * width

    @property
    def whole(self) -> bool:
        """Whether a page lies in SGLang's memory as it lies in kvstow's: no copy is needed."""
        if len(self.parts) != 1 or self.data_bytes != self.page_bytes:
            return False
        part = self.parts[0]
        return part.shape[0] == 1 and part.strides[1:] == _row_major(part.shape[1:])

    def piece_sizes(self) -> list[int]:
        """In the order of SGLang."""
        sizes = [0] * sum(part.shape[0] for part in self.parts)
        for part in self.parts:
            sizes[part.pieces] = [part.piece_bytes] * part.shape[0]
        return sizes

    def flat_offsets(self) -> Addresses:
        """Where the pieces are in a flat page."""
        offsets = np.zeros(len(self.piece_sizes()), np.int64)
        for part in self.parts:
            offsets[part.pieces] = part.flat + part.piece_bytes * np.arange(part.shape[0])
        return offsets

    def gather(self, addresses: Addresses, page: Bytes) -> None:
        """Copies a page of SGLang into a page of kvstow."""
        for part in self.parts if self.data_bytes else ():
            mine, theirs = _views(part, addresses, page)
            np.copyto(mine, theirs)

    def scatter(self, addresses: Addresses, page: Bytes) -> None:
        """Copies a page of kvstow into a page of SGLang."""
        for part in self.parts if self.data_bytes else ():
            mine, theirs = _views(part, addresses, page)
            np.copyto(theirs, mine)


def format_of(pool: Any) -> PageFormat:
    """The pages of a host pool of SGLang. Raises ValueError for a layout that has none."""
    known = _attention(pool)
    if known is not None and known.piece_sizes() == _sizes_of_a_page(pool):
        return known
    return _flat(pool)


def memory(address: int, size: int) -> Bytes:
    """Memory of somebody else, who keeps it alive."""
    whole: Any = (ctypes.c_uint8 * size).from_address(address)
    found: Bytes = np.ndarray((size,), np.uint8, whole)
    return found


def address_of(tensor: Any, size: int) -> int:
    """Where a tensor's bytes are. Raises ValueError for one that has not `size` bytes in a row."""
    found = tensor.numel() * tensor.element_size()
    if found != size:
        raise ValueError(f"tensor: has {found} bytes, but a page of the host pool has {size}")
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError("tensor: must be contiguous, and on the CPU")
    return int(tensor.data_ptr())


def dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _attention(pool: Any) -> PageFormat | None:
    """The format of a pool of K and V, or of MLA's latents; None for others."""
    kind, layout, dtype = type(pool).__name__, pool.layout, dtype_name(pool.dtype)
    if kind not in _MHA + _MLA:
        return None
    if layout not in _LAYOUTS:
        raise ValueError(
            f"layout: {layout!r} of {kind} gives no pages to storage; start SGLang with "
            f"--hicache-mem-layout {', '.join(_LAYOUTS[:3])} or {_LAYOUTS[3]}"
        )
    if dtype not in _DTYPE_BYTES:
        return None
    if kind in _MLA:
        heads, widths = 1, [pool.kv_cache_dim]
    else:
        heads, widths = pool.head_num, [pool.head_dim, pool.v_head_dim]
    layers, tokens, item = pool.layer_num, pool.page_size, _DTYPE_BYTES[dtype]
    layer = tokens * heads * sum(widths) * item
    parts = []
    for number, width in enumerate(widths):
        row, before = heads * width * item, tokens * heads * sum(widths[:number]) * item
        pieces = slice(number, number + 1)
        if layout == "layer_first":
            pieces = slice(number, None, len(widths))
            shape: tuple[int, ...] = (layers, tokens * row)
            strides: tuple[int, ...] = (layer, 1)
        elif layout == "page_first":
            shape, strides = (1, tokens, layers, row), (0, row, layer, 1)
        elif layout == "page_first_direct":
            shape, strides = (1, layers, tokens * row), (0, layer, 1)
        else:
            shape = (1, heads, tokens, layers, width * item)
            strides = (0, width * item, row, layer, 1)
        parts.append(Part(pieces, shape, before, strides, flat=before * layers))
    return PageFormat(
        layers=layers,
        kv_heads=heads,
        head_dim=widths[0],
        head_dim_v=widths[1] if len(widths) > 1 else 0,
        dtype=cast(DType, dtype),
        page_tokens=tokens,
        parts=tuple(parts),
        layout="",
        data_bytes=layers * layer,
    )


def _sizes_of_a_page(pool: Any) -> list[int]:
    """Bytes of the pieces of a page; [] where the pool does not tell them."""
    try:
        _, sizes = pool.get_page_buffer_meta(np.arange(pool.page_size))
    except Exception:  # layouts that a pool does not know
        return []
    return [int(size) for size in sizes]


def _flat(pool: Any) -> PageFormat:
    try:
        page = pool.get_dummy_flat_data_page()
    except (AttributeError, NotImplementedError) as error:
        raise ValueError(
            f"{type(pool).__name__}: a host pool of {dtype_name(pool.dtype)}, layout "
            f"{pool.layout!r}, gives storage neither pieces that kvstow knows nor flat pages"
        ) from error
    size = page.numel() * page.element_size()
    row = _ROW * max(1, -(-size // (_ROW * _MAX_ROWS)))
    dtype = dtype_name(page.dtype)
    return PageFormat(
        layers=1,
        kv_heads=row // 128,
        head_dim=64,
        head_dim_v=0,
        dtype="float16" if dtype == "float16" else "bfloat16",
        page_tokens=max(1, -(-size // row)),
        parts=(Part(slice(0, 1), (1, size), 0, (0, 1), flat=0),),
        layout=f"{type(pool).__name__}/{pool.layout}/{dtype}/{size}",
        data_bytes=size,
    )


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _views(
    part: Part, addresses: Addresses, page: Bytes
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A part in kvstow's page and in SGLang's memory, with the same axes."""
    places = addresses[part.pieces]
    steps = np.diff(places)
    step = int(steps[0]) if len(steps) else 0
    if (steps != step).any() or step < 0:
        raise ValueError(f"pieces: those of a page are not evenly spaced: {places[:4].tolist()}")
    first, size = int(places[0]), part.piece_bytes
    theirs = (step, *_row_major(part.shape[1:]))
    unit = math.gcd(8, part.shape[-1], part.offset, first, *part.strides[:-1], *theirs[:-1])
    dtype = np.dtype(_UNITS[unit])
    shape = (*part.shape[:-1], part.shape[-1] // unit)
    span = memory(first, step * (part.shape[0] - 1) + size)
    return (
        np.ndarray(shape, dtype, page.data, part.offset, (*part.strides[:-1], unit)),
        np.ndarray(shape, dtype, span.data, 0, (*theirs[:-1], unit)),
    )
