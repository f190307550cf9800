#include "lab/verify/features.h"

#include "app/options/option.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "engine/draft_model_proposer.h"
#include "lab/bench/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

namespace nibble::app {
namespace {

using backend::RunConfig;
using TrialClock = std::chrono::steady_clock;

constexpr int64_t kTrialPrompt = 256, kTrialTokens = 32, kTrialStages = 24, kTrialLoss = 256;
constexpr int kTrialRepetitions = 3, kTogether = 4;
// The divergence of two exact ways: sums in another order, keys in float instead of bf16.
constexpr KnownLoss kExactLoss{.kl = 5e-4, .top1 = 0.96};

double since(TrialClock::time_point start) { return std::chrono::duration<double>(TrialClock::now() - start).count(); }

engine::EngineLimits trial_limits(const ServeOptions& o) {
  constexpr int64_t kTrialContext = kTrialPrompt + kTrialTokens + 1;
  return {.max_context = kTrialContext,
          .max_sequences = kTogether,
          .max_batched_tokens = backend::with_defaults(o.model.run).max_num_batched_tokens,
          .kv_tokens = 2 * kTogether * (engine::pages_for(kTrialContext) + 1) * backend::kPageTokens,
          .prefix_cache = o.prefix_cache,
          .speculation = o.model.speculation,
          .async_scheduling = o.async_scheduling.value_or(o.model.run.backend == BackendKind::kCuda)};
}

// One sequence in an engine's loop, timed.
struct TimedText {
  std::vector<int32_t> tokens;
  double first = 0, all = 0;  // seconds until the first token, until the last
};
TimedText serve_timed(engine::Loop& loop, std::vector<int32_t> prompt) {
  TimedText timed;
  const auto start = TrialClock::now();
  loop.serve({.prompt = std::move(prompt), .max_tokens = kTrialTokens, .sampling = {.temperature = 0}},
             [&](const engine::TokenEvent& event) {
               if (timed.tokens.empty()) timed.first = since(start);
               timed.all = since(start);
               timed.tokens.push_back(event.token);
               return true;
             });
  return timed;
}

// A model that drafts; it stays where it is made.
struct Drafter {
  Drafter(std::unique_ptr<ModelSource> of, const VerifySubject& subject, const model::StepLimits& limits,
          bool prefix_cache)
      : source(std::move(of)),
        on(app::load({*source, subject.model, subject.make, subject.loaded}, subject.model.run, limits)),
        model{.be = *on.backend, .model = on.model, .limits = limits, .prefix_cache = prefix_cache} {}

  std::unique_ptr<ModelSource> source;
  OnBackend on;
  engine::DraftModel model;
};

// A combination's model, the head or the model that drafts for it (null: none), and what its engine may do.
struct TrialModel {
  std::unique_ptr<model::eagle3::Head> head;
  std::unique_ptr<LoadedHead> head_on;
  std::unique_ptr<Drafter> draft;
  engine::EngineLimits limits;
  OnBackend on;
};

// Loads the model once for all that is asked of a combination: from a large one's files or memory that takes seconds.
TrialModel load(const VerifySubject& subject, const ServeOptions& options) {
  TrialModel loaded{.head = open_head(options.model, subject.source),
                    .head_on = {},
                    .draft = {},
                    .limits = trial_limits(options),
                    .on = {}};
  loaded.limits.speculation.head = loaded.head.get();
  model::StepLimits room = engine::step_limits(loaded.limits, subject.source.config.dims);
  if (loaded.head) {
    loaded.head_on = std::make_unique<LoadedHead>(*loaded.head, options.model, room);
    loaded.limits.speculation.draft_model = &loaded.head_on->drafts;
  }
  Terminal quiet({.quiet = true});
  if (auto source = open_draft(options.model, subject.source, quiet)) {
    loaded.draft = std::make_unique<Drafter>(std::move(source), subject, engine::draft_step_limits(room),
                                             loaded.limits.prefix_cache);
    loaded.limits.speculation.draft_model = &loaded.draft->model;
  }
  for (const model::StepLimits& other : {whole_step(kTrialLoss), path_step(subject)}) {
    room.max_tokens = std::max(room.max_tokens, other.max_tokens);
    room.max_rows = std::max(room.max_rows, other.max_rows);
    for (size_t kind = 0; kind < room.kv_pages.size(); ++kind)
      room.kv_pages[kind] = std::max(room.kv_pages[kind], other.kv_pages[kind]);
  }
  loaded.on = app::load(subject, options.model.run, room);
  return loaded;
}

}  // namespace

std::optional<KnownLoss> known_loss(const nlohmann::json& losses, const RunConfig& run) {
  const std::vector<std::string> flags = lossy_flags(run);
  if (flags.empty()) return kExactLoss;
  KnownLoss sum = kExactLoss;
  double root = std::sqrt(sum.kl);
  for (const std::string& flag : flags) {
    if (!losses.contains(flag)) return std::nullopt;
    root += std::sqrt(losses[flag]["kl"].get<double>());
    sum.top1 -= 1 - losses[flag]["top1"].get<double>();
  }
  return KnownLoss{.kl = root * root, .top1 = sum.top1};
}

struct Trials::Measurement {
  TrialRates rates;
  std::vector<int32_t> text, again;  // of the first prompt, greedy; the same once more

