"""The vLLM connector with vLLM's own options: other connectors, adapters, salts."""

import importlib.util
import json
import subprocess
import time

import kvstow
import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed in this environment", allow_module_level=True)

from smollm2 import FOLDER, save_smollm2
from vllm_engine import engine, prompt, transfer

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


def wait_for_pages(address, count):
    """Waits until a space has so many pages."""
    end = time.monotonic() + SECONDS
    while True:
        found = saved_pages(address)
        if any(pages >= count for pages in found.values()):
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
