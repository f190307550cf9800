#include "server/workshop.h"

#include <mutex>
#include <utility>
#include <vector>

namespace nibble::server {

// Shared by the call and the workshop, either of which may end first.
struct Workshop::Order {
  Make make;  // the workshop's
  Wake wake;
  std::mutex mutex;  // guards both
  std::unique_ptr<Call> made;
  bool unwanted = false;

  [[nodiscard]] bool is_unwanted() {
    const std::lock_guard lock(mutex);
    return unwanted;
  }
  // Gives it back when nobody wants it.
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

class Workshop::Deferred final : public Call {
 public:
  Deferred(std::shared_ptr<Order> order, Make make_cut) : order_(std::move(order)), make_cut_(std::move(make_cut)) {}
  ~Deferred() override {
    if (!call_) call_ = order_->take(/*last=*/true);
  }
  Output poll() override {
    if (!call_) call_ = order_->take(/*last=*/false);
    return call_ ? call_->poll() : Output();
  }
  void cut() override {
    if (!call_) call_ = order_->take(/*last=*/true);
    if (!call_) call_ = make_cut_();
    call_->cut();
  }
  [[nodiscard]] double backlog() const override { return call_ ? call_->backlog() : 0; }

 private:
  const std::shared_ptr<Order> order_;
  const Make make_cut_;
  std::unique_ptr<Call> call_;
};

Workshop::Workshop() : thread_([this](const std::stop_token& stop) { work(stop); }) {}

Workshop::~Workshop() {
  thread_.request_stop();
  orders_.push(nullptr);
}

std::unique_ptr<Call> Workshop::defer(Make make, Make make_cut, Wake wake) {
  auto order = std::make_shared<Order>();
  order->make = std::move(make);
  order->wake = std::move(wake);
  orders_.push(order);
  return std::make_unique<Deferred>(std::move(order), std::move(make_cut));
}

void Workshop::work(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const std::vector<std::shared_ptr<Order>> orders = orders_.wait();
    for (const std::shared_ptr<Order>& order : orders) {
      if (stop.stop_requested()) return;
      if (order->is_unwanted()) continue;
      const std::unique_ptr<Call> left = order->deliver(std::exchange(order->make, nullptr)());
      if (!left) order->wake();
    }
  }
}

}  // namespace nibble::server
