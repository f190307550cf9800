#pragma once
// Makes calls that take long to make (a grammar to compile, a long text to read) on a thread of its own, one after the
// other. The threads that move bytes go on meanwhile.

#include "base/thread_pool.h"
#include "server/http.h"

#include <functional>
#include <memory>
#include <thread>

namespace nibble::server {

class CallMaker {
 public:
  using Make = std::function<std::unique_ptr<Call>()>;  // must not throw

  CallMaker() : thread_([this](const std::stop_token& stop) { work(stop); }) {}
  ~CallMaker();  // tasks that have not begun are dropped
  CallMaker(const CallMaker&) = delete;
  CallMaker& operator=(const CallMaker&) = delete;

  // Returns a call that has nothing to say until `make` has made the real one, and then passes everything on to that.
  // If it is destroyed first, `make` is not called any more, or its result is destroyed. If it is cut first, the result
  // of `make_cut` takes its place. Any thread.
  [[nodiscard]] std::unique_ptr<Call> defer(Make make, Make make_cut, Wake wake);

 private:
  struct Task;
  class DeferredCall;
  void work(const std::stop_token& stop);

  Queue<std::shared_ptr<Task>> tasks_;  // null: check whether to end
  std::jthread thread_;
};

}  // namespace nibble::server
