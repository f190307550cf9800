#pragma once
// Every feature of how a model is run: its flag, its values, what each costs and where it runs. docs/feature-matrix.md
// is made of it and of the flags themselves, which say defaults and what they do. A new setting is a row here as well,
// or its flag is among those that are no features.

#include "app/options/flags.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

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

struct FeatureValue {
  std::string_view word;  // as the flag takes it
  Effect effect = Effect::kUnrounded;
  Places on{};
  // Flags that must stand beside it, with their values, or it is refused; on cards alone.
  std::string_view with{};
  std::string_view with_on_cards{};
};

struct Feature {
  std::string_view name;  // as --features takes it
  std::string_view flag;
  std::string_view usual;                // what it is where nobody says: one of the values, or another word for it
  std::span<const FeatureValue> values;  // of a number some examples
  std::string_view needs{};              // or excludes, beyond what `with` and the refusals say
  std::string_view issues{};             // that are known

  [[nodiscard]] const FeatureValue* value_named(std::string_view word) const;  // null: none
};

[[nodiscard]] std::span<const Feature> features();
[[nodiscard]] const Feature* feature_named(std::string_view name);  // null: none

// Flags of `nibble serve` among --help's performance and expert that are no features: they say how much there is of
// something, or what is shown.
[[nodiscard]] std::span<const std::string_view> flags_of_no_feature();

// Settings that exclude each other; the page shows the validator's words.
struct Refusal {
  std::string_view backend;
  std::string_view words;   // flags with their values
  std::string_view card{};  // one of known_cards(), where it is the card that refuses
};
[[nodiscard]] std::span<const Refusal> refusals();

// Steps of an optimisation by their usual names, in our words.
struct Preset {
  std::string_view name;
  std::string_view words;  // flags with their values
  std::string_view what;
};
[[nodiscard]] std::span<const Preset> presets();
[[nodiscard]] const Preset* preset_named(std::string_view name);  // null: none

// The features, told: a page for people (docs/feature-matrix.md), JSON for programs, a list for a terminal. Pure.

// `flags`: what those of features say of themselves.
[[nodiscard]] std::string features_page(const CommandFacts& flags);
[[nodiscard]] std::string features_text(const CommandFacts& flags);
[[nodiscard]] nlohmann::ordered_json features_json(const CommandFacts& flags);

}  // namespace nibble::app
