#include "hub/model_name.h"

#include "base/ascii.h"
#include "base/error.h"
#include "checkpoint/gguf_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <tuple>

namespace nibble::hub {
namespace {

constexpr size_t kMostNameBytes = 96;  // the Hub's own limit
constexpr std::string_view kGguf = ".gguf";

bool is_part_of_name(std::string_view part) {
  const auto is_known = [](char c) { return is_word_char(c, "-_."); };
  return !part.empty() && std::ranges::all_of(part, is_known) && part.find("--") == part.npos &&
         part.find("..") == part.npos && part.front() != '.' && part.front() != '-' && part.back() != '.' &&
         part.back() != '-';
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (prefix.empty() || !text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Up to the next `at`, which is taken, too.
std::string_view take_until(std::string_view& text, char at) {
  const std::string_view part = text.substr(0, text.find(at));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

// What stands behind ORG/REPO in an address: /tree/REV/FOLDER, /blob/REV/FILE, /resolve/REV/FILE.
bool take_page(std::string_view rest, ModelName& name) {
  const std::string_view page = take_until(rest, '/');
  if (page.empty()) return rest.empty();
  if (page != "tree" && page != "blob" && page != "resolve" && page != "raw") return false;
  name.revision = take_until(rest, '/');
  for (int more = name.revision == "refs" ? 2 : 0; more > 0; --more)  // refs/pr/1
    name.revision.append("/").append(take_until(rest, '/'));
  if (name.revision == "main") name.revision.clear();
  if (page == "tree" || rest.ends_with(kGguf)) name.which = rest;  // any other file is a part of the one model
  return true;
}

// Without .gguf and the number of a part.
std::string stem_of(std::string_view path) {
  if (const auto part = checkpoint::gguf_part_name(path)) return part->stem.string();
  if (upper(path).ends_with(".GGUF")) path.remove_suffix(kGguf.size());
  return std::string(path);
}

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Q8_0, Q4_K_M, IQ4_XS, TQ1_0, MXFP4_MOE, BF16 … (llama.cpp's tools/quantize; the Hub's pages have the same).
bool is_quant(std::string_view word) {
  if (word.starts_with("MXFP4") || word.starts_with("NVFP4")) return word.size() == 5 || word[5] == '_';
  for (const std::string_view plain : {"F16", "BF16", "F32", "FP16", "FP32"})
    if (word == plain) return true;
  if (word.starts_with("IQ") || word.starts_with("TQ")) word.remove_prefix(1);
  return word.size() > 3 && word[0] == 'Q' && std::isdigit(static_cast<unsigned char>(word[1])) && word[2] == '_';
}

int bits_rank(const GgufModel& model) {
  if (model.quant.starts_with("MXFP4")) return 2;
  return model.quant.ends_with("F16") || model.quant.ends_with("F32") || model.quant.starts_with("FP") ? 0 : 1;
}

}  // namespace

std::string upper(std::string_view text) {
  std::string result;
  for (const char c : text) result += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
}

bool is_repo(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == name.npos || name.size() > kMostNameBytes) return false;
  return is_part_of_name(name.substr(0, slash)) && is_part_of_name(name.substr(slash + 1));
}

std::optional<ModelName> parse_name(std::string_view asked, std::string_view endpoint) {
  std::string plain(asked);
  for (size_t at = 0; (at = plain.find("%2F", at)) != plain.npos;) plain.replace(at, 3, "/");
  std::string_view text = plain;
  const bool is_url = take_prefix(text, "https://") || take_prefix(text, "http://");
  if (!take_prefix(endpoint, "https://")) take_prefix(endpoint, "http://");
  bool on_hub = take_prefix(text, "hf://");
  for (const std::string_view host : {endpoint, std::string_view("huggingface.co"), std::string_view("hf.co")})
    on_hub = on_hub || (!host.empty() && take_prefix(text, fmt::format("{}/", host)));
  if (is_url && !on_hub) return std::nullopt;
  ModelName name;
  if (is_url) text = text.substr(0, text.find_first_of("?#"));
  if (on_hub) {
    const std::string_view org = take_until(text, '/');
    name.repo = fmt::format("{}/{}", org, take_until(text, '/'));
    if (!take_page(text, name)) return std::nullopt;
  } else {
    name.repo = text;
  }
  const size_t colon = name.repo.find(':');
  if (colon != std::string::npos) {
    if (name.which.empty()) name.which = name.repo.substr(colon + 1);
    if (name.which.empty() || name.which.front() == '/') return std::nullopt;
    name.repo.resize(colon);
  }
  if (name.repo == "gpt-oss") {  // Ollama's, whose tags are sizes
    name.repo += "-" + (name.which.empty() || name.which == "latest" ? "20b" : name.which);
    name.which.clear();
  }
  if (name.which == "latest") name.which.clear();
  const bool is_name = is_repo(name.repo) || (!on_hub && is_repo("openai/" + name.repo));
  return is_name ? std::optional(name) : std::nullopt;
}

std::vector<std::string> repos_of(const ModelName& name) {
  if (is_repo(name.repo)) return {name.repo};
  const std::string ggml = fmt::format("ggml-org/{}-GGUF", name.repo);
  if (!name.which.empty()) return {ggml};
  return {"openai/" + name.repo, ggml};
}

std::string quant_of(std::string_view path) {
  const std::string text = upper(stem_of(path));
  for (size_t at = text.size(); at-- > 0;) {  // its last word that is one
    if (at > 0 && std::string_view("-._/ ").find(text[at - 1]) == std::string_view::npos) continue;
    const std::string word = text.substr(at, text.find_first_of("-./ ", at) - at);
    const bool is_dynamic = at >= 3 && text.compare(at - 3, 3, "UD-") == 0;  // Unsloth's UD-Q4_K_XL
    if (is_quant(word)) return (is_dynamic ? "UD-" : "") + word;
  }
  return "";
}

std::vector<GgufModel> gguf_models(std::span<const RepoFile> files) {
  std::map<std::string, GgufModel> by_stem;
  for (const RepoFile& file : files) {
    const std::string_view name = last_part(file.path);
    if (!name.ends_with(kGguf) || name.starts_with("mmproj") || name.find("imatrix") != name.npos) continue;
    GgufModel& model = by_stem[stem_of(file.path)];
    model.files.push_back(file.path);
    model.bytes += file.bytes;
  }
  std::vector<GgufModel> models;
  std::map<std::string, int> quants;
  for (auto& [stem, model] : by_stem) {
    std::ranges::sort(model.files);
    model.path = model.files.front();
    model.quant = quant_of(model.path);
    ++quants[model.quant];
    models.push_back(std::move(model));
  }
  for (GgufModel& model : models)
    model.which = model.quant.empty() || quants[model.quant] > 1 ? stem_of(model.path) : model.quant;
  return models;
}

std::vector<GgufModel> meant_by(std::string_view which, std::span<const GgufModel> models) {
  const std::string want = upper(stem_of(which));
  const auto rank = [&want](const GgufModel& model) {
    const std::string stem = upper(stem_of(model.path));
    if (stem == want || last_part(stem) == want) return 0;
    if (model.quant == want) return 1;
    if (model.quant == "UD-" + want) return 2;
    return model.quant.starts_with(want + "_") || stem.starts_with(want + "/") ? 3 : 4;
  };
  std::vector<GgufModel> meant;
  for (int each = 0; each < 4 && meant.empty(); ++each)
    std::ranges::copy_if(models, std::back_inserter(meant), [&](const GgufModel& m) { return rank(m) == each; });
  return meant;
}

bool fits(int64_t bytes, int64_t memory) { return bytes <= memory - memory / 10; }

const GgufModel& best_of(std::span<const GgufModel> models, int64_t memory) {
  check(!models.empty(), "there is a choice");
  const auto value = [memory](const GgufModel& model) {
    const bool fit = fits(model.bytes, memory);
    return std::tuple(fit, fit ? bits_rank(model) : 0, fit ? model.bytes : -model.bytes);
  };
  return *std::ranges::max_element(models, {}, value);
}

std::string listed(std::span<const GgufModel> models) {
  std::vector<std::string> each;
  for (const GgufModel& model : models)
    each.push_back(fmt::format("{} ({:.1f} GB)", model.which, static_cast<double>(model.bytes) / 1e9));
  return fmt::format("{}", fmt::join(each, ", "));
}

}  // namespace nibble::hub
