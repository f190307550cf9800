#include "lab/verify/verify_baseline.h"

#include "app/setup/named_model.h"
#include "lab/verify/perplexity.h"
#include "lab/results/result_metadata.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "base/read_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>

namespace nibble::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kSlower = 0.03;
constexpr double kLeastSeconds = 1e-9;  // no clock resolves less
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
  return std::ranges::find(kFlags, flag) != kFlags.end();
}

// What a flag became; null: it is not among the settings, or has its default.
Json setting(const Json& metadata, const std::string& flag) {
  const Json all = value_at(metadata, "settings");
  if (!all.is_object() || !all.contains(flag)) return nullptr;
  const Json resolved = value_at(all[flag], "resolved");
  return resolved.is_null() ? value_at(all[flag], "value") : resolved;
}

bool is_default(const Json& metadata, const std::string& flag) {
  const Json all = value_at(metadata, "settings");
  return !all.is_object() || !all.contains(flag) || value_at(all[flag], "origin") == "default";
}

std::string signed_percent(double relative) { return fmt::format("{:+.2f} %", 100 * relative); }

void check_row(const BenchRow& before, const BenchRow& now, VerifyChecks& checks) {
  const auto rates = [](const BenchRow& row) {
    std::vector<double> all;
    for (const double s : row.seconds) all.push_back(static_cast<double>(row.tokens()) / s);
    return all;
  };
  const Change change = change_of(rates(before), rates(now));
  if (!change.interval) return checks.skip(now.label(), "one repetition says nothing of noise");
  const double noise = change.interval->high - change.relative;
  checks.add(now.label(), change.interval->high >= -kSlower,
             fmt::format("{:.1f} t/s, before {:.1f}: {}, 95 % interval {} to {}{}", now.tokens_per_second().mean,
                         before.tokens_per_second().mean, signed_percent(change.relative),
                         signed_percent(change.interval->low), signed_percent(change.interval->high),
                         noise > kSlower ? "; too noisy to show a loss of 3 %" : ""));
}

struct Bytes {
  const char* name;
  int64_t before, now;
};

void check_bytes(const Bytes& memory, VerifyChecks& checks) {
  checks.add(memory.name, memory.now - memory.before <= kMoreBytes,
             fmt::format("{}, before {}; want at most {} more", format_bytes(static_cast<double>(memory.now)),
                         format_bytes(static_cast<double>(memory.before)), format_bytes(kMoreBytes)));
}

BenchRow row_of(const Json& json) {
  return {.prompt = json.at("prompt"),
          .generate = json.at("generate"),
          .depth = json.at("depth"),
          .batch = json.at("batch"),
          .seconds = json.at("seconds").get<std::vector<double>>()};
}

}  // namespace

void add_figures(Json& result, const Figures& figures) {
  result["rows"] = Json::array();
  for (const BenchRow& row : figures.speed.rows) {
    const MeanSd rate = row.tokens_per_second();
    result["rows"].push_back({{"test", row.name()},
                              {"prompt", row.prompt},
                              {"generate", row.generate},
                              {"depth", row.depth},
                              {"batch", row.batch},
                              {"seconds", row.seconds},
                              {"tokens_per_second", {{"mean", rate.mean}, {"sd", rate.sd}}}});
  }
  result["memory_bytes"] = {{"host", figures.speed.host_bytes}, {"device", nullptr}};
  if (figures.speed.device_bytes) result["memory_bytes"]["device"] = *figures.speed.device_bytes;
  result["accuracy"] = {{"perplexity", figures.perplexity}, {"kl", figures.kl}, {"top1", figures.top1}};
}

std::string figures_text(const Figures& figures) {
  std::string out;
  for (const BenchRow& row : figures.speed.rows)
    out += fmt::format("{} {:.1f} t/s, ", row.label(), row.tokens_per_second().mean);
  return fmt::format("{}perplexity {:.4f}, KL {:.2e}, same top token {:.1f} %", out, figures.perplexity, figures.kl,
                     100 * figures.top1);
}

Figures figures_of(const NamedResult& baseline) {
  const std::vector<std::string> gaps = metadata_gaps(value_at(baseline.json, "metadata"));
  if (!gaps.empty())
    throw Error(Code::kInvalidRequest,
                "{}: want a baseline whose metadata says all of docs/result-schema.json, found no {}", baseline.name,
                fmt::join(gaps, ", "));
  Figures figures;
  try {
    for (const Json& json : baseline.json.at("rows")) {
      figures.speed.rows.push_back(row_of(json));
      const BenchRow& row = figures.speed.rows.back();
      if (row.tokens() < 1 || row.seconds.empty() ||
          std::ranges::any_of(row.seconds, [](double s) { return !(s > kLeastSeconds) || !std::isfinite(s); }))
        throw Error(Code::kInvalidRequest, "{}: {}: want tokens and seconds above 0", baseline.name, row.label());
    }
    const Json& memory = baseline.json.at("memory_bytes");
    figures.speed.host_bytes = memory.at("host");
    if (!memory.at("device").is_null()) figures.speed.device_bytes = memory.at("device").get<int64_t>();
    const Json& accuracy = baseline.json.at("accuracy");
    figures.perplexity = accuracy.at("perplexity");
    figures.kl = accuracy.at("kl");
    figures.top1 = accuracy.at("top1");
  } catch (const Json::exception& e) {
    throw Error(Code::kInvalidRequest, "{}: want what nibble verify --save-baseline writes, found another: {}",
                baseline.name, e.what());
  }
  return figures;
}

