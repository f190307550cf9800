#pragma once
// Standard error of a program that must go on when nobody reads it: a pipe that is full, a terminal that was stopped.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace nibble::app {

// The last words of a process, a line. They are given up if nobody takes them within half a second.
void say_last(std::string_view text);

// Writes lines on a thread of its own, in their order. Whoever logs never waits: where too many lines wait already,
// the line is dropped and counted. So is what the system refuses. Any thread.
class LogWriter {
 public:
  LogWriter();
  ~LogWriter() { flush(); }
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  void write(std::string line);  // without its end
  // Waits until all lines are written, for half a second at most.
  void flush();
  [[nodiscard]] int64_t dropped() const;

 private:
  void run(const std::stop_token& stop);

  mutable std::mutex mutex_;  // guards all but the thread
  std::condition_variable_any changed_;
  std::deque<std::string> waiting_;
  size_t waiting_bytes_ = 0;
  int64_t dropped_ = 0;
  bool writing_ = false;  // a line that waits no longer
  std::jthread thread_;   // last: it uses the above
};

}  // namespace nibble::app
