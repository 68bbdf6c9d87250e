"""Keys of pages from their definition in docs/FORMAT.md, with hashlib alone.

  page_keys.py > tests/golden/page_keys_v1.txt

A line a case: page_tokens | token ids | extras by page, pages apart by ';' | keys in hexadecimal.
"""

import hashlib
import struct


def page_key(parent, tokens, extras):
    data = b"kvstow key v1" + (parent or bytes(32))
    data += struct.pack("<I", len(tokens)) + struct.pack(f"<{len(tokens)}i", *tokens)
    for extra in extras:
        data += struct.pack("<I", len(extra)) + extra.encode()
    return hashlib.sha256(data).digest()


def page_keys(page_tokens, tokens, extras):
    keys = []
    for first in range(0, len(tokens), page_tokens):
        of_page = extras[len(keys)] if len(keys) < len(extras) else []
        keys.append(page_key(keys[-1] if keys else b"", tokens[first : first + page_tokens], of_page))
    return keys


CASES = (
    (4, [1, 2, 3, 4, 5], []),
    (3, [1, 2, 3, 4, 5, 6, 7, 8, 9], [["salt", "image:a"], ["image:b", "image:c"]]),
    (3, [1, 2, 3, 4, 5, 6, 7, 8, 9], [[], [], ["lora:x"]]),
    (16, [-1, 2147483647], [["sha256:00"]]),
    (2, [7, 7, 7, 7], [["x"], ["x"], ["beyond the end"]]),
)

if __name__ == "__main__":
    for page_tokens, tokens, extras in CASES:
        print(
            page_tokens,
            ",".join(map(str, tokens)),
            ";".join(",".join(page) for page in extras),
            ",".join(key.hex() for key in page_keys(page_tokens, tokens, extras)),
            sep="|",
        )
