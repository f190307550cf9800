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

// Of the sequences: one that passes the borders of windows and pages, one that passes a page's, and one token.
constexpr std::array<int64_t, 3> kPrompts = {323, 77, 1};
constexpr std::array<int64_t, 3> kMore = {1, 5, 1};     // tokens behind these
constexpr std::array<int64_t, 2> kFar = {4096, 32768};  // where others go on, at a page's border
constexpr int64_t kFarTokens = 3, kMostLogits = 64;     // of a sequence in a step
// Products of the reference, some 4e8 a second, that a run may take; a large model has two layers at least.
constexpr double kMostProducts = 2e10;
constexpr int64_t kLeastLayers = 2;

// Two steps: prompts together, and then more tokens of each beside those of sequences that are far along. These have
// no text before them: their earlier pages are all the first sequence's.
struct Together {
  std::array<std::vector<StepPart>, 2> steps;
  int32_t pages = 0;  // that are written
  int64_t longest = 0;
  int64_t tokens = 0;  // of a step, at most
};

Together together(const VerifySubject& subject) {
  Together all;
  const std::vector<int32_t> text = verify_tokens(subject, 512);
  auto from = text.begin();
  const auto take = [&](int64_t count) {
    from += count;
    return std::vector<int32_t>(from - count, from);
  };
  const auto add_page = [&](StepPart& part) { part.pages.push_back(all.pages++); };
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    StepPart part{take(kPrompts[i])};
    while (std::ssize(part.pages) < engine::pages_for(kPrompts[i] + kMore[i])) add_page(part);
    all.steps[0].push_back(part);
  }
  for (size_t i = 0; i < kPrompts.size(); ++i)
    all.steps[1].push_back({take(kMore[i]), kPrompts[i], all.steps[0][i].pages});
  for (const int64_t far : kFar) {
    if (far + kFarTokens > subject.source.config.dims.max_context) continue;
    StepPart part{take(kFarTokens), far};
    for (int64_t p = 0; p < far / backend::kPageTokens; ++p)
      part.pages.push_back(static_cast<int32_t>(p % (kPrompts[0] / backend::kPageTokens)));
    add_page(part);
    all.steps[1].push_back(std::move(part));
  }
  for (const auto& step : all.steps) {
    int64_t tokens = 0;
    for (const StepPart& part : step) {
      tokens += std::ssize(part.ids);
      all.longest = std::max(all.longest, part.computed + std::ssize(part.ids));
    }
    all.tokens = std::max(all.tokens, tokens);
  }
  return all;
}

// With logits of each sequence's last tokens.
model::Step step_of(std::span<const StepPart> parts, int64_t logits) {
  model::Step step = engine::step_of(parts);
  for (const backend::Row& row : step.rows)
    for (int32_t t = std::max<int32_t>(0, row.tokens - static_cast<int32_t>(logits)); t < row.tokens; ++t)
      step.logit_tokens.push_back(row.first_token + t);
  return step;
}

// A card's page tables are as long as its pool, so that has as many pages as the longest sequence.
model::StepLimits limits_of(const Together& of, const RunConfig& run) {
  const int32_t pages = run.backend == BackendKind::kCuda
                            ? std::max(of.pages, static_cast<int32_t>(engine::pages_for(of.longest)))
                            : of.pages;
  const auto rows = static_cast<int>(std::min<int64_t>(of.tokens, kPrompts.size() * kMostLogits));
  return {.max_tokens = static_cast<int>(of.tokens), .max_rows = rows, .kv_pages = {pages, pages, pages}};
}

// As many of the first layers as the reference computes in minutes: of nibble-tiny all.
int64_t compared_layers(const VerifySubject& subject, const Together& of) {
  const backend::Dims& d = subject.source.config.dims;
  const int64_t dense = d.hidden * (2 * d.q_width() + 2 * d.kv_width()), experts = 3 * d.topk * d.hidden * d.inter;
  const double of_layer = static_cast<double>(of.tokens * (dense + experts));
  const auto layers = std::max(kLeastLayers, static_cast<int64_t>(kMostProducts / of_layer));
  return std::min(layers, d.layers);
}

