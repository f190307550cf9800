#pragma once
// Publishes over ZeroMQ what the prefix cache keeps, in vLLM's format: routers (llm-d, Dynamo) send a request to the
// server that has the beginning of its prompt. docs/decisions/0004-prefix-cache-and-windows.md has the messages.

#include "engine/prefix_cache.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace nibble::server {

struct KvPublishOptions {
  std::string endpoint = "tcp://*:5557";  // PUB; of replica n the port is n higher
  std::string replay_endpoint;            // ROUTER; of replica n the port is n higher; empty: nothing is sent again
  std::string topic;
  std::string medium;             // where the pages are: "GPU", "CPU"
  int replica = 0;                // vLLM's data-parallel rank
  int64_t window = 0;             // of the sliding layers, in tokens
  int64_t wide_window = 0;        // of the wide layers; 0: there are none
  bool maps = false;              // events as maps with the fields' names, as newer vLLM sends them; else as arrays
  int64_t kept_batches = 10'000;  // for subscribers that ask again; 256 MB at most
  int most_unsent = 100'000;      // ZMQ_SNDHWM: for a slow subscriber; it loses what exceeds this
};

// Sends on a thread of its own. Throws Error(kUnsupported) if the system has no libzmq, and Error(kInvalidRequest) if
// an endpoint cannot be bound.
class KvPublisher {
 public:
  explicit KvPublisher(const KvPublishOptions& options);
  ~KvPublisher();  // sends the pending events first
  KvPublisher(const KvPublisher&) = delete;
  KvPublisher& operator=(const KvPublisher&) = delete;

  // Whoever calls the sink must end before this does.
  [[nodiscard]] engine::KvEventSink sink();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One batch in MessagePack: [seconds, events, replica].
[[nodiscard]] std::string kv_batch(std::span<const engine::KvEvent> events, double seconds,
                                   const KvPublishOptions& options);

}  // namespace nibble::server
