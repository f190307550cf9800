#pragma once
// Streams that go on without their client. Whoever lost the connection asks for one by its id, and gets it from its
// beginning. Any thread.

#include "server/http.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace nibble::server {

class KeptAnswers {
 public:
  // An answer that nobody reads is kept for so long, whether it has ended or not; then its work is cancelled.
  explicit KeptAnswers(std::chrono::milliseconds kept_for = std::chrono::minutes(2));

  static constexpr size_t kMostKept = 1024;

  // Returns a reader of the call that `make` makes. Throws ApiError for an id that is taken and where as many are kept,
  // and what `make` throws.
  [[nodiscard]] std::unique_ptr<Call> open(const std::string& id, Wake wake,
                                           const std::function<std::unique_ptr<Call>(Wake wake)>& make);
  [[nodiscard]] std::unique_ptr<Call> read(const std::string& id, Wake wake);  // null: there is none
  bool remove(const std::string& id);                                          // cancels its work. False: there is none

 private:
  struct Answer;
  class Reader;
  void look_after(const std::stop_token& stop);

  const std::chrono::milliseconds kept_for_;
  std::mutex mutex_;  // guards answers_
  std::condition_variable_any changed_;
  std::map<std::string, std::shared_ptr<Answer>, std::less<>> answers_;
  std::jthread thread_;  // takes what comes where nobody reads
};

}  // namespace nibble::server
