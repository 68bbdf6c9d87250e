"""The vLLM connector with vLLM's own options: other connectors, adapters, salts, HTTP."""

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import kvstow
import numpy as np
import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed in this environment", allow_module_level=True)

from kvstow.models import rope_of
from smollm2 import FOLDER, save_smollm2
from vllm_engine import ENVIRONMENT, engine, prompt, transfer

SECONDS = 120.0


@pytest.fixture(scope="module")
def model():
    try:
        return save_smollm2()
    except FileNotFoundError as error:
        pytest.skip(f"the test model is not here: {error}")


def saved_pages(address):
    """What the server's spaces hold."""
    from kvstow.programs import program

    command = [str(program("kvstow")), "spaces", "--server", address, "--format", "json"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {space["space"]: space["pages"] for space in json.loads(said)["spaces"]}


def wait_for_pages(address, count, spaces=1):
    """Waits until so many spaces have so many pages each."""
    end = time.monotonic() + SECONDS
    while True:
        found = saved_pages(address)
        if sum(pages >= count for pages in found.values()) >= spaces:
            return found
        assert time.monotonic() < end, found
        time.sleep(0.02)


def test_it_is_a_child_of_a_multi_connector(model, tmp_path):
    prompts = [prompt(i, "multi") for i in range(3)]
    with engine("") as plain:
        right = plain.generate(prompts).tokens
    with kvstow.Server() as server:
        example = {
            "kv_connector": "ExampleConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
        }
        ours = transfer({"address": server.address, "recipe": "raw"})
        both = {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"connectors": [ours, example]},
        }
        with engine(server.address, kv_transfer_config=both) as multi:
            assert multi.generate(prompts).tokens == right
            wait_for_pages(server.address, 8)
            multi.call("reset")
            again = multi.generate(prompts)
            assert again.tokens == right
            assert min(again.cached) >= 256


