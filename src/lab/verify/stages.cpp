// Level 2 on steps of several sequences: every stage is finite and what the reference makes of the same inputs,
// nobody's logits depend on who shares the step, and experts stop at their limit.

#include "app/setup/loaded_model.h"
#include "backend/cpu/cpu_backend.h"
#include "base/dtype.h"
#include "engine/step_builder.h"
#include "lab/verify/verify.h"
#include "model/compare.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::app {
namespace {

using backend::Activations;
using backend::RunConfig;
using backend::Slot;
using engine::StepPart;
using model::Stage;

// Prompts of three sequences: one passes the borders of windows and pages, one a page's, and one is a token.
constexpr std::array<int64_t, 3> kPrompts = {323, 77, 1};
constexpr std::array<int64_t, 3> kMore = {1, 5, 3};     // tokens behind these: 9, which a card rounds
constexpr std::array<int64_t, 2> kFar = {4096, 32768};  // where others go on, at a page's border
constexpr int64_t kFarTokens = 3, kMostLogits = 64;     // of a sequence in a step
constexpr int kTokens = kPrompts[0] + kPrompts[1] + kPrompts[2];

// Two steps: prompts together, and then more tokens of each beside those of sequences that are far along. These have
// no text before them: their earlier pages are all the first sequence's.
struct Together {
  std::array<std::vector<StepPart>, 2> steps;
  int32_t pages = 0;  // that are written

  // As many pages as the longest sequence names, since a card's page tables are as long as its pool.
  [[nodiscard]] model::StepLimits limits() const {
    const int32_t all = std::max(pages, static_cast<int32_t>(steps[1].back().pages.size()));
    return {.max_tokens = kTokens, .max_rows = kPrompts.size() * kMostLogits, .kv_pages = {all, all, all}};
  }
};

Together together(const VerifySubject& subject) {
  Together all;
  const std::vector<int32_t> text = verify_tokens(subject, 512);
  auto from = text.begin();
  const auto take = [&](int64_t count) {
    from += count;
    return std::vector<int32_t>(from - count, from);
  };
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    StepPart part{take(kPrompts[i])};
    while (std::ssize(part.pages) < engine::pages_for(kPrompts[i] + kMore[i])) part.pages.push_back(all.pages++);
    all.steps[0].push_back(part);
    all.steps[1].push_back({take(kMore[i]), kPrompts[i], part.pages});
  }
  for (const int64_t far : kFar) {
    if (far + kFarTokens > subject.source.config.dims.max_context) continue;
    StepPart part{take(kFarTokens), far};
    for (int64_t p = 0; p < engine::pages_for(far); ++p)
      part.pages.push_back(static_cast<int32_t>(p % (kPrompts[0] / backend::kPageTokens)));
    part.pages.push_back(all.pages++);
    all.steps[1].push_back(std::move(part));
  }
  return all;
}

// With logits of each sequence's last tokens.
model::Step step_of(std::span<const StepPart> parts, int64_t logits) {
  model::Step step = engine::step_of(parts);
  for (const backend::Row& row : step.rows)
    for (auto t = std::max<int64_t>(0, row.tokens - logits); t < row.tokens; ++t)
      step.logit_tokens.push_back(row.first_token + static_cast<int32_t>(t));
  return step;
}

ModelPart first_layers(const VerifySubject& subject, int64_t layers) {
  ModelPart part{model::truncated(subject.source.config, layers), {}};
  std::ranges::copy_if(subject.source.weights, std::back_inserter(part.weights),
                       [&](const backend::HostWeight& w) { return w.layer < layers; });
  return part;
}

// How far a stage may be from the reference's doubles of the same inputs, relative to its token's rms, or to a value
// that is larger. Both round what is asked for alike, so what is left is the arithmetic, and a code that fell to the
// other side of its rounding. `blocks`: dense layers may round what they multiply.
double tolerance(const RunConfig& run, bool blocks, Stage stage, Slot slot) {
  // Sums of up to 2880 products in float lose at most 2880 x 2^-24 = 1.7e-4, and in lanes a small part of that.
  constexpr double kFloats = 1e-4;
  // Inputs in bf16 are off by up to 2^-9 each, a sum of many by about 2^-10 of its rms, five times that among 10^7
  // values, and SwiGLU multiplies it by up to 4.
  constexpr double kHalves = 0x1p-5;
  // A score moves its key's weight by as much as it moves: the 16 of one product, of a key that fell to the next bf16,
  // or 32 that are off by 2^-9 of themselves.
  constexpr double kScore16 = 0x1p-4;
  // One code of E4M3 and E2M3, of a value that may be most of a sum.
  constexpr double kCode8 = 1.0 / 7;
  // int8, where one side does not round as AMX does not: an input is off by up to max / 254, at most 1.3 % of its
  // block's size, and of 10^7 sums one by ten times that; twice, where two products follow each other.
  constexpr double kInt8 = 0.25;
  // One code of E2M1, and a score of 8 that is off by one code of E4M3.
  constexpr double kCode4 = 1;
  const bool card = run.backend == BackendKind::kCuda;
  if (stage == Stage::kAttend && slot == Slot::kAttn) {
    if (run.fp8_attention() || backend::type_of(run.kv_type()).lossy) return kCode4;
    const bool amx = run.activations == Activations::kInt8 && run.isa == backend::CpuIsa::kAmx;
    return card || amx || run.kv_type() == backend::KvDtype::kBf16 ? kScore16 : kFloats;
  }
  if (stage == Stage::kAttend && run.fp8_attention()) return kCode8;
  const bool experts = stage == Stage::kMoe && (slot == Slot::kExpertHidden || slot == Slot::kDelta);
  const bool dense = blocks && stage != Stage::kMoe && stage != Stage::kRoute && slot != Slot::kResidual;
  const Activations of = experts ? run.activations : run.dense_activations;
  if (backend::rounds(of) && (experts || dense))
    return of == Activations::kMxfp4 ? kCode4 : of == Activations::kInt8 ? kInt8 : kCode8;
  return card ? kHalves : kFloats;
}

