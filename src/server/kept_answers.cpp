#include "server/kept_answers.h"

#include "server/api_error.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace nibble::server {

struct KeptAnswers::Answer {
  using Clock = std::chrono::steady_clock;
  struct Readers {     // with a mutex of their own: a call wakes them while it holds one
    std::mutex mutex;  // guards both
    std::map<const Call*, Wake> wakes;
    Clock::time_point left = Clock::now();  // by the last one

    void wake() {
      const std::lock_guard lock(mutex);
      for (const auto& [reader, wake] : wakes) wake();
    }
  };
  const std::shared_ptr<Readers> readers = std::make_shared<Readers>();
  std::mutex mutex;            // guards all below
  std::unique_ptr<Call> call;  // null: it has ended
  std::optional<HttpHead> head;
  std::string bytes;  // so far

  void take() {  // REQUIRES mutex
    if (!call) return;
    Call::Output out = call->poll();
    if (out.head) head = std::move(out.head);
    bytes += out.body;
    if (out.done) call.reset();
  }
  // Nobody has read it for so long. Until then this takes what comes.
  [[nodiscard]] bool left_for(std::chrono::milliseconds time) {
    {
      const std::lock_guard lock(readers->mutex);
      if (!readers->wakes.empty()) return false;
      if (Clock::now() - readers->left > time) return true;
    }
    const std::lock_guard lock(mutex);
    take();
    return false;
  }
};

class KeptAnswers::Reader final : public Call {
 public:
  Reader(std::shared_ptr<Answer> answer, Wake wake) : answer_(std::move(answer)) {
    const std::lock_guard lock(answer_->readers->mutex);
    answer_->readers->wakes.emplace(this, std::move(wake));
  }
  ~Reader() override {
    const std::lock_guard lock(answer_->readers->mutex);
    answer_->readers->wakes.erase(this);
    answer_->readers->left = Answer::Clock::now();
  }
  Output poll() override {
    const std::lock_guard lock(answer_->mutex);
    answer_->take();
    Output out{.body = answer_->bytes.substr(at_), .done = !answer_->call};
    if (!std::exchange(begun_, answer_->head.has_value())) out.head = answer_->head;
    at_ = answer_->bytes.size();
    return out;
  }
  void cut() override {
    const std::lock_guard lock(answer_->mutex);
    if (answer_->call) answer_->call->cut();
  }

 private:
  const std::shared_ptr<Answer> answer_;
  size_t at_ = 0;
  bool begun_ = false;
};

KeptAnswers::KeptAnswers(std::chrono::milliseconds kept_for)
    : kept_for_(kept_for), thread_([this](const std::stop_token& stop) { look_after(stop); }) {}

std::unique_ptr<Call> KeptAnswers::open(const std::string& id, Wake wake,
                                        const std::function<std::unique_ptr<Call>(Wake wake)>& make) {
  const auto answer = std::make_shared<Answer>();
  auto reader = std::make_unique<Reader>(answer, std::move(wake));
  answer->call = make([readers = answer->readers] { readers->wake(); });
  const std::lock_guard lock(mutex_);
  if (answers_.size() >= kMostKept)
    throw ApiError("background", fmt::format("want at most {} answers kept at a time", kMostKept), 429,
                   "too_many_kept_answers");
  if (!answers_.emplace(id, answer).second)
    throw ApiError("", "an answer with this X-Request-Id is kept already", 409, "conflict");
  changed_.notify_one();
  return reader;
}

std::unique_ptr<Call> KeptAnswers::read(const std::string& id, Wake wake) {
  const std::lock_guard lock(mutex_);
  const auto found = answers_.find(id);
  return found == answers_.end() ? nullptr : std::make_unique<Reader>(found->second, std::move(wake));
}

bool KeptAnswers::remove(const std::string& id) {
  std::unique_lock lock(mutex_);
  const auto found = answers_.extract(id);
  lock.unlock();
  if (found.empty()) return false;
  {
    const std::lock_guard of_answer(found.mapped()->mutex);
    found.mapped()->call.reset();
  }
  found.mapped()->readers->wake();
  return true;
}

void KeptAnswers::look_after(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    changed_.wait(lock, stop, [this] { return !answers_.empty(); });
    std::erase_if(answers_, [this](const auto& entry) { return entry.second->left_for(kept_for_); });
    changed_.wait_for(lock, stop, std::chrono::milliseconds(500), [] { return false; });
  }
}

}  // namespace nibble::server
