// Ollama's store of models: manifests/HOST/NAMESPACE/MODEL/TAG is JSON (distribution's image manifest), one of whose
// layers is the model, blobs/sha256-… (ollama's manifest/manifest.go and server/images.go).

#include "base/error.h"
#include "base/read_json.h"
#include "hub/cache.h"

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>

#include <unistd.h>

namespace nibble::hub {
namespace {

namespace fs = std::filesystem;

void want_readable(const fs::path& file, const std::string& asked) {
  if (::access(file.c_str(), R_OK) == 0) return;
  throw Error(Code::kIo, "{}: Ollama's {} cannot be read ({}): run as a user who may, or nibble pull gpt-oss-20b",
              asked, file.string(), std::strerror(errno));
}

// Below manifests/; empty where Ollama has no such name.
fs::path manifest_of(const std::string& asked, const Settings& settings) {
  constexpr std::string_view kFamily = "gpt-oss:";
  const std::string tagged = asked == "gpt-oss" ? "gpt-oss:latest" : asked;
  if (tagged.starts_with(kFamily))
    return fs::path("registry.ollama.ai/library/gpt-oss") / tagged.substr(kFamily.size());
  const auto name = parse_name(asked, settings.endpoint);
  if (!name || !is_repo(name->repo)) return {};
  return fs::path("hf.co") / name->repo / (name->which.empty() ? "latest" : name->which);
}

}  // namespace

std::optional<fs::path> find_in_ollama(const std::string& asked, const Settings& settings) {
  const fs::path below = manifest_of(asked, settings);
  for (const fs::path& store : settings.ollama) {
    const fs::path manifest = store / "manifests" / below;
    if (below.empty() || ::access(manifest.c_str(), F_OK) != 0) continue;
    want_readable(manifest, asked);
    std::string digest;
    if (const auto json = read_json(start_of(manifest, size_t{1} << 20)); json.is_object())
      for (const auto& layer : json.value("layers", nlohmann::json::array()))
        if (text_at(layer, "mediaType") == "application/vnd.ollama.image.model") digest = text_at(layer, "digest");
    constexpr std::string_view kSha = "sha256:";
    if (!digest.starts_with(kSha) || digest.find_first_not_of("0123456789abcdef", kSha.size()) != digest.npos)
      throw Error(Code::kCorrupt, "{}: want a layer that is a model, with its sha256, found none", manifest.string());
    fs::path blob = store / "blobs" / ("sha256-" + digest.substr(kSha.size()));
    want_readable(blob, asked);
    return blob;
  }
  return std::nullopt;
}

}  // namespace nibble::hub