class Stages {
 public:
  Stages(const VerifySubject& subject, VerifyChecks& checks) : subject_(subject), checks_(checks) {}

  void verify() {
    const RunConfig& asked = subject_.model.run;
    RunConfig exact = exact_run(asked);
    if (exact.backend == BackendKind::kCpu) exact.kv = backend::KvDtype::kF32;
    company("as asked", asked);
    by_stage("as asked", asked);
    if (exact.backend != BackendKind::kCuda || !lossy_flags(asked).empty()) {  // else they are the same
      company("exact", exact);
      if (reference_is_fast(subject_)) by_stage("exact", exact);
    }
    limit(exact);
  }

 private:
  // Each step, and then each sequence of it alone.
  void company(std::string_view name, const RunConfig& run) {
    const OnBackend on = load(subject_, run, together_.limits());
    std::string not_finite, wrong;
    std::vector<float> beside, alone;
    std::vector<std::string> places;  // of the rows of logits
    for (const std::vector<StepPart>& parts : together_.steps) {
      const RunStep all = run_step(on, step_of(parts, kMostLogits), Scan::kStages);
      if (not_finite.empty()) not_finite = all.not_finite;
      beside.insert(beside.end(), all.logits.begin(), all.logits.end());
      for (size_t s = 0; s < parts.size(); ++s) {
        const model::Step step = step_of({&parts[s], 1}, kMostLogits);
        const std::vector<float> own = run_step(on, step).logits;
        alone.insert(alone.end(), own.begin(), own.end());
        for (const int32_t t : step.logit_tokens)
          places.push_back(fmt::format("sequence {}, position {}", s, step.positions[static_cast<size_t>(t)]));
      }
    }
    checks_.add_unless(fmt::format("every stage is finite, {}", name), not_finite, fmt::format("{} tokens", kTokens));
    const std::string check = fmt::format("logits in company against those alone, {}", name);
    const int64_t vocab = subject_.source.config.dims.vocab;
    if (alike_in_company(run)) {
      const auto [own, other] = std::ranges::mismatch(alone, beside);
      if (own != alone.end())
        wrong = fmt::format("logits of {}: want the same bits, {} alone, {} beside others",
                            places[static_cast<size_t>((own - alone.begin()) / vocab)], *own, *other);
      return checks_.add_unless(check, wrong, fmt::format("{} rows, the same bits", places.size()));
    }
    const Divergence d = divergence(alone, beside, vocab, thread_count(subject_.model));
    constexpr double kOfHalves = 2.5e-4, kUnknown = 0.08;  // nats, of nibble-tiny: 16 bits, MXFP4
    double loss = kOfHalves;
    for (const std::string& flag : lossy_flags(run)) {
      const bool known = reference_ && (*reference_)["losses"].contains(flag);
      loss += known ? (*reference_)["losses"][flag]["kl"].get<double>() : kUnknown;
    }
    const double most = 4 * loss;  // both are off by what the options cost, which makes two; another two is chance
    checks_.add(check, d.mean_kl <= most,
                fmt::format("KL {:.1e}, want at most {:.1e}; most in logits of {}, {:.1e}", d.mean_kl, most,
                            places[static_cast<size_t>(d.largest_at)], d.largest_kl));
  }

