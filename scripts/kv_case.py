#!/usr/bin/env python3
"""Cases for scripts/demo: a second prompt that shares a prefix, and how far two cases are apart.

    kv_case.py branch CASE OUT --keep N    CASE with other token ids from place N on
    kv_case.py compare CASE OUT            error of OUT's K and V against the same tokens of CASE, as
                                           JSON
    kv_case.py table ROWS RESTARTS         what scripts/demo saw, as a table

A case is a safetensors file with `k.L` and `v.L` for each layer L, [tokens, kv_heads, head_dim]; OUT
may hold fewer tokens than CASE. Needs nothing but Python's standard library.
"""
import argparse
import json
import struct
import sys

CODES = {"F16": "e", "F32": "f"}


def read(path):
    """The header and the bytes after it."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length)), file.read()


def branch(case, out, keep):
    header, data = read(case)
    data = bytearray(data)
    tensor = header["tokens"]
    begin, end = tensor["data_offsets"]
    if tensor["dtype"] != "I32":
        sys.exit(f"{case}: tokens are {tensor['dtype']}, not I32")
    for at in range(begin + 4 * keep, end, 4):
        (token,) = struct.unpack_from("<i", data, at)
        struct.pack_into("<i", data, at, token ^ 1)  # another word of the same vocabulary
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(out, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def values(tensor, data):
    code = CODES.get(tensor["dtype"]) or sys.exit(f"cannot compare {tensor['dtype']}")
    return struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)


def compare(case, out):
    (want_header, want), (got_header, got) = read(case), read(out)
    result = {"tokens": got_header["k.0"]["shape"][0], "same_bytes": True}
    for part in "kv":
        error = energy = 0.0
        for name, tensor in got_header.items():
            if not name.startswith(part + "."):
                continue
            wanted = want_header[name]
            if (tensor["shape"][1:], tensor["dtype"]) != (wanted["shape"][1:], wanted["dtype"]):
                sys.exit(f"{name}: {tensor} does not fit {wanted}")
            begin, end = tensor["data_offsets"]
            got_bytes = got[begin:end]
            at = wanted["data_offsets"][0]
            want_bytes = want[at : at + end - begin]
            result["same_bytes"] &= got_bytes == want_bytes
            a, b = values(tensor, want_bytes), values(tensor, got_bytes)
            error += sum((x - y) ** 2 for x, y in zip(a, b))
            energy += sum(x * x for x in a)
        result[part + "_error"] = (error / energy) ** 0.5 if energy else 0.0
    print(json.dumps(result))


def mib(count):
    return f"{count / 2**20:.2f}"


def table(rows_path, restarts_path):
    head = ["", "hit tokens", "gpu", "host", "disk", "raw MiB", "stored MiB", "ratio"]
    head += ["K error", "V error", "GB/s"]
    lines = [head]
    with open(rows_path, encoding="utf-8") as rows:
        for row in rows:
            label, answer, compared = row.rstrip("\n").split("\t")
            answer, compared = json.loads(answer), json.loads(compared)
            tiers = answer.get("tiers", {})
            line = [label, str(answer.get("hit_tokens", "-"))]
            line += [str(tiers.get(tier, "-")) for tier in ("gpu", "host", "disk")]
            line += [mib(answer["raw_bytes"]), mib(answer["stored_bytes"])]
            line += [f"{answer['raw_bytes'] / answer['stored_bytes']:.2f}"]
            if not compared:
                line += ["-", "-"]
            elif compared["same_bytes"]:
                line += ["exact", "exact"]
            else:
                line += [f"{compared['k_error']:.4f}", f"{compared['v_error']:.4f}"]
            lines.append(line + [f"{answer['gbps']:.2f}"])
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        cells = [line[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(line[1:], widths[1:])]
        print("  ".join(cells).rstrip())
    print("\ngpu, host, disk: pages that came from there. K and V error: relative, root mean square.")
    with open(restarts_path, encoding="utf-8") as restarts:
        for row in restarts:
            recipe, status = row.rstrip("\n").split("\t")
            status = json.loads(status)
            print(
                f"after kill -9 ({recipe}): ready in {status['ready_ms']} ms with"
                f" {status['recovered_pages']} pages; worker 2 got the same bytes as before"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("branch")
    verb.add_argument("case")
    verb.add_argument("out")
    verb.add_argument("--keep", type=int, required=True, help="token ids that stay as they are")
    verb = verbs.add_parser("compare")
    verb.add_argument("case")
    verb.add_argument("out")
    verb = verbs.add_parser("table")
    verb.add_argument("rows")
    verb.add_argument("restarts")
    args = parser.parse_args()
    if args.verb == "branch":
        branch(args.case, args.out, args.keep)
    elif args.verb == "compare":
        compare(args.case, args.out)
    else:
        table(args.rows, args.restarts)


if __name__ == "__main__":
    main()
