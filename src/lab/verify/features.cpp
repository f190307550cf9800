#include "lab/verify/features.h"

#include "app/options/option.h"
#include "base/error.h"
#include "lab/bench/rows.h"
#include "lab/client/load_summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
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

int Combination::changed() const {
  return static_cast<int>(std::ranges::count_if(at, [](size_t place) { return place > 0; }));
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

std::vector<Combination> preset_combinations(std::span<const std::string> names) {
  std::vector<Combination> all;
  for (const std::string& name : names) {
    const Preset* const preset = preset_named(name);
    check(preset != nullptr, "a known preset");
    all.push_back({name, feature_words(preset->words), {}});
  }
  return all;
}

namespace {

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
struct Attempt {
  FeatureRow row;
  ServeOptions options;
};

std::vector<Attempt> plan_rows(const VerifyOptions& o, const std::vector<Combination>& combinations) {
  ServeOptions base;
  base.model = o.model;
  std::vector<Attempt> planned;
  std::map<std::string, std::string> seen;
  for (const Combination& combination : combinations) {
    Attempt next{.row = {.combination = combination, .refused = {}, .same_as = {}, .trial = {}}, .options = {}};
    try {
      next.options = resolved_features(with_words(base, combination.words));
      const auto [it, is_new] = seen.emplace(fingerprint(next.options), combination.name);
      if (!is_new) next.row.same_as = it->second;
    } catch (const Error& e) {
      if (e.code() != Code::kUnsupported && e.code() != Code::kInvalidRequest) throw;
      next.row.refused = e.what();
    }
    planned.push_back(std::move(next));
  }
  return planned;
}

// Warms up, and decides how often all combinations are measured in turn: several times if a model loads quickly, so
// that other load on the machine affects all of them alike.
int rounds_of(const VerifyOptions& o, Trials& trials, const ServeOptions& options) {
  constexpr double kShort = 2;  // seconds
  const auto start = std::chrono::steady_clock::now();
  static_cast<void>(trials.rates(options));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return o.rounds > 0 ? o.rounds : seconds < kShort ? 5 : 1;
}

bool runs(const FeatureRow& row) { return row.refused.empty() && row.same_as.empty(); }

std::string rates_text(std::span<const TrialRates> rounds) {
  return fmt::format("pp256 {:.0f}, tg32 {:.0f}, four at a time {:.0f}, again {:.0f} t/s", mean_of(rounds, 0),
                     mean_of(rounds, 1), mean_of(rounds, 2), mean_of(rounds, 3));
}

std::string loss_of(const Trial& trial) {
  return fmt::format("KL {:.2e}, same top token {:.1f} %", trial.loss.mean_kl, 100 * trial.loss.top1);
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
  std::vector<Combination> combinations;
  if (!o.presets.empty()) {
    combinations = preset_combinations(o.presets);
  } else {
    report.features = tried_features(o.features, o.model.run.backend);
    combinations = product_of(report.features);
  }
  std::vector<Attempt> planned = plan_rows(o, combinations);
  const auto count = std::ranges::count_if(planned, [](const Attempt& p) { return runs(p.row); });
  if (count > o.most_combinations)
    throw Error(Code::kInvalidRequest,
                "--features: {} combinations would run, want at most {}: name fewer features, some of their values "
                "as kv=bf16/fp8, or --max-combinations {}",
                count, o.most_combinations, count);
  if (!report.features.empty() && !runs(planned.front().row)) {
    const std::string& why = planned.front().row.refused;
    if (!o.features.empty())
      throw Error(Code::kInvalidRequest, "--features: the first values together are refused: {}", why);
    report.rows.push_back(std::move(planned.front().row));  // flags of the command do not go with the usual product
    skip_refused(report, checks);
    return report;
  }
  Trials trials(subject.with(o.model));
  int64_t done = 0;
  const auto show = [&](const Attempt& at, int round) {
    terminal.progress("verifying level 6", static_cast<double>(done) / static_cast<double>(count),
                      fmt::format("{} of {}{}: {}", done + 1, count, round > 1 ? fmt::format(", round {}", round) : "",
                                  at.row.combination.name));
    ++done;
  };
  const Attempt* base = nullptr;
  int rounds = 1;
  for (Attempt& next : planned) {
    if (!runs(next.row)) continue;
    show(next, 1);
    try {
      if (base == nullptr) rounds = rounds_of(o, trials, next.options);
      next.row.trial = trials.run(next.options);
      if (base == nullptr) base = &next;
      if (rounds == 1) add_check(next.row, checks);
    } catch (const Error& e) {
      if (e.code() != Code::kUnsupported) throw;
      next.row.refused = e.what();
    }
  }
  for (int round = 2; round <= rounds; ++round) {
    done = 0;
    for (Attempt& next : planned) {
      if (!next.row.trial) continue;
      show(next, round);
      next.row.trial->rounds.push_back(trials.rates(next.options));
      if (round == rounds) add_check(next.row, checks);
    }
  }
  if (base != nullptr && count > 1) report.again = trials.rates(base->options);
  for (Attempt& next : planned) report.rows.push_back(std::move(next.row));
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
