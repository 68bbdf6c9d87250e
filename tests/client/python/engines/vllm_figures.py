"""Figures of the vLLM connector, measured with SmolLM2-135M on this machine.

    python vllm_figures.py tokens [--recipe raw] [--dtype float32] [--prompts 200] [--order]
    python vllm_figures.py first  [--recipe int8] [--cold] [--rounds 9]
    python vllm_figures.py miss   [--recipe int8] [--rounds 9]
    python vllm_figures.py freeze [--recipe raw]

tokens: which share of prompts gets the same tokens with kvstow as without; --order: and how often
    vLLM itself says other tokens when the same prompts come in another order.
first: the time to the first token of a prompt that another process computed, over computing it.
    --cold: the server has made the cold form of all pages before.
miss: the throughput on prompts that nobody has seen, with and without kvstow, in turns.
freeze: how long requests take whose server stands still for 30 s, from the middle of a load on.

Run it in the environment of `scripts/engine vllm`, with `build/dev/python` in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import signal
import statistics
import subprocess
import time
import urllib.request
from pathlib import Path

import kvstow
from kvstow.programs import program
from smollm2 import save_smollm2
from vllm_engine import engine

DOCS = Path(__file__).resolve().parents[4] / "docs"
TEXTS = ("RELIABILITY.md", "OPERATIONS.md", "FORMAT.md", "CODECS.md")
NEW_TOKENS = 32
DEADLINE = 10.0  # seconds that a load may take: the connector's default
FROZEN = 30.0
ASKED = ("disk", "memory", "a page", "the server", "a worker", "keys", "errors", "recipes", "time")


def documents(count, characters):
    """Pieces of English, each another one."""
    text = "\n".join((DOCS / name).read_text() for name in TEXTS)
    step = len(text) // count
    return [text[at : at + characters] for at in range(0, step * count, step)]


def mixed_prompts(count):
    """Questions on ten documents, some without one, in mixed order; one in ten is aborted."""
    chance = random.Random(0)
    shared = [text[: chance.randint(1200, 3600)] for text in documents(10, 3600)]
    alone = documents(count, 500)
    requests = []
    for number in range(count):
        text = alone[number] if number % 8 == 0 else shared[chance.randrange(10)]
        asked = chance.choice(ASKED)
        prompt = f"{text}\n\nQuestion {number}: what does this say of {asked}?\nAnswer:"
        requests.append((prompt, number % 10 == 5))
    chance.shuffle(requests)
    return requests


def same(requests, right, tokens):
    """How many of the prompts that were not aborted got the right tokens."""
    kept = [i for i, (_, aborted) in enumerate(requests) if not aborted]
    return sum(right[i] == tokens[i] for i in kept), len(kept)


def leading(requests, right, tokens):
    """Tokens up to the first that differs, of each prompt with such a one."""
    return [
        next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), len(one))
        for (_, aborted), one, other in zip(requests, right, tokens)
        if not aborted and one != other
    ]


def say_same(label, requests, right, run):
    good, count = same(requests, right, run.tokens)
    print(
        f"{label:<44} {good:>4} of {count} ({good / count:.1%}), {run.cached} tokens cached, "
        f"{run.preemptions} preemptions, {run.seconds:.0f} s",
        flush=True,
    )
    differ = leading(requests, right, run.tokens)
    if differ:
        print(f"{'':<44} others differ after {statistics.median(differ)} tokens (median)")
    return good / count


def show_tokens(arguments):
    requests = mixed_prompts(arguments.prompts)
    pool = {"num_gpu_blocks_override": 100, "max_num_batched_tokens": 256, "max_num_seqs": 16}
    pool |= {"dtype": arguments.dtype}
    with engine("", **pool) as plain:
        right = plain.call("mixed", requests, NEW_TOKENS, 2).tokens
        if arguments.order:
            plain.call("reset")
            again = plain.call("mixed", requests[::-1], NEW_TOKENS, 5)
            again.tokens.reverse()
            say_same("vLLM alone, in another order", requests, right, again)
    extra = {"recipe": arguments.recipe}
    with kvstow.Server(host_bytes="4GiB") as server:
        with engine(server.address, extra=extra, **pool) as first:
            run = first.call("mixed", requests, NEW_TOKENS, 2)
        say_same(f"{arguments.recipe}: computes and saves", requests, right, run)
        with engine(server.address, extra=extra, **pool) as second:
            run = second.call("mixed", requests, NEW_TOKENS, 2)
        say_same(f"{arguments.recipe}: another process loads", requests, right, run)


def ask(address, *words):
    command = [str(program("kvstow")), *words, "--server", address, "--format", "json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def metric(server, name):
    with urllib.request.urlopen(f"http://{server.http_address}/metrics") as said:
        lines = said.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def make_cold(server):
    """Has the server make the cold form of all pages: it gives up memory until none is hot."""
    (space,) = ask(server.address, "spaces")["spaces"]
    size = space["encoded_bytes"]
    while metric(server, "kvstow_store_cooled_pages_total") < space["pages"]:
        size -= 1 << 18
        ask(server.address, "evict", "--tier", "host", "--to", str(size))
    (after,) = ask(server.address, "spaces")["spaces"]
    assert after["pages"] == space["pages"], "pages were lost on the way"
    print(
        f"{space['raw_bytes'] / 2**20:.1f} MiB raw, {space['encoded_bytes'] / 2**20:.1f} hot, "
        f"{after['encoded_bytes'] / 2**20:.1f} cold"
    )


def one_token(worker, tokens):
    worker.call("reset")
    time.sleep(0.5)  # threads of the engine that ran before spin for a while
    run = worker.generate([tokens], 1)
    return run.seconds, run.cached[0]


def show_first(arguments):
    prompt = "".join(documents(2, 9000))
    options = {"in_process": False, "dtype": "bfloat16", "max_model_len": 4096, "block_size": 128}
    options |= {"extra": {"recipe": arguments.recipe}}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(kvstow.Server(host_bytes="1GiB"))
        plain = stack.enter_context(engine("", in_process=False, dtype="bfloat16", max_model_len=4096))
        tokens = plain.call("encode", prompt)[: arguments.tokens]
        writer = stack.enter_context(engine(server.address, **options))
        writer.generate([tokens], 1)
        writer.close()
        time.sleep(1)
        if arguments.cold:
            make_cold(server)
        reader = stack.enter_context(engine(server.address, **options))
        for worker in (plain, reader):
            worker.generate([tokens[::-1]], 1)  # warms up
        computed, loaded = [], []
        for _ in range(arguments.rounds):
            computed.append(one_token(plain, tokens)[0])
            seconds, cached = one_token(reader, tokens)
            loaded.append(seconds)
        ratios = [a / b for a, b in zip(loaded, computed)]
        print(
            f"{arguments.recipe}{', cold' if arguments.cold else ''}: {len(tokens)} tokens, {cached} "
            f"cached: {statistics.median(loaded) * 1e3:.0f} ms, computed "
            f"{statistics.median(computed) * 1e3:.0f} ms, ratio {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}; {arguments.rounds} pairs)"
        )


def show_miss(arguments):
    options = {"in_process": False, "dtype": "bfloat16", "max_model_len": 4096, "block_size": 128}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(kvstow.Server(host_bytes="2GiB"))
        plain = stack.enter_context(engine("", **options))
        extra = {"recipe": arguments.recipe}
        stowing = stack.enter_context(engine(server.address, extra=extra, **options))
        chance = random.Random(1)

        def batch():
            return [[chance.randrange(100, 40000) for _ in range(1000)] for _ in range(8)]

        for worker in (plain, stowing):
            worker.generate(batch(), 16)
        ratios = []
        for number in range(arguments.rounds):
            prompts = batch()
            pair = [plain, stowing] if number % 2 else [stowing, plain]
            seconds = {worker: worker.generate(prompts, 16).seconds for worker in pair}
            ratios.append(seconds[plain] / seconds[stowing])
            print(f"{seconds[plain]:.2f} s alone, {seconds[stowing]:.2f} s with kvstow", flush=True)
        print(
            f"{arguments.recipe}: throughput {statistics.median(ratios):.3f} of vLLM alone (median; "
            f"{min(ratios):.3f} to {max(ratios):.3f}; {arguments.rounds} pairs)"
        )


def show_freeze(arguments):
    prompts = [text + "\nA summary:" for text in documents(4, 3000)]
    options = {"dtype": "float32", "max_model_len": 4096}  # in this process, where a load can be met
    extra = {"recipe": arguments.recipe, "timeout": DEADLINE}
    with (
        kvstow.Server(host_bytes="1GiB") as server,
        engine("", **options) as plain,
        engine(server.address, extra=extra, **options) as stowing,
    ):
        right = [plain.generate([text], NEW_TOKENS) for text in prompts]
        alone = [plain.call("reset") and plain.generate([text], NEW_TOKENS).seconds for text in prompts]
        stowing.generate(prompts, NEW_TOKENS)
        time.sleep(1)
        stowing.call("send_at", server.pid, signal.SIGSTOP, "_fetch")
        began, thawed, good, late = time.monotonic(), None, 0, []
        for number in itertools.count():
            stowing.call("reset")
            run = stowing.generate([prompts[number % 4]], NEW_TOKENS)
            good += run.tokens == right[number % 4].tokens
            late.append(run.seconds - alone[number % 4])
            now = time.monotonic()
            if thawed is None and now > began + FROZEN:
                server.send_signal(signal.SIGCONT)
                thawed = time.monotonic()
            elif thawed is not None and (run.cached[0] or now > thawed + 60):
                break
    print(
        f"{number + 1} requests, {good} with the right tokens; the slowest took {max(late):.1f} s longer than alone "
        f"({max(alone):.1f} s; a load may take {DEADLINE:.0f} s), the median {statistics.median(late):.1f} s; "
        f"hits again {now - thawed:.1f} s after the server went on"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figure", choices=("tokens", "first", "miss", "freeze"))
    parser.add_argument("--recipe", default="int8", help="[int8]")
    parser.add_argument("--dtype", default="float32", help="of tokens [float32]")
    parser.add_argument("--prompts", type=int, default=200, help="of tokens [200]")
    parser.add_argument("--order", action="store_true", help="tokens: also those of vLLM alone in another order")
    parser.add_argument("--tokens", type=int, default=3000, help="of first's prompt [3000]")
    parser.add_argument("--rounds", type=int, default=9, help="pairs of first and miss [9]")
    parser.add_argument("--cold", action="store_true", help="first: from the cold form of pages")
    arguments = parser.parse_args()
    save_smollm2()
    {"tokens": show_tokens, "first": show_first, "miss": show_miss, "freeze": show_freeze}[arguments.figure](arguments)


if __name__ == "__main__":
    main()
