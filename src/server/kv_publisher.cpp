#include "server/kv_publisher.h"

#include "base/ascii.h"
#include "base/error.h"
#include "base/shared_library.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <endian.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace nibble::server {
namespace {

using engine::KvEvent;
using Value = nlohmann::json;

// Functions of the system's libzmq, which is opened only if events are published.
struct Zmq {
  SharedLibrary library{{.file = "libzmq.so.5",
                         .name = "libzmq",
                         .purpose = "to publish --kv-events with",
                         .packages = "apt install libzmq5, or dnf install zeromq"}};
  decltype(&zmq_bind) bind = library.find("zmq_bind");
  decltype(&zmq_close) close = library.find("zmq_close");
  decltype(&zmq_ctx_new) ctx_new = library.find("zmq_ctx_new");
  decltype(&zmq_ctx_term) ctx_term = library.find("zmq_ctx_term");
  decltype(&zmq_errno) error_number = library.find("zmq_errno");
  decltype(&zmq_getsockopt) getsockopt = library.find("zmq_getsockopt");
  decltype(&zmq_poll) poll = library.find("zmq_poll");
  decltype(&zmq_recv) recv = library.find("zmq_recv");
  decltype(&zmq_send) send = library.find("zmq_send");
  decltype(&zmq_setsockopt) setsockopt = library.find("zmq_setsockopt");
  decltype(&zmq_socket) socket = library.find("zmq_socket");
  decltype(&zmq_strerror) strerror = library.find("zmq_strerror");
};

const Zmq& zmq() {
  static const Zmq loaded;
  return loaded;
}

using Context = std::unique_ptr<void, decltype(&zmq_ctx_term)>;
using Socket = std::unique_ptr<void, decltype(&zmq_close)>;

// `flag`: named in the error if the address cannot be bound.
Socket bound(const Context& context, int type, std::string_view flag, const std::string& endpoint, int most_unsent) {
  Socket socket(zmq().socket(context.get(), type), zmq().close);
  const int linger = 1000;  // milliseconds, for what is left when the process ends
  zmq().setsockopt(socket.get(), ZMQ_LINGER, &linger, sizeof linger);
  zmq().setsockopt(socket.get(), ZMQ_SNDHWM, &most_unsent, sizeof most_unsent);
  if (zmq().bind(socket.get(), endpoint.c_str()) != 0)
    throw Error(Code::kInvalidRequest,
                "{}: want an address to publish at, like tcp://*:5557, that is free, found {}: {}", flag, endpoint,
                zmq().strerror(zmq().error_number()));
  return socket;
}

// Replica n uses a port that is n higher; an address without a port gets the number appended.
std::string endpoint_of(const std::string& endpoint, int replica) {
  if (replica == 0) return endpoint;
  const size_t port_at = endpoint.rfind(':') + 1;
  const auto port = number_in<uint32_t>(std::string_view(endpoint).substr(port_at));
  if (!port || !endpoint.starts_with("tcp://")) return fmt::format("{}_{}", endpoint, replica);
  return fmt::format("{}{}", endpoint.substr(0, port_at), *port + static_cast<uint32_t>(replica));
}

constexpr int64_t kMostKeptBytes = int64_t{256} << 20;  // of batches that can be sent again

std::string big_endian(int64_t value) {
  const uint64_t bytes = htobe64(static_cast<uint64_t>(value));
  return {reinterpret_cast<const char*>(&bytes), sizeof bytes};
}

void send(const Socket& socket, std::initializer_list<std::string_view> frames) {
  size_t left = frames.size();
  for (const std::string_view frame : frames) {
    const int flags = ZMQ_DONTWAIT | (--left > 0 ? ZMQ_SNDMORE : 0);
    if (zmq().send(socket.get(), frame.data(), frame.size(), flags) < 0) return;  // the receiver is gone
  }
}

// A message of at most a few short frames; none if nothing has come. Longer frames are cut, further ones dropped.
std::optional<std::vector<std::string>> received(const Socket& socket) {
  constexpr size_t kMostFrames = 4, kMostBytes = 256;
  std::vector<std::string> frames;
  for (int more = 1; more != 0;) {
    std::array<char, kMostBytes> bytes{};
    const int size = zmq().recv(socket.get(), bytes.data(), bytes.size(), ZMQ_DONTWAIT);
    if (size < 0) return std::nullopt;
    if (frames.size() < kMostFrames)
      frames.emplace_back(bytes.data(), std::min(static_cast<size_t>(size), bytes.size()));
    size_t option = sizeof more;
    zmq().getsockopt(socket.get(), ZMQ_RCVMORE, &more, &option);
  }
  return frames;
}

// As a map with the fields' names, or as an array of their values.
Value event_of(const KvEvent& event, const KvPublishOptions& o) {
  using Fields = nlohmann::ordered_json;
  using backend::LayerKind;
  const bool wide = event.kind == LayerKind::kWide, slides = wide || event.kind == LayerKind::kSliding;
  const bool removed = event.what == KvEvent::What::kRemoved;
  const int group = wide ? 2 : slides ? 1 : 0;
  const Fields fields =
      removed ? Fields{{"type", "BlockRemoved"},
                       {"block_hashes", {event.block}},
                       {"medium", o.medium},
                       {"group_idx", group}}
              : Fields{{"type", "BlockStored"},
                       {"block_hashes", {event.block}},
                       {"parent_block_hash", event.parent == 0 ? Fields() : Fields(event.parent)},
                       {"token_ids", event.tokens},
                       {"block_size", backend::kPageTokens},
                       {"lora_id", nullptr},
                       {"medium", o.medium},
                       {"lora_name", nullptr},
                       {"extra_keys", nullptr},
                       {"group_idx", group},
                       {"kv_cache_spec_kind", slides ? "sliding_window" : "full_attention"},
                       {"kv_cache_spec_sliding_window", slides ? Fields(wide ? o.wide_window : o.window) : Fields()}};
  if (o.maps) return Value(fields);
  Value values = Value::array();
  for (const auto& field : fields) values.push_back(Value(field));
  return values;
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

std::string kv_batch(std::span<const KvEvent> events, double seconds, const KvPublishOptions& options) {
  Value all = Value::array();
  for (const KvEvent& event : events) all.push_back(event_of(event, options));
  const Value batch = Value::array({seconds, std::move(all), options.replica});
  std::string bytes;
  Value::to_msgpack(batch, nlohmann::detail::output_adapter<char>(bytes));
  return bytes;
}

struct KvPublisher::Impl {
  explicit Impl(const KvPublishOptions& of)
      : o(of),
        context(zmq().ctx_new(), zmq().ctx_term),
        live(bound(context, ZMQ_PUB, "--kv-events-endpoint", endpoint_of(of.endpoint, of.replica), of.most_unsent)),
        replay(of.replay_endpoint.empty() ? Socket(nullptr, zmq().close)
                                          : bound(context, ZMQ_ROUTER, "--kv-events-replay-endpoint",
                                                  endpoint_of(of.replay_endpoint, of.replica), of.most_unsent)),
        told_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    check(told_fd >= 0, "an eventfd is to be had");
    thread = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  ~Impl() {
    thread.request_stop();
    wake();
    thread.join();
    ::close(told_fd);
  }

  void tell(std::span<const KvEvent> events) {
    {
      const std::lock_guard lock(mutex);
      told.emplace_back(events.begin(), events.end());
    }
    wake();
  }

  void wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(told_fd, &one, sizeof one);
  }

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::array<zmq_pollitem_t, 2> items = {{{.socket = nullptr, .fd = told_fd, .events = ZMQ_POLLIN, .revents = 0},
                                              {.socket = replay.get(), .fd = 0, .events = ZMQ_POLLIN, .revents = 0}}};
      zmq().poll(items.data(), replay ? 2 : 1, -1);
      uint64_t times = 0;
      [[maybe_unused]] const ssize_t read = ::read(told_fd, &times, sizeof times);
      publish();
      while (replay && answer()) {
      }
    }
    publish();
  }

  void publish() {
    std::vector<std::vector<KvEvent>> batches;
    {
      const std::lock_guard lock(mutex);
      batches.swap(told);
    }
    for (const std::vector<KvEvent>& events : batches) {
      std::string bytes = kv_batch(events, now(), o);
      send(live, {o.topic, big_endian(next), bytes});
      if (replay) keep(next, std::move(bytes));
      ++next;
    }
  }

  void keep(int64_t number, std::string bytes) {
    kept_bytes += std::ssize(bytes);
    kept.push_back({number, std::move(bytes)});
    while (std::ssize(kept) > o.kept_batches || kept_bytes > kMostKeptBytes) {
      kept_bytes -= std::ssize(kept.front().bytes);
      kept.pop_front();
    }
  }

  // Answers a request (id, "", first number wanted) with each kept batch from there on, and an end mark.
  bool answer() {
    const auto asked = received(replay);
    if (!asked) return false;
    uint64_t number = 0;
    if (asked->size() != 3 || (*asked)[2].size() != sizeof number) return true;  // not a valid request
    std::memcpy(&number, (*asked)[2].data(), sizeof number);
    const std::string& id = asked->front();
    const auto from = static_cast<int64_t>(be64toh(number));
    for (const SentBatch& batch : kept)
      if (batch.number >= from) send(replay, {id, {}, o.topic, big_endian(batch.number), batch.bytes});
    send(replay, {id, {}, {}, big_endian(-1), {}});
    return true;
  }

  struct SentBatch {
    int64_t number;
    std::string bytes;
  };
  const KvPublishOptions o;
  const Context context;
  const Socket live, replay;  // used by the thread only; replay may be null
  const int told_fd;          // readable when there are new events
  std::mutex mutex;           // guards told
  std::vector<std::vector<KvEvent>> told;
  std::deque<SentBatch> kept;  // used by the thread only, with their bytes
  int64_t kept_bytes = 0;
  int64_t next = 0;     // number of the next batch
  std::jthread thread;  // last: it uses all of the above
};

KvPublisher::KvPublisher(const KvPublishOptions& options) : impl_(std::make_unique<Impl>(options)) {}
KvPublisher::~KvPublisher() = default;

engine::KvEventSink KvPublisher::sink() {
  return [impl = impl_.get()](std::span<const KvEvent> events) { impl->tell(events); };
}

}  // namespace nibble::server
