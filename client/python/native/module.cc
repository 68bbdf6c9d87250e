// kvstow._native: the C++ client for the Python part of the package, which gives it types, names
// and manners (client/python/kvstow/). Nobody else should import it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <exception>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/key_chain.h"
#include "client/python/native/native_client.h"
#include "client/python/native/page_bytes.h"
#include "client/python/native/specs.h"

namespace kvstow::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

std::vector<std::string> Keys(nb::sequence keys) {
  std::vector<std::string> out;
  for (const nb::handle key : keys) {
    const std::string argument = absl::StrCat("keys[", out.size(), "]");
    if (!nb::isinstance<nb::bytes>(key)) {
      throw nb::value_error((argument + ": a key is of type bytes").c_str());
    }
    const auto bytes = nb::borrow<nb::bytes>(key);
    if (bytes.size() == 0 || bytes.size() > kMaxKeyBytes) {
      throw nb::value_error(absl::StrCat(argument, ": has ", bytes.size(),
                                         " bytes, but a key has 1 to ", kMaxKeyBytes)
                                .c_str());
    }
    out.emplace_back(bytes.c_str(), bytes.size());
  }
  return out;
}

// The event that `ready` is or names. The client asks it until the call has ended, so an object is
// kept until then: who drops a torch.cuda.Event destroys its event.
void* EventOf(nb::handle ready, const std::string& argument, References& references) {
  nb::object handle = nb::borrow(ready);
  if (!nb::isinstance<nb::int_>(ready)) {
    if (!nb::hasattr(ready, "cuda_event")) {
      throw nb::value_error(absl::StrCat(argument, ": a ",
                                         nb::str(ready.type().attr("__name__")).c_str(),
                                         " is no event: pass a torch.cuda.Event, or the handle of "
                                         "an event that lives until the call has ended")
                                .c_str());
    }
    handle = ready.attr("cuda_event");
    references.Keep(nb::borrow(ready));
  }
  return reinterpret_cast<void*>(nb::cast<uintptr_t>(handle));
}

// One page of kvstow.Page.
PagePut PutOf(const Wanted& wanted, nb::handle page, size_t index, References& references) {
  const std::string argument = absl::StrCat("pages[", index, "].");
  const PageMemory memory = MemoryOf(page.attr("data"), wanted, argument + "data", references);
  PagePut put = {.raw = memory.bytes,
                 .tokens = memory.tokens,
                 .first_position = nb::cast<uint64_t>(page.attr("first_position")),
                 .ack = AckOf(nb::cast<std::string>(page.attr("ack"))),
                 .on_gpu = memory.on_gpu};
  const auto key = nb::cast<nb::bytes>(page.attr("key"));
  put.key = std::string(key.c_str(), key.size());
  for (const nb::handle column : page.attr("columns")) put.columns.push_back(ColumnOf(column));
  put.ready = EventOf(page.attr("ready"), argument + "ready", references);
  return put;
}

std::vector<PagePut> PutsOf(const NativeClient& client, const KvSpec& spec, nb::sequence pages,
                            References& references) {
  const Wanted wanted = {spec, spec.layers, Access::kRead, client.gpu()};
  std::vector<PagePut> puts;
  for (const nb::handle page : pages) puts.push_back(PutOf(wanted, page, puts.size(), references));
  return puts;
}

// The pages of one get: all with the bounds of `bounds`, a kvstow.client.Bounds.
std::vector<PageGet> GetsOf(const NativeClient& client, const KvSpec& spec, nb::sequence keys,
                            nb::sequence outs, nb::handle bounds, References& references) {
  PageGet pattern = {.max_levels = nb::cast<uint32_t>(bounds.attr("max_levels")),
                     .min_levels = nb::cast<uint32_t>(bounds.attr("min_levels")),
                     .max_error = nb::cast<double>(bounds.attr("max_error")),
                     .first_layer = nb::cast<uint32_t>(bounds.attr("first_layer")),
                     .layer_count = nb::cast<uint32_t>(bounds.attr("layer_count")),
                     .first_token = nb::cast<uint32_t>(bounds.attr("first_token")),
                     .token_count = nb::cast<uint32_t>(bounds.attr("token_count")),
                     .again = nb::cast<bool>(bounds.attr("again")),
                     .ready = EventOf(bounds.attr("ready"), "ready", references)};
  if (pattern.first_layer >= spec.layers ||
      pattern.layer_count > spec.layers - pattern.first_layer) {
    throw nb::value_error(absl::StrCat("layers: the space has ", spec.layers, " of them").c_str());
  }
  const Wanted wanted = {
      spec, pattern.layer_count > 0 ? pattern.layer_count : spec.layers - pattern.first_layer,
      Access::kWrite, client.gpu()};
  std::vector<PageGet> gets;
  for (std::string& key : Keys(keys)) {
    const std::string argument = absl::StrCat("out[", gets.size(), "]");
    const PageMemory memory = MemoryOf(outs[gets.size()], wanted, argument, references);
    gets.push_back(pattern);
    gets.back().key = std::move(key);
    gets.back().out = memory.bytes;
    gets.back().on_gpu = memory.on_gpu;
  }
  return gets;
}