  void by_stage(std::string_view as, const RunConfig& run) {
    const std::string name = fmt::format("stage by stage against the reference, {}", as);
    if (run.backend == BackendKind::kReference) return checks_.skip(name, "this is the reference");
    const int64_t all = subject_.source.config.dims.layers;
    const int64_t layers = reference_is_fast(subject_) ? all : std::min<int64_t>(all, 2);
    const ModelPart part = first_layers(subject_, layers);
    RunConfig every = run;  // Hopper's own choice is to round many tokens alone
    if (run.backend == BackendKind::kCuda && run.family == backend::KernelFamily::kAuto &&
        backend::rounds(run.activations))
      every.family = backend::KernelFamily::kGemm;
    const OnBackend own = load(subject_.make, every, together_.limits(), part);
    RunConfig plain = run;
    plain.rounds_pages = true;
    plain.ranks = {};
    const MakeBackend make = [](const RunConfig& r, const backend::BackendConfig& config) {
      return make_backend(BackendKind::kReference, r, config);
    };
    const OnBackend reference = load(make, plain, together_.limits(), part);
    const RunConfig resolved = run.backend == BackendKind::kCpu ? backend::resolved_cpu(run) : run;
    const auto most = [&, blocks = run.dense.any() || is_gguf(subject_.model)](Stage stage, Slot slot) {
      return tolerance(resolved, blocks, stage, slot);
    };
    size_t count = 0;
    double largest = 0;
    for (const std::vector<StepPart>& parts : together_.steps) {
      const model::Step step = step_of(parts, 1);
      const model::Comparison result =
          model::compare_each({*reference.backend, reference.model}, {*own.backend, own.model}, step, most);
      if (result.first_bad) {
        const model::StageDifference& d = result.stages[*result.first_bad];
        const std::string layer = d.layer < 0 ? "" : fmt::format("layer {} ", d.layer);
        return checks_.add(
            name, false,
            fmt::format("{}{}, {} of {}: want {}, found {}; apart by {:.1e} of the token's size, want at most {:.1e}",
                        layer, name_of(d.stage), backend::name_of(d.slot),
                        model::place_of(step, d.slot, d.shape, d.element), d.a, d.b, d.largest, most(d.stage, d.slot)));
      }
      count += result.stages.size();
      for (const model::StageDifference& d : result.stages) largest = std::max(largest, d.largest);
    }
    checks_.add(name, true, fmt::format("{} activations of {} layers, at most {:.1e} apart", count, layers, largest));
  }

  // Biases far beyond the limit leave nothing else of what is multiplied: gate and up are the limit. What comes of that
  // is stored with the model, since a wrong limit may be the backends' and the reference's alike.
  void limit(const RunConfig& run) {
    ModelPart part = first_layers(subject_, 1);
    const auto bias = std::ranges::find(part.weights, backend::WeightRole::kGateUpBias, &backend::HostWeight::role);
    const Shape shape = bias->values.shape;  // of gate and up, or of each
    const std::vector<Bf16> beyond(static_cast<size_t>(shape[0] * shape[1]), Bf16::from_float(16384));
    const RawTensor values{DType::kBf16, shape, std::as_bytes(std::span(beyond))};
    const bool apart = !bias->odd.bytes.empty();
    *bias = {.role = bias->role, .layer = bias->layer, .values = values, .scales = {}};
    if (apart) bias->odd = values;
    const double top = subject_.source.config.swiglu_limit;
    double want = top / (1 + std::exp(-1.702 * top)) * (top + 1);  // torch/model.py swiglu
    if (reference_) want = reference_->value("at_limit", want);
    const OnBackend on = load(subject_.make, run, together_.limits(), part);
    const model::Step step = step_of(together_.steps[0], 1);
    std::string wrong;
    size_t count = 0;
    model::forward(*on.backend, on.model, step, [&](Stage stage, int layer) {
      if (stage != Stage::kMoe) return;
      const backend::SlotData found = on.backend->peek(Slot::kExpertHidden);
      count = found.values.size();
      const double most = want * (run.backend == BackendKind::kCuda ? 0x1p-8 : 1e-4);  // bf16, a few floats
      const auto bad = std::ranges::find_if_not(found.values, [&](float v) { return std::abs(v - want) <= most; });
      if (bad == found.values.end()) return;
      wrong = fmt::format(
          "layer {} {}, {} of {}: want {}, found {}", layer, name_of(stage), backend::name_of(Slot::kExpertHidden),
          model::place_of(step, Slot::kExpertHidden, found.shape, bad - found.values.begin()), want, *bad);
    });
    if (count == 0) return checks_.skip("experts stop at their limit", "the backend does not show what they make");
    checks_.add_unless("experts stop at their limit", wrong, fmt::format("{} values of {:.3f}", count, want));
  }

  const VerifySubject& subject_;
  VerifyChecks& checks_;
  const Together together_ = together(subject_);
  const std::optional<nlohmann::json> reference_ = reference_of(subject_.model);
};

}  // namespace

bool alike_in_company(const RunConfig& run) {
  if (run.backend == BackendKind::kCpu) return backend::resolved_cpu(run).activations != Activations::kInt8;
  return run.backend == BackendKind::kReference;
}

void verify_stages(const VerifySubject& subject, VerifyChecks& checks) { Stages(subject, checks).verify(); }

}  // namespace nibble::app
