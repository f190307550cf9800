#pragma once
// A thread of its own makes the calls whose making takes long (a grammar to compile, a long text to read), one after
// the other. The threads that move bytes go on meanwhile.

#include "base/queue.h"
#include "server/http.h"

#include <functional>
#include <memory>
#include <thread>

namespace nibble::server {

class CallMaker {
 public:
  using Make = std::function<std::unique_ptr<Call>()>;  // must not throw

  CallMaker();
  ~CallMaker();  // what has not been begun is never made
  CallMaker(const CallMaker&) = delete;
  CallMaker& operator=(const CallMaker&) = delete;

  // A call that says nothing until `make` has made the one that it then stands for. Destroyed before: `make` is not
  // called any more, or what it makes is destroyed. Cut before: it stands for what `make_cut` makes. Any thread.
  [[nodiscard]] std::unique_ptr<Call> defer(Make make, Make make_cut, Wake wake);

 private:
  struct Task;
  class Deferred;
  void work(const std::stop_token& stop);

  Queue<std::shared_ptr<Task>> tasks_;  // null: look whether it is the end
  std::jthread thread_;
};

}  // namespace nibble::server
