#include "lab/verify/verify_features.h"

#include "app/options/option.h"
#include "lab/bench/bench_report.h"
#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <utility>

namespace nibble::app {
namespace {

using FeatureJson = nlohmann::ordered_json;

constexpr double kNoChange = 1e-3;  // of a speed: smaller differences do not count, however steady they were

using Rate = std::vector<double> TrialRates::*;

// The median of a round: now and then another program takes the processor during a repetition.
double typical(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double mean_of(std::span<const TrialRates> rounds, Rate rate) {
  std::vector<double> of_rounds;
  for (const TrialRates& round : rounds) of_rounds.push_back(typical(round.*rate));
  return mean_sd(of_rounds).mean;
}

std::string percent(double ratio) { return fmt::format("{:+.1f} %", 100 * (ratio - 1)); }

std::string percent(const Change& change) { return percent(1 + change.relative); }

// Half of the 95 % interval, relative to the ratio.
double half_of(const Change& change) {
  return change.interval ? (change.interval->high - change.interval->low) / 2 / (1 + change.relative) : 0;
}

// Which combinations run; the others are refused or equal to an earlier one.
struct Planned {
  FeatureRow row;
  ServeOptions options;
};

std::vector<Planned> plan_rows(const VerifyOptions& o, const std::vector<Combination>& combinations) {
  ServeOptions base;
  base.model = o.model;
  std::vector<Planned> planned;
  std::map<std::string, std::string> seen;
  for (const Combination& combination : combinations) {
    Planned next{.row = {.combination = combination, .refused = {}, .same_as = {}, .trial = {}}, .options = {}};
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
  return fmt::format("pp256 {:.0f}, tg32 {:.0f}, four at a time {:.0f}, again {:.0f} t/s",
                     mean_of(rounds, &TrialRates::prompt), mean_of(rounds, &TrialRates::alone),
                     mean_of(rounds, &TrialRates::together), mean_of(rounds, &TrialRates::again));
}

std::string loss_of(const Trial& trial) {
  return fmt::format("KL {:.2e}, same top token {:.1f} %", trial.loss.mean_kl, 100 * trial.loss.top1);
}

std::vector<std::pair<const FeatureRow*, FeatureGain>> gains_of(const FeatureReport& report) {
  std::vector<std::pair<const FeatureRow*, FeatureGain>> gains;
  const FeatureRow* const base = report.base();
  for (const FeatureRow& row : report.rows)
    if (row.trial) gains.emplace_back(&row, gain_of(base->trial->rounds, row.trial->rounds, report.drift()));
  std::ranges::stable_sort(gains, [](const auto& a, const auto& b) { return a.second.score > b.second.score; });
  return gains;
}

// What the gains of a combination's parts, multiplied, predict for it; none if a part was not tried alone.
struct AsAlone {
  double score = 1, noise = 0;
};
std::optional<AsAlone> as_alone(const FeatureReport& report, const Combination& c) {
  AsAlone sum;
  for (size_t f = 0; f < c.at.size(); ++f) {
    if (c.at[f] == 0) continue;
    const auto part = std::ranges::find_if(report.rows, [&](const FeatureRow& row) {
      const std::vector<size_t>& at = row.combination.at;
      return row.trial && row.combination.changed() == 1 && at[f] == c.at[f];
    });
    if (part == report.rows.end()) return std::nullopt;
    const FeatureGain gain = gain_of(report.base()->trial->rounds, part->trial->rounds, report.drift());
    sum.score *= gain.score;
    sum.noise = std::hypot(sum.noise, gain.noise);
  }
  return sum;
}

std::string together_verdict(const FeatureGain& gain, const AsAlone& alone) {
  const double interplay = std::log(gain.score / alone.score), noise = std::hypot(gain.noise, alone.noise);
  if (std::abs(interplay) <= std::max(noise, kNoChange)) return "as alone";
  return interplay > 0 ? "better than alone" : "worse than alone";
}

std::string gain_row(const FeatureRow& row, const FeatureGain& g, const std::string& last) {
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", row.combination.name, percent(g.prompt),
                     percent(g.alone), percent(g.together), percent(g.again), percent(g.score), loss_of(*row.trial),
                     last);
}

std::string steadiness(const FeatureReport& report) {
  const size_t rounds = report.base()->trial->rounds.size();
  const std::string moved = fmt::format("The machine's speed moved by {:.1f} %", 100 * report.drift());
  return rounds > 1
             ? fmt::format("{} from the first of {} rounds to the end; rounds are compared one by one.", moved, rounds)
             : fmt::format("{} until the end: less than that says nothing.", moved);
}

constexpr std::string_view kColumns = "pp256 | tg32 | four at a time | same prompt again | all | loss";

std::string alone_text(const FeatureReport& report) {
  std::string out = fmt::format("| feature | {} | verdict |\n|---|--:|--:|--:|--:|--:|---|---|\n", kColumns);
  for (const auto& [row, gain] : gains_of(report))
    if (report.features.empty() ? row != report.base() : row->combination.changed() == 1)
      out += gain_row(*row, gain, gain.verdict());
  return out;
}

std::string together_text(const FeatureReport& report) {
  std::string out = fmt::format(
      "| combination | {} | product of alone, and what was found |\n|---|--:|--:|--:|--:|--:|---|---|\n", kColumns);
  for (const auto& [row, gain] : gains_of(report)) {
    if (row->combination.changed() < 2) continue;
    const auto alone = as_alone(report, row->combination);
    out += gain_row(*row, gain,
                    alone ? fmt::format("{}: {}", percent(alone->score), together_verdict(gain, *alone))
                          : "a part was not tried alone");
  }
  return out;
}

// Reasons, with the combinations that were refused for each.
std::map<std::string, std::vector<std::string>> refused_of(const FeatureReport& report) {
  std::map<std::string, std::vector<std::string>> reasons;
  for (const FeatureRow& row : report.rows)
    if (!row.refused.empty()) reasons[row.refused].push_back(row.combination.name);
  return reasons;
}

// A fact of the metadata, or "unknown".
std::string told(const nlohmann::ordered_json& metadata, const char* at) {
  const nlohmann::ordered_json::json_pointer pointer(at);
  if (!metadata.contains(pointer) || metadata[pointer].is_null()) return "unknown";
  return metadata[pointer].is_string() ? metadata[pointer].get<std::string>() : metadata[pointer].dump();
}

}  // namespace

const FeatureRow* FeatureReport::base() const {
  const auto it = std::ranges::find_if(rows, [](const FeatureRow& row) { return row.trial.has_value(); });
  return it == rows.end() ? nullptr : &*it;
}

double FeatureReport::drift() const {
  const FeatureRow* const first = base();
  if (first == nullptr || again.prompt.empty()) return 0;
  return std::abs(gain_of({first->trial->rounds.data(), 1}, {&again, 1}, 0).score - 1);
}

FeatureGain gain_of(std::span<const TrialRates> base, std::span<const TrialRates> other, double drift) {
  check(!base.empty() && base.size() == other.size(), "rounds of both");
  const bool one = base.size() == 1;
  const std::vector<double> itself(base.size(), 1.0);
  const auto ratios = [&](Rate rate) {
    std::vector<double> of_rounds;
    for (size_t i = 0; i < base.size(); ++i) of_rounds.push_back(typical(other[i].*rate) / typical(base[i].*rate));
    return of_rounds;
  };
  const auto change = [&](Rate rate) {
    return one ? change_of(base.front().*rate, other.front().*rate) : change_of(itself, ratios(rate));
  };
  FeatureGain g{.prompt = change(&TrialRates::prompt),
                .alone = change(&TrialRates::alone),
                .together = change(&TrialRates::together),
                .again = change(&TrialRates::again)};
  const std::vector<double> p = ratios(&TrialRates::prompt), a = ratios(&TrialRates::alone),
                            t = ratios(&TrialRates::together);
  std::vector<double> scores;
  for (size_t i = 0; i < base.size(); ++i) scores.push_back(std::cbrt(p[i] * a[i] * t[i]));
  const Change score = change_of(itself, scores);
  const double halves = std::hypot(half_of(g.prompt), half_of(g.alone), half_of(g.together)) / 3;
  g.score = 1 + score.relative;
  g.noise = one ? std::hypot(halves, drift) : half_of(score);
  return g;
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
    report.features = tried_features(o.review.empty() ? o.features : o.review, o.model.run.backend);
    combinations = product_of(report.features);
  }
  std::vector<Planned> planned = plan_rows(o, combinations);
  const auto count = std::ranges::count_if(planned, [](const Planned& p) { return runs(p.row); });
  if (count > o.most_combinations)
    throw Error(Code::kInvalidRequest,
                "--features: {} combinations would run, want at most {}: name fewer features, some of their values "
                "as kv=bf16/fp8, or --max-combinations {}",
                count, o.most_combinations, count);
  if (!report.features.empty() && !runs(planned.front().row)) {
    const std::string& why = planned.front().row.refused;
    if (!o.features.empty() || !o.review.empty())
      throw Error(Code::kInvalidRequest, "--features: the first values together are refused: {}", why);
    report.rows.push_back(std::move(planned.front().row));  // flags of the command do not go with the usual product
    skip_refused(report, checks);
    return report;
  }
  Trials trials(subject.with(o.model));
  int64_t done = 0;
  const auto show = [&](const Planned& at, int round) {
    terminal.progress("verifying level 6", static_cast<double>(done) / static_cast<double>(count),
                      fmt::format("{} of {}{}: {}", done + 1, count, round > 1 ? fmt::format(", round {}", round) : "",
                                  at.row.combination.name));
    ++done;
  };
  const Planned* base = nullptr;
  int rounds = 1;
  for (Planned& next : planned) {
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
    for (Planned& next : planned) {
      if (!next.row.trial) continue;
      show(next, round);
      next.row.trial->rounds.push_back(trials.rates(next.options));
      if (round == rounds) add_check(next.row, checks);
    }
  }
  if (base != nullptr && count > 1) report.again = trials.rates(base->options);
  for (Planned& next : planned) report.rows.push_back(std::move(next.row));
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
  std::string out = fmt::format("Held against {}: {}. {}\n\n### Alone\n{}", base->combination.name,
                                rates_text(base->trial->rounds), steadiness(report), alone_text(report));
  if (std::ranges::any_of(report.rows, [](const FeatureRow& r) { return r.trial && r.combination.changed() > 1; }))
    out += "\n### Together\n" + together_text(report);
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
    const FeatureGain gain = gain_of(report.base()->trial->rounds, t.rounds, report.drift());
    json["wrong"] = t.wrong;
    json["kl"] = t.loss.mean_kl;
    json["top1"] = t.loss.top1;
    const auto all = [&t](Rate rate) {
      std::vector<double> values;
      for (const TrialRates& round : t.rounds) values.insert(values.end(), (round.*rate).begin(), (round.*rate).end());
      return values;
    };
    json["tokens_per_second"] = {{"pp256", all(&TrialRates::prompt)},
                                 {"tg32", all(&TrialRates::alone)},
                                 {"four_at_a_time", all(&TrialRates::together)},
                                 {"same_prompt_again", all(&TrialRates::again)}};
    json["score"] = gain.score;
    json["noise"] = gain.noise;
    json["verdict"] = gain.verdict();
    if (const auto alone = as_alone(report, row.combination); alone && row.combination.changed() > 1) {
      json["product_of_alone"] = alone->score;
      json["together"] = together_verdict(gain, *alone);
    }
  }
  return {{"features", features}, {"combinations", rows}, {"drift", report.drift()}};
}

std::string review_results(const FeatureReport& report, const nlohmann::ordered_json& metadata) {
  return fmt::format(
      "`{}`, {}, commit {} ({})\n\n{}, {} processors; {}; model {}; {} KL divergence against the same model with "
      "nothing rounded.\n\n{}",
      told(metadata, "/command"), told(metadata, "/date"), told(metadata, "/build/commit"),
      told(metadata, "/build/type"), told(metadata, "/host/cpu"), told(metadata, "/host/processors"),
      told(metadata, "/device/kernels"), told(metadata, "/model/name"),
      "three repetitions after one that does not count; loss:", feature_report_text(report));
}

std::string with_results(const std::string& page, const std::string& results, const std::string& file) {
  const size_t begin = page.find(kResultsBegin), end = page.find(kResultsEnd);
  if (begin == std::string::npos || end == std::string::npos || end < begin)
    throw Error(Code::kInvalidRequest,
                "--report {}: want a line {} and one {} behind it, found none (docs/features/TEMPLATE.md)", file,
                kResultsBegin, kResultsEnd);
  return page.substr(0, begin + kResultsBegin.size()) + "\n" + results + page.substr(end);
}

}  // namespace nibble::app
