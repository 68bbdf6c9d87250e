#!/usr/bin/env python3
"""Models of the llama architecture in numpy: forward, and backward to the K and V that were there.

    llama_model.py      every gradient of a small random model against finite differences

load_model reads a GGUF file (`pip install gguf`); the rest needs numpy only. K of a past is after
RoPE, its gradient before; channel i is paired with i + d / 2, as in safetensors checkpoints.
"""
import sys
from dataclasses import dataclass

import numpy as np


@dataclass
class Model:
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    theta: float
    eps: float
    w: dict     # tensors by their names in GGUF


def load_model(path):
    import gguf
    reader = gguf.GGUFReader(path)
    kind = reader.fields["general.architecture"].contents()
    names = {t.name for t in reader.tensors}
    if kind != "llama" or any(n == "rope_freqs.weight" or n.endswith(".bias") for n in names):
        sys.exit(f"{path}: a {kind} model, or one with biases or scaled RoPE; give a plain llama")

    def field(name):
        return reader.fields["llama." + name].contents()
    w = {t.name: np.asarray(gguf.dequantize(t.data, t.tensor_type), np.float32)
         for t in reader.tensors}
    heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    eps = float(field("attention.layer_norm_rms_epsilon"))
    model = Model(field("block_count"), heads, kv_heads, field("embedding_length") // heads,
                  float(field("rope.freq_base")), eps, w)
    for i in range(model.layers):   # GGUF interleaves rotary pairs: back to halves
        for name, n in (("attn_q", heads), ("attn_k", kv_heads)):
            x = w[f"blk.{i}.{name}.weight"]
            y = x.reshape(n, model.head_dim // 2, 2, -1).swapaxes(1, 2)
            w[f"blk.{i}.{name}.weight"] = np.ascontiguousarray(y.reshape(x.shape))
    w.setdefault("output.weight", w["token_embd.weight"])
    return model


def rope(x, theta, start=0, inverse=False):
    """x [tokens, heads, d], the first token at place `start`."""
    half = x.shape[-1] // 2
    angle = (start + np.arange(len(x)))[:, None, None] * theta ** (-np.arange(half) / half)
    c, s = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    s = -s if inverse else s
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * c - b * s, a * s + b * c], -1)


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def norm_back(x, weight, eps, dy):
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    g = dy * weight
    return r * g - x * r ** 3 * (g * x).mean(-1, keepdims=True)


def forward(model, tokens, past, state=None):
    """The last layer's output for `tokens` after `past`, (K, V) of each layer.

    state: a list, to which what `backward` needs is added."""
    m, w, n, start = model, model.w, len(tokens), len(past[0][0])
    x = w["token_embd.weight"][tokens]
    later = np.triu(np.full((n, n), -np.inf, x.dtype), 1)
    for i in range(m.layers):
        p = f"blk.{i}."
        h = norm(x, w[p + "attn_norm.weight"], m.eps)
        q, k, v = ((h @ w[f"{p}attn_{name}.weight"].T).reshape(n, -1, m.head_dim) for name in "qkv")
        q, k = rope(q, m.theta, start), rope(k, m.theta, start)
        k, v = np.concatenate([past[i][0], k]), np.concatenate([past[i][1], v])
        out, probs = np.empty_like(q), []
        for head in range(m.heads):
            kv = head // (m.heads // m.kv_heads)
            a = q[:, head] @ k[:, kv].T / np.sqrt(m.head_dim).astype(x.dtype)
            a[:, start:] += later
            a = np.exp(a - a.max(-1, keepdims=True))
            a /= a.sum(-1, keepdims=True)
            out[:, head] = a @ v[:, kv]
            if state is not None:
                probs.append(a)
        middle = x + out.reshape(n, -1) @ w[p + "attn_output.weight"].T
        h = norm(middle, w[p + "ffn_norm.weight"], m.eps)
        gate, up = h @ w[p + "ffn_gate.weight"].T, h @ w[p + "ffn_up.weight"].T
        sigmoid = 1 / (1 + np.exp(-gate))
        if state is not None:
            state.append((x, q, k, v, probs, middle, gate, up, sigmoid))
        x = middle + (gate * sigmoid * up) @ w[p + "ffn_down.weight"].T
    return x


