#pragma once
// One row for each option (option_table.cpp, option_table_run.cpp): its flag, what it says, where its value lies, what
// that may be, who has it. Made from the rows: the parser, variables, configuration files, --help, the manual,
// completions, --print-config, the feature matrix, what ranks must agree on, the settings of a result, and what `nibble
// verify` combines.

#include "app/options/options.h"
#include "base/ascii.h"

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

namespace nibble::app {

// What a value does to the numbers.
enum class Effect : uint8_t {
  kUnrounded,  // nothing is rounded beside what the weights bring
  kRounded,    // something is
  kAsChosen,   // as that which it becomes, or which stands beside it
};
[[nodiscard]] std::string_view name_of(Effect effect);

enum class Runs : uint8_t {
  kNo,        // refused
  kYes,       // and has run there
  kAsValues,  // has run there: rounded, then multiplied as if exact, so not faster
  kNotRun,    // compiled and held against the reference on a host, never run there
};
[[nodiscard]] std::string_view name_of(Runs runs);

// Where: a CPU, the kernels that every card runs, those of Hopper, those of GB10.
struct Places {
  Runs cpu = Runs::kYes, neutral = Runs::kYes, sm90 = Runs::kYes, sm121 = Runs::kNotRun;
};

// A value of an option. Of a number or a text, one to show and to try.
struct Word {
  std::string_view word;
  int value = 0;  // what the word stands for
  Effect effect = Effect::kUnrounded;
  Places on{};
  std::string_view with{};  // flags that must stand beside it, with their values, or it is refused
};
template <class T>
[[nodiscard]] constexpr Word word(std::string_view text, T value, Effect effect = {}, Places on = {},
                                  std::string_view with = {}) {
  return {text, static_cast<int>(value), effect, on, with};
}
template <class T>
  requires std::is_enum_v<T>
[[nodiscard]] constexpr Word word(T value, Effect effect = {}, Places on = {}, std::string_view with = {}) {
  return word(name_of(value), value, effect, on, with);
}

// The parts of a command's options; null: it has none.
using Parts =
    std::tuple<RunOptions*, ChatOptions*, ServeOptions*, InspectOptions*, TokenizeOptions*, QuantizeOptions*,
               SynthOptions*, ConvertOptions*, PerplexityOptions*, CompareOptions*, PullOptions*, ListOptions*,
               PsOptions*, LaunchOptions*, RemoveOptions*, PredictOptions*, BenchOptions*, LoadOptions*, VerifyOptions*,
               FeaturesOptions*, ManOptions*, CompletionOptions*, OutputOptions*, ModelOptions*, Settings*,
               GroupOptions*, GenerateOptions*, TextInput*, KvEventOptions*, backend::RunConfig*, backend::Ranks*,
               backend::SamplingParams*, engine::SpeculationLimits*, client::Workload*>;
[[nodiscard]] Parts parts_of(Command& command);
[[nodiscard]] Parts parts_of(ServeOptions& options);

// An enumeration, which words stand for; an optional one is -1 where it is none.
struct WordRef {
  void* at;
  int (*get)(const void* at);
  void (*set)(void* at, int value);
};
// A value in a command's options.
using ValueRef = std::variant<std::monostate, bool*, std::optional<bool>*, int*, int64_t*, uint64_t*, float*, double*,
                              std::optional<double>*, std::string*, std::filesystem::path*, std::vector<std::string>*,
                              std::vector<int64_t>*, std::vector<double>*, std::vector<VerifyLevel>*,
                              std::vector<std::pair<int32_t, float>>*, backend::DenseFormats*, Settings*, WordRef>;

// Which member of which part holds an option's value: numbers that differ (detail::kPart, kMemberOf).
struct Field {
  uint64_t part, member;
  friend constexpr bool operator==(const Field&, const Field&) = default;
};
struct Place {
  ValueRef (*in)(const Parts& parts) = nullptr;  // null: what the command line itself takes
  std::span<const Field> fields{};
};

namespace detail {
// A number made of a name. The compiler's name of a thing tells it apart; its address would, too, but a build with
// UBSan compares no addresses at compile time.
consteval uint64_t number_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}
template <class Part>
consteval uint64_t number_of_part() {
  return number_of(__PRETTY_FUNCTION__);
}
template <auto kMember>
consteval uint64_t number_of_member() {
  return number_of(__PRETTY_FUNCTION__);
}
template <class Part>
inline constexpr uint64_t kPart = number_of_part<Part>();
template <auto kMember>
inline constexpr uint64_t kMemberOf = number_of_member<kMember>();

template <class Member>
struct MemberTraits;
template <class P, class T>
struct MemberTraits<T P::*> {
  using Part = P;
  using Type = T;
};

template <class T>
[[nodiscard]] ValueRef ref_to(T& value) {
  if constexpr (std::is_enum_v<T>) {
    return WordRef{&value, [](const void* at) { return static_cast<int>(*static_cast<const T*>(at)); },
                   [](void* at, int to) { *static_cast<T*>(at) = static_cast<T>(to); }};
  } else if constexpr (requires {
                         requires std::is_enum_v<typename T::value_type>;
                         !value.has_value();
                       }) {
    using Value = typename T::value_type;
    return WordRef{&value,
                   [](const void* at) {
                     const T& held = *static_cast<const T*>(at);
                     return held ? static_cast<int>(*held) : -1;
                   },
                   [](void* at, int to) { *static_cast<T*>(at) = to < 0 ? T() : T(static_cast<Value>(to)); }};
  } else {
    return &value;
  }
}

template <auto kMember>
void find_ref(const Parts& parts, ValueRef& slot) {
  using Part = typename MemberTraits<decltype(kMember)>::Part;
  if (Part* const part = std::get<Part*>(parts); part != nullptr) slot = ref_to(part->*kMember);
}
template <auto... kMembers>
[[nodiscard]] ValueRef ref_in(const Parts& parts) {
  ValueRef slot;
  (find_ref<kMembers>(parts, slot), ...);
  return slot;
}
template <auto... kMembers>
inline constexpr Field kFields[] = {{kPart<typename MemberTraits<decltype(kMembers)>::Part>, kMemberOf<kMembers>}...};
}  // namespace detail

