#include "storage/trace/trace_reader.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxLineBytes = size_t{64} << 20;  // about 8 M blocks: no prompt is longer
constexpr uint64_t kMaxTokens = uint64_t{1} << 30;
constexpr double kMaxSeconds = 1e10;

struct CloseGzip {
  void operator()(gzFile file) const { gzclose_r(file); }
};
using GzipFile = std::unique_ptr<std::remove_pointer_t<gzFile>, CloseGzip>;

absl::Status OpenError(const std::string& path, int error) {
  const std::string text = absl::StrCat("trace ", path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EACCES) return absl::PermissionDeniedError(text);
  return absl::InvalidArgumentError(text);
}

}  // namespace

const char* TraceSchemaName(TraceSchema schema) {
  return schema == TraceSchema::kMooncake ? "mooncake" : "bailian";
}

uint32_t TraceBlockTokens(TraceSchema schema) {
  return schema == TraceSchema::kMooncake ? 512 : 16;
}

class TraceReader::Impl {
 public:
  absl::Status Open(const std::string& path) {
    path_ = path;
    struct stat facts {};
    if (stat(path.c_str(), &facts) != 0) return OpenError(path, errno);
    if (!S_ISREG(facts.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat("trace ", path, ": is not a file"));
    }
    file_bytes_ = static_cast<uint64_t>(facts.st_size);
    errno = 0;
    file_.reset(gzopen(path.c_str(), "rb"));
    if (file_ == nullptr) return OpenError(path, errno == 0 ? ENOMEM : errno);
    gzbuffer(file_.get(), 1 << 18);
    KVSTOW_ASSIGN_OR_RETURN(const bool any, ReadLine());
    if (!any) return absl::InvalidArgumentError(absl::StrCat("trace ", path, ": has no requests"));
    KVSTOW_ASSIGN_OR_RETURN(const Json object, Parse());
    schema_ = object.contains("chat_id") ? TraceSchema::kBailian : TraceSchema::kMooncake;
    return Take(object, first_);
  }

  absl::StatusOr<bool> Next(TraceRequest& request) {
    if (std::exchange(has_first_, false)) {
      request = std::move(first_);
      return true;
    }
    if (failed_) return false;
    failed_ = true;  // unless all goes well
    KVSTOW_ASSIGN_OR_RETURN(const bool any, ReadLine());
    if (!any) return false;
    KVSTOW_ASSIGN_OR_RETURN(const Json object, Parse());
    KVSTOW_RETURN_IF_ERROR(Take(object, request));
    failed_ = false;
    return true;
  }

  TraceSchema schema() const { return schema_; }
  uint64_t file_bytes() const { return file_bytes_; }
  uint64_t bytes_read() const {
    const z_off_t at = gzoffset(file_.get());
    return at < 0 ? 0 : std::min(static_cast<uint64_t>(at), file_bytes_);
  }

 private:
  absl::Status Wrong(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("trace ", path_, ", line ", line_, ": ", what));
  }

  // The next line that is not blank into text_; false at the end of the file.
  absl::StatusOr<bool> ReadLine() {
    for (;;) {
      text_.clear();
      ++line_;
      bool ended = false;
      while (!ended) {
        char part[1 << 16];
        if (gzgets(file_.get(), part, sizeof(part)) == nullptr) break;
        text_.append(part);  // a NUL in the file cuts the line short, which is then no JSON
        if (text_.size() > kMaxLineBytes) return Wrong("is longer than 64 MiB");
        ended = text_.ends_with('\n');
      }
      int code = Z_OK;
      const char* const what = gzerror(file_.get(), &code);
      if (code != Z_OK && code != Z_STREAM_END) {
        return absl::DataLossError(
            absl::StrCat("trace ", path_, ", line ", line_, ": damaged: ", what));
      }
      if (text_.find_first_not_of(" \t\r\n") != std::string::npos) return true;
      if (!ended) return false;
    }
  }

  absl::StatusOr<Json> Parse() const {
    Json object = Json::parse(text_, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) return Wrong("is not a JSON object");
    return object;
  }

  absl::StatusOr<uint64_t> Count(const Json& object, const char* field, uint64_t limit) const {
    const auto it = object.find(field);
    if (it == object.end()) return Wrong(absl::StrCat("has no ", field));
    if (!it->is_number_unsigned() || it->get<uint64_t>() > limit) {
      return Wrong(absl::StrCat(field, " must be an integer from 0 to ", limit));
    }
    return it->get<uint64_t>();
  }

  // Chats follow others: a session has the number of its first one. Traces may leave chats out.
  int64_t SessionOf(const Json& object) {
    const auto number = [&](const char* field) {
      const auto it = object.find(field);
      const bool whole = it != object.end() && it->is_number_integer() && *it >= 0;
      return whole ? it->get<int64_t>() : TraceRequest::kNoSession;
    };
    const int64_t chat = number("chat_id"), parent = number("parent_chat_id");
    if (chat == TraceRequest::kNoSession) return chat;
    const auto earlier = session_of_chat_.find(parent);
    const bool first = parent == TraceRequest::kNoSession;
    const int64_t session = first                               ? chat
                            : earlier == session_of_chat_.end() ? parent
                                                                : earlier->second;
    session_of_chat_[chat] = session;
    return session;
  }

  absl::Status Take(const Json& object, TraceRequest& request) {
    const auto time = object.find("timestamp");
    if (time == object.end()) return Wrong("has no timestamp");
    const double stamp = time->is_number() ? time->get<double>() : -1;
    const double scale = schema_ == TraceSchema::kMooncake ? 1e-3 : 1;
    if (!(stamp >= 0 && stamp * scale <= kMaxSeconds)) {
      return Wrong("timestamp must be a number, and not negative");
    }
    request.time_s = stamp * scale;
    KVSTOW_ASSIGN_OR_RETURN(request.input_tokens, Count(object, "input_length", kMaxTokens));
    KVSTOW_ASSIGN_OR_RETURN(request.output_tokens, Count(object, "output_length", kMaxTokens));
    const auto ids = object.find("hash_ids");
    if (ids == object.end()) return Wrong("has no hash_ids");
    if (!ids->is_array()) return Wrong("hash_ids must be a list");
    request.blocks.clear();
    request.blocks.reserve(ids->size());
    for (const Json& id : *ids) {
      if (!id.is_number_unsigned()) {
        return Wrong(absl::StrCat("hash_ids[", request.blocks.size(),
                                  "] must be an integer, and not negative"));
      }
      request.blocks.push_back(id.get<uint64_t>());
    }
    if (schema_ == TraceSchema::kBailian) request.session = SessionOf(object);
    return absl::OkStatus();
  }

  std::string path_, text_;
  GzipFile file_;
  uint64_t file_bytes_ = 0, line_ = 0;
  TraceSchema schema_ = TraceSchema::kMooncake;
  absl::flat_hash_map<int64_t, int64_t> session_of_chat_;
  TraceRequest first_;
  bool has_first_ = true, failed_ = false;
};