def save_adapter(folder, seed):
    """A random LoRA adapter for SmolLM2-135M's attention."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    folder.mkdir()
    config = json.loads((FOLDER / "config.json").read_text())
    width = config["hidden_size"]
    heads = config["num_key_value_heads"] * (width // config["num_attention_heads"])
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, out in (("q_proj", width), ("v_proj", heads)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{at}.lora_A.weight"] = torch.randn(8, width) * 0.05
            weights[f"{at}.lora_B.weight"] = torch.randn(out, 8) * 0.05
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "r": 8,
                "lora_alpha": 16,
                "target_modules": ["q_proj", "v_proj"],
                "bias": "none",
                "base_model_name_or_path": str(FOLDER),
            }
        )
    )
    return str(folder)


def test_adapters_and_salts_have_pages_of_their_own(model, tmp_path):
    adapters = [save_adapter(tmp_path / name, seed) for seed, name in enumerate(("one", "two"))]
    prompts = [prompt(1, "lora")]
    options = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
    callers = [
        {},
        {"adapter": adapters[0]},
        {"adapter": adapters[1]},
        {"salt": "a"},
        {"salt": "b"},
    ]
    with engine("", **options) as plain:
        right = [plain.call("generate_as", prompts, caller).tokens for caller in callers]
    assert right[0] != right[1] != right[2]
    assert right[0] == right[3] == right[4]
    with kvstow.Server() as server:
        with engine(server.address, **options) as first:
            for number, caller in enumerate(callers):
                run = first.call("generate_as", prompts, caller)
                assert run.tokens == right[number]
                assert run.cached == [0]
                pages = wait_for_pages(server.address, (number + 1) * 4)
            assert len(pages) == 1
        with engine(server.address, **options) as second:
            for number, caller in enumerate(callers):
                run = second.call("generate_as", prompts, caller)
                assert run.tokens == right[number]
                assert run.cached[0] >= 256
            assert second.call("generate_as", prompts, {"salt": "c"}).cached == [0]


def test_ranks_have_pages_of_their_own(model):
    prompts = [prompt(i, "ranks") for i in range(3)]
    ranks = 3  # SmolLM2-135M has 3 heads of K and V
    options = {"tensor_parallel_size": ranks, "distributed_executor_backend": "mp"}
    with kvstow.Server() as server:
        with engine(server.address, **options) as first:
            right = first.generate(prompts, 6).tokens
            pages = wait_for_pages(server.address, 10, spaces=ranks)
            assert sorted(name.rsplit("/")[-1] for name in pages) == [
                f"{rank}of{ranks}" for rank in range(ranks)
            ]
            assert len(set(pages.values())) == 1, pages
            first.call("reset")
            again = first.generate(prompts, 6)
            assert again.tokens == right
            assert min(again.cached) >= 256, again.cached
        with engine(server.address, **options) as second:
            shared = second.generate(prompts, 6)
            assert shared.tokens == right
            assert min(shared.cached) >= 256, shared.cached


def statistics_of(folder):
    """Of the model in the folder, as if every channel of K and V cost the same."""
    config = SimpleNamespace(**json.loads((Path(folder) / "config.json").read_text()))
    heads, dim = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    spec = kvstow.KvSpec(
        model=str(folder),
        layers=config.num_hidden_layers,
        kv_heads=heads,
        head_dim=dim,
        dtype="bfloat16",
        page_tokens=64,
        rope=rope_of(config, dim),
    )
    cost = np.broadcast_to(np.eye(dim), (spec.layers, heads, dim, dim))
    return kvstow.model_statistics(spec, cost, cost)


def test_each_rank_sends_its_part_of_the_models_statistics(model, tmp_path):
    path = tmp_path / "model.kvstats"
    path.write_bytes(statistics_of(model))
    ranks = 3  # SmolLM2-135M has 3 heads of K and V
    options = {"tensor_parallel_size": ranks, "distributed_executor_backend": "mp"}
    extra = {"recipe": "auto", "statistics": str(path)}
    with kvstow.Server() as server, kvstow.Client(server.address) as client:
        with engine(server.address, extra=extra, dtype="bfloat16", **options) as first:
            first.generate([prompt(1, "statistics")], 2)
            names = wait_for_pages(server.address, 1, spaces=ranks)
            assert "kvstow: statistics" not in first.said()
        for name in names:
            space = client.find_space(name)
            assert space.recipe == "auto" and space.spec.kv_heads == 1
            again = client.open_space(name, space.spec, recipe="auto")
            assert again.ready() and not again.wants_statistics


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def vllm_serve(*words):
    """vLLM's HTTP server on a port of its own: its address.

    Not by `vllm serve`: the package for CPUs has another name than that command looks up.
    """
    port = free_port()
    environment = os.environ | ENVIRONMENT
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words]
    command += ["--port", str(port), "--host", "127.0.0.1"]
    with tempfile.NamedTemporaryFile("w+", prefix="vllm_serve_") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        address = f"http://127.0.0.1:{port}"
        try:
            end = time.monotonic() + SECONDS
            while True:
                with contextlib.suppress(urllib.error.URLError):
                    urllib.request.urlopen(f"{address}/health").close()
                    break
                said = Path(log.name).read_text(errors="replace")
                assert process.poll() is None and time.monotonic() < end, said[-4000:]
                time.sleep(0.05)
            yield address
        finally:
            process.terminate()
            process.wait(60)


def metrics(address):
    with urllib.request.urlopen(f"{address}/metrics") as said:
        lines = said.read().decode().splitlines()
    found = (line.rsplit(" ", 1) for line in lines if line.startswith("vllm:"))
    return {name.split("{")[0]: float(value) for name, value in found}


def complete(address, text):
    body = {"model": str(FOLDER), "prompt": text, "max_tokens": 4, "temperature": 0}
    request = urllib.request.Request(
        f"{address}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as said:
        return json.loads(said.read())["choices"][0]["text"]


def test_vllm_serve_shows_the_counters_to_prometheus(model):
    with kvstow.Server() as server:
        config = transfer({"address": server.address, "recipe": "raw"})
        words = ["--model", str(model), "--dtype", "float32", "--enforce-eager"]
        words += ["--max-model-len", "2048", "--block-size", "32"]
        with vllm_serve(*words, "--kv-transfer-config", json.dumps(config)) as address:
            first = complete(address, prompt(2, "http"))
            assert metrics(address)["vllm:kvstow_loaded_pages_total"] == 0
            pages = sum(wait_for_pages(server.address, 3).values())
            complete(address, prompt(3, "http"))  # counters come with a step
            end = time.monotonic() + SECONDS
            while metrics(address)["vllm:kvstow_saved_pages_total"] < pages:
                assert time.monotonic() < end, metrics(address)
                time.sleep(0.05)
            assert metrics(address)["vllm:kvstow_saved_bytes_total"] > 0
        with vllm_serve(*words, "--kv-transfer-config", json.dumps(config)) as address:
            assert complete(address, prompt(2, "http")) == first
            assert metrics(address)["vllm:kvstow_loaded_pages_total"] >= 3