// The member of the part that a command has; several where a member of the name is in several commands' options.
template <auto... kMembers>
inline constexpr Place kPlace{&detail::ref_in<kMembers...>, detail::kFields<kMembers...>};

// What a value may be.
struct Range {
  enum class Kind : uint8_t {
    kSwitch,  // takes no value
    kText,
    kWhole,     // a decimal number: 010 is 10
    kReal,      // finite
    kPositive,  // finite, above 0
    kList,      // 1,2,4: whole numbers, kept sorted
    kWords,
    kOwn,  // `read` says
  };
  enum class Takes : uint8_t { kOne, kRepeated, kSeveral };  // values in all; per mention of the flag

  Kind kind = Kind::kText;
  double least = 0, most = 0;
  std::span<const Word> words{};  // all there are; of a kind that has others, some
  std::string_view word{};        // of kWhole: stands for -1
  bool filled = false;            // not empty: what a shell makes of a variable that is not set
  bool sized = false;             // of `nibble serve`: 8k, 2G
  Takes takes = Takes::kOne;
  std::string (*wrong)(const std::string& found) = nullptr;  // of kText: why it is refused; empty: it is not
  // Throws refuse_value() for what it does not take.
  void (*read)(std::string_view flag, const std::string& found, const ValueRef& into) = nullptr;
  std::string (*show)(const ValueRef& value) = nullptr;
};

inline constexpr Range kSwitch{.kind = Range::Kind::kSwitch};
inline constexpr Range kText{};
inline constexpr Range kFilled{.filled = true};
inline constexpr Range kFinite{.kind = Range::Kind::kReal, .least = -1e308, .most = 1e308};
inline constexpr Range kPositive{.kind = Range::Kind::kPositive};
[[nodiscard]] constexpr Range whole(int64_t least, int64_t most, std::string_view word = {}) {
  return {.kind = Range::Kind::kWhole,
          .least = static_cast<double>(least),
          .most = static_cast<double>(most),
          .word = word};
}
[[nodiscard]] constexpr Range sized(int64_t least, int64_t most, std::string_view word = {}) {
  Range range = whole(least, most, word);
  range.sized = true;
  return range;
}
[[nodiscard]] constexpr Range real(double least, double most) {
  return {.kind = Range::Kind::kReal, .least = least, .most = most};
}
[[nodiscard]] constexpr Range list(int64_t least, int64_t most) {
  return {.kind = Range::Kind::kList, .least = static_cast<double>(least), .most = static_cast<double>(most)};
}
[[nodiscard]] constexpr Range words(std::span<const Word> all) { return {.kind = Range::Kind::kWords, .words = all}; }
[[nodiscard]] constexpr Range own(decltype(Range::read) read, decltype(Range::show) show = nullptr) {
  return {.kind = Range::Kind::kOwn, .read = read, .show = show};
}
// Values of a feature to show and to try.
[[nodiscard]] constexpr Range such_as(Range range, std::span<const Word> examples) {
  range.words = examples;
  return range;
}
[[nodiscard]] constexpr Range shown_by(Range range, decltype(Range::show) show) {
  range.show = show;
  return range;
}
[[nodiscard]] constexpr Range repeated(Range range) {
  range.takes = Range::Takes::kRepeated;
  return range;
}
[[nodiscard]] constexpr Range several(Range range) {
  range.takes = Range::Takes::kSeveral;
  return range;
}

// What --help shows at once, and what it shows when asked for (--help=sampling).
enum class HelpGroup : uint8_t { kCommon, kSampling, kPerformance, kExpert };