TraceReader::TraceReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TraceReader::TraceReader(TraceReader&&) noexcept = default;
TraceReader& TraceReader::operator=(TraceReader&&) noexcept = default;
TraceReader::~TraceReader() = default;

absl::StatusOr<TraceReader> TraceReader::Open(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  KVSTOW_RETURN_IF_ERROR(impl->Open(path));
  return TraceReader(std::move(impl));
}

TraceSchema TraceReader::schema() const { return impl_->schema(); }
absl::StatusOr<bool> TraceReader::Next(TraceRequest& request) { return impl_->Next(request); }
uint64_t TraceReader::bytes_read() const { return impl_->bytes_read(); }
uint64_t TraceReader::file_bytes() const { return impl_->file_bytes(); }

namespace {

// The places of blocks by (parent, id). Most have one child, the next number: it stands beside its
// parent, where a look takes one access, and only the others are in a map.
class Places {
 public:
  // `next` when there was none yet.
  uint32_t Child(uint32_t parent, uint64_t id, uint32_t next) {
    if (parent == Trace::kNoParent) return others_.try_emplace({parent, id}, next).first->second;
    if (parent >= first_.size()) first_.resize(parent + size_t{1}, {0, Trace::kNoParent});
    First& first = first_[parent];
    if (first.place == Trace::kNoParent) first = {id, next};
    if (first.id == id) return first.place;
    return others_.try_emplace({parent, id}, next).first->second;
  }

 private:
  struct First {
    uint64_t id;
    uint32_t place;
  };
  std::vector<First> first_;  // by parent
  absl::flat_hash_map<std::pair<uint32_t, uint64_t>, uint32_t> others_;
};

}  // namespace

absl::StatusOr<Trace> LoadTrace(const std::string& path,
                                absl::FunctionRef<void(uint64_t, uint64_t)> progress) {
  KVSTOW_ASSIGN_OR_RETURN(TraceReader reader, TraceReader::Open(path));
  Trace trace{.schema = reader.schema(), .block_tokens = TraceBlockTokens(reader.schema())};
  Places places;
  TraceRequest request;
  for (;;) {
    KVSTOW_ASSIGN_OR_RETURN(const bool any, reader.Next(request));
    if (!any) break;
    uint32_t parent = Trace::kNoParent;
    for (uint64_t& block : request.blocks) {
      const auto next = static_cast<uint32_t>(trace.parents.size());
      if (next == Trace::kNoParent) {
        return absl::InvalidArgumentError(absl::StrCat("trace ", path, ": 2^32 blocks or more"));
      }
      const uint32_t place = places.Child(parent, block, next);
      if (place == next) trace.parents.push_back(parent);
      parent = place;
      block = place;
    }
    trace.references += request.blocks.size();
    trace.requests.push_back(request);
    progress(reader.bytes_read(), reader.file_bytes());
  }
  std::stable_sort(
      trace.requests.begin(), trace.requests.end(),
      [](const TraceRequest& a, const TraceRequest& b) { return a.time_s < b.time_s; });
  return trace;
}

}  // namespace kvstow
