"""What a model feels of errors in its K and V, from forward passes alone.

A query q sees an error e of V of token t as a move P_qt W_O e of the residual stream, and an error
e of K as P_qt (u . e) W_O (v_t - o): P is its attention, u the query as it meets K of that token, o
what it took from all tokens. A move m of the stream h costs, in nats of KL divergence, about

    |w m|^2 / |w h|^2 + sum over next tokens y of p_y (g_y . m)^2 / 2

The first is what the next layers read, by the weights w of the norm that reads the stream next. The
second is what the head of the model reads, as if no layer followed: g_y is the gradient of log p_y.
Neither has a constant to fit. docs/decisions/0085-statistics-of-workers.md has measurements.

What all errors of a token cost is its sensitivity. A linear model of the token's K and V foretells
its logarithm, and the codec gives such tokens finer steps. So costs are added up over tokens by
their squared steps: docs/decisions/0086-slopes-of-tokens.md.

Errors cost less in a text whose next tokens the model is sure of. A linear model of a token's K and
V in the last layer foretells the entropy: docs/decisions/0090-entropy-of-a-text.md.

Mean queries tell a coder which tokens get attention: docs/decisions/0095-mean-queries.md.

Needs torch and transformers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kvstow import hf
from kvstow.calibrate import queries
from kvstow.calibrate.rotation import Rotation, rotations_of
from kvstow.types import KvSpec

FIRST = 4  # tokens that lie outside every distribution
LEAST, MOST = 64, 1024  # tokens of a text that count
_QUERIES = 256  # of a text, from its last quarter
_LOOKED_AT = 64  # tokens that an error of K is counted at, for each query: those that feel most
_DRAWS = 8  # of next tokens, for each query
_RIDGE = 0.5  # of the slopes, for each token
_RIDGE_OF_ENTROPY = 0.02
FOCUS = 0.4  # squared steps of tokens go down with their sensitivity to this power
_STEPS = 1 / 16, 8  # of the codec, squared
_PARTS = 4  # of a text, whose tokens the other parts foretell


@dataclasses.dataclass
class Felt:
    """What a model feels of errors in its K before RoPE and in its V. On the CPU."""

    # [layers, 2, kv_heads, d, d]: x @ cost @ x is that of an error x, in nats. A mean over tokens,
    # each weighed by its squared step.
    cost: torch.Tensor
    slope: torch.Tensor  # [layers, 2, kv_heads, d]: of the log of a token's sensitivity, by K and V
    entropy: torch.Tensor  # what entropy_model gives, of the last layer
    asked: torch.Tensor  # mean queries, scaled as logits are: see the module `queries`


@dataclasses.dataclass
class _Layer:
    """A decoder layer: how its attention joins the residual stream."""

    output: torch.Tensor  # W_O, [hidden, heads, d]
    joins: torch.Tensor | None  # weights of the norm before the sum; None: there is no norm
    reads: torch.Tensor  # weights of the norm that reads the stream next
    reader: Any  # that norm
    joiner: Any  # the norm before the sum, or None


def _weights_of(norm: Any, size: int, like: torch.Tensor) -> torch.Tensor:
    """Of an RMS norm, whatever it calls them: the root mean square of ones is 1."""
    found: torch.Tensor = norm(torch.ones(size, device=like.device, dtype=like.dtype))
    return found.float()


class _Reader:
    """The layers of a model, and its head."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.spec: KvSpec = hf.spec_of(model)
        self.rotations = rotations_of(self.spec)
        modules = dict(model.named_modules())
        names = {name.rsplit(".layers.", 1)[-1]: name for name in modules if ".layers." in name}
        self.layers = []
        for number in range(self.spec.layers):
            name = names.get(f"{number}.self_attn.o_proj")
            weight = getattr(modules.get(name or ""), "weight", None)
            if name is None or weight is None or not weight.dtype.is_floating_point:
                raise ValueError(f"model: the weights of layer {number}'s o_proj are not plain")
            layer = modules[name.removesuffix(".self_attn.o_proj")]
            self.layers.append(self._layer(layer, weight))
        decoder = model.get_decoder()
        self.norm, self.head = decoder.norm, model.get_output_embeddings().weight
        config = hf._text_config(model)
        self.cap: float | None = getattr(config, "final_logit_softcapping", None)

    def _layer(self, layer: Any, weight: torch.Tensor) -> _Layer:
        size = len(weight)
        inner = getattr(layer, "pre_feedforward_layernorm", None)  # Gemma has a norm before the sum
        after = layer.post_attention_layernorm
        return _Layer(
            output=weight.view(size, -1, self.spec.head_dim),
            joins=None if inner is None else _weights_of(after, size, weight),
            reads=_weights_of(after if inner is None else inner, size, weight),
            reader=after if inner is None else inner,
            joiner=None if inner is None else after,
        )

    def run(self, tokens: Sequence[int]) -> torch.Tensor:
        """The logits of a text."""
        ids = torch.tensor([list(tokens)], device=self.model.get_input_embeddings().weight.device)
        found: torch.Tensor = self.model(input_ids=ids, use_cache=False).logits
        return found[0]


