#pragma once
// What the files of the table share.

#include "app/options/option.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace nibble::app {

[[nodiscard]] std::span<const Option> model_rows();  // the first
[[nodiscard]] std::vector<Option> run_rows();        // the last

inline constexpr Commands kPrints{
    CommandId::kRun,      CommandId::kChat,  CommandId::kServe,   CommandId::kInspect,    CommandId::kTokenize,
    CommandId::kQuantize, CommandId::kSynth, CommandId::kConvert, CommandId::kPerplexity, CommandId::kCompare,
    CommandId::kPull,     CommandId::kList,  CommandId::kPs,      CommandId::kRemove,     CommandId::kPredict,
    CommandId::kLoad,     CommandId::kVerify};
inline constexpr Commands kEveryCommand =
    kPrints |
    Commands{CommandId::kBench, CommandId::kLaunch, CommandId::kFeatures, CommandId::kMan, CommandId::kCompletion};

// And would run on others, which nobody has tried.
inline constexpr Places kOnHopper{Runs::kYes, Runs::kNotRun, Runs::kYes, Runs::kNotRun};

[[nodiscard]] std::string usual_step(CommandId command);  // tokens, by backend

// Whole numbers from 0 to 2^64 - 1.
void read_seed(std::string_view flag, const std::string& found, const ValueRef& into);
inline constexpr Range kSeeds = own(read_seed);

// Each field of Part is the place of a row, or one of the others, and not both: a forgotten one does not compile.
namespace detail {
struct AnyValue {
  template <class T>
  operator T&() const noexcept;  // NOLINT(google-explicit-constructor)
};
template <class Part, size_t... kAt>
constexpr bool has_fields(std::index_sequence<kAt...>) {
  return requires { Part{(static_cast<void>(kAt), AnyValue())...}; };
}
template <class Part, size_t kMost = 48>
constexpr size_t count_fields() {
  if constexpr (kMost == 0 || has_fields<Part>(std::make_index_sequence<kMost>()))
    return kMost;
  else
    return count_fields<Part, kMost - 1>();
}
}  // namespace detail

template <class Part, auto... kOthers, size_t... kRows>
consteval bool has_rows(const Option (&... tables)[kRows]) {
  constexpr size_t kFields = detail::count_fields<Part>();
  std::array<uint64_t, kFields + 1> members{};
  size_t count = 0;
  const auto add = [&](uint64_t member) {
    for (size_t i = 0; i < count; ++i)
      if (members[i] == member) return;
    members[count++] = member;
  };
  const auto add_rows = [&](std::span<const Option> rows) {
    for (const Option& row : rows)
      for (const Field& field : row.place.fields)
        if (field.part == detail::kPart<Part>) add(field.member);
  };
  (add_rows(tables), ...);
  const size_t of_rows = count;
  (add(detail::kMemberOf<kOthers>), ...);
  return count == kFields && of_rows + sizeof...(kOthers) == kFields;
}

}  // namespace nibble::app