nb::tuple TupleOf(const PutResult& r) {
  const char* acks[] = {"default", "memory", "process", "durable"};
  return nb::make_tuple(std::string(OutcomeName(r.outcome)), r.message, r.stored_bytes, r.recipe,
                        r.fell_back, acks[static_cast<size_t>(r.ack)]);
}

nb::tuple TupleOf(const GetResult& r) {
  const nb::object keep =
      r.keep.empty() ? nb::none() : nb::object(nb::bytes(r.keep.data(), r.keep.size()));
  return nb::make_tuple(std::string(OutcomeName(r.outcome)), r.message, r.tokens, r.first_position,
                        r.bytes, r.tier, r.recipe, r.exact, r.levels, r.levels_stored,
                        r.estimated_error, r.stored_bytes, keep, r.kept_share,
                        nb::bytes(r.raw_digest.data(), r.raw_digest.size()));
}

template <class Result>
nb::list TuplesOf(const std::vector<Result>& results) {
  nb::list out;
  for (const Result& result : results) out.append(TupleOf(result));
  return out;
}

// Waits in slices, so that a signal's handler (Ctrl-C) runs in between.
bool Wait(Call& call, std::optional<double> seconds, bool or_run) {
  using std::chrono::milliseconds;
  constexpr milliseconds kSlice(100);
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration_cast<milliseconds>(
                       std::chrono::duration<double>(std::min(seconds.value_or(1e9), 1e9)));
  for (;;) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
    {
      const nb::gil_scoped_release release;
      if (call.WaitFor(std::clamp(left, milliseconds(0), kSlice), or_run)) return true;
    }
    if (left <= kSlice) return false;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

void BindCall(nb::module_& module) {
  nb::class_<Completions>(module, "Completions")
      .def(nb::new_([] { return std::make_shared<Completions>(); }))
      .def("fileno", &Completions::descriptor)
      .def("drain", &Completions::Drain);
  nb::class_<Call>(module, "Call")
      .def_prop_ro("number", &Call::number)
      .def("done", &Call::done)
      .def("wait", &Wait, "seconds"_a = nb::none(), "or_run"_a = false)
      .def(
          "take_run",
          [](Call& call) -> nb::object {
            const std::optional<LayerRun> run = call.TakeRun();
            if (!run) return nb::none();
            return nb::make_tuple(run->layers.first, run->layers.count, TuplesOf(run->so_far));
          },
          nb::sig("def take_run(self) -> tuple[int, int, list[tuple[typing.Any, ...]]] | None"))
      .def(
          "take_puts", [](Call& call) { return TuplesOf(call.TakePuts()); },
          nb::sig("def take_puts(self) -> list[tuple[typing.Any, ...]]"))
      .def(
          "take_gets", [](Call& call) { return TuplesOf(call.TakeGets()); },
          nb::sig("def take_gets(self) -> list[tuple[typing.Any, ...]]"));
  nb::class_<LayerPut>(module, "LayerPut")
      .def("filled", &LayerPut::Filled, nb::call_guard<nb::gil_scoped_release>());
}

using Traceparent = std::function<std::string()>;

// A trace that cannot be named does not fail the call.
Traceparent WithoutErrors(Traceparent traceparent) {
  return [traceparent = std::move(traceparent)]() -> std::string {
    try {
      return traceparent();
    } catch (const std::exception&) {
      return "";
    }
  };
}

std::unique_ptr<NativeClient> Connect(const std::string& address, const std::string& token,
                                      const std::string& token_file, double timeout, int attempts,
                                      const std::string& payload, uint64_t shared_bytes,
                                      size_t direct_connections, const std::string& tls_ca,
                                      const std::string& tls_cert, const std::string& tls_key,
                                      const std::string& tls_name, int gpu,
                                      const std::vector<nb::bytes>& calibrations,
                                      const std::optional<Traceparent>& traceparent) {
  if (!(timeout > 0)) throw nb::value_error("timeout: must be more than 0 seconds");
  if (attempts < 1) throw nb::value_error("attempts: must be 1 or more");
  ClientOptions options = {
      .address = address,
      .tls = {.ca = tls_ca, .certificate = tls_cert, .key = tls_key, .server_name = tls_name},
      .token = token,
      .token_file = token_file,
      .traceparent = traceparent ? WithoutErrors(*traceparent) : nullptr,
      .timeout = std::chrono::milliseconds(std::llround(std::ceil(std::min(timeout, 1e6) * 1e3))),
      .attempts = attempts,
      .payload = PayloadOf(payload),
      .shared_bytes = shared_bytes,
      .direct_connections = direct_connections};
  return std::make_unique<NativeClient>(std::move(options), gpu, calibrations);
}

SpaceOptions OptionsOf(const std::string& name, const KvSpec& spec, const std::string& recipe,
                       const std::string& fidelity, std::optional<bool> is_private,
                       const std::optional<std::string>& payload, nb::bytes queries,
                       bool normed_keys) {
  SpaceOptions options = {.name = name,
                          .spec = spec,
                          .recipe = recipe,
                          .fidelity = FidelityOf(fidelity),
                          .is_private = is_private,
                          .queries = std::string(queries.c_str(), queries.size()),
                          .normed_keys = normed_keys};
  if (payload) options.payload = PayloadOf(*payload);
  return options;
}

void BindUnaryCalls(nb::class_<NativeClient>& client) {
  client
      .def(
          "open_space",
          [](NativeClient& c, const std::string& name, const KvSpec& spec,
             const std::string& recipe, const std::string& fidelity, std::optional<bool> is_private,
             const std::optional<std::string>& payload, nb::bytes queries, bool normed_keys) {
            return c.OpenSpace(
                OptionsOf(name, spec, recipe, fidelity, is_private, payload, queries, normed_keys));
          },
          nb::sig("def open_space(self, name: str, spec: Spec, recipe: str, fidelity: str, "
                  "private: bool | None, payload: str | None, queries: bytes, normed_keys: bool, "
                  "/) -> tuple[str, str, SpaceInfo | None]"))
      .def("find_space", &NativeClient::FindSpace,
           nb::sig("def find_space(self, name: str, /) -> tuple[str, str, SpaceInfo | None]"))
      .def("is_stale", &NativeClient::IsStale,
           nb::sig("def is_stale(self, space: SpaceInfo, /) -> bool"))
      .def("drop_space", &NativeClient::DropSpace,
           nb::sig("def drop_space(self, name: str, /) -> tuple[str, str, int | None]"))
      .def(
          "lookup",
          [](NativeClient& c, const std::string& space, nb::sequence keys, bool lease) {
            return c.Lookup(space, Keys(keys), lease);
          },
          nb::sig("def lookup(self, space: str, keys: Sequence[bytes], lease: bool, /) -> "
                  "tuple[int, int, int, list[str], str, str]"))
      .def("release", &NativeClient::Release,
           nb::sig("def release(self, lease: int, /) -> tuple[str, str]"))
      .def(
          "delete",
          [](NativeClient& c, const std::string& space, nb::sequence keys, bool force) {
            return c.Delete(space, Keys(keys), force);
          },
          nb::sig("def delete(self, space: str, keys: Sequence[bytes], force: bool, /) -> "
                  "tuple[str, str, list[str] | None]"))
      .def(
          "pin",
          [](NativeClient& c, const std::string& space, nb::sequence keys, bool pinned) {
            return c.Pin(space, Keys(keys), pinned);
          },
          nb::sig("def pin(self, space: str, keys: Sequence[bytes], pinned: bool, /) -> tuple[str, "
                  "str, list[str] | None]"))
      .def(
          "report",
          [](NativeClient& c, const std::string& space, nb::sequence keys, nb::sequence columns) {
            std::vector<PageReport> reports;
            for (std::string& key : Keys(keys)) {
              reports.push_back(
                  {.key = std::move(key), .column = ColumnOf(columns[reports.size()])});
            }
            return c.Report(space, std::move(reports));
          },
          nb::sig("def report(self, space: str, keys: Sequence[bytes], columns: Sequence[object], "
                  "/) -> tuple[str, str, list[tuple[str, str]] | None]"))
      .def(
          "buffer", &NativeClient::NewBuffer,
          nb::sig(
              "def buffer(self, bytes: int, /) -> tuple[numpy.typing.NDArray[numpy.uint8], bool]"));
}

// What workers know of a model.
void BindModelCalls(nb::class_<NativeClient>& client) {
  client
      .def("send_calibration", &NativeClient::SendCalibration,
           nb::sig("def send_calibration(self, blob: bytes, /) -> tuple[str, str, bytes | None]"))
      .def("send_statistics", &NativeClient::SendStatistics,
           nb::sig("def send_statistics(self, space: str, blob: bytes, /) -> tuple[str, str]"));
}

void BindPageCalls(nb::class_<NativeClient>& client) {
  using Completed = std::shared_ptr<Completions>;
  client
      .def(
          "put",
          [](NativeClient& c, const SpaceInfo& space, nb::sequence pages, Completed completions) {
            References references;
            auto puts = PutsOf(c, space.spec, pages, references);
            return c.Put(space.name, std::move(puts), std::move(references), completions);
          },
          "space"_a, "pages"_a, "completions"_a.none(),
          nb::sig("def put(self, space: SpaceInfo, pages: Sequence[object], completions: "
                  "Completions | None) -> Call"))
      .def(
          "get",
          [](NativeClient& c, const SpaceInfo& space, uint64_t lease, nb::sequence keys,
             nb::sequence outs, nb::handle bounds, Completed completions) {
            References references;
            auto gets = GetsOf(c, space.spec, keys, outs, bounds, references);
            return c.Get(space.name, lease, std::move(gets), std::move(references), completions);
          },
          "space"_a, "lease"_a, "keys"_a, "out"_a, "bounds"_a, "completions"_a.none(),
          nb::sig("def get(self, space: SpaceInfo, lease: int, keys: Sequence[bytes], out: object, "
                  "bounds: object, completions: Completions | None) -> Call"))
      .def(
          "get_layers",
          [](NativeClient& c, const SpaceInfo& space, uint64_t lease, nb::sequence keys,
             nb::sequence outs, nb::handle bounds, uint32_t layers_per_run, Completed completions) {
            References references;
            auto gets = GetsOf(c, space.spec, keys, outs, bounds, references);
            return c.GetLayers(space, lease, std::move(gets), layers_per_run, std::move(references),
                               completions);
          },
          "space"_a, "lease"_a, "keys"_a, "out"_a, "bounds"_a, "layers_per_run"_a,
          "completions"_a.none(),
          nb::sig("def get_layers(self, space: SpaceInfo, lease: int, keys: Sequence[bytes], out: "
                  "object, bounds: object, layers_per_run: int, completions: Completions | None) "
                  "-> Call"))
      .def(
          "put_layers",
          [](NativeClient& c, const SpaceInfo& space, nb::sequence pages, Completed completions) {
            References references;
            auto puts = PutsOf(c, space.spec, pages, references);
            auto [call, put] =
                c.PutLayers(space, std::move(puts), std::move(references), completions);
            return nb::make_tuple(nb::cast(std::move(call)), nb::cast(std::move(put)));
          },
          "space"_a, "pages"_a, "completions"_a.none(),
          nb::sig("def put_layers(self, space: SpaceInfo, pages: Sequence[object], completions: "
                  "Completions | None) -> tuple[Call, LayerPut]"));
}

// Waits for a call as a C++ worker does, and returns the seconds since `start`.
double SecondsOf(Call& call, std::chrono::steady_clock::time_point start) {
  const nb::gil_scoped_release release;
  while (!call.WaitFor(std::chrono::seconds(1), false)) {
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// kvstow.bench compares Python with these: the same calls, without Python while they run.
void BindTimedCalls(nb::class_<NativeClient>& client) {
  client
      .def(
          "time_put",
          [](NativeClient& c, const SpaceInfo& space, nb::sequence pages) {
            References references;
            auto puts = PutsOf(c, space.spec, pages, references);
            const auto start = std::chrono::steady_clock::now();
            return SecondsOf(*c.Put(space.name, std::move(puts), std::move(references), nullptr),
                             start);
          },
          nb::sig("def time_put(self, space: SpaceInfo, pages: Sequence[object], /) -> float"))
      .def(
          "time_get",
          [](NativeClient& c, const SpaceInfo& space, nb::sequence keys, nb::sequence outs,
             nb::handle bounds) {
            References references;
            auto gets = GetsOf(c, space.spec, keys, outs, bounds, references);
            const auto start = std::chrono::steady_clock::now();
            return SecondsOf(*c.Get(space.name, 0, std::move(gets), std::move(references), nullptr),
                             start);
          },
          nb::sig("def time_get(self, space: SpaceInfo, keys: Sequence[bytes], out: object, "
                  "bounds: object, /) -> float"));
}

nb::list PageKeyList(const std::vector<int32_t>& tokens, uint32_t page_tokens,
                     const std::vector<nb::bytes>& extras,
                     const std::vector<std::vector<nb::bytes>>& page_extras) {
  const auto text = [](const nb::bytes& bytes) { return std::string(bytes.c_str(), bytes.size()); };
  std::vector<std::string> of_first;
  for (const nb::bytes& extra : extras) of_first.push_back(text(extra));
  std::vector<std::vector<std::string>> of_pages;
  for (const auto& page : page_extras) {
    of_pages.emplace_back();
    for (const nb::bytes& extra : page) of_pages.back().push_back(text(extra));
  }
  nb::list keys;
  for (const std::string& key : PageKeys(of_first, tokens, page_tokens, of_pages)) {
    keys.append(nb::bytes(key.data(), key.size()));
  }
  return keys;
}

NB_MODULE(_native, module) {
  // A client that nobody closed before the interpreter ended is not worth a page of warnings.
  nb::set_leak_warnings(false);
  nb::class_<KvSpec>(module, "Spec")
      .def(nb::new_([](nb::handle spec) { return SpecOf(spec); }))
      .def_prop_ro("token_bytes", [](const KvSpec& spec) { return BytesPerToken(spec); });
  nb::class_<SpaceInfo>(module, "SpaceInfo")
      .def("dict", &SpaceDict, nb::sig("def dict(self) -> builtins.dict[str, typing.Any]"));
  BindCall(module);
  auto client = nb::class_<NativeClient>(module, "Client");
  client
      .def(nb::new_(&Connect), "address"_a, "token"_a, "token_file"_a, "timeout"_a, "attempts"_a,
           "payload"_a, "shared_bytes"_a, "direct_connections"_a, "tls_ca"_a, "tls_cert"_a,
           "tls_key"_a, "tls_name"_a, "gpu"_a, "calibrations"_a, "traceparent"_a.none())
      .def("close", &NativeClient::Close)
      .def("closed", &NativeClient::closed)
      .def("serving", &NativeClient::Serving, nb::sig("def serving(self) -> tuple[str, int]"));
  BindUnaryCalls(client);
  BindModelCalls(client);
  BindPageCalls(client);
  BindTimedCalls(client);
  module.def("model_statistics", &StatisticsBlob,
             nb::sig("def model_statistics(spec: Spec, queries: dict[int, bytes], metric_k: bytes, "
                     "gain_k: bytes, metric_v: bytes, gain_v: bytes, slope_k: bytes, slope_v: "
                     "bytes, entropy: bytes, /) -> bytes"));
  module.def("rank_statistics", &RankStatisticsBlob,
             nb::sig("def rank_statistics(statistics: bytes, spec: Spec, first_layer: int, "
                     "tensor_rank: int, tensor_size: int, /) -> bytes"));
  module.def("scaled_costs", &ScaledCostsBlob,
             nb::sig("def scaled_costs(calibration: bytes, factor: float, power: float, /) "
                     "-> bytes"));
  module.def("recipe_with_divergence", &RecipeWithDivergence,
             nb::sig("def recipe_with_divergence(recipe: str, divergence: float, /) -> str"));
  module.def("page_keys", &PageKeyList, "tokens"_a, "page_tokens"_a, "extras"_a, "page_extras"_a,
             nb::sig("def page_keys(tokens: Sequence[int], page_tokens: int, extras: "
                     "Sequence[bytes], page_extras: Sequence[Sequence[bytes]]) -> list[bytes]"));
}

}  // namespace
}  // namespace kvstow::python
