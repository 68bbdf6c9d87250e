"""The steps of `kvstow-calibrate`, each of which goes on where an earlier run stopped.

Needs torch and transformers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from kvstow import mix
from kvstow.calibrate import forward, queries, statistics, vocabulary
from kvstow.calibrate.blob import fit
from kvstow.calibrate.judge import judge
from kvstow.calibrate.model import FIRST, Subject
from kvstow.calibrate.plan import Plan
from kvstow.calibrate.statistics import Stats, gradient_name, text_name
from kvstow.calibrate.work import Work
from kvstow.lm import leading_tokens, load
from kvstow.models import norms_keys
from kvstow.progress import Progress
from kvstow.statistics import margin_of, model_statistics, with_power

_JUDGED = 8  # texts, at most
_QUERIES = "queries-{:04}"
_QUERY_MEANS = "query-means-{:04}"
_GAINS = "gains"
_COSTS = "costs-{:04}"
_SLOPES = "slopes-{:04}"
_ENTROPY = "entropy-{:04}"


def calibrate(plan: Plan, work: Work, progress: Progress) -> str:
    """Does all of it. Returns what to say of the calibration."""
    progress.step(f"loading {plan.model}", 1)
    model, tokenizer = load(plan.model, plan.device, plan.dtype)
    subject = Subject(model)
    ids = mix.tokens_of(plan.texts, tokenizer)
    pieces = mix.cut(ids, leading_tokens(tokenizer), plan.cases, plan.context)
    tokens, others = pieces[: plan.cases], pieces[plan.cases :]
    begin(plan, work, subject, tokens)
    progress.advance()
    stats = collect(plan, work, subject, tokens, progress)
    stats |= query_means(plan, work, subject.spec.layers)
    if plan.statistics:
        return write_statistics(plan, subject, stats)
    if plan.foretells:
        stats |= foretold_by_tokens(work, subject, tokenizer, stats, tokens[0], progress)
    said = fit(plan, work, subject.spec, stats, progress)
    return f"{said}\n{judged(plan, subject, tokens, others, progress)}".rstrip("\n")


def query_means(plan: Plan, work: Work, layers: int) -> Stats:
    """The tensors `query_mean.*` of the layers that ask."""
    means = _mean(plan, work, _QUERY_MEANS).float().numpy()
    asking = queries.asking_layers(layers)
    return {f"query_mean.{layer}": mean for layer, mean in zip(asking, means, strict=True)}


def foretold_by_tokens(
    work: Work,
    subject: Subject,
    tokenizer: Any,
    stats: Stats,
    text: Sequence[int],
    progress: Progress,
) -> Stats:
    """The tensors of `kvstow.calibrate.vocabulary`; none where V does not tell tokens.

    text: the first one that was read.
    """
    special = (tokenizer.bos_token_id, tokenizer.eos_token_id, 0)
    begins = next(token for token in special if token is not None)
    before = leading_tokens(tokenizer) or [begins]
    some = text[: vocabulary.BATCH]
    v = torch.from_numpy(np.array(work.load(text_name(0))[0][1]))[: len(some)]
    if not vocabulary.tells(subject, before, v, some):
        return {}
    names = [vocabulary.PREFIX + name for name in ("projection", "signatures", "features")]
    if not all(work.has(name) for name in names):
        progress.step("running single tokens", -(-subject.vocabulary // vocabulary.BATCH))
        found = vocabulary.of_model(subject, stats, before, progress.advance)
        for name in names:
            work.save(name, found[name])
    return {name: np.array(work.load(name)) for name in names}


def judged(
    plan: Plan,
    subject: Subject,
    tokens: Sequence[Sequence[int]],
    others: Sequence[Sequence[int]],
    progress: Progress,
) -> str:
    """Lets the model judge the calibration, on texts that it was not fitted to where there are any.

    Returns what to say of it.
    """
    texts = (others or tokens)[:_JUDGED]
    kind = "others of the texts" if others else "of the texts that it was fitted to"
    lines = [
        f"  {verdict.ratio:5.1f} x  {verdict.divergence:.4f} nats"
        for verdict in judge(plan, subject, texts, progress)
    ]
    if not lines:
        return ""
    return "\n".join([f"judged by the model on {len(texts)} {kind}:", *lines])


def write_statistics(plan: Plan, subject: Subject, stats: Stats) -> str:
    """Writes what the model feels of errors. Returns what to say of it."""
    spec = subject.spec
    cost, slope = [], []
    for name in "kv":
        metric = np.stack([stats[f"metric_{name}.{layer}"] for layer in range(spec.layers)])
        cost.append(metric * (stats[f"gain_{name}"] ** 2)[..., None, None] / spec.head_dim)
        slope.append(np.stack([stats[f"slope_{name}.{layer}"] for layer in range(spec.layers)]))
    asked = {layer: stats[f"query_mean.{layer}"] for layer in queries.asking_layers(spec.layers)}
    parts = (cost[0], cost[1], slope[0], slope[1], stats["entropy"], asked)
    # Probes gave gradients their scale; that of forward passes is for the texts that they saw.
    counted = plan.cases * forward.counted(plan.context)
    margin = 1.0 if plan.gradients else margin_of(counted, norms_keys(subject.config))
    blob = with_power(model_statistics(spec, *parts), margin)
    plan.out.write_bytes(blob)
    return (
        f"statistics of {plan.cases * plan.context} tokens\n{plan.out}: {len(blob)} bytes\n"
        f"next: kvstow codec send --space SPACE {plan.out}"
    )


def begin(plan: Plan, work: Work, subject: Subject, tokens: Sequence[Sequence[int]]) -> None:
    """Raises ValueError where the folder is another run's, or the disk too small."""
    digest = hashlib.sha256(np.asarray(tokens, np.int64).tobytes()).hexdigest()[:16]
    work.begin(
        {
            "MODEL": f"{subject.spec.model} {subject.spec.revision}",
            "--tokens": plan.cases * plan.context,
            "--context": plan.context,
            "--no-gradients": not plan.gradients,
            "--dtype": subject.spec.dtype,
            "--texts": f"tokens {digest}",
        }
    )
    reading = [text for text in range(plan.cases) if not work.has(text_name(text))]
    kept = len(reading) * plan.context
    if plan.gradients:
        names = _missing_gradients(plan, work)
        kept += plan.draws * sum(prefix for _, prefix in names)
    work.need(kept * subject.token_bytes)


