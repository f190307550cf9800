#include "server/kv_publisher.h"

#include "base/error.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zmq.h>

#include <string>
#include <vector>

#ifdef __SANITIZE_THREAD__
// The system's libzmq is not built for ThreadSanitizer, which does not see how its threads wait for each other.
extern "C" const char* __tsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "race:libzmq.so";
}
#endif

// A subscriber as the protocol's text has it: three frames (topic, number, MessagePack), and a dealer that asks again.
namespace nibble::server {
namespace {

using engine::KvEvent;
using nlohmann::json;

KvEvent stored(uint64_t block, uint64_t parent, backend::LayerKind kind = backend::LayerKind::kFull) {
  KvEvent event{.kind = kind, .block = block, .parent = parent};
  for (size_t i = 0; i < event.tokens.size(); ++i) event.tokens[i] = static_cast<int32_t>(block * 1000 + i);
  return event;
}
KvEvent removed(uint64_t block) { return {.what = KvEvent::What::kRemoved, .block = block}; }

json tokens_of(uint64_t block) { return stored(block, 0).tokens; }

class Peer {
 public:
  Peer(int type, const std::string& endpoint) : socket_(zmq_socket(context_, type)) {
    if (type == ZMQ_SUB) zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "kv", 2);
    EXPECT_EQ(zmq_connect(socket_, endpoint.c_str()), 0) << zmq_strerror(zmq_errno());
  }
  ~Peer() {
    const int linger = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof linger);
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void send(std::initializer_list<std::string_view> frames) {
    size_t left = frames.size();
    for (const std::string_view frame : frames)
      zmq_send(socket_, frame.data(), frame.size(), --left > 0 ? ZMQ_SNDMORE : 0);
  }
  std::vector<std::string> receive(int milliseconds = 30'000) {
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &milliseconds, sizeof milliseconds);
    std::vector<std::string> frames;
    for (int more = 1; more != 0;) {
      std::string bytes(1 << 16, '\0');
      const int size = zmq_recv(socket_, bytes.data(), bytes.size(), 0);
      if (size < 0) return frames;
      frames.push_back(bytes.substr(0, static_cast<size_t>(size)));
      size_t option = sizeof more;
      zmq_getsockopt(socket_, ZMQ_RCVMORE, &more, &option);
    }
    return frames;
  }

 private:
  void* context_ = zmq_ctx_new();
  void* socket_;
};

std::string number(int64_t value) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(static_cast<uint64_t>(value) >> shift & 0xff);
  return bytes;
}

KvPublishOptions options(const std::string& name) {
  return {.endpoint = "ipc:///tmp/nibble-kv-" + std::to_string(getpid()) + name,
          .replay_endpoint = "ipc:///tmp/nibble-kv-replay-" + std::to_string(getpid()) + name,
          .topic = "kv@pod@model",
          .medium = "GPU",
          .window = 128};
}

// A subscriber hears what is sent after it has come: until then the same is told again.
std::vector<std::string> first_heard(Peer& peer, const engine::KvEventSink& tell, const std::vector<KvEvent>& events) {
  for (int tries = 0; tries < 3000; ++tries) {
    tell(events);
    if (const auto frames = peer.receive(10); frames.size() == 3) return frames;
  }
  return {};
}

TEST(kv_publisher, arrays_have_the_fields_in_the_protocols_order) {
  const KvPublishOptions o = options("");
  const std::vector<KvEvent> events = {stored(7, 0), stored(8, 7, backend::LayerKind::kSliding), removed(7)};
  const json batch = json::from_msgpack(kv_batch(events, 12.5, o));
  const json wanted = {
      12.5,
      {{"BlockStored", {7}, nullptr, tokens_of(7), 64, nullptr, "GPU", nullptr, nullptr, 0, "full_attention", nullptr},
       {"BlockStored", {8}, 7, tokens_of(8), 64, nullptr, "GPU", nullptr, nullptr, 1, "sliding_window", 128},
       {"BlockRemoved", {7}, "GPU", 0}},
      0};
  EXPECT_EQ(batch, wanted);
}

