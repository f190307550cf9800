#include "server/call_maker.h"

#include <mutex>
#include <utility>
#include <vector>

namespace nibble::server {

// Shared by the call and the maker; either may end first.
struct CallMaker::Task {
  Make make;  // used by the maker only
  Wake wake;
  std::mutex mutex;  // guards both
  std::unique_ptr<Call> made;
  bool unwanted = false;

  [[nodiscard]] bool is_unwanted() {
    const std::lock_guard lock(mutex);
    return unwanted;
  }
  // Returns the call if nobody wants it any more.
  [[nodiscard]] std::unique_ptr<Call> deliver(std::unique_ptr<Call> call) {
    const std::lock_guard lock(mutex);
    if (!unwanted) made = std::move(call);
    return call;
  }
  [[nodiscard]] std::unique_ptr<Call> take(bool last) {
    const std::lock_guard lock(mutex);
    unwanted |= last;
    return std::move(made);
  }
};

class CallMaker::DeferredCall final : public Call {
 public:
  DeferredCall(std::shared_ptr<Task> task, Make make_cut) : task_(std::move(task)), make_cut_(std::move(make_cut)) {}
  ~DeferredCall() override {
    if (!call_) call_ = task_->take(/*last=*/true);
  }
  Output poll() override {
    if (!call_) call_ = task_->take(/*last=*/false);
    return call_ ? call_->poll() : Output();
  }
  void cut() override {
    if (!call_) call_ = task_->take(/*last=*/true);
    if (!call_) call_ = make_cut_();
    call_->cut();
  }
  [[nodiscard]] double backlog() const override { return call_ ? call_->backlog() : 0; }

 private:
  const std::shared_ptr<Task> task_;
  const Make make_cut_;
  std::unique_ptr<Call> call_;
};

CallMaker::~CallMaker() {
  thread_.request_stop();
  tasks_.push(nullptr);
}

std::unique_ptr<Call> CallMaker::defer(Make make, Make make_cut, Wake wake) {
  auto task = std::make_shared<Task>();
  task->make = std::move(make);
  task->wake = std::move(wake);
  tasks_.push(task);
  return std::make_unique<DeferredCall>(std::move(task), std::move(make_cut));
}

void CallMaker::work(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const std::vector<std::shared_ptr<Task>> orders = tasks_.wait();
    for (const std::shared_ptr<Task>& task : orders) {
      if (stop.stop_requested()) return;
      if (task->is_unwanted()) continue;
      const std::unique_ptr<Call> left = task->deliver(std::exchange(task->make, nullptr)());
      if (!left) task->wake();
    }
  }
}

}  // namespace nibble::server
