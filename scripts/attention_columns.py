#!/usr/bin/env python3
"""Makes of a case what policies need of a model, and what a worker would report.

    attention_columns.py kvzip --model M.gguf CASE OUT [--prompt ID...]   CASE with the column kvzip.L
    attention_columns.py heads --model M.gguf [--share .5] CASE...        a table for head_table(heads)

kvzip (KVzip, arXiv 2505.23416): the model reads the context once more, after a prompt that asks it
to (--prompt, as token ids), and a token's score is the largest attention that any of those queries
gave it, in any query head of its KV head. kvzip.L is float32 [tokens, kv_heads].

heads: the KV heads that look furthest, for `duoattention`. A head's score is the attention that its
queries give to what is neither among the first 64 tokens nor among the last 256 before them; the
upper --share of all heads gets its bit. DuoAttention (arXiv 2410.10819) learns its table on pass
keys; this one is read off texts.

CASE is a safetensors file with `k.L`, `v.L` [tokens, kv_heads, d] and `tokens`; M a GGUF file of the
llama architecture. Needs `pip install gguf numpy safetensors`. A case of 1,024 tokens takes about
10 seconds with SmolLM2-135M.
"""
import argparse

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from llama_model import forward, load_model

SINKS, RECENT = 64, 256     # what a streaming head keeps
STEP = 128                  # tokens whose attention is in memory at once


def read(path):
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}


def past_of(model, case, count):
    return [tuple(case[f"{part}.{i}"][:count].astype(np.float32) for part in "kv")
            for i in range(model.layers)]


def by_kv_head(model, x):
    """[query heads, ...] -> [kv_heads, query heads of one, ...]"""
    return x.reshape(model.kv_heads, -1, *x.shape[1:])


def run(model, tokens, past, see):
    """`tokens` after `past`, STEP at a time: see(layer, probabilities, place of the first)."""
    for at in range(0, len(tokens), STEP):
        state, start = [], len(past[0][0])
        forward(model, tokens[at : at + STEP], past, state)
        for i, (_, _, _, _, probs, *_) in enumerate(state):
            see(i, np.stack(probs), start)
        past = [(k, v) for _, _, k, v, *_ in state]


def kvzip(model, path, out, prompt):
    case, meta = read(path)
    n = len(case["k.0"])
    past = past_of(model, case, n)
    again = np.concatenate([np.array(prompt, np.int64), case["tokens"][:n].astype(np.int64)])
    best = [np.zeros((model.kv_heads, n), np.float32) for _ in past]

    def see(i, probs, _):
        np.maximum(best[i], by_kv_head(model, probs[..., :n]).max((1, 2)), out=best[i])
    run(model, again, past, see)
    for i, scores in enumerate(best):
        case[f"kvzip.{i}"] = np.ascontiguousarray(scores.T)
    save_file(case, out, meta)


def heads(model, paths, share):
    far = np.zeros((model.layers, model.kv_heads))
    for path in paths:
        case, _ = read(path)
        n = len(case["k.0"])
        begin = max(SINKS + RECENT, n // 2)
        tokens = case["tokens"][begin:n].astype(np.int64)

        def see(i, probs, start):
            for row in range(probs.shape[1]):
                middle = probs[:, row, SINKS : start + row + 1 - RECENT].sum(-1)
                far[i] += by_kv_head(model, middle).mean(1) / (n - begin) / len(paths)
        run(model, tokens, past_of(model, case, begin), see)
    order = far.ravel().argsort()[::-1][: round(share * far.size)]
    bits = np.zeros(-(-far.size // 4) * 4, int)
    bits[order] = 1
    print("".join(f"{int(''.join(map(str, four)), 2):x}" for four in bits.reshape(-1, 4)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("kvzip")
    verb.add_argument("--model", required=True)
    verb.add_argument("--prompt", type=int, nargs="*", default=[], metavar="ID")
    verb.add_argument("case")
    verb.add_argument("out")
    verb = verbs.add_parser("heads")
    verb.add_argument("--model", required=True)
    verb.add_argument("--share", type=float, default=.5)
    verb.add_argument("cases", nargs="+", metavar="CASE")
    args = parser.parse_args()
    model = load_model(args.model)
    if args.verb == "kvzip":
        kvzip(model, args.case, args.out, args.prompt)
    else:
        heads(model, args.cases, args.share)


if __name__ == "__main__":
    main()