ModelPart first_layers(const VerifySubject& subject, int64_t layers) {
  ModelPart part{model::truncated(subject.source.config, layers), {}};
  std::ranges::copy_if(subject.source.weights, std::back_inserter(part.weights),
                       [&](const backend::HostWeight& w) { return w.layer < layers; });
  return part;
}

// How far a stage may be from the reference's doubles of the same inputs, relative to its token's rms, or to a value
// that is larger. Both round what is asked for alike, so what is left is the arithmetic, and a code that fell to the
// other side of its rounding.
class Tolerance {
 public:
  Tolerance(const VerifySubject& subject, const RunConfig& run)
      : run_(run.backend == BackendKind::kCpu ? backend::resolved_cpu(run) : run),
        card_(run.backend == BackendKind::kCuda),
        blocks_(run.dense.any() || is_gguf(subject.model)) {}

  [[nodiscard]] double operator()(model::Stage stage, Slot slot) const {
    const bool int8 = run_.activations == Activations::kInt8;
    if (stage == model::Stage::kAttend && slot == Slot::kAttn) {
      if (run_.fp8_attention() || backend::type_of(run_.kv_type()).lossy) return kCode4;
      const bool sixteen = card_ || run_.kv_type() == backend::KvDtype::kBf16;
      return sixteen || (int8 && run_.isa == backend::CpuIsa::kAmx) ? kScore16 : kFloats;
    }
    if (stage == model::Stage::kAttend && run_.fp8_attention()) return kCode8;
    const bool experts = stage == model::Stage::kMoe && (slot == Slot::kExpertHidden || slot == Slot::kDelta);
    const bool dense = slot == Slot::kQkv || slot == Slot::kQ || slot == Slot::kDelta || slot == Slot::kLogits;
    const Activations of = experts ? run_.activations : run_.dense_activations;
    if (backend::rounds(of) && (experts || (dense && blocks_))) return of == Activations::kMxfp4 ? kCode4 : kCode8;
    return card_ ? kHalves : kFloats;
  }

 private:
  // Sums of up to 2880 products in float lose at most 2880 x 2^-24 = 1.7e-4, and in lanes a small part of that.
  static constexpr double kFloats = 1e-4;
  // Inputs in bf16 are off by up to 2^-9 each, a sum of many by about 2^-10 of its rms, five times that among 10^7
  // values, and SwiGLU multiplies it by up to 4.
  static constexpr double kHalves = 0x1p-5;
  // A score moves its key's weight by as much as it moves: the 16 of one product, of a key that fell to the next bf16,
  // or 32 that are off by 2^-9 of themselves.
  static constexpr double kScore16 = 0x1p-4;
  // One code of E4M3 and E2M3, of a value that may be most of a sum. int8 is off by up to max / 254, at most 1.3 % of a
  // block's size, twice, where AMX multiplies in bf16 instead.
  static constexpr double kCode8 = 1.0 / 7;
  // One code of E2M1, and a score of 8 that is off by one code of E4M3.
  static constexpr double kCode4 = 1;

  const RunConfig run_;
  const bool card_, blocks_;
};

std::string fault_of(const model::Step& step, const model::StageDifference& d, double tolerance) {
  return fmt::format("{}{}, {} of {}: want {}, found {}; apart by {:.1e} of the token's size, want at most {:.1e}",
                     d.layer < 0 ? "" : fmt::format("layer {} ", d.layer), name_of(d.stage), backend::name_of(d.slot),
                     model::place_of(step, d.slot, d.shape, d.element), d.a, d.b, d.largest, tolerance);
}

class Stages {
 public:
  Stages(const VerifySubject& subject, VerifyChecks& checks)
      : subject_(subject),
        checks_(checks),
        together_(together(subject)),
        layers_(compared_layers(subject, together_)),
        reference_(reference_of(subject.model)) {}

  void verify() {
    RunConfig exact = exact_run(subject_.model.run);
    if (exact.backend == BackendKind::kCpu) exact.kv = backend::KvDtype::kF32;
    verify("as asked", subject_.model.run);
    if (exact.backend != BackendKind::kCuda || !lossy_flags(subject_.model.run).empty()) verify("exact", exact);
    limit(exact);
  }