@contextlib.contextmanager
def _inputs_of(modules: Sequence[Any], note: Any) -> Iterator[None]:
    """Calls note(index, input [1, tokens, hidden]) for each module that runs in this thread."""
    thread = threading.get_ident()

    def hook(index: int, inputs: Any) -> None:
        if threading.get_ident() == thread:
            note(index, inputs[0])

    hooks = [
        module.register_forward_pre_hook(lambda _, inputs, index=index: hook(index, inputs))
        for index, module in enumerate(modules)
    ]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


@dataclasses.dataclass
class _Text:
    """What the moves of a text's queries cost, but for their attention."""

    queries: torch.Tensor  # positions
    prefix: int  # tokens whose errors count
    entropy: torch.Tensor  # of what follows each of the tokens whose errors count
    energy: list[torch.Tensor]  # by layer: |w h|^2 of each query, over the square of what joins it
    gradients: list[torch.Tensor]  # by layer: [queries, draws, hidden], scaled for the cost


def _gradients(reader: _Reader, logits: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Of log p of drawn tokens by the last residual; sqrt(1 / 2 draws) times that."""
    weight = reader.head.float()
    raw = logits.float()
    slope = torch.ones_like(raw) if reader.cap is None else 1 - (raw / reader.cap) ** 2
    p = raw.softmax(-1)
    random = torch.Generator(device=p.device).manual_seed(1)
    drawn = torch.multinomial(p, _DRAWS, replacement=True, generator=random)
    g = weight[drawn] * slope.gather(1, drawn)[..., None] - ((p * slope) @ weight)[:, None]
    g = g * _weights_of(reader.norm, last.shape[1], reader.norm.weight)
    size = last.norm(dim=-1)[:, None, None]
    along = last[:, None] / size
    g = g - (g * along).sum(-1, keepdim=True) * along
    scaled: torch.Tensor = g * (math.sqrt(last.shape[1] * 0.5 / _DRAWS) / size)
    return scaled


def _look_at(reader: _Reader, tokens: Sequence[int]) -> _Text:
    """The first pass over a text."""
    prefix = len(tokens) * 3 // 4
    count = min(_QUERIES, len(tokens) - prefix)
    queries = torch.linspace(prefix, len(tokens) - 1, count).round().long()
    streams: dict[int, torch.Tensor] = {}
    norms = [layer.reader for layer in reader.layers]
    joiners = [layer.joiner for layer in reader.layers if layer.joiner is not None]

    def note(index: int, x: torch.Tensor) -> None:
        streams[index] = x[0].detach()[queries.to(x.device)].float()

    with _inputs_of([*norms, reader.norm, *joiners], note):
        logits = reader.run(tokens)
    last = streams[len(norms)]
    g = _gradients(reader, logits[queries.to(logits.device)], last)
    energy, gradients = [], []
    for number, layer in enumerate(reader.layers):
        e = (streams[number] * layer.reads).square().sum(-1)
        mine = g.to(e.device)
        if layer.joins is not None:  # the norm before the sum divides by the size of its input
            scale = streams[len(norms) + 1 + number].square().mean(-1)
            e = e * scale
            mine = mine * layer.joins / scale.sqrt()[:, None, None]
        energy.append(e)
        gradients.append(mine)
    entropy = entropy_of(logits[FIRST:prefix])
    return _Text(queries, prefix, entropy, energy, gradients)


def slopes(x: torch.Tensor, sensitivity: torch.Tensor) -> torch.Tensor:
    """How the logarithm of a token's sensitivity grows with its values, by ridge regression.

    x: `[tokens, ...]`, of one text. sensitivity: `[tokens]`; 0 = not known. Returns zeros where too
    few are known.
    """
    known = sensitivity > 0
    if known.sum() < LEAST:
        return torch.zeros(x.shape[1:], dtype=torch.float64)
    a = x[known].flatten(1).double()
    y = sensitivity[known].double().log()
    out: torch.Tensor = _regress(a, y, _RIDGE).view(x.shape[1:]).cpu()
    return out


def entropy_of(logits: torch.Tensor) -> torch.Tensor:
    """`[tokens]`: the entropy of what follows each token, in nats."""
    log_p = torch.log_softmax(logits.float(), -1)
    return -(log_p.exp() * log_p).sum(-1)


def entropy_model(x: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
    """What foretells the entropy by a token's values, by ridge regression.

    x: `[tokens, ...]`, of one text. entropy: `[tokens]`. Returns a factor for each value, a
    constant, and the mean of the entropy. Means of these over texts do the same.
    """
    a, y = x.flatten(1).double(), entropy.double()
    found = _regress(a, y, _RIDGE_OF_ENTROPY)
    constant = y.mean() - a.mean(0) @ found
    return torch.cat([found, torch.stack([constant, y.mean()])]).cpu()


def over_its_mean(model: torch.Tensor) -> torch.Tensor:
    """What foretells the entropy over its mean, of what entropy_model gives."""
    return model[:-1] / model[-1].clamp(min=1e-6)


def _regress(a: torch.Tensor, y: torch.Tensor, ridge_of_each: float) -> torch.Tensor:
    """How y `[tokens]` grows with each of the values a `[tokens, values]`."""
    a, y = a - a.mean(0), y - y.mean()
    spread = a.std(0, correction=0)
    spread = spread.clamp(min=1e-3 * spread.mean().item() + 1e-30)
    a = a / spread
    ridge = ridge_of_each * len(a) * torch.eye(min(a.shape), dtype=a.dtype, device=a.device)
    if a.shape[0] < a.shape[1]:  # the smaller of two systems that have the same solution
        found = a.T @ torch.linalg.solve(a @ a.T + ridge, y)
    else:
        found = torch.linalg.solve(a.T @ a + ridge, a.T @ y)
    out: torch.Tensor = found / spread
    return out


def _foretold(x: torch.Tensor, sensitivity: torch.Tensor) -> torch.Tensor:
    """The logarithm of each token's sensitivity, as slopes of the other parts of the text say it.

    Slopes know the tokens that they come from too well.
    """
    centred = (x - x.mean(0)).flatten(1)
    out = torch.zeros(len(x), device=x.device)
    for part in torch.arange(len(x), device=x.device).chunk(_PARTS):
        others = sensitivity.clone()
        others[part] = 0  # not known
        slope = slopes(x, others).flatten().float().to(x.device)
        out[part] = centred[part] @ slope
    return out


class _Sums:
    """The metrics and slopes of all layers, as one text tells them."""

    def __init__(self, reader: _Reader) -> None:
        spec = reader.spec
        shape = (spec.layers, 2, spec.kv_heads, spec.head_dim, spec.head_dim)
        self.metric = torch.zeros(shape, dtype=torch.float64)
        self.slope = torch.zeros(shape[:-1], dtype=torch.float64)
        self.entropy = torch.zeros(2 * spec.kv_heads * spec.head_dim + 2, dtype=torch.float64)
        self.asked = {layer: torch.zeros(1) for layer in queries.asking_layers(spec.layers)}
        self._reader = reader

    def of(self, tokens: Sequence[int]) -> Felt:
        text = _look_at(self._reader, tokens)

        def watch(layer: int, seen: hf.Seen) -> None:
            self._add_layer(layer, text, seen)

        with hf._watched(self._reader.model, watch):
            self._reader.run(tokens)
        return Felt(self.metric, self.slope, self.entropy, torch.stack(list(self.asked.values())))

    def _add_layer(self, number: int, text: _Text, seen: hf.Seen) -> None:
        if number in self.asked:
            self.asked[number] = self.asked[number] + self._asked(number, seen).cpu()
        heads = list(self._heads(number, text, seen))
        counted = slice(FIRST, text.prefix)
        key, value = (x[0].float().transpose(0, 1)[counted] for x in (seen.key, seen.value))
        rotation = self._reader.rotations[number]
        x = torch.stack([rotation.turn(key, FIRST, back=True), value], 1)
        # The codec gives every head its share of the error.
        each = torch.cat([head.sensitivity() for head in heads])
        sensitivity = (each / each.mean(1, keepdim=True).clamp(min=1e-30)).sum(0)
        self.slope[number] += slopes(x, sensitivity)
        if number == len(self.slope) - 1:
            self.entropy += entropy_model(x, text.entropy.to(x.device))
        step = (-FOCUS * _foretold(x, sensitivity)).exp().clamp(*_STEPS)
        for number_of_head, head in enumerate(heads):
            self.metric[number, :, number_of_head] += head.costs(step).cpu().double()

    def _asked(self, number: int, seen: hf.Seen) -> torch.Tensor:
        """The mean queries of a layer of a text."""
        query = seen.query[0].float().transpose(0, 1)[FIRST:]
        query = self._reader.rotations[number].turn(query, FIRST, back=True)
        chosen = queries.chosen(query, self._reader.spec.kv_heads)
        return chosen.mean(0, dtype=torch.float64) * seen.scale

    def _heads(self, number: int, text: _Text, seen: hf.Seen) -> Iterator[_Head]:
        """The KV heads of a layer."""
        layer, heads = self._reader.layers[number], self._reader.spec.kv_heads
        query, key, value = (x[0].float() for x in (seen.query, seen.key, seen.value))
        at = text.queries.to(query.device)
        groups = len(query) // heads
        scores = query[:, at] @ key.repeat_interleave(groups, 0).mT * seen.scale
        slope = torch.full_like(scores, seen.scale)
        if seen.softcap is not None:
            scores = torch.tanh(scores / seen.softcap)
            slope, scores = (1 - scores**2) * seen.scale, scores * seen.softcap
        allowed = seen.allowed[0, 0, at]
        p = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
        weights = layer.output.float()
        moves = weights if layer.joins is None else weights * layer.joins[:, None, None]
        moves = moves * layer.reads[:, None, None]
        felt = torch.einsum("qso,oad->qsad", text.gradients[number].to(query.device), weights)
        for head in range(heads):
            mine = slice(head * groups, (head + 1) * groups)
            read = torch.einsum("oad,obe->abde", moves[:, mine], moves[:, mine])
            yield _Head(
                rotation=self._reader.rotations[number],
                prefix=text.prefix,
                energy=text.energy[number].to(query.device),
                query=query[mine][:, at],
                p=p[mine],
                value=value[head],
                read=read,
                felt=felt[:, :, mine],
                slope=slope[mine],
            )


@dataclasses.dataclass
class _Head:
    """One KV head, and the query heads that read it."""

    rotation: Rotation
    prefix: int  # tokens whose errors count
    energy: torch.Tensor  # [queries]
    query: torch.Tensor  # [heads, queries, d], after RoPE
    p: torch.Tensor  # [heads, queries, tokens]
    value: torch.Tensor  # [tokens, d]
    read: torch.Tensor  # [heads, heads, d, d]: a move's size, as the next layers read it
    felt: torch.Tensor  # [queries, draws, heads, d]
    slope: torch.Tensor  # of scores by q . k, shaped as p

    def __post_init__(self) -> None:
        counted = slice(FIRST, self.prefix)
        self.seen = self.p[:, :, counted]
        self.moved = torch.stack([self._moved(head) for head in range(len(self.p))])

    def _moved(self, a: int) -> torch.Tensor:
        """`[queries, tokens]`: what it costs that q . k moves by 1."""
        values, o, metric = self.value[FIRST : self.prefix], self.p[a] @ self.value, self.read[a, a]
        near, far = values @ metric, o @ metric
        relative = (near * values).sum(-1) + (far * o).sum(-1)[:, None] - 2 * far @ values.T
        direct = torch.einsum("qsd,td->qst", self.felt[:, :, a], values)
        direct = direct - torch.einsum("qsd,qd->qs", self.felt[:, :, a], o)[..., None]
        cost = relative.clamp(min=0) / self.energy[:, None] + direct.square().sum(1)
        return (self.seen[a] * self.slope[a, :, FIRST : self.prefix]).square() * cost

    def sensitivity(self) -> torch.Tensor:
        """`[2, tokens]`: what errors of K and of V of a token cost, but for their direction."""
        k = torch.einsum("aq,aqt->t", self.query.square().sum(-1), self.moved)
        size = torch.einsum("aadd->a", self.read) / self.energy[:, None]
        size = size + self.felt.square().sum((1, 3))
        return torch.stack([k, torch.einsum("aqt,qa->t", self.seen.square(), size)])

    def costs(self, weight: torch.Tensor) -> torch.Tensor:
        """`[2, d, d]`: of K before RoPE, and of V; a mean over queries, a sum over tokens.

        weight: of each token.
        """
        count = self.p.shape[1]
        seen = self.seen * weight.sqrt()
        together = torch.einsum("aqt,bqt->qab", seen, seen) / count
        v = torch.einsum("qab,q,abde->de", together, 1 / self.energy, self.read)
        e, u = torch.linalg.eigh(together)
        root = u * e.clamp(min=0).sqrt()[:, None]
        y = torch.einsum("qac,qsad->qscd", root, self.felt).flatten(0, 2)
        v = v + y.T @ y
        k = torch.zeros_like(v)
        for query, moved in zip(self.query, self.moved):
            k = k + self._keys(query, moved * weight / count)
        return torch.stack([k, v])

    def _keys(self, query: torch.Tensor, cost: torch.Tensor) -> torch.Tensor:
        """query: `[queries, d]`; cost: `[queries, tokens]` of a score that moves by 1."""
        found = cost.topk(min(_LOOKED_AT, cost.shape[1]), -1)
        # The tokens that are counted stand for the others, too.
        share = cost.sum(-1) / found.values.sum(-1).clamp(min=1e-30)
        size = (found.values * share[:, None]).sqrt()
        x = query[:, None].expand(-1, size.shape[1], -1) * size[..., None]
        x = self.rotation.seen_before_rope(x, found.indices + FIRST).flatten(0, 1)
        return x.T @ x


@dataclasses.dataclass
class Gathered:
    """What texts told one by one. It takes the memory of one."""

    texts: int = 0
    tokens: int = 0  # of these texts, that count
    total: Felt | None = None

    def add(self, felt: Felt, tokens: int) -> None:
        self.texts, self.tokens = self.texts + 1, self.tokens + tokens
        if self.total is None:
            self.total = felt
            return
        cost, slope = self.total.cost + felt.cost, self.total.slope + felt.slope
        entropy, asked = self.total.entropy + felt.entropy, self.total.asked + felt.asked
        self.total = Felt(cost, slope, entropy, asked)

    def mean(self) -> Felt:
        """What `measure` gives for all of the texts. There is one at least."""
        assert self.total is not None
        total, count = self.total, self.texts
        return Felt(
            total.cost / count, total.slope / count, total.entropy / count, total.asked / count
        )


def counted(length: int) -> int:
    """How many tokens of a text of this length count: none where it is too short."""
    return min(length, MOST) if length >= LEAST else 0


def measure(model: Any, texts: Sequence[Sequence[int]]) -> Felt:
    """What a model feels of errors: a mean over texts.

    texts: token ids. Texts shorter than LEAST do not count, nor do tokens from MOST on. Raises
    ValueError where none is long enough, or the model is not supported.
    """
    counting = [list(text)[: counted(len(text))] for text in texts if counted(len(text))]
    if not counting:
        raise ValueError(f"texts: none has {LEAST} tokens")
    gathered = Gathered()
    with torch.no_grad():
        reader = _Reader(model)
        for text in counting:
            gathered.add(_Sums(reader).of(text), len(text))
    return gathered.mean()
