#pragma once
// Whether this machine computes experts as fast as it should, and if not, which of the causes that the kernel counts it
// is.

#include "backend/cost.h"
#include "base/machine.h"

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>

namespace nibble::backend {

// A machine whose experts are watched.
struct WatchedHost {
  std::function<void(const std::string&)> say{};  // a line for people, on the thread that computes; empty: no watch
  double read_bytes_per_s = 0, flops_per_s = 0;   // what the machine should do
  int64_t weight_bytes = 0;                       // that memory should hold
  int threads = 1;                                // that compute
  // The clock and the kernel, which tests replace.
  std::function<double()> seconds = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  std::function<ProcessAccounts()> accounts = process_accounts;
};

// Looks at windows of kWindowSeconds of work. Where two of them, one after the other, took more than kSlow times what
// they should have, it says why, if the accounts of the second one do: at most once a minute, and the same once until
// all is well again. While nothing is slow it costs two readings of the clock a layer.
class HostWatch {
 public:
  static constexpr double kWindowSeconds = 2, kSlow = 3, kSilentSeconds = 60;
  // What the kernel counts between two windows is of them, if so many times their work's time has passed at most.
  static constexpr double kLongest = 4;

  explicit HostWatch(WatchedHost host) : host_(std::move(host)) {}
  [[nodiscard]] double seconds() const { return host_.seconds(); }
  // One caller at a time.
  void worked(const Cost& cost, double seconds);

 private:
  void end_window();
  [[nodiscard]] std::pair<unsigned, std::string> why(const ProcessAccounts& from, const ProcessAccounts& to) const;

  const WatchedHost host_;
  double bytes_ = 0, took_ = 0, should_ = 0;  // of this window: seconds that it took and should have taken
  std::optional<ProcessAccounts> before_;     // when a slow window ended
  double counted_at_ = 0;                     // the clock then
  unsigned said_ = 0;                         // causes, a bit each; 0: none since all was well
  double silent_until_ = 0;
};

}  // namespace nibble::backend
