#include "lab/verify/verify.h"

#include "app/setup/named_model.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "base/read_json.h"
#include "lab/results/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace nibble::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kSlower = 0.03;
constexpr int64_t kMoreBytes = 1'000'000'000;
// How much the same program may differ on the same device: on a card another order of sums can decide a near-tie.
constexpr double kPerplexity = 0.002, kKlShare = 0.05, kKlFloor = 1e-5, kTop1 = 0.005;

constexpr std::array kIdentity = {"device.name", "device.backend", "model.sha256", "model.dummy_seed",
                                  "device.kernels"};

// Flags that choose what is asked or shown, not how the model runs. The model itself is known by its hash.
bool changes_nothing(std::string_view flag) {
  constexpr std::array<std::string_view, 21> kFlags = {
      "model",  "load-format", "pull",         "level",    "baseline", "save-baseline", "features",
      "rounds", "preset",      "review",       "base-url", "api-key",  "served-model",  "max-combinations",
      "json",   "report",      "print-config", "quiet",    "color",    "cacert",        "insecure"};
  return std::ranges::find(kFlags, flag.substr(2)) != kFlags.end();
}

std::string signed_percent(double relative) { return fmt::format("{:+.2f} %", 100 * relative); }

void check_row(const ComparedRow& row, VerifyChecks& checks) {
  const Change& change = row.change;
  if (!change.interval) return checks.skip(row.name, "one repetition says nothing of noise");
  const double noise = change.interval->high - change.relative;
  checks.add(
      row.name, change.interval->high >= -kSlower,
      fmt::format("{:.1f} t/s, before {:.1f}: {}, 95 % interval {} to {}{}", row.b, row.a,
                  signed_percent(change.relative), signed_percent(change.interval->low),
                  signed_percent(change.interval->high), noise > kSlower ? "; too noisy to show a loss of 3 %" : ""));
}

double number_in(const Json& figures, std::string_view path) { return value_at(figures, path).get<double>(); }

namespace fs = std::filesystem;

NamedResult read_baseline(const fs::path& file) {
  NamedResult result{file.string(), read_ordered_json(read_text(file))};
  if (!result.json.is_object())
    throw Error(Code::kInvalidRequest, "{}: want a baseline, a JSON object, found another text", file.string());
  return result;
}

// Ordered by name.
std::vector<fs::path> files_in(const std::vector<fs::path>& folders) {
  std::vector<fs::path> files;
  for (const fs::path& folder : folders) {
    std::error_code error;
    std::vector<fs::path> of_folder;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
      if (entry.path().extension() == ".json") of_folder.push_back(entry.path());
    std::ranges::sort(of_folder);
    files.insert(files.end(), of_folder.begin(), of_folder.end());
  }
  return files;
}

}  // namespace

std::string figures_text(const Json& figures) {
  std::string out;
  for (const Json& row : figures["rows"])
    out += fmt::format("{} {:.1f} t/s, ", label_of(row), number_in(row, "tokens_per_second.mean"));
  return fmt::format("{}perplexity of 1024 tokens {:.4f}, KL {:.2e}, same top token {:.1f} %", out,
                     number_in(figures, "accuracy.perplexity"), number_in(figures, "accuracy.kl"),
                     100 * number_in(figures, "accuracy.top1"));
}

void require_baseline(const NamedResult& baseline) {
  const std::vector<std::string> gaps = metadata_gaps(value_at(baseline.json, "metadata"));
  if (!gaps.empty())
    throw Error(Code::kInvalidRequest,
                "{}: want a baseline whose metadata says all of docs/result-schema.json, found no {}", baseline.name,
                fmt::join(gaps, ", "));
  for (const char* path : {"memory_bytes.host", "accuracy.perplexity", "accuracy.kl", "accuracy.top1"})
    if (!value_at(baseline.json, path).is_number())
      throw Error(Code::kInvalidRequest, "{}: want what nibble verify --save-baseline writes, found no {}",
                  baseline.name, path);
  static_cast<void>(compare_results(baseline, baseline, Mismatch::kAllow));  // refuses other rows
}

std::string mismatch(const Json& baseline, const Json& now) {
  const auto told = [](const std::string& what, const Json& want, const Json& found) {
    return fmt::format("{}: want {}, found {}", what, want.dump(), found.dump());
  };
  for (const Difference& of : differing(kIdentity, now, baseline)) return told(of.what, of.a, of.b);
  // Made-up weights have a seed for a hash, whatever the model's shape.
  const Json want_model = value_at(now, "model.name"), found_model = value_at(baseline, "model.name");
  if (value_at(now, "model.sha256").is_null() && want_model != found_model)
    return told("model.name", want_model, found_model);
  // A card's host only loads and enqueues.
  const bool card = value_at(now, "device.backend") == "cuda";
  for (const Difference& of : differing_settings(now, baseline))
    if (!changes_nothing(of.what) && !(card && of.what == "--threads")) return told(of.what, of.a, of.b);
  return {};
}

