#include "lab/verify/features.h"

#include "app/options/option.h"
#include "base/error.h"
#include "engine/draft_model_proposer.h"
#include "lab/bench/loop.h"
#include "lab/bench/rows.h"
#include "lab/client/load_summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>

namespace nibble::app {
namespace {

// Features at the server's door are not visible to one engine's loop; the backend is the command's own flag.
constexpr std::array<std::string_view, 3> kNotTried = {"backend", "dp", "policy"};

std::string_view usual_product(BackendKind backend) {
  switch (backend) {
    case BackendKind::kCuda: return "kernel=marlin/gemm,activation=bf16/mxfp8,mxfp4-layers=none/all,kv=bf16/fp8";
    case BackendKind::kReference: return "kv=bf16/fp8";
    default: return "activation=auto/f32,mxfp4-layers=none/all,kv=bf16/fp8,speculation=off/suffix";
  }
}

std::vector<std::string> all_values(const Option& feature) {
  std::vector<std::string> values = {feature.usual()};
  for (const Word& value : feature.range.words)
    if (value.word != values.front()) values.emplace_back(value.word);
  return values;
}

TriedFeature tried_feature(const std::string& text) {
  const size_t mark = text.find('=');
  const std::string name = text.substr(0, mark);
  const Option* const feature = feature_named(name);
  const bool tried = feature != nullptr && std::ranges::find(kNotTried, name) == kNotTried.end();
  if (!tried) {
    std::vector<std::string_view> names;
    for (const Option* const f : features())
      if (std::ranges::find(kNotTried, f->traits.feature.name) == kNotTried.end())
        names.push_back(f->traits.feature.name);
    throw Error(Code::kInvalidRequest, "--features: want some of {}, found {}", fmt::join(names, ", "),
                name.empty() ? "nothing" : name);
  }
  const std::vector<std::string> known = all_values(*feature);
  if (mark == std::string::npos) return {feature, known};
  std::vector<std::string> values = split(std::string_view(text).substr(mark + 1), '/');
  for (const std::string& value : values) {
    if (std::ranges::find(known, value) == known.end())
      throw Error(Code::kInvalidRequest, "--features {}: want values of {}, with / between them, found {}", name,
                  fmt::join(known, ", "), value.empty() ? "nothing" : value);
    if (std::ranges::count(values, value) > 1)
      throw Error(Code::kInvalidRequest, "--features {}: {} stands there twice", name, value);
  }
  return {feature, std::move(values)};
}

std::vector<Combination> combinations_of(std::span<const std::string> presets) {
  std::vector<Combination> all;
  for (const std::string& name : presets) {
    const Preset* const preset = preset_named(name);
    check(preset != nullptr, "a known preset");
    all.push_back({name, feature_words(preset->words), {}});
  }
  return all;
}

using backend::RunConfig;

constexpr int64_t kTrialPrompt = 256, kTrialTokens = 32, kTrialStages = 24, kTrialLoss = 256;
constexpr int kTrialRepetitions = 3, kTogether = 4;
// The divergence of two exact ways: sums in another order, keys in float instead of bf16.
constexpr KnownLoss kExactLoss{.kl = 5e-4, .top1 = 0.96};

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
  const auto start = std::chrono::steady_clock::now();
  loop.serve({.prompt = std::move(prompt), .max_tokens = kTrialTokens, .sampling = {.temperature = 0}},
             [&](const engine::TokenEvent& event) {
               if (timed.tokens.empty()) timed.first = seconds_since(start);
               timed.all = seconds_since(start);
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

std::string loss_of(const Trial& trial) {
  return fmt::format("KL {:.2e}, same top token {:.1f} %", trial.loss.mean_kl, 100 * trial.loss.top1);
}

struct Measurement {
  TrialRates rates;
  std::vector<int32_t> text, again;  // of the first prompt, greedy; the same once more
};

// Times what a combination's engine does with these ids.
Measurement measure(const TrialModel& loaded, std::span<const int32_t> ids) {
  Measurement found;
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
    if (i == 0) found.text = one.tokens, found.again = more.tokens;
    const auto start = std::chrono::steady_clock::now();
    for (int s = 0; s < kTogether; ++s)
      loop.add(++id,
               {.prompt = next(kTrialPrompt / kTogether), .max_tokens = kTrialTokens, .sampling = {.temperature = 0}},
               [](const engine::Event&) {});
    while (!loop.idle()) loop.step();
    const double together = seconds_since(start);
    if (i == 0) continue;  // a warm-up
    found.rates[0].push_back(static_cast<double>(kTrialPrompt) / one.first);
    found.rates[1].push_back(kGenerated / (one.all - one.first));
    found.rates[2].push_back(static_cast<double>(kTogether * kTrialTokens) / together);
    found.rates[3].push_back(static_cast<double>(kTrialPrompt) / more.first);
  }
  return found;
}

// Runs one combination at a time: checks its kernels, its results as far as they are known, and its speed.
class Trials {
 public:
  // The subject's source and options outlive it.
  explicit Trials(const VerifySubject& subject)
      : subject_(subject),
        reference_(reference_of(subject.model)),
        ids_(verify_tokens(subject, (1 + kTrialRepetitions) * 2 * kTrialPrompt)) {}

  [[nodiscard]] TrialRates rates(const ServeOptions& options) const {
    return measure(load(subject_.with(options.model), options), ids_).rates;
  }

  // REQUIRES resolved options. Throws Error(kUnsupported) for what the backend refuses.
  [[nodiscard]] Trial run(const ServeOptions& options) {
    const VerifySubject subject = subject_.with(options.model);
    const RunConfig& run = options.model.run;
    Trial trial;
    const auto fail = [&trial](const std::string& why) {
      if (!why.empty()) trial.wrong += (trial.wrong.empty() ? "" : "; ") + why;
    };
    const std::span ids = std::span(ids_).first(kTrialLoss);
    if (exact_.empty()) {
      RunConfig exact = exact_run(run);
      exact.sinks = true;
      exact_ = run_step(subject, exact, ids).logits;
    }
    std::vector<float>& exact_of_path = paths_[run.isa];
    if (exact_of_path.empty() && run.backend == BackendKind::kCpu) exact_of_path = exact_path(subject);
    const TrialModel loaded = load(subject, options);
    fail(wrong_path(subject, loaded.on, exact_of_path));
    fail(run_step(loaded.on, ids.first(kTrialStages), Scan::kStages).not_finite);
    trial.loss = divergence(exact_, run_step(loaded.on, ids).logits, subject_.source.config.dims.vocab,
                            thread_count(options.model));
    if (const auto known = reference_ ? known_loss((*reference_)["losses"], run) : std::nullopt) {
      trial.bound = fmt::format("at most {:.2g}, {:.1f} %", known->kl, 100 * known->top1);
      if (trial.loss.mean_kl > known->kl || trial.loss.top1 < known->top1)
        fail(fmt::format("{}: want {}", loss_of(trial), trial.bound));
    }
    Measurement found = measure(loaded, ids_);
    if (run.backend != BackendKind::kCuda) fail(wrong_text(run, found));
    trial.rounds.push_back(std::move(found.rates));
    return trial;
  }

 private:
  // On a host, guesses, the prefix cache and the time at which a step begins do not change a text, since the same code
  // computes.
  std::string wrong_text(const RunConfig& run, const Measurement& found) {
    std::string computes;
    for (const RunSetting& setting : run_settings(run)) computes += setting.value + " ";
    const std::vector<int32_t>& known = texts_.emplace(computes, found.text).first->second;
    const auto parts_at = [&](const std::vector<int32_t>& other) {
      return std::ranges::mismatch(found.text, other).in1 - found.text.begin();
    };
    if (known != found.text)
      return fmt::format("token {} of {} is another than without", parts_at(known), kTrialTokens);
    const bool exact = run.backend == BackendKind::kReference || !backend::rounds(run.activations);
    if (exact && found.again != found.text)
      return fmt::format("token {} of {} is another when the prompt comes again", parts_at(found.again), kTrialTokens);
    return {};
  }

  const VerifySubject subject_;
  const std::optional<nlohmann::json> reference_;
  std::vector<int32_t> ids_;
  std::vector<float> exact_;                             // logits with nothing rounded
  std::map<backend::CpuIsa, std::vector<float>> paths_;  // the same for level 1.5's tokens
  std::map<std::string, std::vector<int32_t>> texts_;    // by the settings that affect them
};

using FeatureJson = nlohmann::ordered_json;

constexpr double kNoChange = 1e-3;  // of a speed: smaller differences do not count, however steady they were

// The median of a round: now and then another program takes the processor during a repetition.
double typical(const std::vector<double>& values) { return client::spread_of(values).p50; }

double mean_of(std::span<const TrialRates> rounds, size_t rate) {
  std::vector<double> of_rounds;
  for (const TrialRates& round : rounds) of_rounds.push_back(typical(round[rate]));
  return mean_sd(of_rounds).mean;
}

std::string percent(double ratio) { return fmt::format("{:+.1f} %", 100 * (ratio - 1)); }

// Half of the 95 % interval, relative to the ratio.
double half_of(const Change& change) {
  return change.interval ? (change.interval->high - change.interval->low) / 2 / (1 + change.relative) : 0;
}

// Which combinations run; the others are refused or equal to an earlier one.
std::vector<FeatureRow> plan_rows(const VerifyOptions& o, const std::vector<Combination>& combinations) {
  ServeOptions base;
  base.model = o.model;
  std::vector<FeatureRow> planned;
  std::map<std::string, std::string> seen;
  for (const Combination& combination : combinations) {
    FeatureRow& next = planned.emplace_back(FeatureRow{.combination = combination});
    try {
      next.options = resolved_features(with_words(base, combination.words));
      const auto [it, is_new] = seen.emplace(fingerprint(next.options), combination.name);
      if (!is_new) next.same_as = it->second;
    } catch (const Error& e) {
      if (e.code() != Code::kUnsupported && e.code() != Code::kInvalidRequest) throw;
      next.refused = e.what();
    }
  }
  return planned;
}

// Warms up, and decides how often all combinations are measured in turn: several times if a model loads quickly, so
// that other load on the machine affects all of them alike.
int rounds_of(const VerifyOptions& o, const Trials& trials, const ServeOptions& options) {
  constexpr double kShort = 2;  // seconds
  const auto start = std::chrono::steady_clock::now();
  static_cast<void>(trials.rates(options));
  const double seconds = seconds_since(start);
  return o.rounds > 0 ? o.rounds : seconds < kShort ? 5 : 1;
}

bool runs(const FeatureRow& row) { return row.refused.empty() && row.same_as.empty(); }

std::string rates_text(std::span<const TrialRates> rounds) {
  return fmt::format("pp256 {:.0f}, tg32 {:.0f}, four at a time {:.0f}, again {:.0f} t/s", mean_of(rounds, 0),
                     mean_of(rounds, 1), mean_of(rounds, 2), mean_of(rounds, 3));
}

// What a combination that was tried gains, and what the gains of its parts, multiplied, predict for it; no prediction
// if a part was not tried alone.
struct RowGain {
  const FeatureRow* row;
  FeatureGain gain;
  struct Prediction {
    double score = 1, noise = 0;
  };
  std::optional<Prediction> as_alone{};

  [[nodiscard]] std::string together() const {
    const double interplay = std::log(gain.score / as_alone->score), noise = std::hypot(gain.noise, as_alone->noise);
    if (std::abs(interplay) <= std::max(noise, kNoChange)) return "as alone";
    return interplay > 0 ? "better than alone" : "worse than alone";
  }
};

std::optional<RowGain::Prediction> as_alone(std::span<const RowGain> gains, const Combination& c) {
  RowGain::Prediction sum;
  for (size_t f = 0; f < c.at.size(); ++f) {
    if (c.at[f] == 0) continue;
    const auto part = std::ranges::find_if(gains, [&](const RowGain& each) {
      return each.row->combination.changed() == 1 && each.row->combination.at[f] == c.at[f];
    });
    if (part == gains.end()) return std::nullopt;
    sum.score *= part->gain.score;
    sum.noise = std::hypot(sum.noise, part->gain.noise);
  }
  return sum;
}

// The fastest first.
std::vector<RowGain> gains_of(const FeatureReport& report) {
  std::vector<RowGain> gains;
  for (const FeatureRow& row : report.rows)
    if (row.trial) gains.push_back({&row, gain_of(report.base()->trial->rounds, row.trial->rounds, report.drift())});
  for (RowGain& each : gains) each.as_alone = as_alone(gains, each.row->combination);
  std::ranges::stable_sort(gains, std::ranges::greater(), [](const RowGain& each) { return each.gain.score; });
  return gains;
}

std::string gain_row(const RowGain& each, const std::string& last) {
  std::string out = fmt::format("| {} |", each.row->combination.name);
  for (const Change& change : each.gain.of_rates) out += fmt::format(" {} |", percent(1 + change.relative));
  return out + fmt::format(" {} | {} | {} |\n", percent(each.gain.score), loss_of(*each.row->trial), last);
}

std::string steadiness(const FeatureReport& report) {
  const size_t rounds = report.base()->trial->rounds.size();
  const std::string moved = fmt::format("The machine's speed moved by {:.1f} %", 100 * report.drift());
  return rounds > 1
             ? fmt::format("{} from the first of {} rounds to the end; rounds are compared one by one.", moved, rounds)
             : fmt::format("{} until the end: less than that says nothing.", moved);
}

std::string feature_table_head(std::string_view first, std::string_view last) {
  return fmt::format("| {} | {} | all | loss | {} |\n|---|--:|--:|--:|--:|--:|---|---|\n", first,
                     fmt::join(kRates, " | "), last);
}

// Reasons, with the combinations that were refused for each.
std::map<std::string, std::vector<std::string>> refused_of(const FeatureReport& report) {
  std::map<std::string, std::vector<std::string>> reasons;
  for (const FeatureRow& row : report.rows)
    if (!row.refused.empty()) reasons[row.refused].push_back(row.combination.name);
  return reasons;
}

}  // namespace

std::vector<TriedFeature> tried_features(std::string_view list, BackendKind backend) {
  std::vector<TriedFeature> tried;
  for (const std::string& part : split(list.empty() ? usual_product(backend) : list, ',')) {
    TriedFeature next = tried_feature(part);
    if (std::ranges::find(tried, next.feature, &TriedFeature::feature) != tried.end())
      throw Error(Code::kInvalidRequest, "--features: {} stands there twice", next.feature->traits.feature.name);
    tried.push_back(std::move(next));
  }
  return tried;
}

std::vector<Combination> product_of(std::span<const TriedFeature> features) {
  size_t count = 1;
  for (const TriedFeature& f : features) count = std::min(count * f.values.size(), kMostCombinations + 1);
  if (count > kMostCombinations)
    throw Error(Code::kInvalidRequest,
                "--features: want at most {} combinations, found more: name fewer features, or "
                "some of their values as kv=bf16/fp8",
                kMostCombinations);
  std::vector<Combination> all;
  for (size_t number = 0; number < count; ++number) {
    Combination c;
    size_t rest = count, left = number;
    for (const TriedFeature& f : features) {
      rest /= f.values.size();
      const size_t place = left / rest;
      left %= rest;
      c.at.push_back(place);
      if (place > 0 || number == 0)
        c.name += fmt::format("{}{}={}", c.name.empty() ? "" : " ", f.feature->traits.feature.name, f.values[place]);
      for (FeatureWord& word : words_of(*f.feature, f.values[place])) c.words.push_back(std::move(word));
    }
    all.push_back(std::move(c));
  }
  return all;
}

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

const FeatureRow* FeatureReport::base() const {
  const auto it = std::ranges::find_if(rows, [](const FeatureRow& row) { return row.trial.has_value(); });
  return it == rows.end() ? nullptr : &*it;
}

double FeatureReport::drift() const {
  const FeatureRow* const first = base();
  if (first == nullptr || again.front().empty()) return 0;
  return std::abs(gain_of({first->trial->rounds.data(), 1}, {&again, 1}, 0).score - 1);
}

FeatureGain gain_of(std::span<const TrialRates> base, std::span<const TrialRates> other, double drift) {
  check(!base.empty() && base.size() == other.size(), "rounds of both");
  const bool one = base.size() == 1;
  const std::vector<double> itself(base.size(), 1.0);
  std::vector<double> scores = itself;
  FeatureGain gain;
  double halves = 0;
  for (size_t rate = 0; rate < kRates.size(); ++rate) {
    std::vector<double> ratios;
    for (size_t i = 0; i < base.size(); ++i) ratios.push_back(typical(other[i][rate]) / typical(base[i][rate]));
    Change& change = gain.of_rates[rate];
    change = one ? change_of(base.front()[rate], other.front()[rate]) : change_of(itself, ratios);
    if (rate >= kScoredRates) continue;
    for (size_t i = 0; i < base.size(); ++i) scores[i] *= std::pow(ratios[i], 1.0 / kScoredRates);
    halves = std::hypot(halves, half_of(change) / kScoredRates);
  }
  const Change score = change_of(itself, scores);
  gain.score = 1 + score.relative;
  gain.noise = one ? std::hypot(halves, drift) : half_of(score);
  return gain;
}

std::string FeatureGain::verdict() const {
  if (std::abs(std::log(score)) <= std::max(noise, kNoChange)) return "no difference shown";
  return score > 1 ? "helps" : "costs";
}

FeatureReport try_features(const VerifyOptions& o, const VerifySubject& subject, Terminal& terminal,
                           VerifyChecks& checks) {
  checks.begin(VerifyLevel::kFeatures);
  FeatureReport report;
  if (o.presets.empty()) report.features = tried_features(o.features, o.model.run.backend);
  report.rows = plan_rows(o, o.presets.empty() ? product_of(report.features) : combinations_of(o.presets));
  const auto count = std::ranges::count_if(report.rows, runs);
  if (count > o.most_combinations)
    throw Error(Code::kInvalidRequest,
                "--features: {} combinations would run, want at most {}: name fewer features, or some of their values "
                "as kv=bf16/fp8, or --max-combinations {}",
                count, o.most_combinations, count);
  if (!report.features.empty() && !runs(report.rows.front())) {
    if (!o.features.empty())
      throw Error(Code::kInvalidRequest, "--features: the first values together are refused: {}",
                  report.rows.front().refused);
    report.rows.resize(1);  // flags of the command do not go with the usual product
    skip_refused(report, checks);
    return report;
  }
  Trials trials(subject.with(o.model));
  int64_t done = 0;
  const auto show = [&](const FeatureRow& row, int round) {
    terminal.progress("verifying level 6", static_cast<double>(done) / static_cast<double>(count),
                      fmt::format("{} of {}{}: {}", done + 1, count, round > 1 ? fmt::format(", round {}", round) : "",
                                  row.combination.name));
    ++done;
  };
  int rounds = 0;
  for (FeatureRow& row : report.rows) {
    if (!runs(row)) continue;
    show(row, 1);
    try {
      if (report.base() == nullptr) rounds = rounds_of(o, trials, row.options);
      row.trial = trials.run(row.options);
      if (rounds == 1) add_check(row, checks);
    } catch (const Error& e) {
      if (e.code() != Code::kUnsupported) throw;
      row.refused = e.what();
    }
  }
  for (int round = 2; round <= rounds; ++round) {
    done = 0;
    for (FeatureRow& row : report.rows) {
      if (!row.trial) continue;
      show(row, round);
      row.trial->rounds.push_back(trials.rates(row.options));
      if (round == rounds) add_check(row, checks);
    }
  }
  if (report.base() != nullptr && count > 1) report.again = trials.rates(report.base()->options);
  skip_refused(report, checks);
  return report;
}

void add_check(const FeatureRow& row, VerifyChecks& checks) {
  const Trial& t = *row.trial;
  const bool right = t.wrong.empty();
  const std::string bound = t.bound.empty() ? "no bound known" : t.bound;
  checks.add(row.combination.name, right,
             right ? fmt::format("{}; {} ({})", rates_text(t.rounds), loss_of(t), bound)
                   : fmt::format("{}; INVALID: {}", t.wrong, rates_text(t.rounds)));
}

void skip_refused(const FeatureReport& report, VerifyChecks& checks) {
  for (const auto& [reason, names] : refused_of(report))
    checks.skip(
        names.size() == 1 ? names.front() : fmt::format("{} combinations, {} the first", names.size(), names.front()),
        "refused: " + reason);
}

std::string feature_report_text(const FeatureReport& report) {
  const FeatureRow* const base = report.base();
  if (base == nullptr) return "Every combination is refused.\n";
  std::string alone = feature_table_head("feature", "verdict"), together;
  for (const RowGain& each : gains_of(report)) {
    const int changed = each.row->combination.changed();
    if (report.features.empty() ? each.row != base : changed == 1) alone += gain_row(each, each.gain.verdict());
    if (changed < 2) continue;
    together += gain_row(each, each.as_alone ? fmt::format("{}: {}", percent(each.as_alone->score), each.together())
                                             : "a part was not tried alone");
  }
  std::string out = fmt::format("Held against {}: {}. {}\n\n### Alone\n{}", base->combination.name,
                                rates_text(base->trial->rounds), steadiness(report), alone);
  if (!together.empty())
    out += "\n### Together\n" + feature_table_head("combination", "product of alone, and what was found") + together;
  const auto refused = refused_of(report);
  if (!refused.empty()) out += "\n### Refused\n| combinations | such as | reason |\n|--:|---|---|\n";
  for (const auto& [reason, names] : refused)
    out += fmt::format("| {} | {} | {} |\n", names.size(), names.front(), reason);
  std::string same;
  for (const FeatureRow& row : report.rows)
    if (!row.same_as.empty()) same += fmt::format("- {} is {}\n", row.combination.name, row.same_as);
  if (!same.empty()) out += "\n### The same run twice\n" + same;
  return out;
}

FeatureJson feature_report_json(const FeatureReport& report) {
  FeatureJson features = FeatureJson::array(), rows = FeatureJson::array();
  const std::vector<RowGain> gains = gains_of(report);
  for (const TriedFeature& f : report.features)
    features.push_back({{"feature", f.feature->traits.feature.name}, {"values", f.values}});
  for (const FeatureRow& row : report.rows) {
    FeatureJson flags = FeatureJson::object();
    for (const FeatureWord& word : row.combination.words) flags[word.flag.substr(2)] = word.value;
    FeatureJson& json = rows.emplace_back(FeatureJson{{"name", row.combination.name}, {"flags", flags}});
    if (!row.refused.empty()) json["refused"] = row.refused;
    if (!row.same_as.empty()) json["same_as"] = row.same_as;
    if (!row.trial) continue;
    const Trial& t = *row.trial;
    const RowGain& each = *std::ranges::find(gains, &row, &RowGain::row);
    json["wrong"] = t.wrong;
    json["kl"] = t.loss.mean_kl;
    json["top1"] = t.loss.top1;
    for (size_t rate = 0; rate < kRates.size(); ++rate) {
      std::string name(kRates[rate]);
      std::ranges::replace(name, ' ', '_');
      FeatureJson& values = json["tokens_per_second"][name] = FeatureJson::array();
      for (const TrialRates& round : t.rounds)
        for (const double value : round[rate]) values.push_back(value);
    }
    json["score"] = each.gain.score;
    json["noise"] = each.gain.noise;
    json["verdict"] = each.gain.verdict();
    if (each.as_alone && row.combination.changed() > 1) {
      json["product_of_alone"] = each.as_alone->score;
      json["together"] = each.together();
    }
  }
  return {{"features", features}, {"combinations", rows}, {"drift", report.drift()}};
}

}  // namespace nibble::app
