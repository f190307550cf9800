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

// The last words of a process. They are given up if nobody takes them within half a second.
void say_last(std::string_view text);

// Writes lines on a thread of its own, in their order. Whoever logs never waits: where too many lines wait already,
// the line is dropped and counted.
class LogWriter {
 public:
  LogWriter();
  ~LogWriter();  // as flush()
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  void write(std::string line);  // without its end; any thread
  // Waits until all lines are written, for half a second at most.
  void flush();
  [[nodiscard]] int64_t dropped() const;

 private:
  void run(const std::stop_token& stop);

  struct Lines {  // guarded by mutex
    mutable std::mutex mutex;
    std::condition_variable_any changed;
    std::deque<std::string> waiting;
    size_t waiting_bytes = 0;
    int64_t dropped = 0;
    bool writing = false;  // one that waits no longer
  };
  Lines lines_;
  std::jthread thread_;  // last: it uses the above
};

}  // namespace nibble::app
