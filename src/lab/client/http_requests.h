#pragma once
// Many requests to a server at the same time, on the calling thread. Each is a connection of its own.

#include "lab/client/answer_reader.h"
#include "lab/client/outcome.h"

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::client {

// Where a server is.
struct Endpoint {
  bool tls = false;  // https
  std::string host, port;
  std::string prefix;  // of every path, without a slash at its end: "/v1"

  [[nodiscard]] std::string authority() const;  // of the Host header; an IPv6 address in brackets
  [[nodiscard]] std::string root_url() const { return (tls ? "https://" : "http://") + authority(); }
  [[nodiscard]] std::string base_url() const { return root_url() + prefix; }
};

// "http://127.0.0.1:8000", or https, or the same with a path, as OpenAI's clients take it; without a path it is /v1.
// Throws Error(kInvalidRequest).
[[nodiscard]] Endpoint parse_base_url(std::string_view url);

struct Server {
  Endpoint endpoint;
  std::string api_key;             // empty: none
  std::filesystem::path cacert{};  // of https: whom its certificate must come from; empty: whom the system trusts
  bool insecure = false;           // its certificate is not looked at
};

struct PlainAnswer {
  int status = 0;
  std::string body;  // its first MiB
};
// GET of a path as it stands, without the endpoint's prefix. Throws Error(kIo) where no answer comes in `seconds`, or
// the file of certificates is none.
[[nodiscard]] PlainAnswer get(const Server& server, const std::string& path, double seconds);

struct RequestPlan {
  const Server& server;
  std::string path;  // behind the endpoint's prefix: "/completions"
  size_t count = 0;
  // What each request sends, by its number; asked for when it is due.
  std::function<std::string(size_t request)> body;
  std::function<AnswerOptions(size_t request)> options{};
  // Each so many requests are a conversation: one is asked for when the one before has ended, `pause` seconds later.
  // Those behind one that failed are not sent.
  size_t turns = 1;
  std::function<double(size_t request)> pause{};
  // Once an answer is over: may take what it says, and fail it.
  std::function<void(size_t request, Outcome& outcome)> judge{};
  // When conversations begin: either so many at a time, the next one when one has ended, or each at its second,
  // whatever still runs.
  int concurrency = 1;
  std::vector<double> arrivals{};
  double timeout_seconds = 600;  // of a whole request
  // Asked ten times a second. False: what runs is left and counts as not ended.
  std::function<bool(size_t done)> keep_going{};
};

// REQUIRES: count is a multiple of turns; an arrival of each conversation, or none. Waits for all. What goes wrong with
// a request is its outcome; throws Error(kIo) only where the
// host has no address or the file of certificates is none.
[[nodiscard]] std::vector<Outcome> run_requests(const RequestPlan& plan);

}  // namespace nibble::client