 private:
  void verify(const std::string& name, const RunConfig& run) {
    company(name, run);
    const std::string check = "stage by stage against the reference, " + name;
    if (run.backend == BackendKind::kReference) return checks_.skip(check, "this is the reference");
    if (name == "exact" && layers_ < subject_.source.config.dims.layers)
      return checks_.skip(check, "the reference's loops are slow: a large model is compared as asked");
    by_stage(check, run);
  }

  // What each sequence's logits may differ by: KL divergence in nats, the mean of all rows. Both are off by as much as
  // the options cost, which makes twice that; another factor of two is chance.
  [[nodiscard]] double most_apart(const RunConfig& run) const {
    constexpr double kOfHalves = 2.5e-4, kUnknown = 0.08;  // measured of nibble-tiny: 16 bits, MXFP4
    double loss = kOfHalves;
    for (const std::string& flag : lossy_flags(run)) {
      const bool known = reference_ && (*reference_)["losses"].contains(flag);
      loss += known ? (*reference_)["losses"][flag]["kl"].get<double>() : kUnknown;
    }
    return 4 * loss;
  }

  // The same steps, and then each sequence of them alone.
  void company(const std::string& name, const RunConfig& run) {
    const OnBackend on = load(subject_, run, limits_of(together_, run));
    std::string not_finite, parted, farthest;
    std::vector<float> beside, alone;
    for (const std::vector<StepPart>& parts : together_.steps) {
      const RunStep all = run_step(on, step_of(parts, kMostLogits), Scan::kStages);
      if (not_finite.empty()) not_finite = all.not_finite;
      beside.insert(beside.end(), all.logits.begin(), all.logits.end());
    }
    checks_.add_unless("every stage is finite, " + name, not_finite, fmt::format("{} tokens", together_.tokens));
    std::vector<std::string> places;  // of the rows of logits
    for (const std::vector<StepPart>& parts : together_.steps) {
      for (size_t s = 0; s < parts.size(); ++s) {
        const model::Step step = step_of({&parts[s], 1}, kMostLogits);
        const std::vector<float> own = run_step(on, step).logits;
        alone.insert(alone.end(), own.begin(), own.end());
        for (const int32_t t : step.logit_tokens)
          places.push_back(
              fmt::format("logits of sequence {}, position {}", s, step.positions[static_cast<size_t>(t)]));
      }
    }
    const std::string check = "logits in company against those alone, " + name;
    if (alone.empty()) return checks_.skip(check, "the backend does not show them");
    const int64_t vocab = subject_.source.config.dims.vocab;
    std::string wrong;
    if (alike_in_company(run)) {
      const auto [own, other] = std::ranges::mismatch(alone, beside);
      if (own != alone.end())
        wrong = fmt::format("{}: want the same bits, {} alone, {} beside others",
                            places[static_cast<size_t>((own - alone.begin()) / vocab)], *own, *other);
      return checks_.add_unless(check, wrong, fmt::format("{} rows, the same bits", places.size()));
    }
    const Divergence d = divergence(alone, beside, vocab, thread_count(subject_.model));
    const double most = most_apart(run);
    const std::string found = fmt::format("KL {:.1e}, want at most {:.1e}; most in {}, {:.1e}", d.mean_kl, most,
                                          places[static_cast<size_t>(d.largest_at)], d.largest_kl);
    checks_.add(check, d.mean_kl <= most, found);
  }

  void by_stage(const std::string& name, const RunConfig& run) {
    const ModelPart part = first_layers(subject_, layers_);
    const OnBackend own = load(subject_.make, run, limits_of(together_, run), part);
    RunConfig plain = run;
    plain.rounds_pages = true;
    plain.ranks = {};
    model::StepLimits limits = limits_of(together_, run);
    limits.kv_pages.fill(together_.pages);
    const MakeBackend make = [](const RunConfig& r, const backend::BackendConfig& config) {
      return make_backend(BackendKind::kReference, r, config);
    };
    const OnBackend reference = load(make, plain, limits, part);
    const Tolerance tolerance(subject_, run);
    size_t count = 0;
    double largest = 0;
    for (const std::vector<StepPart>& parts : together_.steps) {
      const model::Step step = step_of(parts, 1);
      const model::Comparison result =
          model::compare_each({*reference.backend, reference.model}, {*own.backend, own.model}, step, tolerance);
      if (result.first_bad) {
        const model::StageDifference& d = result.stages[*result.first_bad];
        return checks_.add(name, false, fault_of(step, d, tolerance(d.stage, d.slot)));
      }
      count += result.stages.size();
      for (const model::StageDifference& d : result.stages) largest = std::max(largest, d.largest);
    }
    checks_.add(name, true, fmt::format("{} activations of {} layers, at most {:.1e} apart", count, layers_, largest));
  }

