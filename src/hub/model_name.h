#pragma once
// What a word for a model says, and which of a repository's GGUF files it means. The table is in docs/models.md.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::hub {

// ORG/REPO, ORG/REPO:QUANT, hf.co/ORG/REPO:QUANT, a URL of the Hub's, or a bare name.
struct ModelName {
  std::string repo = {};      // ORG/REPO, or a bare name as files and the Hub spell it
  std::string revision = {};  // empty: not said
  std::string which = {};     // a quantisation, a GGUF file or its folder; empty: not said
  // As it is typed here, without a revision.
  [[nodiscard]] std::string text() const { return which.empty() ? repo : repo + ":" + which; }
};

// Whether this names a model of the Hub: ORG/NAME.
[[nodiscard]] bool is_repo(std::string_view name);
// `endpoint`: the Hub's address, for URLs of a mirror. None where it can be no name of a model.
[[nodiscard]] std::optional<ModelName> parse_name(std::string_view asked, std::string_view endpoint = {});
// The repositories that a name may mean, likeliest first: itself, or for a bare gpt-oss-20b OpenAI's and ggml-org's;
// with a quantisation ggml-org's.
[[nodiscard]] std::vector<std::string> repos_of(const ModelName& name);

struct RepoFile {
  std::string path;  // below the repository or a folder, with /
  int64_t bytes = 0;
  std::string digest = {};  // of the Hub: which also names its blob
  bool large = false;       // the digest is SHA-256 of an LFS file, else git's
};

// One GGUF file, or all parts of a split one.
struct GgufModel {
  std::string path = {};   // of its first part, below the folder; empty: no GGUF
  std::string quant = {};  // Q4_K_M, as the file or its folder is called; empty where neither says
  std::string which = {};  // what names it among its neighbours: the quantisation, else the file
  std::vector<std::string> files = {};
  int64_t bytes = 0;
};

[[nodiscard]] std::string upper(std::string_view text);
[[nodiscard]] std::string quant_of(std::string_view path);
// The models among files, by path; what is beside models (mmproj, imatrix) is left out.
[[nodiscard]] std::vector<GgufModel> gguf_models(std::span<const RepoFile> files);
// Those that ModelName::which means, in any case: the file's own name first, then Q4_K_M, then UD-Q4_K_M, then what
// begins so or lies in such a folder.
[[nodiscard]] std::vector<GgufModel> meant_by(std::string_view which, std::span<const GgufModel> models);
// The one to run where nobody says which: of those that fit into `memory` MXFP4, as gpt-oss was trained; else the
// largest, of 16 and 32 bits only where there are no others; where none fits, the smallest. REQUIRES models.
[[nodiscard]] const GgufModel& best_of(std::span<const GgufModel> models, int64_t memory);
// Whether weights of this size leave room for keys, values and activations.
[[nodiscard]] bool fits(int64_t bytes, int64_t memory);
// "MXFP4 (12.1 GB), Q8_0 (13.0 GB)"
[[nodiscard]] std::string listed(std::span<const GgufModel> models);

}  // namespace nibble::hub
