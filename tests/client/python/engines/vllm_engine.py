"""A real vLLM in a process of its own, for tests and figures.

This file, run as a program, is the engine. It reads commands from stdin and writes results, as
lines of JSON.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from smollm2 import FOLDER

TIMEOUT = 4.0
TOPICS = ("rivers", "clocks", "bridges", "violins", "harbours", "orchards", "stamps", "kites")
RULES = (f"Rule {i}: answer question {i * 7 % 31} in order, and be brief." for i in range(14))
COMMON = " ".join(RULES)
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def prompt(number, name=""):
    topic = TOPICS[number % len(TOPICS)]
    facts = " ".join(f"Fact {i} on {topic}{name}: {i * number % 17}." for i in range(12 + number))
    return f"{COMMON} {facts} A short story about {topic}:"


# The engine, in its own process.


def send_at(pid, number, method):
    """Sends the server a signal at the next call of a method of WorkerHalf."""
    from kvstow.vllm.worker import WorkerHalf

    inner = getattr(WorkerHalf, method)

    def hit(self, *arguments):
        setattr(WorkerHalf, method, inner)
        os.kill(pid, number)
        return inner(self, *arguments)

    setattr(WorkerHalf, method, hit)


def lose_page(number):
    """The page of that number of each load is not found."""
    from kvstow.vllm.worker import WorkerHalf

    load_pages = WorkerHalf.load

    def lost(self, metadata):
        for load in metadata.loads:
            if number < len(load.pages):
                load.pages[number].key = b"lost" + load.pages[number].key[4:]
        load_pages(self, metadata)

    WorkerHalf.load = lost


class Runner:
    """What the engine's process does for its commands."""

    def __init__(self, options):
        from vllm import LLM

        import kvstow.vllm_plugin

        kvstow.vllm_plugin.register()  # as the entry point does where the package is installed
        self.adapters = {}
        self.llm = LLM(**{"enforce_eager": True, "disable_log_stats": False} | options)

    def _parameters(self, tokens):
        from vllm import SamplingParams

        return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)

    def generate(self, prompts, tokens=16):
        """Answers prompts together: text, or token ids."""
        prompts = [p if isinstance(p, str) else {"prompt_token_ids": p} for p in prompts]
        began = time.monotonic()
        outputs = self.llm.generate(prompts, self._parameters(tokens), use_tqdm=False)
        seconds = time.monotonic() - began
        return {
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
            "cached": [output.num_cached_tokens for output in outputs],
            "preemptions": self._metric("vllm:num_preemptions"),
            "seconds": seconds,
        }

    def generate_as(self, prompts, caller):
        """Answers prompts with a caller's adapter (a folder) and salt."""
        from vllm.lora.request import LoRARequest

        more = {}
        if "adapter" in caller:
            number = 1 + self.adapters.setdefault(caller["adapter"], len(self.adapters))
            more["lora_request"] = LoRARequest(str(number), number, caller["adapter"])
        tokens = [self.encode(text) for text in prompts]
        salt = {"cache_salt": caller["salt"]} if "salt" in caller else {}
        outputs = self.llm.generate(
            [{"prompt_token_ids": t, **salt} for t in tokens],
            self._parameters(16),
            use_tqdm=False,
            **more,
        )
        return {
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
            "cached": [output.num_cached_tokens for output in outputs],
        }

    def encode(self, text):
        return self.llm.get_tokenizer().encode(text)

    def mixed(self, requests, tokens, at_once):
        """Answers (prompt, aborted) as they come, `at_once` a step; aborts some in mid-answer."""
        engine = self.llm.llm_engine
        waiting = list(enumerate(requests))
        aborted = {str(i) for i, (_, aborted) in enumerate(requests) if aborted}
        said, cached = {}, 0
        began = time.monotonic()
        while waiting or engine.has_unfinished_requests():
            for number, (prompt, _) in waiting[:at_once]:
                engine.add_request(str(number), prompt, self._parameters(tokens))
            del waiting[:at_once]
            for output in engine.step():
                said[output.request_id] = list(output.outputs[0].token_ids)
                if output.finished:
                    cached += output.num_cached_tokens or 0
                elif output.request_id in aborted and len(said[output.request_id]) >= 3:
                    engine.abort_request([output.request_id])
        return {
            "tokens": [said.get(str(i), []) for i in range(len(requests))],
            "cached": cached,
            "preemptions": self._metric("vllm:num_preemptions"),
            "seconds": time.monotonic() - began,
        }

    def _metric(self, name):
        return {m.name: getattr(m, "value", 0) for m in self.llm.get_metrics()}.get(name, 0)

    def reset(self, everywhere=False):
        return self.llm.reset_prefix_cache(reset_connector=everywhere)

    def send_at(self, *arguments):
        send_at(*arguments)

    def lose_page(self, number):
        lose_page(number)


def serve_engine(options):
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # an engine's own words go to the log
    runner = Runner(options)
    print(json.dumps("ready"), file=out, flush=True)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(getattr(runner, name)(*arguments)), file=out, flush=True)


def transfer(settings):
    return {
        "kv_connector": "KvstowConnector",
        "kv_connector_module_path": "kvstow.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": settings,
    }


class Engine:
    """An engine in a process of its own."""

    def __init__(self, address, in_process=True, extra=None, **options):
        if address:
            settings = {"address": address, "recipe": "raw", "timeout": TIMEOUT}
            options.setdefault("kv_transfer_config", transfer(settings | (extra or {})))
        defaults = {"model": str(FOLDER), "dtype": "float32", "max_model_len": 2048}
        options = defaults | {"block_size": 32} | options
        environment = os.environ | ENVIRONMENT
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(not in_process))
        self.log = tempfile.NamedTemporaryFile("w+", prefix="vllm_test_")
        self.process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment,
        )
        assert self._read() == "ready"

    def _read(self):
        line = self.process.stdout.readline()
        assert line, f"the engine has ended:\n{self.said()[-4000:]}"
        return json.loads(line)

    def said(self):
        return Path(self.log.name).read_text(errors="replace")

    def call(self, name, *arguments):
        print(json.dumps([name, arguments]), file=self.process.stdin, flush=True)
        return SimpleNamespace(**result) if isinstance(result := self._read(), dict) else result

    def generate(self, prompts, tokens=16):
        return self.call("generate", prompts, tokens)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0


@contextlib.contextmanager
def engine(address, **options):
    started = Engine(address, **options)
    try:
        yield started
        started.close()
    except BaseException:
        lines = [line for line in started.said().splitlines() if "load weight" not in line]
        print("\n".join(lines[-60:]))
        raise
    finally:
        started.process.kill()


if __name__ == "__main__":
    serve_engine(json.loads(sys.argv[1]))