def _missing_gradients(plan: Plan, work: Work) -> list[tuple[int, int]]:
    """Texts and prefixes. The last draw is the last that is kept."""
    return [
        (text, prefix)
        for prefix in plan.prefixes
        for text in range(plan.cases)
        if not work.has(gradient_name(text, prefix, plan.draws - 1))
    ]


def collect(
    plan: Plan, work: Work, subject: Subject, tokens: Sequence[Sequence[int]], progress: Progress
) -> Stats:
    """Runs the model where that was not done yet. Returns the statistics."""
    if plan.gradients or not plan.statistics:  # else nobody needs K and V
        _read(plan, work, subject, tokens, progress)
    if not plan.gradients:
        return statistics.of_felt(_go_forward(plan, work, subject, tokens, progress))
    _differentiate(plan, work, subject, tokens, progress)
    queries = sum(work.load(_QUERIES.format(text)).astype(np.float64) for text in range(plan.cases))
    metric = statistics.first_metric(
        subject, torch.from_numpy(np.asarray(queries) / plan.cases).to(subject.device)
    )
    if not work.has(_GAINS):
        progress.step("probing heads with noise", metric[..., 0, 0].numel())
        gain = statistics.probe(subject, plan, work, metric, tokens[0], progress.advance)
        work.save(_GAINS, gain.numpy())
    gain = statistics.smooth(torch.from_numpy(np.array(work.load(_GAINS)))).to(metric.device)
    first = metric * gain[..., None, None] ** 2
    progress.step("statistics of layers", subject.spec.layers)
    entropy = _mean(plan, work, _ENTROPY)
    return statistics.with_gradients(subject, plan, work, first, entropy, progress.advance)


def _mean(plan: Plan, work: Work, name: str) -> torch.Tensor:
    """Over texts, of the arrays of this name."""
    of_texts = [torch.from_numpy(np.array(work.load(name.format(i)))) for i in range(plan.cases)]
    return torch.stack(of_texts).double().mean(0)


def _read(
    plan: Plan, work: Work, subject: Subject, tokens: Sequence[Sequence[int]], progress: Progress
) -> None:
    names = [text_name]
    if plan.gradients:  # else forward passes tell these
        names += [_QUERIES.format, _ENTROPY.format, _QUERY_MEANS.format]
    missing = [i for i in range(plan.cases) if not all(work.has(name(i)) for name in names)]
    progress.step("reading texts", plan.cases, plan.cases - len(missing))
    for text in missing:
        reading = subject.read(tokens[text])
        if plan.gradients:
            work.save(_QUERIES.format(text), reading.queries)
            work.save(_ENTROPY.format(text), reading.entropy)
            work.save(_QUERY_MEANS.format(text), reading.asked)
        work.save(text_name(text), reading.kv)
        progress.advance()


def _go_forward(
    plan: Plan, work: Work, subject: Subject, tokens: Sequence[Sequence[int]], progress: Progress
) -> forward.Felt:
    """What the model feels, by forward passes alone: see the module `forward`."""
    names = (_COSTS, _SLOPES, _ENTROPY, _QUERY_MEANS)
    missing = [
        text
        for text in range(plan.cases)
        if not all(work.has(name.format(text)) for name in names)
    ]
    progress.step("looking at queries", plan.cases, plan.cases - len(missing))
    for text in missing:
        felt = forward.measure(subject.model, [tokens[text]])
        work.save(_COSTS.format(text), felt.cost.float().numpy())
        work.save(_ENTROPY.format(text), felt.entropy.numpy())
        work.save(_SLOPES.format(text), felt.slope.float().numpy())
        work.save(_QUERY_MEANS.format(text), felt.asked.numpy())
        progress.advance()
    return forward.Felt(*(_mean(plan, work, name) for name in names))


def _differentiate(
    plan: Plan, work: Work, subject: Subject, tokens: Sequence[Sequence[int]], progress: Progress
) -> None:
    missing = _missing_gradients(plan, work)
    everything = len(plan.prefixes) * plan.cases
    progress.step("gradients", everything, everything - len(missing))
    shape = (plan.cases, plan.draws, plan.window)
    uniform = {p: np.random.default_rng(1).random((*shape, 1))[..., 0] for p in plan.prefixes}
    for text, prefix in missing:
        window = tokens[text][prefix : prefix + plan.window]
        kv = work.load(text_name(text))
        found = subject.gradients(kv, window, prefix, uniform[prefix][text])
        for draw, gradient in enumerate(found):
            work.save(gradient_name(text, prefix, draw), gradient)
        progress.advance()
