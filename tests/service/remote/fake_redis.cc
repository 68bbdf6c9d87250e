#include "tests/service/remote/fake_redis.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <optional>

namespace kvstow {
namespace {

// Takes one command off the front of `bytes`; nothing while it is not whole.
std::optional<FakeRedis::Words> TakeCommand(std::string& bytes) {
  size_t at = 0;
  const auto number = [&](char mark) -> std::optional<size_t> {
    const size_t end = bytes.find("\r\n", at);
    if (end == std::string::npos || bytes[at] != mark) return std::nullopt;
    const size_t value = std::stoul(bytes.substr(at + 1, end - at - 1));
    at = end + 2;
    return value;
  };
  const auto count = number('*');
  if (!count.has_value()) return std::nullopt;
  FakeRedis::Words words;
  for (size_t i = 0; i < *count; ++i) {
    const auto size = number('$');
    if (!size.has_value() || bytes.size() < at + *size + 2) return std::nullopt;
    words.push_back(bytes.substr(at, *size));
    at += *size + 2;
  }
  bytes.erase(0, at);
  return words;
}

}  // namespace

FakeRedis::FakeRedis(Script script, bool raw) : script_(std::move(script)), raw_(raw) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(listen(listener_, 64), 0);
  EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
  port_ = ntohs(address.sin_port);
  EXPECT_EQ(pipe(stop_), 0);
  thread_ = std::thread([this] { Run(); });
}

FakeRedis::~FakeRedis() {
  EXPECT_EQ(write(stop_[1], "x", 1), 1);
  thread_.join();
  for (const auto& [descriptor, pending] : clients_) close(descriptor);
  for (const int descriptor : {listener_, stop_[0], stop_[1]}) close(descriptor);
}

void FakeRedis::Run() {
  for (;;) {
    std::vector<pollfd> polls = {{.fd = stop_[0], .events = POLLIN},
                                 {.fd = listener_, .events = POLLIN}};
    for (const auto& [descriptor, pending] : clients_) {
      polls.push_back({.fd = descriptor, .events = POLLIN});
    }
    poll(polls.data(), polls.size(), -1);
    if (polls[0].revents != 0) return;
    for (size_t i = 2; i < polls.size(); ++i) {
      if (polls[i].revents == 0 || Serve(polls[i].fd, clients_[polls[i].fd])) continue;
      clients_.erase(polls[i].fd);
      close(polls[i].fd);
    }
    if (polls[1].revents == 0) continue;
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    clients_[client] = "";
    ++connections_;
  }
}

bool FakeRedis::Serve(int descriptor, std::string& pending) {
  std::array<char, 65536> buffer;
  const ssize_t came = recv(descriptor, buffer.data(), buffer.size(), 0);
  if (came <= 0) return false;
  pending.append(buffer.data(), static_cast<size_t>(came));
  while (const auto words = TakeCommand(pending)) {
    Said said;
    if (!raw_ && (*words)[0] == "PING") {
      said.bytes = "+PONG\r\n";
    } else if (!raw_ && (*words)[0] == "READONLY") {
      said.bytes = "+OK\r\n";
    } else {
      ++commands_;
      said = script_(*words);
    }
    for (size_t at = 0; at < said.bytes.size();) {
      const ssize_t sent =
          send(descriptor, said.bytes.data() + at, said.bytes.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      at += static_cast<size_t>(sent);
    }
    if (said.hang_up) return false;
  }
  return true;
}

}  // namespace kvstow