TEST(kv_publisher, maps_name_their_fields) {
  KvPublishOptions o = options("");
  o.maps = true;
  o.replica = 2;
  const json batch = json::from_msgpack(kv_batch(std::vector<KvEvent>{stored(uint64_t{1} << 63, 5), removed(9)}, 1, o));
  EXPECT_EQ(batch[2], 2);
  const json& event = batch[1][0];
  EXPECT_EQ(event["type"], "BlockStored");
  EXPECT_EQ(event["block_hashes"], json({uint64_t{1} << 63}));
  EXPECT_EQ(event["parent_block_hash"], 5);
  EXPECT_EQ(event["block_size"], 64);
  EXPECT_EQ(event["kv_cache_spec_kind"], "full_attention");
  EXPECT_EQ(batch[1][1], json({{"type", "BlockRemoved"}, {"block_hashes", {9}}, {"medium", "GPU"}, {"group_idx", 0}}));
}

TEST(kv_publisher, a_subscriber_hears_batches_in_order_and_can_ask_again) {
  const KvPublishOptions o = options("-order");
  KvPublisher publisher(o);
  const engine::KvEventSink tell = publisher.sink();
  Peer subscriber(ZMQ_SUB, o.endpoint);
  const std::vector<KvEvent> hello = {stored(1, 0)};
  const auto first = first_heard(subscriber, tell, hello);
  ASSERT_EQ(first.size(), 3U) << "nothing was heard";
  EXPECT_EQ(first[0], o.topic);

  tell(std::vector<KvEvent>{stored(2, 1), removed(1)});
  std::vector<std::string> last;
  do last = subscriber.receive();
  while (last.size() == 3 && json::from_msgpack(last[2])[1].size() == 1);
  ASSERT_EQ(last.size(), 3U);
  ASSERT_EQ(last[1].size(), 8U);

  Peer asks(ZMQ_DEALER, o.replay_endpoint);
  asks.send({"", "short"});  // no question: no answer
  asks.send({"", number(0)});
  int64_t next = 0;
  for (;; ++next) {
    const auto frames = asks.receive();
    ASSERT_EQ(frames.size(), 4U);  // the dealer has taken its own id off
    if (frames[2] == number(-1)) {
      EXPECT_EQ(frames[1] + frames[3], "");
      break;
    }
    EXPECT_EQ(frames[1], o.topic);
    EXPECT_EQ(frames[2], number(next));
    if (frames[2] == last[1]) EXPECT_EQ(frames[3], last[2]);
  }
  EXPECT_EQ(number(next - 1), last[1]) << "all were kept";
}

TEST(kv_publisher, keeps_no_more_than_it_should) {
  KvPublishOptions o = options("-kept");
  o.kept_batches = 2;
  KvPublisher publisher(o);
  const engine::KvEventSink tell = publisher.sink();
  Peer asks(ZMQ_DEALER, o.replay_endpoint);
  for (uint64_t block = 1; block <= 5; ++block) tell(std::vector<KvEvent>{stored(block, 0)});
  std::vector<std::string> numbers;
  while (numbers.empty() || numbers.back() != number(4)) {  // until all are out
    numbers.clear();
    asks.send({"", number(1)});
    for (auto frames = asks.receive(); frames.size() == 4 && frames[2] != number(-1); frames = asks.receive())
      numbers.push_back(frames[2]);
  }
  EXPECT_EQ(numbers, (std::vector{number(3), number(4)}));
}

TEST(kv_publisher, an_endpoint_that_cannot_be_had_is_refused_by_name) {
  KvPublishOptions o = options("-twice");
  const KvPublisher publisher(o);
  o.endpoint = "tcp//nowhere";
  try {
    const KvPublisher second(o);
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidRequest);
    EXPECT_NE(std::string(error.what()).find("--kv-events-endpoint: want an address"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("tcp//nowhere"), std::string::npos);
  }
}

}  // namespace
}  // namespace nibble::server
