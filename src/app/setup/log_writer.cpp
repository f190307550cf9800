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

using std::chrono::milliseconds;

constexpr size_t kMostWaiting = size_t{256} << 10;  // bytes of lines; a single one may have more
constexpr milliseconds kPatience(500);

// Whether a write of PIPE_BUF bytes needs no waiting. True also where it fails at once.
bool takes_more(milliseconds within) {
  pollfd until{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  int ready = 0;
  while ((ready = poll(&until, 1, static_cast<int>(within.count()))) < 0 && errno == EINTR) {
  }
  return ready != 0;
}

// False: not all of it could be written. `waits_on`: after each `within` without progress.
template <class WaitsOn>
bool write_all(std::string_view text, milliseconds within, const WaitsOn& waits_on) {
  while (!text.empty()) {
    if (!takes_more(within)) {
      if (!waits_on()) return false;
      continue;
    }
    const ssize_t written = ::write(STDERR_FILENO, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (written < 0 && errno != EINTR && errno != EAGAIN) return false;
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  return true;
}

}  // namespace

void say_last(std::string_view text) {
  static_cast<void>(write_all(text, kPatience, [] { return false; }));
}

LogWriter::LogWriter() : thread_([this](const std::stop_token& stop) { run(stop); }) {}

LogWriter::~LogWriter() { flush(); }

void LogWriter::write(std::string line) {
  line += '\n';
  const std::lock_guard lock(lines_.mutex);
  if (!lines_.waiting.empty() && lines_.waiting_bytes + line.size() > kMostWaiting) {
    ++lines_.dropped;
    return;
  }
  lines_.waiting_bytes += line.size();
  lines_.waiting.push_back(std::move(line));
  lines_.changed.notify_all();
}

void LogWriter::flush() {
  std::unique_lock lock(lines_.mutex);
  lines_.changed.wait_for(lock, kPatience, [this] { return lines_.waiting.empty() && !lines_.writing; });
}

int64_t LogWriter::dropped() const {
  const std::lock_guard lock(lines_.mutex);
  return lines_.dropped;
}

void LogWriter::run(const std::stop_token& stop) {
  constexpr milliseconds kAskAgain(50);
  std::unique_lock lock(lines_.mutex);
  while (lines_.changed.wait(lock, stop, [this] { return !lines_.waiting.empty(); }) && !stop.stop_requested()) {
    const std::string line = std::move(lines_.waiting.front());
    lines_.waiting.pop_front();
    lines_.waiting_bytes -= line.size();
    lines_.writing = true;
    lock.unlock();
    const bool written = write_all(line, kAskAgain, [&stop] { return !stop.stop_requested(); });
    lock.lock();
    lines_.writing = false;
    if (!written) ++lines_.dropped;
    lines_.changed.notify_all();
  }
}

}  // namespace nibble::app
