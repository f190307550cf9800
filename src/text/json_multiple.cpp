#include "text/json_multiple.h"

#include "text/json_number.h"
#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <vector>

namespace nibble::text {
namespace {

constexpr size_t kMaxStates = 20'000;  // before equal ones become one
constexpr auto kPowers = [] {          // of ten
  std::array<int64_t, kMaxNumberDigits + 1> out{1};
  for (size_t i = 1; i < out.size(); ++i) out[i] = out[i - 1] * 10;
  return out;
}();

struct Interval {
  int64_t first = 0, last = -1;
  auto operator<=>(const Interval&) const = default;
};

Interval both(Interval a, Interval b) {
  const Interval out{std::max(a.first, b.first), std::min(a.last, b.last)};
  return out.first <= out.last ? out : Interval{};
}

// After some digits. What may still come depends on ten times their worth only.
struct State {
  bool may_end = false;         // they are a multiple, between the bounds
  int64_t carried = 0;          // remainder of ten times their worth
  std::vector<Interval> tails;  // [n]: what n + 1 more digits may be worth
  auto operator<=>(const State&) const = default;
};

class MultipleWalk {
 public:
  MultipleWalk(int64_t step, const NameRule& rule) : step_(step), rule_(rule) {}

  // An expression; "": no multiple lies there. REQUIRES 1 <= lowest.
  std::string between(int64_t lowest, int64_t highest) {
    State start;
    for (size_t n = 0; n + 1 < kPowers.size(); ++n)
      start.tails.push_back(both({kPowers[n], kPowers[n + 1] - 1}, {lowest, highest}));
    return may_go_on(start) ? name_of(start) : "";
  }
  [[nodiscard]] bool is_too_large() const { return names_.size() > kMaxStates; }

 private:
  [[nodiscard]] bool may_go_on(const State& state) const {
    for (size_t n = 0; n < state.tails.size(); ++n) {
      const auto [first, last] = state.tails[n];
      const int64_t before = state.carried * (kPowers[n] % step_) % step_;
      if (first <= last && (step_ - (before + first) % step_) % step_ <= last - first) return true;
    }
    return false;
  }
  [[nodiscard]] State after(const State& state, int digit) const {
    const int64_t remainder = (state.carried + digit) % step_;
    const auto [first, last] = state.tails[0];
    State next{
        .may_end = remainder == 0 && first <= digit && digit <= last, .carried = remainder * 10 % step_, .tails = {}};
    for (size_t n = 1; n < state.tails.size(); ++n) {
      const int64_t worth = digit * kPowers[n];
      const auto [from, to] = state.tails[n];
      next.tails.push_back(both({from - worth, to - worth}, {0, kPowers[n] - 1}));
    }
    return next;
  }
  std::string name_of(const State& state);

  const int64_t step_;
  const NameRule& rule_;
  std::map<State, std::string> names_;
};

std::string MultipleWalk::name_of(const State& state) {
  const auto [it, is_new] = names_.try_emplace(state);
  if (!is_new || is_too_large()) return it->second;
  std::vector<std::pair<std::string, std::string>> choices;  // what follows, and after which digits
  for (int digit = 0; digit <= 9; ++digit) {
    const State next = after(state, digit);
    const bool goes_on = may_go_on(next);
    if (!goes_on && !next.may_end) continue;
    const std::string rest = goes_on ? name_of(next) : "";
    const auto same = std::find_if(choices.begin(), choices.end(), [&](const auto& c) { return c.first == rest; });
    auto& choice = same == choices.end() ? choices.emplace_back(rest, "") : *same;
    choice.second += static_cast<char>('0' + digit);
  }
  std::vector<std::string> parts;
  if (state.may_end) parts.emplace_back("\"\"");
  for (const auto& [rest, digits] : choices) parts.push_back(fmt::format("[{}] {}", digits, rest));
  if (!is_too_large()) it->second = rule_(fmt::format("{}", fmt::join(parts, " | ")));
  return it->second;
}

}  // namespace

std::optional<std::string> multiples_expression(const MultipleRange& range, const NameRule& rule) {
  check(range.step >= 1 && range.step <= kMaxMultiple, "the step is in its range");
  MultipleWalk walk(range.step, rule);
  std::vector<std::string> choices;
  if (range.lowest <= 0 && range.highest >= 0) choices.emplace_back("\"0\"");
  const std::string above = walk.between(std::max<int64_t>(range.lowest, 1), range.highest);
  const std::string below = walk.between(std::max<int64_t>(-range.highest, 1), -range.lowest);
  if (walk.is_too_large()) return std::nullopt;
  if (!above.empty()) choices.push_back(above);
  if (!below.empty()) choices.push_back("\"-\" " + below);
  return choices.empty() ? "" : fmt::format("({})", fmt::join(choices, " | "));
}

}  // namespace nibble::text
