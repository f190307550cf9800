#include "app/verify_regression.h"

#include "app/named_model.h"
#include "app/perplexity.h"
#include "app/result_metadata.h"
#include "app/text_input.h"
#include "base/error.h"
#include "base/read_json.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::app {
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
