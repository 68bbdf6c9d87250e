#!/usr/bin/env python3
"""The cost of dropping tokens to a model: a table of importance policies by the share of tokens that they keep.

    python scripts/eviction_table.py --judge 'python judge.py --json' --needles NEEDLE... -- CASE...

Each policy keeps shares of the tokens of each case, 50, 25 and 12.5 % unless --shares says otherwise (`kvstow codec roundtrip --keep`, one
page a case, what is kept is kept as it is).
JUDGE is a command that gets a case and decoded files and prints a line of JSON for each file, in order, with `kld` (nats a token,
the model's next-token distribution on the original cache || on the decoded one), `top1` (share of tokens with the same most likely one)
and, of a needle, `exact` (1 when the answer is given); a line for the original may come first. It must honour keep.L of a decoded file
(uint8 [tokens, kv_heads], 0 = dropped).
A needle is a case whose continuation asks for something that stands in its prefix. Figures are means over the cases, needles counted
apart. A policy that some case lacks something for is named with what it lacks. --measured FILE keeps what was judged, so that a
run that was cut goes on there. Standard library only.
"""
import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

# Their arguments are not a share: a threshold, a table of heads, layers that are lazy.
OTHERS = {"kvzap", "duoattention", "simlayerkv"}


def policies(kvstow):
    listed = json.loads(subprocess.run([kvstow, "codec", "list", "--format", "json"], check=True, capture_output=True, text=True).stdout)
    return [row["name"] for row in listed["policies"] if row["name"] not in OTHERS]


def roundtrip(args, policy, share, case, out):
    """Decodes what the policy keeps into `out`. What went wrong, or None."""
    command = [args.kvstow, "codec", "roundtrip", "--recipe", policy, "--keep", str(share), "--page-tokens", str(args.page_tokens)]
    done = subprocess.run(command + [str(case), str(out)], capture_output=True, text=True)
    return None if done.returncode == 0 else done.stderr.strip()


def judge(command, case, outs):
    done = subprocess.run(shlex.split(command) + [str(case)] + [str(o) for o in outs], check=True, capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(rows) < len(outs):
        sys.exit(f"the judge printed {len(rows)} lines of JSON for {len(outs)} files")
    return rows[-len(outs):]


def measure(args, names, case):
    """A row for each policy and share; where something is missing, a row with `lacks`. The judge is started once: it loads a model."""
    rows, outs = [], []
    with tempfile.TemporaryDirectory() as folder:
        for policy in names:
            for share in args.shares:
                row = {"case": case.stem, "policy": policy, "share": share}
                out = Path(folder) / f"{len(rows)}.safetensors"
                wrong = roundtrip(args, policy, share, case, out)
                rows.append(row if wrong is None else row | {"lacks": wrong})
                if wrong is None:
                    outs.append(out)
        judged = iter(judge(args.judge, case, outs) if outs else [])
    return [row if "lacks" in row else row | {k: v for k, v in next(judged).items() if k in ("kld", "top1", "exact")} for row in rows]


def known(args):
    if args.measured is None or not args.measured.exists():
        return []
    return [json.loads(line) for line in args.measured.read_text().splitlines()]


def rows_of(args, names, cases):
    """The measurements of all these cases, made now or before."""
    found = known(args)
    for case in cases:
        have = {(row["policy"], row["share"]) for row in found if row["case"] == case.stem}
        todo = [name for name in names if any((name, share) not in have for share in args.shares)]
        new = measure(args, todo, case) if todo else []
        if args.measured is not None and new:
            with args.measured.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in new)
        found += new
    return [row for row in found if row["case"] in {case.stem for case in cases}]


def mean(rows, policy, share, what):
    values = [row[what] for row in rows if (row["policy"], row["share"]) == (policy, share)]
    return sum(values) / len(values)


def print_table(args, names, cases, needles):
    columns = [("KLD", cases, "kld", "{:.4f}"), ("top-1", cases, "top1", "{:.3f}"), ("needle", needles, "exact", "{:.2f}")]
    columns = [column for column in columns if column[1]]
    titles = [f"{title} {100 * share:g} %" for title, *_ in columns for share in args.shares]
    print(f"| policy | {' | '.join(titles)} |\n|{'---|' * (len(titles) + 1)}")
    lacking = {row["policy"]: row["lacks"] for row in cases + needles if "lacks" in row}
    there = [name for name in names if name not in lacking]
    for name in sorted(there, key=lambda name: mean(cases, name, sorted(args.shares)[len(args.shares) // 2], "kld")):
        cells = [form.format(mean(rows, name, share, what)) for _, rows, what, form in columns for share in args.shares]
        print(f"| `{name}` | {' | '.join(cells)} |")
    for name, lacks in lacking.items():
        print(f"{name}: {lacks}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kvstow", default="build/bin/kvstow")
    parser.add_argument("--judge", required=True, help="command: case and decoded files in, a line of JSON for each out")
    parser.add_argument("--page-tokens", type=int, default=1024)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.25, 0.125])
    parser.add_argument("--policies", nargs="+", help="names; default: every policy with a share")
    parser.add_argument("--needles", type=Path, nargs="+", default=[], metavar="CASE", help="cases that ask for something in their prefix")
    parser.add_argument("--measured", type=Path, help="JSON lines: what was judged, read and added to")
    parser.add_argument("cases", nargs="+", type=Path, metavar="CASE")
    args = parser.parse_args()
    names = args.policies or policies(args.kvstow)
    needles = rows_of(args, names, args.needles)
    print_table(args, names, rows_of(args, names, args.cases), needles)


if __name__ == "__main__":
    main()
