#include "kernels/importance/policy.h"

namespace kvstow {
namespace {

// `keep` is the share of the tokens; every row takes it as an argument: snapkv(keep=0.25).
constexpr Preset kPresets[] = {
    {"window", "position|budget(keep=0.5)", "the last tokens", "", ""},
    {"random-tokens", "random(seed=7)|protect(first=4,last=32)|budget(keep=0.5)",
     "any tokens: what every other policy must beat", "", ""},
    {"streamingllm", "position|protect(first=4)|budget(keep=0.5)",
     "the first 4 tokens and the last", "StreamingLLM, arXiv 2309.17453", ""},
    {"h2o", "position|column(name=attn_sum)|protect(first=4)|budget(keep=0.5,split=0.5)",
     "half recent, half by the attention received", "H2O, arXiv 2306.14048", "attention"},
    {"scissorhands",
     "column(name=attn_hits)|position|norm(kind=max)|plus(weight=0.001)|protect(first=4,last=32)|"
     "budget(keep=0.5)",
     "by how often a token got more than its even share", "Scissorhands, arXiv 2305.17118",
     "attention"},
    {"tova", "column(name=attn_last)|heads(kind=mean)|protect(last=1)|budget(keep=0.5)",
     "by the last query, one choice for all heads", "TOVA, arXiv 2401.06104", "attention"},
    {"snapkv",
     "column(name=attn_window)|pool(kind=mean,width=5)|protect(first=4,last=32)|budget(keep=0.5)",
     "by the last queries, pooled over neighbours", "SnapKV, arXiv 2404.14469", "attention"},
    {"pyramidkv",
     "column(name=attn_window)|pool(kind=mean,width=5)|protect(first=4,last=32)|"
     "budget(keep=0.5,profile=pyramid,beta=20)",
     "snapkv with more tokens in the early layers", "PyramidKV, arXiv 2406.02069", "attention"},
    {"pyramidinfer",
     "column(name=attn_window)|protect(first=4,last=32)|"
     "budget(keep=0.5,profile=decay,decay=0.95)",
     "by the last queries, fewer tokens with depth", "PyramidInfer, arXiv 2405.12532", "attention"},
    {"adakv",
     "column(name=attn_window)|pool(kind=mean,width=5)|protect(first=4,last=32)|"
     "budget(keep=0.5,scope=layer,floor=0.2)",
     "snapkv whose heads compete", "AdaKV, arXiv 2407.11550", "attention"},
    {"criticalkv",
     "column(name=attn_window)|pool(kind=mean,width=5)|column(name=attn_window)|"
     "pool(kind=mean,width=5)|shift(by=0.0001)|value_norm|times|protect(first=4,last=32)|"
     "budget(keep=0.5,split=0.5)",
     "half by attention, half by attention times value", "CriticalKV, arXiv 2502.03805",
     "attention"},
    {"cake",
     "column(name=attn_window)|column(name=attn_window_var)|plus(weight=200)|"
     "pool(kind=mean,width=5)|protect(first=4,last=32)|budget(keep=0.5,profile=variance)",
     "mean and variance of the last queries; layers by their entropy and variance",
     "CAKE, arXiv 2503.12491", "attention"},
    {"rocketkv",
     "column(name=attn_window)|pool(kind=max,width=63)|protect(last=32)|budget(keep=0.5)",
     "stage 1: snapkv with a wide maximum; stage 2 is a worker's, by page summaries",
     "RocketKV, arXiv 2502.14051", "attention"},
    {"kvzip", "column(name=kvzip)|protect(first=4)|budget(keep=0.5,scope=page)",
     "by the column of a pass that repeats the context", "KVzip, arXiv 2505.23416", "attention"},
    {"kvzap", "column(name=kvzap)|protect(first=4,last=128)|budget(keep=1,threshold=-4)",
     "by the column of a predictor, above a threshold", "KVzap, arXiv 2601.07891", "attention"},
    {"expected-attention",
     "expected(ahead=512)|shift(by=0.0001)|value_norm|times|protect(first=4)|budget(keep=0.5)",
     "by the attention that a Gaussian query expects to give, times value",
     "Expected Attention, arXiv 2510.00636", "calibration"},
    {"duoattention", "head_table(heads=0)|protect(first=64,last=256)|budget(keep=1,threshold=1)",
     "all tokens of the heads of a table, the first and last of the others",
     "DuoAttention, arXiv 2410.10819", "calibration"},
    {"knorm", "key_norm|protect(first=4,last=32)|budget(keep=0.5)", "keys of small norm",
     "arXiv 2406.11430", ""},
    {"keydiff", "key_diversity|protect(first=4,last=32)|budget(keep=0.5)",
     "keys unlike the others of the page", "KeyDiff, arXiv 2504.15364", ""},
    {"lagkv", "lag(size=128)|protect(first=4)|budget(keep=0.5)",
     "tokens that stand out when seen from those after them", "LagKV, arXiv 2504.04704", ""},
    {"compactor", "leverage|protect(first=4,last=32)|budget(keep=0.5)",
     "keys that span what others do not", "Compactor, CUR", ""},
    {"qfilters", "query_direction|protect(first=4,last=32)|budget(keep=0.5)",
     "keys along the main direction of the queries", "Q-Filters, arXiv 2503.02812", "calibration"},
    {"simlayerkv",
     "column(name=attn_window)|protect(first=4,last=128)|budget(keep=1,profile=lazy,lazy=0.9)",
     "lazy layers keep their first and last tokens, the others all", "SimLayerKV, arXiv 2410.13846",
     "attention"},
    {"chunkkv", "column(name=attn_window)|chunk(size=20)|protect(first=4,last=32)|budget(keep=0.5)",
     "whole chunks of 20 tokens", "ChunkKV, arXiv 2502.00299", "attention"},
    {"triattention", "trigonometric|protect(first=4,last=32)|budget(keep=0.5)",
     "by the logits of a query at its calibrated centre", "TriAttention, arXiv 2604.04921",
     "calibration"},
    {"r-kv",
     "column(name=attn_window)|norm(kind=sum)|redundancy(above=0.5)|norm(kind=sum)|"
     "plus(weight=1)|protect(first=4,last=32)|budget(keep=0.5)",
     "attention, less what other tokens repeat", "R-KV, arXiv 2505.24133", "attention"},
};

}  // namespace

std::span<const Preset> PolicyPresets() { return kPresets; }

}  // namespace kvstow
