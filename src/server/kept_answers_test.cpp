#include "server/kept_answers.h"

#include "server/api_error.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace nibble::server {
namespace {

using namespace std::chrono_literals;

// What the test lets a call say.
struct Script {
  std::mutex mutex;  // guards the next two
  std::string text;
  bool ends = false;
  std::atomic<bool> gone = false;
  Wake wake;

  void say(const std::string& more, bool last = false) {
    const std::lock_guard lock(mutex);
    text += more;
    ends = last;
  }
};

class ScriptedCall final : public Call {
 public:
  explicit ScriptedCall(std::shared_ptr<Script> script) : script_(std::move(script)) {}
  ~ScriptedCall() override { script_->gone = true; }
  Output poll() override {
    const std::lock_guard lock(script_->mutex);
    Output out{.body = std::exchange(script_->text, {}), .done = script_->ends};
    if (!std::exchange(begun_, true)) out.head.emplace();
    return out;
  }

 private:
  const std::shared_ptr<Script> script_;
  bool begun_ = false;
};

std::unique_ptr<Call> open(KeptAnswers& kept, const std::shared_ptr<Script>& script, Wake wake = [] {}) {
  return kept.open("one", std::move(wake), [&](Wake of_call) {
    script->wake = std::move(of_call);
    return std::make_unique<ScriptedCall>(script);
  });
}

void wait_for(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::sleep_for(1ms);
}

TEST(KeptAnswers, go_on_without_a_reader_and_are_read_from_the_beginning) {
  KeptAnswers kept;
  const auto script = std::make_shared<Script>();
  script->say("Once ");
  auto reader = open(kept, script);
  Call::Output out = reader->poll();
  EXPECT_TRUE(out.head);
  EXPECT_EQ(out.body, "Once ");
  reader.reset();
  EXPECT_FALSE(script->gone);
  script->say("upon");
  int woken = 0;
  const auto another = kept.read("one", [&] { ++woken; });
  out = another->poll();
  EXPECT_TRUE(out.head);
  EXPECT_EQ(out.body, "Once upon");
  script->wake();
  EXPECT_EQ(woken, 1);
  script->say(" a time", /*last=*/true);
  out = another->poll();
  EXPECT_FALSE(out.head);
  EXPECT_EQ(out.body, " a time");
  EXPECT_TRUE(out.done);
  EXPECT_EQ(kept.read("one", [] {})->poll().body, "Once upon a time");
  EXPECT_EQ(kept.read("two", [] {}), nullptr);
}

TEST(KeptAnswers, two_readers_get_the_same) {
  KeptAnswers kept;
  const auto script = std::make_shared<Script>();
  int woken = 0;
  const auto one = open(kept, script, [&] { ++woken; });
  const auto two = kept.read("one", [&] { ++woken; });
  script->say("Yes.");
  script->wake();
  EXPECT_EQ(woken, 2);
  EXPECT_EQ(one->poll().body, "Yes.");
  EXPECT_EQ(two->poll().body, "Yes.");
  EXPECT_EQ(one->poll().body, "");
}

TEST(KeptAnswers, one_that_is_removed_ends_for_its_readers) {
  KeptAnswers kept;
  const auto script = std::make_shared<Script>();
  bool woken = false;
  const auto reader = open(kept, script, [&] { woken = true; });
  EXPECT_FALSE(reader->poll().done);
  EXPECT_TRUE(kept.remove("one"));
  EXPECT_TRUE(script->gone);
  EXPECT_TRUE(woken);
  EXPECT_TRUE(reader->poll().done);
  EXPECT_FALSE(kept.remove("one"));
}

TEST(KeptAnswers, an_id_belongs_to_one) {
  KeptAnswers kept;
  const auto first = std::make_shared<Script>(), second = std::make_shared<Script>();
  const auto reader = open(kept, first);
  try {
    static_cast<void>(open(kept, second));
    FAIL();
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status(), 409);
  }
  EXPECT_FALSE(first->gone);
}

TEST(KeptAnswers, one_that_nobody_comes_back_for_is_cancelled) {
  KeptAnswers kept(1ms);
  const auto script = std::make_shared<Script>();
  auto reader = open(kept, script);
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(script->gone);  // it is read
  reader.reset();
  wait_for(script->gone);
  EXPECT_EQ(kept.read("one", [] {}), nullptr);
}

TEST(KeptAnswers, no_more_are_kept_than_there_is_room_for) {
  KeptAnswers kept;
  const auto open_as = [&](size_t id) {
    return kept.open(
        std::to_string(id), [] {},
        [](const Wake&) { return std::make_unique<ScriptedCall>(std::make_shared<Script>()); });
  };
  for (size_t i = 0; i < KeptAnswers::kMostKept; ++i) static_cast<void>(open_as(i));
  try {
    static_cast<void>(open_as(KeptAnswers::kMostKept));
    FAIL() << "kept";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 429);
  }
  EXPECT_TRUE(kept.remove("7"));
  EXPECT_NE(open_as(KeptAnswers::kMostKept), nullptr);
}

}  // namespace
}  // namespace nibble::server
