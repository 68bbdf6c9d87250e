#include "service/http.h"

#include <httplib.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace kvstow {
namespace {

constexpr int kThreads = 2;

class CppHttpServer final : public HttpServer {
 public:
  explicit CppHttpServer(HttpPages pages) : pages_(std::move(pages)) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server_.set_payload_max_length(4096);
    server_.set_read_timeout(5);
    server_.set_write_timeout(5);
    server_.set_keep_alive_timeout(5);
    // Two servers on one port would share it silently.
    server_.set_socket_options([](socket_t s) {
      const int on = 1;
      setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    });
    server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& r) {
      r.set_content(pages_.metrics(), "text/plain; version=0.0.4; charset=utf-8");
    });
    server_.Get("/healthz", [](const httplib::Request&, httplib::Response& r) {
      r.set_content("ok\n", "text/plain");
    });
    server_.Get("/readyz", [this](const httplib::Request&, httplib::Response& r) {
      const bool ready = pages_.ready();
      r.status = ready ? 200 : 503;
      r.set_content(ready ? "ready\n" : "not ready\n", "text/plain");
    });
    server_.Get("/", [this](const httplib::Request&, httplib::Response& r) {
      r.set_content(pages_.status(), "text/html; charset=utf-8");
    });
  }

  ~CppHttpServer() override {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Bind(const Address& address) {
    port_ = address.port;
    host_ = address.host;
    if (port_ == 0) {
      port_ = server_.bind_to_any_port(host_);
    } else if (!server_.bind_to_port(host_, port_)) {
      port_ = -1;
    }
    if (port_ > 0) {
      thread_ = std::thread([this] {
        server_.listen_after_bind();
        ended_ = true;
      });
      // stop() before the thread listens would be lost.
      while (!server_.is_running() && !ended_) std::this_thread::yield();
      return absl::OkStatus();
    }
    return absl::UnavailableError(absl::StrCat("http-listen: ", address.host, ":", address.port,
                                               " cannot be bound: is another server there?"));
  }

  std::string address() const override {
    const bool v6 = host_.find(':') != std::string::npos;
    return absl::StrCat(v6 ? "[" : "", host_, v6 ? "]" : "", ":", port_);
  }

 private:
  const HttpPages pages_;
  httplib::Server server_;
  std::string host_;
  int port_ = 0;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Address& address,
                                                              HttpPages pages) {
  auto server = std::make_unique<CppHttpServer>(std::move(pages));
  if (absl::Status s = server->Bind(address); !s.ok()) return s;
  return server;
}

std::string EscapeHtml(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

}  // namespace kvstow
