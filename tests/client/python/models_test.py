"""What configs say of a model: its rotations, and whether its keys pass a norm."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kvstow
from kvstow.models import (
    Ropes,
    norms_keys,
    rope_of,
    rope_version,
    ropes_of,
    short_contexts,
    weights_digest,
)

NEAR, FAR = kvstow.Rope(theta=1e4), kvstow.Rope(theta=1e6)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 1e6, "rope_local_base_freq": 1e4},
        {
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
            }
        },
    ],
    ids=["transformers 4", "transformers 5"],
)
def test_layers_have_the_rope_of_their_kind(config: dict[str, Any]) -> None:
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    model = SimpleNamespace(layer_types=kinds, **config)
    assert ropes_of(model, 64, range(6)) == Ropes(NEAR, FAR, (2, 5))
    assert ropes_of(model, 64, [2]) == Ropes(FAR, None, ()), "a pipeline parallel rank"


def test_layers_of_one_rope_are_alike() -> None:
    assert ropes_of(SimpleNamespace(rope_theta=1e6), 64, range(4)) == Ropes(FAR, None, ())
    kinds = ["sliding_attention", "full_attention"]
    model = SimpleNamespace(rope_theta=1e6, layer_types=kinds)
    assert ropes_of(model, 64, range(2)) == Ropes(FAR, None, ())


def test_three_kinds_of_rope_are_too_many() -> None:
    with pytest.raises(ValueError, match="3 kinds"):
        Ropes.of([NEAR, FAR, kvstow.Rope(theta=5e5)])


def test_a_spec_takes_what_codecs_read() -> None:
    scaled = kvstow.Rope(theta=1e6, attention_factor=1.5)
    ropes = Ropes.of([NEAR, NEAR, scaled])
    assert ropes.other_rope == scaled
    assert ropes.as_codecs_read() == Ropes(NEAR, FAR, (2,))
    shape = {"model": "m", "layers": 3, "kv_heads": 1, "head_dim": 64, "page_tokens": 16}
    spec = kvstow.KvSpec(dtype="float16", **shape, **ropes.as_codecs_read().fields())
    assert spec.native().token_bytes == 3 * 2 * 64 * 2
    with pytest.raises(ValueError, match="write them into layer_layout"):
        kvstow.KvSpec(dtype="float16", **shape, **ropes.fields()).native()
    same = Ropes.of([FAR, FAR, scaled])
    assert same.as_codecs_read() == Ropes(FAR, None, ()), "codecs see no difference"


@pytest.mark.parametrize(
    ("config", "want"),
    [
        ({}, {"original_context": 512, "factor": 4.0, "high_freq_factor": 32.0}),
        ({"beta_slow": 2.0, "beta_fast": 16.0}, {"low_freq_factor": 2.0, "high_freq_factor": 16.0}),
        ({"original_max_position_embeddings": 128}, {"original_context": 128}),
        ({"original_max_position_embeddings": 128, "factor": None}, {"factor": 4.0}),
    ],
)
def test_yarn_is_read_by_its_own_names(config: dict[str, Any], want: dict[str, Any]) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, **config}
    model = SimpleNamespace(rope_theta=1e6, rope_scaling=scaling, max_position_embeddings=512)
    rope = rope_of(model, 64)
    assert rope.scaling == "yarn"
    assert {name: getattr(rope, name) for name in want} == want


def test_only_spaces_of_yarn_change_their_names() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    llama3 = {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}
    assert rope_version(SimpleNamespace(rope_theta=1e6, rope_scaling=yarn)) != {}
    kinds = {"full_attention": {"rope_theta": 1e6, **yarn}, "sliding_attention": {"rope_theta": 1e4}}
    both = SimpleNamespace(rope_parameters=kinds, layer_types=["sliding_attention"])
    assert rope_version(both) != {}
    for other in ({}, {"rope_theta": 1e6}, {"rope_theta": 1e6, "rope_scaling": llama3}):
        assert rope_version(SimpleNamespace(**other)) == {}
    without = SimpleNamespace(rope_theta=1e6, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    assert rope_of(without, 64) == kvstow.Rope(layout="none")


NORMED = {"model_type": "qwen3_moe"}, {"model_type": "phi", "qk_layernorm": True}
USUAL = {"model_type": "llama"}, {"model_type": "phi", "qk_layernorm": False}, {}


@pytest.mark.parametrize("config", NORMED)
def test_configs_say_that_keys_pass_a_norm(config: dict[str, Any]) -> None:
    assert norms_keys(SimpleNamespace(**config))


@pytest.mark.parametrize("config", USUAL)
def test_other_models_have_no_such_norm(config: dict[str, Any]) -> None:
    assert not norms_keys(SimpleNamespace(**config))


def test_a_folder_without_weights_has_no_digest(tmp_path: Path) -> None:
    assert weights_digest(tmp_path / "nowhere") == ""
    (tmp_path / "config.json").write_text("{}")
    assert weights_digest(tmp_path) == ""
    (tmp_path / "model.safetensors").write_bytes(b"a" * 9000)
    one = weights_digest(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"b" * 9000)
    assert len(one) == 32 and weights_digest(tmp_path) not in ("", one)
    assert weights_digest(tmp_path / "model.safetensors") == weights_digest(tmp_path)


def test_what_longrope_takes_for_short() -> None:
    long = {"rope_type": "longrope", "original_max_position_embeddings": 4096}
    assert short_contexts(SimpleNamespace(rope_parameters=long)) == [4096]
    old = {"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 8192}
    assert short_contexts(SimpleNamespace(**old)) == [8192]
    assert short_contexts(SimpleNamespace(rope_scaling={"type": "su"})) == [0]
    kinds = {"full_attention": long, "sliding_attention": {"rope_type": "default"}}
    assert short_contexts(SimpleNamespace(rope_parameters=kinds, layer_types=list(kinds))) == [4096]
    for other in ({}, {"rope_scaling": None}, {"rope_parameters": {"rope_type": "yarn"}}):
        assert short_contexts(SimpleNamespace(**other)) == []
