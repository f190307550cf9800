// Ranks as threads of the test, each with a group of its own, over this machine's TCP.

#include "backend/ranks/process_group.h"

#include "backend/ranks/testing/group.h"
#include "base/error.h"
#include "base/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>

#include <condition_variable>
#include <functional>
#include <latch>
#include <mutex>
#include <thread>

namespace nibble::backend {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

// What a rank says, from any thread.
class Heard {
 public:
  void add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    all_ += text + "\n";
    changed_.notify_all();
  }
  // Waits for it.
  void expect(const std::string& part) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return all_.find(part) != std::string::npos; }))
        << part << " is not in:\n"
        << all_;
  }
  [[nodiscard]] GroupEvents events() {
    return {.note = [this](const std::string& text) { add(text); },
            .lost = [this](const std::string& why) { add("lost: " + why); }};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string all_;
};

// Who is no rank, or talks like one byte for byte.
class Talker {
 public:
  // Tries until somebody listens.
  explicit Talker(const Address& at) {
    const boost::asio::ip::tcp::endpoint to(boost::asio::ip::make_address(at.host), static_cast<uint16_t>(at.port));
    boost::system::error_code failed;
    while (socket_.connect(to, failed)) {
      socket_.close();
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  void say(std::span<const std::byte> bytes) {
    boost::system::error_code ignored;
    boost::asio::write(socket_, boost::asio::buffer(bytes.data(), bytes.size()), ignored);
  }
  void await_answer() { socket_.wait(boost::asio::ip::tcp::socket::wait_read); }
  void shut() { socket_.shutdown(boost::asio::ip::tcp::socket::shutdown_both); }

 private:
  std::unique_ptr<boost::asio::io_context> io_ = std::make_unique<boost::asio::io_context>();
  boost::asio::ip::tcp::socket socket_{*io_};
};

// The error of `body`.
template <class Body>
std::string error_of(Code code, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

std::vector<std::byte> some_bytes(size_t count, uint64_t seed) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(philox(seed, i)[0]);
  return bytes;
}

TEST(process_group, ranks_meet_in_any_order_and_exchange_frames) {
  for (const int count : {2, 4}) {
    const GroupPlace place = place_of(count);
    std::vector<std::jthread> others;
    const auto follow = [&place](int rank) {
      ProcessGroup group(at_rank(place, rank), {});
      for (size_t bytes : {size_t{0}, size_t{1}, size_t{70'000}, size_t{5'000'000}}) {
        EXPECT_EQ(group.receive(0).body, some_bytes(bytes, bytes));
        group.send(0, FrameType::kDelta, some_bytes(bytes, static_cast<uint64_t>(rank)));
      }
      EXPECT_EQ(group.receive(0).type, FrameType::kEnd);
    };
    for (int rank = count - 1; rank > 1; --rank) others.emplace_back(follow, rank);
    std::this_thread::sleep_for(milliseconds(50));  // they come before there is somebody to come to
    others.emplace_back(follow, 1);
    ProcessGroup group(at_rank(place, 0), {});
    EXPECT_EQ(group.count(), count);
    for (size_t bytes : {size_t{0}, size_t{1}, size_t{70'000}, size_t{5'000'000}}) {
      for (int rank = 1; rank < count; ++rank) group.send(rank, FrameType::kStep, some_bytes(bytes, bytes));
      for (int rank = 1; rank < count; ++rank)
        EXPECT_EQ(group.receive(rank).body, some_bytes(bytes, static_cast<uint64_t>(rank)));
    }
    group.end();
  }
}

TEST(process_group, a_rank_that_is_late_is_named_on_both_sides) {
  const GroupPlace place = place_of(4);
  std::jthread other([&place] {
    ProcessGroup group(at_rank(place, 1), {});
    EXPECT_THAT(error_of(Code::kIo, [&] { (void)group.receive(0); }),
                AllOf(HasSubstr("rank 0"), HasSubstr("ranks 2, 3 did not come within 3 s")));
  });
  GroupPlace first = at_rank(place, 0);
  first.join_timeout = milliseconds(3000);
  EXPECT_THAT(error_of(Code::kIo, [&] { const ProcessGroup group(first, {}); }),
              HasSubstr("ranks 2, 3 did not come within"));
}

TEST(process_group, a_rank_without_a_first_one_gives_up) {
  GroupPlace place = at_rank(place_of(2), 1);
  place.join_timeout = milliseconds(300);
  EXPECT_THAT(error_of(Code::kIo, [&] { const ProcessGroup group(place, {}); }),
              AllOf(HasSubstr("rank 0 did not answer at 127.0.0.1:"), HasSubstr("within 0.3 s: Connection refused")));
}

TEST(process_group, who_does_not_belong_is_refused_by_name_and_disturbs_nobody) {
  const GroupPlace place = place_of(2);
  Heard heard;
  const auto refused = [&](GroupPlace wrong, const std::string& why) {
    EXPECT_THAT(error_of(Code::kInvalidRequest, [&] { const ProcessGroup group(std::move(wrong), {}); }),
                AllOf(HasSubstr("is refused by rank 0 at 127.0.0.1:"), HasSubstr(why)));
    heard.expect(why);
  };
  GroupPlace version = at_rank(place, 1), model = version, three = at_rank(place_of(3), 2);
  version.terms[0].value = "2";
  model.terms[1].value = "other";
  three.first = place.first;
  const auto all_refused = [&] {
    refused(version, "version: want 1 as on rank 0, found 2");
    refused(model, "model: want some as on rank 0, found other");
    refused(three, "number of ranks: want 2 as on rank 0, found 3");
  };
  std::jthread other([&] {
    all_refused();
    ProcessGroup group(at_rank(place, 1), {});
    all_refused();
    refused(at_rank(place, 1), "rank 1 is there already, from 127.0.0.1:");
    group.send(0, FrameType::kReady);
    EXPECT_EQ(group.receive(0).type, FrameType::kEnd);
  });
  ProcessGroup group(at_rank(place, 0), heard.events());
  EXPECT_EQ(group.receive(1).type, FrameType::kReady);
}

TEST(process_group, bytes_of_a_stranger_disturb_nobody) {
  const GroupPlace place = place_of(2);
  Heard heard;
  const auto stranger = [&place](std::span<const std::byte> bytes) {
    auto talker = std::make_unique<Talker>(place.first);
    talker->say(bytes);
    return talker;
  };
  const auto strangers = [&] {
    const std::string_view http = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    std::vector<std::unique_ptr<Talker>> all;
    all.push_back(stranger({}));                                       // says nothing
    all.push_back(stranger(frame_header(FrameType::kHello, 60'000)));  // a part of a hello
    all.push_back(stranger(std::as_bytes(std::span(http))));
    heard.expect("which is no rank: want frames of nibble, found other bytes");
    all.push_back(stranger(frame_header(FrameType::kHello, ~size_t{0})));
    heard.expect("which is no rank: hello frame: want at most");
    all.push_back(stranger(frame_header(FrameType::kDelta, 0)));
    heard.expect("which is no rank: want a hello frame, found delta");
    all.push_back(stranger(frame_header(FrameType::kFailed, 0)));
    for (uint64_t seed = 0; seed < 80; ++seed) all.push_back(stranger(some_bytes(1 + seed * 7, seed)));
    return all;
  };
  std::vector<std::unique_ptr<Talker>> before, after;
  std::jthread other([&] {
    before = strangers();
    ProcessGroup group(at_rank(place, 1), {});
    after = strangers();
    for (int i = 0; i < 100; ++i) {
      group.send(0, FrameType::kReady);
      EXPECT_EQ(group.receive(0).type, FrameType::kStep);
    }
  });
  ProcessGroup group(at_rank(place, 0), heard.events());
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(group.receive(1).type, FrameType::kReady);
    group.send(1, FrameType::kStep);
  }
}

TEST(process_group, a_rank_that_fails_ends_all_with_its_reason) {
  const GroupPlace place = place_of(4);
  std::vector<std::jthread> others;
  for (int rank = 1; rank < 4; ++rank)
    others.emplace_back([&place, rank] {
      Heard heard;
      ProcessGroup group(at_rank(place, rank), heard.events());
      if (rank == 2) return static_cast<void>(group.receive(0)), group.fail("no memory");  // once all have come
      const std::string why = error_of(Code::kIo, [&] { (void)group.receive(0); });
      EXPECT_THAT(why, AllOf(HasSubstr("rank 0 at"), HasSubstr("rank 2 at"), HasSubstr("it ended: no memory")));
      EXPECT_EQ(error_of(Code::kIo, [&] { group.send(0, FrameType::kReady); }), why);
      heard.expect("lost: " + why);
    });
  Heard heard;
  ProcessGroup group(at_rank(place, 0), heard.events());
  group.send(2, FrameType::kStep);
  const std::string why = error_of(Code::kIo, [&] { (void)group.receive(1); });
  EXPECT_THAT(why, AllOf(HasSubstr("rank 2 at 127.0.0.1:"), HasSubstr("is gone: it ended: no memory")));
  heard.expect("lost: " + why);
}

TEST(process_group, an_error_on_its_way_is_no_end) {
  const GroupPlace place = place_of(2);
  std::jthread other([&place] {
    ProcessGroup group(at_rank(place, 1), {});
    EXPECT_THAT(error_of(Code::kIo, [&] { (void)group.receive(0); }), HasSubstr("it ended: it met an error"));
  });
  EXPECT_THROW(
      {
        const ProcessGroup group(at_rank(place, 0), {});
        throw Error(Code::kOutOfMemory, "none");
      },
      Error);
}

// Who said hello and then lets go of the connection, sends what no rank sends, or stays silent.
TEST(process_group, a_rank_that_goes_or_talks_nonsense_loses_the_group) {
  const auto reason = [](const std::function<void(Talker&)>& act) {
    const GroupPlace place = place_of(2);
    std::latch lost(1);
    std::jthread other([&] {
      Talker talker(place.first);
      talker.say(hello_frame(at_rank(place, 1)));
      talker.await_answer();
      act(talker);
      lost.wait();
    });
    std::string why = error_of(Code::kIo, [&] {
      ProcessGroup group(at_rank(place, 0), {});
      (void)group.receive(1);
    });
    lost.count_down();
    return why;
  };
  EXPECT_THAT(reason([](Talker& talker) { talker.shut(); }), HasSubstr("is gone: its connection was closed"));
  EXPECT_THAT(reason([](Talker& talker) { talker.say(some_bytes(100, 3)); }),
              HasSubstr("is gone: want frames of nibble, found other bytes"));
  EXPECT_THAT(reason([](Talker& talker) { talker.say(frame_header(FrameType::kHello, 0)); }),
              HasSubstr("is gone: want frames of the work, found hello"));
  EXPECT_THAT(reason([](Talker&) {}), HasSubstr("is gone: silent for 8 s"));
}

}  // namespace
}  // namespace nibble::backend
