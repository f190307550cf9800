#include "app/options/model_options.h"

#include "app/options/option_parts.h"
#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <system_error>

namespace nibble::app {

namespace {

using engine::DraftMethod;

std::vector<std::pair<std::string, DraftMethod>> methods() {
  return {{"off", DraftMethod::kOff},       {"auto", DraftMethod::kSuffix},   {"ngram", DraftMethod::kNgram},
          {"suffix", DraftMethod::kSuffix}, {"eagle3", DraftMethod::kEagle3}, {"draft", DraftMethod::kDraft}};
}

Flag add_limits(Flags flags, engine::SpeculationLimits& o, const std::string& about) {
  flags.group(HelpGroup::kPerformance);
  const Flag method = add_choice<DraftMethod>(flags, "--speculative", {o.method, methods()}, about);
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

}  // namespace

Flag add_bench_speculation(Flags flags, BenchOptions& o, const std::string& about) {
  const Flag method = add_limits(flags, o.speculation, about);
  flags.group(HelpGroup::kPerformance);
  flags.value("--speculative-model", o.model.speculative_model, "draft: the model that drafts")
      .not_empty()
      .needs(method);
  flags.group(HelpGroup::kCommon);
  return method;
}

Flag add_acceptances(Flags flags, std::vector<double>& into) {
  constexpr std::string_view kName = "--speculative-acceptance";
  const auto take = [&into, kName](const std::string& found) {
    into.clear();
    for (const char *at = found.data(), *const end = at + found.size();; ++at) {
      double value = 0;
      const auto [rest, error] = std::from_chars(at, end, value);
      const bool fits = value >= 0 && value <= 1 + engine::kMostDrafted;
      if (error != std::errc() || !fits || (rest != end && *rest != ','))
        refuse_value(std::string(kName), fmt::format("want numbers from 0 to {} such as 0,0.7 or 0,1.5,2,2.5, found {}",
                                                     1 + engine::kMostDrafted, found));
      into.push_back(value);
      at = rest;
      if (rest == end) break;
    }
  };
  return flags
      .take(std::string(kName), take,
            "How often guesses are right. Up to 1: the chance of each, given those before it; above 1: the tokens that "
            "a step then gives a sequence, of at most --speculative-tokens guesses and its own")
      .type("LIST")
      .usual(fmt::format("{}", fmt::join(into, ",")));
}

void add_speculation(Flags flags, ModelOptions& options) {
  using checkpoint::TapReading;
  static_cast<void>(add_limits(
      flags, options.speculation,
      "Guess tokens and verify several in a step, as many as pay; the output stays as it is. ngram: from the text so "
      "far; suffix, auto: from past answers as well; eagle3: by a head that reads the model (EAGLE-3, P-EAGLE); draft: "
      "by another model (docs/speculation.md)"));
  flags.group(HelpGroup::kPerformance);
  flags
      .value("--speculative-model", options.speculative_model,
             "eagle3: the head's directory, with config.json and model.safetensors; draft: a smaller model of the same "
             "vocabulary, named as with --model")
      .not_empty();
  flags.group(HelpGroup::kExpert);
  add_choice<bool>(flags, "--speculative-control", {options.speculation.adaptive, {{"auto", true}, {"off", false}}},
                   "auto: verify the guesses that pay by measured times, none too; off: verify all that are made");
  add_choice<TapReading>(
      flags, "--speculative-tap-reading",
      {options.tap_reading,
       {{"auto", TapReading::kAuto}, {"outputs", TapReading::kOutputs}, {"boundaries", TapReading::kBoundaries}}},
      "eagle3: what the head's layer ids name: outputs of layers, or boundaries before them; auto: "
      "boundaries where the last id is the number of layers");
  flags.group(HelpGroup::kCommon);
}

void require_speculation(const ModelOptions& options) {
  const bool head = options.speculation.method == DraftMethod::kEagle3,
             draft = options.speculation.method == DraftMethod::kDraft;
  if (head && options.speculative_model.empty())
    throw Error(Code::kInvalidRequest,
                "--speculative eagle3: want --speculative-model DIR, the directory of a head, found none");
  if (head && options.group.count > 1 && options.run.backend == BackendKind::kCuda)
    throw Error(Code::kUnsupported,
                "--speculative eagle3: want one process where cards compute, found --nnodes {}: their steps leave "
                "nothing for a head to read",
                options.group.count);
  if (draft && options.speculative_model.empty())
    throw Error(
        Code::kInvalidRequest,
        "--speculative draft: want --speculative-model MODEL, a smaller model of the same vocabulary, found none");
  if (draft && options.group.count > 1)
    throw Error(Code::kUnsupported, "--speculative draft: want one process, found --nnodes {}", options.group.count);
  if (draft && options.run.backend == BackendKind::kCuda && options.run.ranks.count > 1)
    throw Error(Code::kUnsupported, "--speculative draft: want one card, found --tensor-parallel-size {}",
                options.run.ranks.count);
  if (!head && !draft && !options.speculative_model.empty())
    throw Error(Code::kInvalidRequest, "--speculative-model: want --speculative eagle3 or draft, found {}",
                engine::name_of(options.speculation.method));
  if (!options.speculation.adaptive && options.speculation.method == DraftMethod::kOff)
    throw Error(Code::kInvalidRequest, "--speculative-control off: want --speculative with a method, found off");
  if (!head && options.tap_reading != checkpoint::TapReading::kAuto)
    throw Error(Code::kInvalidRequest, "--speculative-tap-reading: want --speculative eagle3, found {}",
                engine::name_of(options.speculation.method));
}

ModelOptions draft_options(const ModelOptions& options) {
  ModelOptions draft = options;
  draft.settings = {};
  draft.model = options.speculative_model.string();
  draft.name.clear();
  draft.revision.clear();
  if (draft.load_format != LoadFormat::kDummy) draft.load_format = LoadFormat::kAuto;
  draft.backend_why.clear();
  draft.fast_why.clear();
  draft.speculation = {};
  draft.speculative_model.clear();
  return draft;
}

std::string describe_speculation(const engine::SpeculationLimits& limits) {
  if (limits.method == engine::DraftMethod::kOff) return "no speculation";
  return fmt::format("speculation {}, {} {} tokens", engine::name_of(limits.method),
                     limits.adaptive ? "up to" : "always", limits.most_tokens);
}

}  // namespace nibble::app
