#include "app/setup/log_writer.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <utility>

#include <poll.h>
#include <unistd.h>

namespace nibble::app {
namespace {

constexpr size_t kMostWaiting = size_t{256} << 10;  // bytes of lines; a single one may have more
constexpr std::chrono::milliseconds kPatience(500);

// Writes as much of the text as goes without waiting, once there is room or `within` is over. Negative: it failed.
ssize_t write_some(std::string_view text, std::chrono::milliseconds within) {
  pollfd until{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (poll(&until, 1, static_cast<int>(within.count())) <= 0) return 0;
  const ssize_t written = ::write(STDERR_FILENO, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
  return written < 0 && (errno == EINTR || errno == EAGAIN) ? 0 : written;
}

}  // namespace

void say_last(std::string_view text) { static_cast<void>(write_some(text, kPatience)); }

LogWriter::LogWriter() : thread_([this](const std::stop_token& stop) { run(stop); }) {}

void LogWriter::write(std::string line) {
  line += '\n';
  const std::lock_guard lock(mutex_);
  if (!waiting_.empty() && waiting_bytes_ + line.size() > kMostWaiting) {
    ++dropped_;
    return;
  }
  waiting_bytes_ += line.size();
  waiting_.push_back(std::move(line));
  changed_.notify_all();
}

void LogWriter::flush() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kPatience, [this] { return waiting_.empty() && !writing_; });
}

int64_t LogWriter::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

void LogWriter::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !waiting_.empty(); }) && !stop.stop_requested()) {
    const std::string line = std::exchange(waiting_.front(), {});
    waiting_.pop_front();
    waiting_bytes_ -= line.size();
    writing_ = true;
    lock.unlock();
    std::string_view rest = line;
    ssize_t written = 0;
    for (; !rest.empty() && written >= 0 && !stop.stop_requested(); rest.remove_prefix(std::max<ssize_t>(written, 0)))
      written = write_some(rest, kPatience / 10);
    lock.lock();
    writing_ = false;
    dropped_ += rest.empty() ? 0 : 1;
    changed_.notify_all();
  }
}

}  // namespace nibble::app
