#include "app/options/options.h"

#include "base/error.h"

#include <fmt/format.h>

namespace nibble::app {

using engine::DraftMethod;

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
  if (!head && options.tap_reading != model::eagle3::TapReading::kAuto)
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
