#include "backend/cpu/host_watch.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::backend {

void HostWatch::worked(const Cost& cost, double seconds) {
  bytes_ += cost.bytes;
  took_ += seconds;
  should_ += std::max(cost.bytes / host_.read_bytes_per_s, cost.flops / host_.flops_per_s);
  if (took_ < kWindowSeconds) return;
  end_window();
  bytes_ = took_ = should_ = 0;
}

void HostWatch::end_window() {
  if (took_ <= kSlow * should_) {
    before_.reset();
    said_ = 0;
    return;
  }
  const std::optional<ProcessAccounts> before = std::exchange(before_, host_.accounts());
  const double since = seconds() - std::exchange(counted_at_, seconds());
  if (!before || since > kLongest * took_) return;  // a hiccup is over when the next window ends; or nobody asked
  const auto [causes, text] = why(*before, *before_);
  if (causes == 0 || causes == said_ || seconds() < silent_until_) return;
  said_ = causes;
  silent_until_ = seconds() + kSilentSeconds;
  host_.say(fmt::format("experts on the host are slow: {:.1f} GB/s of {:.1f}{}", 1e-9 * bytes_ / took_,
                        1e-9 * bytes_ / should_, text));
}

// The limits are low: the work is known to be slow, and they only choose among known causes.
std::pair<unsigned, std::string> HostWatch::why(const ProcessAccounts& from, const ProcessAccounts& to) const {
  constexpr double kFaultsPerSecond = 20;   // a hard disk has some 100
  constexpr double kWaitedShare = 1.0 / 3;  // all threads together: the others wait for one that does not run
  const auto gb = [](int64_t bytes) { return 1e-9 * static_cast<double>(bytes); };
  const double waited = to.waited_seconds - from.waited_seconds;
  const int64_t faults = to.major_faults - from.major_faults, throttled = to.throttled - from.throttled;
  unsigned causes = 0;
  std::string text;
  if (static_cast<double>(faults) >= kFaultsPerSecond * took_) {
    const int64_t wants = host_.weight_bytes, room = to.memory.value_or(wants);
    const bool first = room >= wants && to.disk_bytes < 2 * wants;  // all that a process reads, so twice
    causes = first ? 1 : 2;
    text = fmt::format("; weights are read from the disk ({} major page faults, {:.1f} GB): memory ", faults,
                       gb(to.disk_bytes - from.disk_bytes));
    text += first ? "has room for them, so this will end"
                  : fmt::format("is short, {:.1f} GB of weights, {:.1f} GB to be had", gb(wants), gb(room));
  }
  if (waited < kWaitedShare * took_) return {causes, text};
  const int may_use = to.processors;
  const std::string allowed = fmt::format("; the process may use {} processor{}", may_use, may_use == 1 ? "" : "s");
  if (static_cast<double>(throttled) >= took_)  // a period has 100 ms
    return {causes | 4, text + allowed + fmt::format(" and used up their time {} times (cpu.max)", throttled)};
  if (may_use < host_.threads) return {causes | 8, text + allowed + fmt::format(" for {} threads", host_.threads)};
  text += fmt::format("; other programs take the processors (threads waited {:.1f} s for one in {:.1f} s of work",
                      waited, took_);
  if (to.runnable > may_use) text += fmt::format("; {} tasks want {} processors", to.runnable, may_use);
  return {causes | 16, text + ")"};
}

}  // namespace nibble::backend
