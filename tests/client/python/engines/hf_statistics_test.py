"""Statistics of a model from forward passes alone: what they say, and who gets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import kvstow  # noqa: E402
import kvstow.hf as hf  # noqa: E402
from hf_calibrate_test import SMALL, part_of_smollm  # noqa: E402, F401
from hf_test import MODELS, tiny, tokens_of  # noqa: E402
from kvstow import mix  # noqa: E402
from kvstow.calibrate import forward, main  # noqa: E402
from kvstow.calibrate.model import Subject  # noqa: E402
from kvstow.statistics import ENOUGH, NORMED, STRANGERS, margin_of  # noqa: E402


@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_model_has_costs(kind: str) -> None:
    model = tiny(kind, **MODELS[kind])
    usual = model.config._attn_implementation
    felt = forward.measure(model, [tokens_of(120), tokens_of(40, 1), tokens_of(96, 2)])
    spec, cost = hf.spec_of(model), felt.cost
    assert cost.shape == (spec.layers, 2, spec.kv_heads, spec.head_dim, spec.head_dim)
    assert felt.slope.shape == cost.shape[:-1]
    assert torch.isfinite(cost).all() and torch.isfinite(felt.slope).all()
    torch.testing.assert_close(cost, cost.mT)
    assert (torch.linalg.eigvalsh(cost) > -1e-6 * cost.abs().max()).all()
    assert (cost.diagonal(dim1=-2, dim2=-1).sum(-1) > 0).all()
    assert model.config._attn_implementation == usual
    with pytest.raises(ValueError, match="none has 64 tokens"):
        forward.measure(model, [tokens_of(63)])


def noisy(subject: Subject, slab: Any, layer: int, part: int, size: float) -> Any:
    """A slab of a layer [kv_heads, tokens, d] with noise on all tokens but the first, in K before RoPE."""
    noise = size * torch.randn(slab.shape, generator=torch.Generator().manual_seed(part))
    noise[:, : forward.FIRST] = 0
    if part == 0:
        noise = subject.rotations[layer].turn(noise.transpose(0, 1)).transpose(0, 1)
    return slab + noise


# Four layers of a real model: what noise in one slab does to the next tokens is what was foretold,
# but for a small factor. Nothing here was fitted to the model.
def test_noise_costs_about_what_was_foretold(part_of_smollm: Path) -> None:  # noqa: F811
    model = transformers.AutoModelForCausalLM.from_pretrained(part_of_smollm)
    tokenizer = transformers.AutoTokenizer.from_pretrained(part_of_smollm)
    ids = [tokenizer(text)["input_ids"] for _, text in mix.read(())]
    texts = mix.cut(ids, [], 4, 512)[:4]
    cost = forward.measure(model, texts).cost
    subject = Subject(model)
    prefix = 384
    factors = []
    for text in texts[:2]:
        past = subject.past(subject.read(text).kv, prefix)
        base = subject.log_probs(text[prefix:], past)
        for layer in range(subject.spec.layers):
            for part in range(2):
                slab = past[2 * layer + part]
                size = 0.2 * slab[:, forward.FIRST :].std().item()
                changed = list(past)
                changed[2 * layer + part] = noisy(subject, slab, layer, part, size)
                got = subject.log_probs(text[prefix:], changed)
                divergence = (base.exp() * (base - got)).sum(-1).mean().item()
                foretold = size**2 * cost[layer, part].diagonal(dim1=-2, dim2=-1).sum().item()
                factors.append(divergence / foretold)
    found = np.array(factors)
    assert 1 / 3 < np.exp(np.log(found).mean()) < 3, found
    assert (found > 1 / 10).all() and (found < 10).all(), found


# Noise in V of the tokens that are foretold to be felt, and in that of the others: a text that the
# slopes do not come from.
def test_slopes_tell_which_tokens_are_felt(part_of_smollm: Path) -> None:  # noqa: F811
    model = transformers.AutoModelForCausalLM.from_pretrained(part_of_smollm)
    tokenizer = transformers.AutoTokenizer.from_pretrained(part_of_smollm)
    ids = [tokenizer(text)["input_ids"] for _, text in mix.read(())]
    *texts, other = mix.cut(ids, [], 4, 512)[:4]
    slope = forward.measure(model, texts).slope.float()
    subject = Subject(model)
    prefix = 384
    kv = subject.read(other).kv
    past = subject.past(kv, prefix)
    base = subject.log_probs(other[prefix:], past)
    cost = []
    for felt in (True, False):
        changed = list(past)
        for layer in range(subject.spec.layers):
            x = subject.before_rope(kv[layer], layer)[forward.FIRST : prefix]
            log = (x * slope[layer]).sum((1, 2, 3))
            chosen = (log > log.median()) == felt
            slab = past[2 * layer + 1]
            size = 0.3 * slab[:, forward.FIRST :].std().item()
            mask = torch.cat([torch.zeros(forward.FIRST, dtype=torch.bool), chosen])
            changed[2 * layer + 1] = torch.where(mask[:, None], noisy(subject, slab, layer, 1, size), slab)
        got = subject.log_probs(other[prefix:], changed)
        cost.append((base.exp() * (base - got)).sum(-1).mean().item())
    assert cost[0] > 2 * cost[1], cost


def test_slopes_of_a_rule_are_found() -> None:
    random = torch.Generator().manual_seed(3)
    for tokens in (200, 1000):  # fewer and more than values
        x = torch.randn(tokens, 2, 4, 32, generator=random)
        rule = torch.zeros(2, 4, 32)
        rule[1, 2, 5], rule[0, 0, 3] = 2, -1
        sensitivity = 7 * (x * rule).sum((1, 2, 3)).exp()
        sensitivity[::10] = 0  # not known
        found = forward.slopes(x, sensitivity)
        assert found.shape == rule.shape
        top = found.flatten().abs().topk(2).indices
        assert set(top.tolist()) == {3, 128 + 2 * 32 + 5}
        assert found[1, 2, 5] > 0 > found[0, 0, 3]
    assert not forward.slopes(x, torch.zeros(tokens)).any(), "nothing is known"


# The last layer of another text says how unsure the model is of it, against the mean.
def test_the_entropy_of_a_text_is_foretold(part_of_smollm: Path) -> None:  # noqa: F811
    model = transformers.AutoModelForCausalLM.from_pretrained(part_of_smollm)
    tokenizer = transformers.AutoTokenizer.from_pretrained(part_of_smollm)
    texts = dict(mix.read(()))
    ids = {name: tokenizer(text)["input_ids"][:512] for name, text in texts.items()}
    others = [ids.pop("json.txt"), ids.pop("prose.txt")]
    found = forward.measure(model, list(ids.values())).entropy
    subject = Subject(model)
    foretold, true = [], []
    for other in others:
        reading = subject.read(other)
        x = subject.before_rope(reading.kv[-1], subject.spec.layers - 1)[forward.FIRST :].flatten(1)
        entropy = x.double() @ forward.over_its_mean(found)[:-1] + forward.over_its_mean(found)[-1]
        foretold.append(entropy.mean().item())
        with torch.no_grad():
            logits = model(torch.tensor([other])).logits[0, forward.FIRST :]
        true.append(forward.entropy_of(logits).mean().item() / found[-1].item())
        mine = reading.entropy  # a text foretells itself
        own = (x.double() @ torch.from_numpy(mine[:-2])).mean().item() + mine[-2]
        assert own == pytest.approx(mine[-1], rel=1e-3)
    np.testing.assert_allclose(foretold, true, rtol=0.3)


def test_the_model_of_entropy_finds_a_rule() -> None:
    random = torch.Generator().manual_seed(5)
    for tokens in (200, 1000):  # fewer and more than values
        x = torch.randn(tokens, 2, 4, 32, generator=random)
        entropy = 3 + 0.5 * x[:, 1, 2, 5]
        found = forward.entropy_model(x, entropy)
        assert found.shape == (2 * 4 * 32 + 2,)
        assert found[:-2].abs().argmax() == 128 + 2 * 32 + 5
        assert found[-1] == pytest.approx(entropy.mean().item())
        one = torch.ones(tokens, 1)
        foretold = torch.cat([x.flatten(1), one], 1).double() @ forward.over_its_mean(found)
        assert foretold.mean().item() == pytest.approx(1, abs=1e-5)


class Tokenizer:
    eos_token_id = 2

    def decode(self, *_: Any, **__: Any) -> str:
        return ""


def test_generations_tell_what_the_model_feels_once_they_know_enough(monkeypatch: Any) -> None:
    model = tiny("llama", max_position_embeddings=2048)
    calls: list[int] = []
    sent: list[bytes] = []
    usual, send = forward.measure, kvstow.Space.send_statistics
    monkeypatch.setattr(forward, "measure", lambda m, texts: calls.append(len(texts[0])) or usual(m, texts))
    monkeypatch.setattr(kvstow.Space, "send_statistics", lambda s, blob: sent.append(blob) or send(s, blob))
    with kvstow.Server() as server, kvstow.Client(server.address) as client:
        asked: Any = {"client": client, "space": "felt", "recipe": "auto", "max_new_tokens": 2}

        def prompt(tokens: list[int]) -> None:
            hf.generate(model, Tokenizer(), tokens, **asked)

        prompt(tokens_of(100))
        assert not calls, "too short to tell"
        texts = [tokens_of(count, seed) for seed, count in enumerate((1100, 1100, 1100, 900))]
        prompt(texts[0])
        prompt(texts[0] + tokens_of(400, 9))
        assert calls == [1100], "a prompt that was there tells nothing new"
        for text in texts[1:]:
            prompt(text)
        assert calls == [1100, 1100, 1100, 900] and not sent, "3,972 tokens are not enough"
        prompt(tokens_of(600, 7))
        assert len(calls) == 5 and len(sent) == 1
        prompt(tokens_of(600, 8))
        assert len(calls) == 5, "the server knows"
        prefix = hf.PrefixCache(model, client, "felt", "auto")
        assert not prefix.space.wants_statistics and prefix.send_statistics([])
        other = hf.PrefixCache(model, client, "raw", "raw")
        assert not other.space.wants_statistics
        assert not other.space.send_statistics(hf.statistics_of(model, [tokens_of(80)]))
        assert "nothing uses statistics" in other.space.message
        together = hf.statistics_of(model, [*texts, tokens_of(600, 7)])
        assert sent[0] == together, "what one prompt after the other told is what all of them tell"


def test_prompts_of_one_space_are_not_told_to_another(monkeypatch: Any) -> None:
    model = tiny("llama", max_position_embeddings=2048)
    sent: list[str] = []
    send = kvstow.Space.send_statistics
    monkeypatch.setattr(
        kvstow.Space, "send_statistics", lambda s, blob: sent.append(s.name) or send(s, blob)
    )
    with kvstow.Server() as server, kvstow.Client(server.address) as client:
        spaces = [hf.PrefixCache(model, client, name, "auto") for name in ("a", "b")]
        for seed in range(4):
            spaces[seed % 2].gather_statistics(tokens_of(1024, seed))
        assert not sent
        for seed in range(4, 6):
            spaces[0].gather_statistics(tokens_of(1024, seed))
        assert sent == ["a"] and spaces[1].space.wants_statistics


def test_statistics_of_little_text_have_a_larger_margin() -> None:
    assert margin_of(ENOUGH, False) == margin_of(10 * ENOUGH, False) == STRANGERS
    assert margin_of(ENOUGH // 4, False) == pytest.approx(2 * STRANGERS)
    assert margin_of(ENOUGH, True) == NORMED * STRANGERS


def test_a_model_that_cannot_tell_serves_all_the_same(monkeypatch: Any) -> None:
    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(forward, "measure", fails)
    model = tiny("llama", max_position_embeddings=1024)
    with kvstow.Server() as server, kvstow.Client(server.address) as client:
        said = hf.generate(
            model, Tokenizer(), tokens_of(600), client=client, space="s", recipe="auto", max_new_tokens=2
        )
        assert said.prompt_tokens == 600 and said.stored_pages == 9


@pytest.mark.parametrize("mode", [[], ["--no-gradients"]], ids=["gradients", "forward"])
def test_statistics_of_a_run_go_to_a_space(part_of_smollm: Path, tmp_path: Path, mode: list[str]) -> None:  # noqa: F811
    out = tmp_path / "model.kvstats"
    assert main([str(part_of_smollm), "--out", str(out), "--statistics", *mode, *SMALL]) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(part_of_smollm)
    with kvstow.Server() as server, kvstow.Client(server.address) as client:
        space = client.open_space("s", hf.spec_of(model), recipe="auto")
        assert space.wants_statistics and space.send_statistics(out.read_bytes())
        again = client.open_space("s", hf.spec_of(model), recipe="auto")
        assert not again.wants_statistics
