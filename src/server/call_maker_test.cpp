#include "server/call_maker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>

namespace nibble::server {
namespace {

// Counts the calls that are alive.
class Counted final : public Call {
 public:
  explicit Counted(std::atomic<int>& alive) : alive_(alive) { ++alive_; }
  ~Counted() override { --alive_; }
  Output poll() override { return {.body = "made", .done = true}; }
  [[nodiscard]] double backlog() const override { return 0.5; }

 private:
  std::atomic<int>& alive_;
};

std::unique_ptr<Call> unexpected() {
  ADD_FAILURE() << "nobody cuts it";
  return nullptr;
}

TEST(CallMakerTest, a_call_speaks_once_it_is_made) {
  CallMaker call_maker;
  std::atomic<int> alive = 0;
  std::promise<void> start, woken;
  const auto make = [&] {
    start.get_future().wait();
    return std::make_unique<Counted>(alive);
  };
  std::unique_ptr<Call> call = call_maker.defer(make, unexpected, [&] { woken.set_value(); });
  EXPECT_FALSE(call->poll().done);
  EXPECT_EQ(call->backlog(), 0);
  start.set_value();
  woken.get_future().wait();
  EXPECT_EQ(call->poll().body, "made");
  EXPECT_EQ(call->backlog(), 0.5);
  call.reset();
  EXPECT_EQ(alive, 0);
}

TEST(CallMakerTest, what_nobody_waits_for_is_not_made_or_goes_at_once) {
  CallMaker call_maker;
  std::atomic<int> alive = 0, begun = 0;
  std::promise<void> first_begun, start, last_made;
  const auto slow = [&] {
    ++begun;
    first_begun.set_value();
    start.get_future().wait();
    return std::make_unique<Counted>(alive);
  };
  const auto quick = [&] {
    ++begun;
    return std::make_unique<Counted>(alive);
  };
  std::unique_ptr<Call> left =
      call_maker.defer(slow, unexpected, [] { ADD_FAILURE() << "nobody is there to be woken"; });
  std::unique_ptr<Call> never =
      call_maker.defer(quick, unexpected, [] { ADD_FAILURE() << "nobody is there to be woken"; });
  const std::unique_ptr<Call> last = call_maker.defer(quick, unexpected, [&] { last_made.set_value(); });
  first_begun.get_future().wait();
  left.reset();
  never.reset();
  start.set_value();
  last_made.get_future().wait();
  EXPECT_EQ(begun, 2);
  EXPECT_EQ(alive, 1);
}

TEST(CallMakerTest, what_is_cut_before_it_is_made_says_so_at_once) {
  CallMaker call_maker;
  std::atomic<int> alive = 0;
  std::promise<void> start;
  const auto slow = [&] {
    start.get_future().wait();
    return std::make_unique<Counted>(alive);
  };
  const auto make_cut = [] { return std::make_unique<ReadyCall>(HttpHead{}, "cut"); };
  const std::unique_ptr<Call> call = call_maker.defer(slow, make_cut, [] {});
  call->cut();
  const Call::Output out = call->poll();
  EXPECT_TRUE(out.done);
  EXPECT_EQ(out.body, "cut");
  start.set_value();
}

}  // namespace
}  // namespace nibble::server