  // Times what a combination's engine does with these ids.
  Measurement(const TrialModel& loaded, std::span<const int32_t> ids) {
    engine::Loop loop(*loaded.on.backend, loaded.on.model, loaded.limits);
    const auto next = [&](int64_t tokens) {
      const auto part = ids.first(static_cast<size_t>(tokens));
      ids = ids.subspan(part.size());
      return std::vector<int32_t>(part.begin(), part.end());
    };
    constexpr auto kGenerated = static_cast<double>(kTrialTokens - 1);
    engine::RequestId id = engine::RequestId{1} << 32;  // ids that serve() does not use
    for (int i = 0; i <= kTrialRepetitions; ++i) {
      const std::vector<int32_t> prompt = next(kTrialPrompt);
      const TimedText one = serve_timed(loop, prompt), more = serve_timed(loop, prompt);
      if (i == 0) text = one.tokens, again = more.tokens;
      const auto start = TrialClock::now();
      for (int s = 0; s < kTogether; ++s)
        loop.add(++id,
                 {.prompt = next(kTrialPrompt / kTogether), .max_tokens = kTrialTokens, .sampling = {.temperature = 0}},
                 [](const engine::Event&) {});
      while (!loop.idle()) loop.step();
      const double together = since(start);
      if (i == 0) continue;  // a warm-up
      rates[0].push_back(static_cast<double>(kTrialPrompt) / one.first);
      rates[1].push_back(kGenerated / (one.all - one.first));
      rates[2].push_back(static_cast<double>(kTogether * kTrialTokens) / together);
      rates[3].push_back(static_cast<double>(kTrialPrompt) / more.first);
    }
  }
};

Trials::Trials(const VerifySubject& subject)
    : subject_(subject),
      reference_(reference_of(subject.model)),
      ids_(verify_tokens(subject, (1 + kTrialRepetitions) * 2 * kTrialPrompt)) {}

const std::vector<float>& Trials::exact_of(const ModelOptions& model) {
  std::vector<float>& exact = paths_[std::string(name_of(model.run.isa))];
  if (exact.empty() && model.run.backend == BackendKind::kCpu) exact = exact_path(subject_.with(model));
  return exact;
}

TrialRates Trials::rates(const ServeOptions& options) const {
  return Measurement(load(subject_.with(options.model), options), ids_).rates;
}

// On a host, guesses, the prefix cache and the time at which a step begins do not change a text, since the same code
// computes.
std::string Trials::wrong_text(const ServeOptions& options, const Measurement& found) {
  const RunConfig& run = options.model.run;
  if (run.backend == BackendKind::kCuda) return {};
  std::string computes;
  for (const RunSetting& setting : run_settings(run)) computes += setting.value + " ";
  const auto [it, is_new] = texts_.emplace(computes, found.text);
  const auto differs = [](const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
    return std::ranges::mismatch(a, b).in1 - a.begin();
  };
  if (!is_new && it->second != found.text)
    return fmt::format("token {} of {} is another than without", differs(it->second, found.text), kTrialTokens);
  const bool exact = run.backend == BackendKind::kReference || !backend::rounds(run.activations);
  if (exact && found.again != found.text)
    return fmt::format("token {} of {} is another when the prompt comes again", differs(found.text, found.again),
                       kTrialTokens);
  return {};
}

Trial Trials::run(const ServeOptions& options) {
  const VerifySubject subject = subject_.with(options.model);
  const RunConfig& run = options.model.run;
  Trial trial;
  const auto fail = [&trial](const std::string& why) {
    if (!why.empty()) trial.wrong += (trial.wrong.empty() ? "" : "; ") + why;
  };
  const std::vector<int32_t> ids(ids_.begin(), ids_.begin() + kTrialLoss);
  if (exact_.empty()) {
    RunConfig exact = exact_run(run);
    exact.sinks = true;
    exact_ = run_step(subject, exact, ids).logits;
  }
  const std::vector<float>& exact_of_path = exact_of(options.model);
  const TrialModel loaded = load(subject, options);
  fail(wrong_path(subject, loaded.on, exact_of_path));
  fail(run_step(loaded.on, std::span(ids).first(kTrialStages), Scan::kStages).not_finite);
  trial.loss = divergence(exact_, run_step(loaded.on, ids).logits, subject_.source.config.dims.vocab,
                          thread_count(options.model));
  if (const auto known = reference_ ? known_loss((*reference_)["losses"], run) : std::nullopt) {
    trial.bound = fmt::format("at most {:.2g}, {:.1f} %", known->kl, 100 * known->top1);
    if (trial.loss.mean_kl > known->kl || trial.loss.top1 < known->top1)
      fail(fmt::format("KL {:.2e}, same top token {:.1f} %: want {}", trial.loss.mean_kl, 100 * trial.loss.top1,
                       trial.bound));
  }
  Measurement found(loaded, ids_);
  fail(wrong_text(options, found));
  trial.rounds.push_back(std::move(found.rates));
  return trial;
}

}  // namespace nibble::app