std::string mismatch(const Json& baseline, const Json& now) {
  const auto told = [](const std::string& what, const Json& want, const Json& found) {
    return fmt::format("{}: want {}, found {}", what, want.dump(), found.dump());
  };
  for (const char* path : kIdentity) {
    const Json want = value_at(now, path), found = value_at(baseline, path);
    if (want != found) return told(path, want, found);
  }
  // Made-up weights have a seed for a hash, whatever the model's shape.
  const Json want_model = value_at(now, "model.name"), found_model = value_at(baseline, "model.name");
  if (value_at(now, "model.sha256").is_null() && want_model != found_model)
    return told("model.name", want_model, found_model);
  // A card's host only loads and enqueues.
  const bool card = value_at(now, "device.backend") == "cuda";
  std::set<std::string> flags;
  for (const Json* side : {&now, &baseline}) {
    const Json all = value_at(*side, "settings");
    for (const auto& [flag, value] : all.items()) flags.insert(flag);
  }
  for (const std::string& flag : flags) {
    const Json want = setting(now, flag), found = setting(baseline, flag);
    const bool both = !want.is_null() && !found.is_null();
    const bool same = both ? want == found : is_default(now, flag) && is_default(baseline, flag);
    if (!changes_nothing(flag) && !same && !(card && flag == "threads")) return told("--" + flag, want, found);
  }
  return {};
}

void check_regression(const Figures& baseline, const Figures& now, VerifyChecks& checks) {
  for (const BenchRow& row : now.speed.rows) {
    const auto before = std::ranges::find(baseline.speed.rows, row.label(), &BenchRow::label);
    if (before == baseline.speed.rows.end()) {
      checks.skip(row.label(), "the baseline has no such row");
    } else {
      check_row(*before, row, checks);
    }
  }
  check_bytes({"memory of the process", baseline.speed.host_bytes, now.speed.host_bytes}, checks);
  if (baseline.speed.device_bytes && now.speed.device_bytes)
    check_bytes({"memory of the card", *baseline.speed.device_bytes, *now.speed.device_bytes}, checks);
  const double most_perplexity = baseline.perplexity * (1 + kPerplexity);
  checks.add(
      "perplexity", now.perplexity <= most_perplexity,
      fmt::format("{:.4f}, before {:.4f}; want at most {:.4f}", now.perplexity, baseline.perplexity, most_perplexity));
  const double most_kl = baseline.kl * (1 + kKlShare) + kKlFloor;
  checks.add("KL divergence", now.kl <= most_kl,
             fmt::format("{:.3e}, before {:.3e}; want at most {:.3e}", now.kl, baseline.kl, most_kl));
  checks.add("equal top tokens", now.top1 >= baseline.top1 - kTop1,
             fmt::format("{:.2f} %, before {:.2f} %; want at least {:.2f} %", 100 * now.top1, 100 * baseline.top1,
                         100 * (baseline.top1 - kTop1)));
}

namespace {

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

FoundBaseline find_baseline(const fs::path& file, const std::vector<fs::path>& folders,
                            const nlohmann::ordered_json& now) {
  if (!file.empty()) {
    NamedResult given = read_baseline(file);
    static_cast<void>(figures_of(given));
    if (const std::string other = mismatch(given.json["metadata"], now); !other.empty())
      throw Error(Code::kInvalidRequest, "--baseline {}: {}", file.string(), other);
    return {std::move(given), {}};
  }
  std::string nearest;
  for (const fs::path& each : files_in(folders)) {
    NamedResult one = read_baseline(each);
    static_cast<void>(figures_of(one));
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

Figures measure_figures(const VerifySubject& subject) {
  constexpr int kRepetitions = 7;
  constexpr int64_t kDivergenceTokens = 256, kScoredTokens = 1024, kScoredWindow = 512;
  Figures figures;
  restart_peak();  // without the memory that measuring the device's peaks took
  figures.speed = measure_speed(subject, kRepetitions);
  Terminal quiet({.quiet = true});
  const std::vector<int32_t> text = verify_tokens(subject, kScoredTokens);
  figures.perplexity = score({subject.source, subject.model, text, kScoredWindow}, quiet).perplexity();
  const std::vector<int32_t> ids = verify_tokens(subject, kDivergenceTokens);
  const std::vector<float> exact = run_step(subject, exact_run(subject.model.run), ids).logits;
  const Divergence loss = divergence(exact, run_step(subject, subject.model.run, ids).logits,
                                     subject.source.config.dims.vocab, thread_count(subject.model));
  figures.kl = loss.mean_kl;
  figures.top1 = loss.top1;
  return figures;
}

}  // namespace nibble::app