class Commands {
 public:
  constexpr Commands(std::initializer_list<CommandId> ids) {
    for (const CommandId id : ids) bits_ |= uint32_t{1} << static_cast<unsigned>(id);
  }
  [[nodiscard]] constexpr bool has(CommandId id) const { return (bits_ >> static_cast<unsigned>(id) & 1) != 0; }
  friend constexpr Commands operator|(Commands a, Commands b) { return a.bits_ |= b.bits_, a; }

 private:
  uint32_t bits_ = 0;
};

// For the feature matrix, if the option changes how a model is run.
struct FeatureFacts {
  std::string_view name{};    // as --features takes it; empty: it says how much there is of something, or what is shown
  std::string_view usual{};   // a word for what it is where nobody says; empty: its value then
  std::string_view needs{};   // or excludes, beyond what Word::with and the refusals say
  std::string_view issues{};  // that are known
};

enum class Alike : uint8_t { kMayDiffer, kInAllRanks };

// What few options have.
struct Traits {
  backend::BackendSet on = backend::kEveryBackend;                              // who has the option
  backend::BackendSet (*on_value)(const backend::RunConfig& config) = nullptr;  // who has this value of it
  Alike alike = Alike::kMayDiffer;  // whatever changes a value that ranks exchange, or that they must compute alike
  // Other programs' names for it: flags, fields of vLLM's flags (--speculative-config.model), variables.
  std::string_view foreign{};
  FeatureFacts feature{};
  bool shown = false;                                // its default, in --help; of `nibble serve` each is
  std::string_view usual{};                          // what --help calls the default
  std::string_view type{};                           // what --help calls the value
  std::string (*fill)(CommandId command) = nullptr;  // for {} in `help` or `usual`
  std::string_view needs{}, excludes{};              // another flag
  bool required = false, secret = false;
};

struct Option {
  std::string_view flag;  // "-t,--threads"; "!--no-mmap" turns a switch off; without dashes it is a place
  std::string_view help;
  Place place;
  Range range;
  Commands commands;
  HelpGroup group = HelpGroup::kCommon;
  Traits traits{};

  [[nodiscard]] bool is_switch() const { return range.kind == Range::Kind::kSwitch; }
  [[nodiscard]] bool is_place() const { return flag[0] != '-' && flag[0] != '!'; }
  [[nodiscard]] std::string name() const;  // the first long one with its dashes; of a place its name
  [[nodiscard]] bool has_name(std::string_view name) const;
  [[nodiscard]] bool is_feature() const { return !traits.feature.name.empty(); }
  [[nodiscard]] std::string usual() const;                            // of a feature: its value where nobody says
  [[nodiscard]] const Word* word_named(std::string_view word) const;  // null: none
};

// All of them, in the order of --help.
[[nodiscard]] std::span<const Option> option_table();
// Null: the command has none of this name.
[[nodiscard]] const Option* option_named(CommandId command, std::string_view name);

// Ends the reading of a value: Error(kInvalidRequest) "<flag>: <why>".
[[noreturn]] void refuse_value(std::string_view flag, const std::string& why);
// Writes what `found` means and returns it as it was understood. Throws refuse_value().
std::string read_value(const Option& option, const ValueRef& into, const std::string& found);
[[nodiscard]] std::string shown_value(const Option& option, const ValueRef& value);
[[nodiscard]] std::string shown_default(const Option& option, CommandId command);
[[nodiscard]] bool is_true(std::string text);                           // true, on, yes, enable, 1 in any case
[[nodiscard]] std::string neither_yes_nor_no(const std::string& text);  // empty: it is one of them

// At every such character; of "" one empty part.
[[nodiscard]] std::vector<std::string> split(std::string_view text, char at);
// "; did you mean …?", or nothing where no name is near.
[[nodiscard]] std::string suggestion(std::string_view found, const std::vector<std::string>& names);

// Whether it says how a model is run.
[[nodiscard]] bool is_of_run(const Option& option);
// An option of a RunConfig with what it is there, in the words of the command line.
struct RunSetting {
  const Option* option;
  std::string flag, value;
  bool given = false;                               // or left open
  backend::BackendSet on = backend::kEveryBackend;  // who has it, or this value
  [[nodiscard]] std::string asked() const {
    return option->traits.on_value != nullptr ? fmt::format("{} {}", flag, value) : flag;
  }
};
[[nodiscard]] std::vector<RunSetting> run_settings(const backend::RunConfig& config);
// What is given and none of these backends has; none where they have all.
[[nodiscard]] std::optional<RunSetting> first_misfit(const backend::RunConfig& config, backend::BackendSet backends);
// Takes out what was given for cards alone, where the backend is another. A line for the user; empty: nothing was.
[[nodiscard]] std::string leave_out_card_settings(backend::RunConfig& config);
// Throws Error(kUnsupported) for one, naming it, who has it, and `why` it is these: why config.backend is no other.
void check_backends(const backend::RunConfig& config, backend::BackendSet backends, std::string_view why = "");

}  // namespace nibble::app