  // Biases far beyond the limit leave nothing else of what is multiplied: gate and up are the limit, or up is minus it.
  // The values for that are stored with the model, since a wrong limit may be the backends' and the reference's alike.
  void limit(const RunConfig& run) {
    const std::string name = "experts stop at their limit";
    ModelPart part = first_layers(subject_, 1);
    const auto bias = std::ranges::find_if(
        part.weights, [](const backend::HostWeight& w) { return w.role == backend::WeightRole::kGateUpBias; });
    constexpr float kBeyond = 16384;
    const auto inter = static_cast<size_t>(part.config.dims.inter);
    const auto experts = static_cast<size_t>(bias->values.shape[0]);
    std::vector<Bf16> gate(experts * inter, Bf16::from_float(kBeyond)), up = gate, both;
    for (size_t i = 1; i < up.size(); i += 2) up[i] = Bf16::from_float(-kBeyond);
    for (size_t i = 0; i < up.size(); ++i) both.insert(both.end(), {gate[i], up[i]});
    const auto tensor = [&](const std::vector<Bf16>& values) {
      const auto width = static_cast<int64_t>(values.size() / experts);
      return RawTensor{DType::kBf16, {static_cast<int64_t>(experts), width}, std::as_bytes(std::span(values))};
    };
    const bool apart = !bias->odd.bytes.empty();
    *bias = {.role = bias->role, .layer = bias->layer, .values = tensor(apart ? gate : both), .scales = {}};
    if (apart) bias->odd = tensor(up);
    const double limit = subject_.source.config.swiglu_limit, most = limit / (1 + std::exp(-1.702 * limit));
    std::array<double, 2> want = {most * (limit + 1), most * (1 - limit)};  // torch/model.py swiglu
    if (reference_ && reference_->contains("at_limit")) want = (*reference_)["at_limit"];
    const OnBackend on = load(subject_.make, run, limits_of(together_, run), part);
    const model::Step step = step_of(together_.steps[0], 1);
    std::string wrong;
    size_t count = 0;
    model::forward(*on.backend, on.model, step, [&](model::Stage stage, int layer) {
      if (stage != model::Stage::kMoe) return;
      const backend::SlotData found = on.backend->peek(Slot::kExpertHidden);
      count = found.values.size();
      for (size_t i = 0; i < found.values.size() && wrong.empty(); ++i) {
        const double of = want[i % inter % 2], size = std::abs(of);
        if (std::abs(of - double{found.values[i]}) <= size * (run.backend == BackendKind::kCuda ? 0x1p-8 : 1e-4))
          continue;
        wrong = fmt::format(
            "layer {} {}, {} of {}: want {}, found {}", layer, name_of(stage), backend::name_of(Slot::kExpertHidden),
            model::place_of(step, Slot::kExpertHidden, found.shape, static_cast<int64_t>(i)), of, found.values[i]);
      }
    });
    if (count == 0) return checks_.skip(name, "the backend does not show what an expert makes");
    checks_.add_unless(name, wrong, fmt::format("{} values, {:.3f} and {:.3f}", count, want[0], want[1]));
  }

  const VerifySubject& subject_;
  VerifyChecks& checks_;
  const Together together_;
  const int64_t layers_;  // that are compared with the reference's
  const std::optional<nlohmann::json> reference_;
};

}  // namespace

bool alike_in_company(const RunConfig& run) {
  if (run.backend == BackendKind::kCpu) return backend::resolved_cpu(run).activations != Activations::kInt8;
  return run.backend == BackendKind::kReference;
}

void verify_stages(const VerifySubject& subject, VerifyChecks& checks) { Stages(subject, checks).verify(); }

}  // namespace nibble::app
