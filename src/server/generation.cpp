#include "server/generation.h"

#include <utility>

namespace nibble::server {
namespace {

constexpr size_t kWakeAgain =
    1024;  // waiting events: wakes a connection that is busy sending, so that it learns that its client is too slow

}  // namespace

Generation::Generation(const EnginePort& port, Wake wake) : port_(port), mailbox_(std::make_shared<Mailbox>()) {
  mailbox_->wake = std::move(wake);
}

Generation::~Generation() {
  {
    const std::lock_guard lock(mailbox_->mutex);
    mailbox_->wake = nullptr;
  }
  for (const engine::RequestId id : ids_) port_.cancel(id);
}

void Generation::submit(engine::Request request) {
  const size_t choice = ids_.size();
  ids_.push_back(port_.submit(std::move(request), [mailbox = mailbox_, choice](const engine::Event& event) {
    const std::lock_guard lock(mailbox->mutex);
    if (!mailbox->wake) return;
    mailbox->items.push_back({choice, event, Clock::now()});
    if (mailbox->items.size() % kWakeAgain == 1) mailbox->wake();
  }));
}

void Generation::cancel(size_t choice) { port_.cancel(ids_[choice]); }

std::vector<Generation::Item> Generation::take() {
  const std::lock_guard lock(mailbox_->mutex);
  return std::exchange(mailbox_->items, {});
}

size_t Generation::waiting() const {
  const std::lock_guard lock(mailbox_->mutex);
  return mailbox_->items.size();
}

}  // namespace nibble::server
