#include "app/speculation_options.h"

#include "app/option_parts.h"

#include <fmt/format.h>

namespace nibble::app {

Flag add_speculation(Flags flags, engine::SpeculationLimits& o, const std::string& about) {
  using engine::DraftMethod;
  flags.group(HelpGroup::kPerformance);
  const Flag method = add_choice<DraftMethod>(flags, "--speculative",
                                              {o.method,
                                               {{"off", DraftMethod::kOff},
                                                {"auto", DraftMethod::kSuffix},
                                                {"ngram", DraftMethod::kNgram},
                                                {"suffix", DraftMethod::kSuffix}}},
                                              about);
  flags.value("--speculative-tokens", o.most_tokens, "Most guesses of a sequence in a step")
      .whole(1, engine::kMostDrafted)
      .usual(fmt::format("{}", o.most_tokens));
  flags.group(HelpGroup::kExpert);
  flags.value("--prompt-lookup-max", o.most_lookup, "ngram: most last tokens that are looked up")
      .whole(1, engine::kMostLookup)
      .usual(fmt::format("{}", o.most_lookup));
  flags.value("--prompt-lookup-min", o.least_lookup, "ngram: least last tokens that are looked up")
      .whole(1, engine::kMostLookup)
      .usual(fmt::format("{}", o.least_lookup));
  flags.group(HelpGroup::kCommon);
  return method;
}

void add_speculation(Flags flags, engine::SpeculationLimits& o) {
  static_cast<void>(add_speculation(
      flags, o,
      "Guess tokens from what was said and verify several in a step, as many as pay; the output stays as it is. ngram: "
      "from the text so far; suffix, auto: from past answers as well (docs/speculation.md)"));
}

std::string describe_speculation(const engine::SpeculationLimits& limits) {
  if (limits.method == engine::DraftMethod::kOff) return "no speculation";
  return fmt::format("speculation {}, up to {} tokens", engine::name_of(limits.method), limits.most_tokens);
}

}  // namespace nibble::app