void check_regression(const NamedResult& baseline, const Json& now, VerifyChecks& checks) {
  const ResultComparison comparison = compare_results(baseline, {"this run", now}, Mismatch::kAllow);
  for (const ComparedRow& row : comparison.rows) check_row(row, checks);
  for (const std::string& row : comparison.unmatched) checks.skip(row, "there is nothing to hold it against");
  for (const auto& [name, path] :
       {std::pair{"memory of the process", "memory_bytes.host"}, {"memory of the card", "memory_bytes.device"}}) {
    const Json before = value_at(baseline.json, path), bytes = value_at(now, path);
    if (!before.is_number() || !bytes.is_number()) continue;  // no card
    checks.add(name, bytes.get<int64_t>() - before.get<int64_t>() <= kMoreBytes,
               fmt::format("{}, before {}; want at most {} more", format_bytes(bytes.get<double>()),
                           format_bytes(before.get<double>()), format_bytes(kMoreBytes)));
  }
  const auto both = [&](const char* path) { return std::pair(number_in(baseline.json, path), number_in(now, path)); };
  const auto [perplexity_before, perplexity] = both("accuracy.perplexity");
  const double most_perplexity = perplexity_before * (1 + kPerplexity);
  checks.add("perplexity", perplexity <= most_perplexity,
             fmt::format("{:.4f}, before {:.4f}; want at most {:.4f}", perplexity, perplexity_before, most_perplexity));
  const auto [kl_before, kl] = both("accuracy.kl");
  const double most_kl = kl_before * (1 + kKlShare) + kKlFloor;
  checks.add("KL divergence", kl <= most_kl,
             fmt::format("{:.3e}, before {:.3e}; want at most {:.3e}", kl, kl_before, most_kl));
  const auto [top1_before, top1] = both("accuracy.top1");
  checks.add("equal top tokens", top1 >= top1_before - kTop1,
             fmt::format("{:.2f} %, before {:.2f} %; want at least {:.2f} %", 100 * top1, 100 * top1_before,
                         100 * (top1_before - kTop1)));
}

BaselineSearch find_baseline(const fs::path& file, const std::vector<fs::path>& folders,
                             const nlohmann::ordered_json& now) {
  if (!file.empty()) {
    NamedResult given = read_baseline(file);
    require_baseline(given);
    if (const std::string other = mismatch(given.json["metadata"], now); !other.empty())
      throw Error(Code::kInvalidRequest, "--baseline {}: {}", file.string(), other);
    return {std::move(given), {}};
  }
  std::string nearest;
  for (const fs::path& each : files_in(folders)) {
    NamedResult one = read_baseline(each);
    require_baseline(one);
    const std::string other = mismatch(one.json["metadata"], now);
    if (other.empty()) return {std::move(one), {}};
    if (nearest.empty()) nearest = fmt::format("; {}: {}", each.string(), other);
  }
  return {std::nullopt, "none came along for this device, model and settings" + nearest +
                            "; --save-baseline makes one, --baseline names one"};
}

std::vector<fs::path> baseline_folders() {
  std::vector<fs::path> folders;
  for (const fs::path& folder : folders_of_program())
    for (const char* place : {"bench/baselines", "share/nibble/baselines"}) folders.push_back(folder / place);
  return folders;
}

Json measure_figures(const VerifySubject& subject) {
  constexpr int kRepetitions = 7;
  constexpr int64_t kDivergenceTokens = 256, kScoredTokens = 1024, kScoredWindow = 512;
  restart_peak();  // without the memory that measuring the device's peaks took
  Json figures = {{"rows", Json::array()}};
  const MeasuredSpeed speed = measure_speed(subject, kRepetitions);
  for (const BenchRow& row : speed.rows) {
    const MeanSd rate = row.tokens_per_second();
    figures["rows"].push_back(timed_json(row));
    figures["rows"].back()["tokens_per_second"] = {{"mean", rate.mean}, {"sd", rate.sd}};
  }
  figures["memory_bytes"] = {{"host", speed.host_bytes}, {"device", nullptr}};
  if (speed.device_bytes) figures["memory_bytes"]["device"] = *speed.device_bytes;
  Terminal quiet({.quiet = true});
  const std::vector<int32_t> text = verify_tokens(subject, kScoredTokens);
  const double perplexity = score({subject.source, subject.model, text, kScoredWindow}, quiet).perplexity();
  const std::vector<int32_t> ids = verify_tokens(subject, kDivergenceTokens);
  const std::vector<float> exact = run_step(subject, exact_run(subject.model.run), ids).logits;
  const Divergence loss = divergence(exact, run_step(subject, subject.model.run, ids).logits,
                                     subject.source.config.dims.vocab, thread_count(subject.model));
  figures["accuracy"] = {{"perplexity", perplexity}, {"kl", loss.mean_kl}, {"top1", loss.top1}};
  return figures;
}

}  // namespace nibble::app