def log_probs(model, x):
    z = norm(x, model.w["output_norm.weight"], model.eps) @ model.w["output.weight"].T
    z -= z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def attention_back(model, q, k, v, probs, d_out):
    dq, dk, dv = np.empty_like(q), np.zeros_like(k), np.zeros_like(v)
    scale = 1 / np.sqrt(model.head_dim).astype(q.dtype)
    for head, prob in enumerate(probs):
        kv = head // (model.heads // model.kv_heads)
        dv[:, kv] += prob.T @ d_out[:, head]
        da = d_out[:, head] @ v[:, kv].T
        da -= (da * prob).sum(-1, keepdims=True)
        da *= prob
        dq[:, head] = da @ k[:, kv] * scale
        dk[:, kv] += da.T @ q[:, head] * scale
    return dq, dk, dv


def backward(model, x, state, d_logits):
    """[layers, 2, past tokens, kv_heads, d]: gradients of the past K before RoPE, and V."""
    m, w, n, out = model, model.w, len(x), [None] * model.layers
    start = len(state[0][2]) - n
    dx = norm_back(x, w["output_norm.weight"], m.eps, d_logits @ w["output.weight"])
    for i in reversed(range(m.layers)):
        p = f"blk.{i}."
        x, q, k, v, probs, middle, gate, up, sigmoid = state[i]
        da = dx @ w[p + "ffn_down.weight"]
        dh = (da * up * sigmoid * (1 + gate * (1 - sigmoid))) @ w[p + "ffn_gate.weight"]
        dh += (da * gate * sigmoid) @ w[p + "ffn_up.weight"]
        dx = dx + norm_back(middle, w[p + "ffn_norm.weight"], m.eps, dh)
        d_out = (dx @ w[p + "attn_output.weight"]).reshape(q.shape)
        dq, dk, dv = attention_back(m, q, k, v, probs, d_out)
        out[i] = np.stack([rope(dk[:start], m.theta, inverse=True), dv[:start]])
        dh = rope(dq, m.theta, start, True).reshape(n, -1) @ w[p + "attn_q.weight"]
        dh += rope(dk[start:], m.theta, start, True).reshape(n, -1) @ w[p + "attn_k.weight"]
        dh += dv[start:].reshape(n, -1) @ w[p + "attn_v.weight"]
        dx = dx + norm_back(x, w[p + "attn_norm.weight"], m.eps, dh)
    return np.stack(out)


def drawn(log_p, uniform):
    """Labels drawn from the model, and the gradient of their log likelihood by the logits."""
    p = np.exp(log_p)
    sums = p.cumsum(-1, dtype=np.float64)   # in float32 they would be off by more than rare words
    labels = (sums < uniform * sums[:, -1:]).sum(-1)
    d_logits = -p
    d_logits[np.arange(len(labels)), labels] += 1
    d_logits[-1] = 0    # what follows the window is not judged
    return labels, d_logits


def check():
    """Every gradient of a small random model in float64 against central differences."""
    rng, m = np.random.default_rng(1), Model(2, 4, 2, 8, 100., 1e-5, {})
    wide, hidden, words, start, n = 32, 48, 40, 9, 5
    layer = {"attn_q": (32, wide), "attn_k": (16, wide), "attn_v": (16, wide),
             "attn_output": (wide, 32), "attn_norm": (wide,), "ffn_norm": (wide,),
             "ffn_gate": (hidden, wide), "ffn_up": (hidden, wide), "ffn_down": (wide, hidden)}
    shapes = {f"blk.{i}.{name}": shape for i in range(m.layers) for name, shape in layer.items()}
    shapes |= {"token_embd": (words, wide), "output": (words, wide), "output_norm": (wide,)}
    m.w.update({f"{name}.weight": rng.standard_normal(s) / 3 for name, s in shapes.items()})
    tokens = rng.integers(words, size=n)
    kv = rng.standard_normal((m.layers, 2, start, m.kv_heads, m.head_dim))

    def run(kv, state=None):
        x = forward(m, tokens, [(rope(k, m.theta), v) for k, v in kv], state)
        return x, log_probs(m, x)
    state = []
    x, log_p = run(kv, state)
    labels, d_logits = drawn(log_p, rng.random((n, 1)))
    g, want = backward(m, x, state, d_logits), np.empty_like(kv)
    for at in np.ndindex(kv.shape):
        sides = []
        for step in (1e-5, -1e-5):
            moved = kv.copy()
            moved[at] += step
            sides.append(run(moved)[1][np.arange(n - 1), labels[:-1]].sum())
        want[at] = (sides[0] - sides[1]) / 2e-5
    error = np.linalg.norm(g - want) / np.linalg.norm(want)
    print(f"gradients of {g.size} values against finite differences: relative error {error:.1e}")
    return 0 if error < 1e-7 else 1


if __name__ == "__main__":
    sys.exit(check())
