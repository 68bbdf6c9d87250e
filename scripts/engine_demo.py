"""Two worker processes of an engine share a long prompt through kvstowd, which is killed on the way.

`scripts/demo --engine hf|vllm` runs it in the engine's environment:

    python scripts/engine_demo.py ENGINE MODEL_FOLDER [--recipe R] [--tokens N]

A worker is this file with --worker. It reads one command a line and answers with JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NEW_TOKENS = 32


def prompt_text() -> str:
    """English that nobody wrote for this: the project's documents."""
    return "\n".join((ROOT / "docs" / name).read_text() for name in ("RELIABILITY.md", "FORMAT.md"))


# Workers: each answers a prompt and tells how it went.


class HfWorker:
    def __init__(self, model: str, address: str, recipe: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        import kvstow.hf

        self.generate = kvstow.hf.generate
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
        self.client = kvstow.Client(address, timeout=2)
        self.recipe = recipe

    def tokens(self, text: str) -> list[int]:
        return list(self.tokenizer(text)["input_ids"])

    def answer(self, tokens: list[int]) -> dict[str, Any]:
        said = self.generate(
            self.model,
            self.tokenizer,
            tokens,
            client=self.client,
            space="demo",
            recipe=self.recipe,
            max_new_tokens=NEW_TOKENS,
        )
        return {
            "seconds": said.seconds_to_first_token,
            "cached": said.cached_tokens,
            "token_ids": said.token_ids,
        }


class VllmWorker:
    def __init__(self, model: str, address: str, recipe: str) -> None:
        from vllm import LLM, SamplingParams

        self.llm = LLM(
            model=model,
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=4096,
            kv_transfer_config={
                "kv_connector": "KvstowConnector",
                "kv_connector_module_path": "kvstow.vllm",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"address": address, "recipe": recipe, "timeout": 2},
            },
        )
        self.parameters = SamplingParams
        self.tokenizer = self.llm.get_tokenizer()

    def tokens(self, text: str) -> list[int]:
        return list(self.tokenizer(text)["input_ids"])

    def _run(self, tokens: list[int], count: int) -> Any:
        parameters = self.parameters(temperature=0, max_tokens=count, ignore_eos=True)
        return self.llm.generate({"prompt_token_ids": tokens}, parameters, use_tqdm=False)[0]

    def answer(self, tokens: list[int]) -> dict[str, Any]:
        self.llm.reset_prefix_cache()  # what the worker itself remembers
        start = time.perf_counter()
        first = self._run(tokens, 1)
        seconds = time.perf_counter() - start
        rest = self._run(tokens, NEW_TOKENS)
        return {
            "seconds": seconds,
            "cached": first.num_cached_tokens or 0,
            "token_ids": list(rest.outputs[0].token_ids),
        }


def work(arguments: argparse.Namespace) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # an engine's own words go to the log
    kinds = {"hf": HfWorker, "vllm": VllmWorker}
    worker = kinds[arguments.engine](arguments.model, arguments.address, arguments.recipe)
    tokens = worker.tokens(prompt_text())[: arguments.tokens]
    worker.answer(tokens[::-1][:300])  # warms up, with a prompt of its own
    print(json.dumps({"ready": True}), file=out, flush=True)
    for _ in sys.stdin:
        print(json.dumps(worker.answer(tokens)), file=out, flush=True)


class Worker:
    """A worker process, as the demo sees it."""

    def __init__(self, arguments: argparse.Namespace, address: str, log: Path) -> None:
        command = [sys.executable, __file__, arguments.engine, arguments.model, "--worker"]
        command += ["--address", address, "--recipe", arguments.recipe]
        command += ["--tokens", str(arguments.tokens)]
        self.log = log
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the worker ended:\n{self.log.read_text()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        print("run", file=self.process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def row(label: str, answer: dict[str, Any], first: dict[str, Any]) -> None:
    same = sum(a == b for a, b in zip(answer["token_ids"], first["token_ids"]))
    whole = answer["token_ids"] == first["token_ids"]
    print(
        f"{label:<44} {answer['seconds'] * 1e3:>8.0f} ms {answer['seconds'] / first['seconds']:>6.2f}"
        f" {answer['cached']:>7}   {'yes' if whole else f'{same} of {NEW_TOKENS}'}",
        flush=True,
    )


def space_bytes(address: str) -> str:
    from kvstow.programs import program

    command = [str(program("kvstow")), "spaces", "--server", address, "--format", "json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    biggest = max(found["spaces"], key=lambda space: space["raw_bytes"])
    raw, stored = biggest["raw_bytes"], biggest["encoded_bytes"]
    return f"{raw / 2**20:.1f} MiB of K and V are {stored / 2**20:.1f} MiB at the server ({raw / stored:.1f} x)"


def demo(arguments: argparse.Namespace, folder: Path) -> None:
    import kvstow

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            kvstow.Server(host_bytes="512MiB", disk_path=folder / "disk", disk_bytes="4GiB")
        )
        log = folder / "workers.log"
        say(f"kvstowd serves on {server.address}; worker A starts {arguments.engine}")
        a = Worker(arguments, server.address, log)
        stack.callback(a.close)
        print(f"{'':<44} {'first token':>11} {'ratio':>6} {'cached':>7}   same tokens as A")
        first = a.run()
        row("A: nobody has seen the prompt", first, first)
        say("worker B starts: another process, which shares nothing with A but kvstowd")
        b = Worker(arguments, server.address, log)
        stack.callback(b.close)
        row("B: A's pages", b.run(), first)
        size = space_bytes(server.address)
        server.kill()
        server.start()
        time.sleep(3)  # the client goes back to a server that was away
        row("B: after kill -9 of kvstowd, from its disk", b.run(), first)
        server.kill()
        row("B: kvstowd is dead", b.run(), first)
        row("B: kvstowd is still dead", b.run(), first)
        print(size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=("hf", "vllm"))
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("--recipe", default="int8", help="[int8]")
    parser.add_argument("--tokens", type=int, default=3000, help="of the prompt [3000]")
    parser.add_argument("--folder", type=Path, help="for the disk tier and logs")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments)
    else:
        demo(arguments, arguments.folder)


if __name__ == "__main__":
    main()
