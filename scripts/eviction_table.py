#!/usr/bin/env python3
"""What dropping tokens costs a model: a table of importance policies by the share of tokens that they keep.

    python scripts/eviction_table.py --kvstow build/bin/kvstow --judge 'python judge.py' CASE...

Each policy keeps shares of the tokens of each case, 50, 25 and 12.5 % unless --shares says otherwise (`kvstow codec roundtrip --keep`, one
page a case, what is kept is kept as it is).
JUDGE is a command that gets the case and decoded files and prints a line of JSON for each file, in order, with `kld` (nats a token,
the model's next-token distribution on the original cache || on the decoded one) and `top1` (share of tokens with the same most likely one);
a line for the original may come first.
It must honour keep.L of a decoded file (uint8 [tokens, kv_heads], 0 = dropped). The table's figures are means over the cases; a policy
that a case lacks something for is named with what it lacks. Standard library only.
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


def roundtrip(kvstow, policy, keep, page_tokens, case, out):
    """Decodes what the policy keeps into `out`. What went wrong, or None."""
    command = [kvstow, "codec", "roundtrip", "--recipe", policy, "--keep", str(keep), "--page-tokens", str(page_tokens), str(case), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    return None if done.returncode == 0 else done.stderr.strip()


def judge(command, case, outs):
    done = subprocess.run(shlex.split(command) + [str(case)] + [str(o) for o in outs], check=True, capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(rows) < len(outs):
        sys.exit(f"the judge printed {len(rows)} lines of JSON for {len(outs)} files")
    return rows[-len(outs):]


def measure(args, policy, folder):
    """Mean KLD and top-1 by share, over the cases; or what is missing."""
    sums = [[0.0, 0.0] for _ in args.shares]
    for case in args.cases:
        outs = [folder / f"{share}.safetensors" for share in args.shares]
        for share, out in zip(args.shares, outs):
            wrong = roundtrip(args.kvstow, policy, share, args.page_tokens, case, out)
            if wrong is not None:
                return wrong
        for total, row in zip(sums, judge(args.judge, case, outs)):
            total[0] += row["kld"] / len(args.cases)
            total[1] += row["top1"] / len(args.cases)
    return sums


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kvstow", default="build/bin/kvstow")
    parser.add_argument("--judge", required=True, help="command: case and decoded files in, a line of JSON for each out")
    parser.add_argument("--page-tokens", type=int, default=1024)
    parser.add_argument("--shares", type=float, nargs="*", default=[0.5, 0.25, 0.125])
    parser.add_argument("--policies", nargs="*", help="names; default: every policy with a share")
    parser.add_argument("cases", nargs="+", type=Path, metavar="CASE")
    args = parser.parse_args()
    columns = [f"{what} {100 * share:g} %" for what in ("KLD", "top-1") for share in args.shares]
    print(f"| policy | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    lacking = []
    with tempfile.TemporaryDirectory() as folder:
        for policy in args.policies or policies(args.kvstow):
            found = measure(args, policy, Path(folder))
            if isinstance(found, str):
                lacking.append(f"{policy}: {found}")
                continue
            cells = [f"{kld:.4f}" for kld, _ in found] + [f"{top1:.3f}" for _, top1 in found]
            print(f"| `{policy}` | {' | '.join(cells)} |", flush=True)
    for line in lacking:
        print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
