#pragma once
// Many requests to a server at the same time, on few threads. Each is a connection of its own.

#include "client/answer_reader.h"
#include "client/endpoint.h"
#include "client/outcome.h"

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace nibble::client {

struct Server {
  Endpoint endpoint;
  std::string api_key;  // empty: none
};

struct PlainAnswer {
  int status = 0;
  std::string body;  // its first MiB
};
// GET of a path as it stands, without the endpoint's prefix. Throws Error(kIo) where no answer comes in `seconds`.
[[nodiscard]] PlainAnswer get(const Server& server, const std::string& path, double seconds);

struct RequestPlan {
  const Server& server;
  std::string path;  // behind the endpoint's prefix: "/completions"
  size_t count = 0;
  // Of each request by its number, asked for when it is due; on any of the threads.
  std::function<std::string(size_t request)> body;
  std::function<AnswerOptions(size_t request)> options{};
  // Either so many at a time, the next one when one has ended, or each at its second, whatever still runs.
  int concurrency = 1;
  std::vector<double> arrivals{};
  int threads = 1;
  double timeout_seconds = 600;  // of a whole request
  // Asked ten times a second by the calling thread. False: what runs is left and counts as not ended.
  std::function<bool(size_t done)> keep_going{};
};

// Waits for all. What goes wrong with a request is its outcome; throws Error(kIo) only where the host has no address.
[[nodiscard]] std::vector<Outcome> run_requests(const RequestPlan& plan);

}  // namespace nibble::client
