#include "server/kept_answers.h"

#include "server/api_error.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

namespace nibble::server {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLook{500};

// Who reads an answer. Apart from it, since a call wakes them while it holds a mutex of its own.
struct Readers {
  std::mutex mutex;  // guards both
  std::map<const Call*, Wake> wakes;
  Clock::time_point left = Clock::now();  // by the last one

  void wake() {
    const std::lock_guard lock(mutex);
    for (const auto& [reader, wake] : wakes) wake();
  }
  [[nodiscard]] std::optional<Clock::time_point> left_at() {  // none: somebody reads
    const std::lock_guard lock(mutex);
    return wakes.empty() ? std::optional(left) : std::nullopt;
  }
};

}  // namespace

struct KeptAnswers::Answer {
  const std::shared_ptr<Readers> readers = std::make_shared<Readers>();
  std::mutex mutex;  // guards all below
  std::unique_ptr<Call> call;
  std::optional<HttpHead> head;
  std::string bytes;  // so far
  bool ended = false;

  void take() {  // REQUIRES mutex
    if (ended) return;
    Call::Output out = call->poll();
    if (out.head) head = std::move(out.head);
    bytes += out.body;
    if (out.done) end();
  }
  void end() {
    ended = true;
    call.reset();
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
    answer_->readers->left = Clock::now();
  }
  Output poll() override {
    const std::lock_guard lock(answer_->mutex);
    answer_->take();
    Output out{.body = answer_->bytes.substr(at_), .done = answer_->ended};
    if (!std::exchange(begun_, answer_->head.has_value())) out.head = answer_->head;
    at_ = answer_->bytes.size();
    return out;
  }
  void cut() override {
    const std::lock_guard lock(answer_->mutex);
    if (!answer_->ended) answer_->call->cut();
  }
  [[nodiscard]] double backlog() const override {
    const std::lock_guard lock(answer_->mutex);
    return answer_->ended ? 0 : answer_->call->backlog();
  }

 private:
  const std::shared_ptr<Answer> answer_;
  size_t at_ = 0;
  bool begun_ = false;
};

KeptAnswers::KeptAnswers(std::chrono::milliseconds kept_for, size_t most_bytes)
    : kept_for_(kept_for),
      most_bytes_(most_bytes),
      thread_([this](const std::stop_token& stop) { look_after(stop); }) {}

std::unique_ptr<Call> KeptAnswers::open(const std::string& id, Wake wake,
                                        const std::function<std::unique_ptr<Call>(Wake wake)>& make) {
  const auto taken = [] { return ApiError("", "an answer with this X-Request-Id is kept already", 409, "conflict"); };
  if (const std::lock_guard lock(mutex_); answers_.contains(id)) throw taken();
  const auto answer = std::make_shared<Answer>();
  auto reader = std::make_unique<Reader>(answer, std::move(wake));
  answer->call = make([readers = answer->readers] { readers->wake(); });
  const std::lock_guard lock(mutex_);
  if (!answers_.emplace(id, answer).second) throw taken();
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
    found.mapped()->end();
  }
  found.mapped()->readers->wake();
  return true;
}

void KeptAnswers::look_after(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !answers_.empty(); })) {
    drop_left();
    changed_.wait_for(lock, stop, kLook, [] { return false; });
  }
}

void KeptAnswers::drop_left() {
  std::vector<std::pair<Clock::time_point, std::string>> left;
  for (const auto& [id, answer] : answers_)
    if (const auto at = answer->readers->left_at()) left.emplace_back(*at, id);
  std::ranges::sort(left, std::greater());
  size_t bytes = 0;
  for (const auto& [at, id] : left) {
    Answer& answer = *answers_.find(id)->second;
    {
      const std::lock_guard lock(answer.mutex);
      answer.take();
      bytes += answer.bytes.size();
    }
    if (bytes > most_bytes_ || Clock::now() - at > kept_for_) answers_.erase(id);
  }
}

}  // namespace nibble::server
