#include "hub/listing.h"

#include "base/error.h"
#include "base/read_json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>

namespace nibble::hub {
namespace {

using Json = nlohmann::json;

constexpr int kMostPages = 1000;
constexpr size_t kMostFiles = 100'000;
constexpr int64_t kMostFileBytes = int64_t{1} << 44;

bool is_hex(const std::string& text, size_t digits) {
  return text.size() == digits &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// Whether a path of the Hub's stays below the folder that it is put into.
bool is_safe(const std::string& path) {
  size_t begin = 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
    if (std::ranges::any_of(part, [](unsigned char c) { return c < 0x20 || c == 0x7F || c == '\\'; })) return false;
    begin = end + 1;
  }
  return true;
}

Error odd_answer(const Settings& settings, const std::string& what) {
  return {Code::kCorrupt, "{}: its answer is not the Hub's: {}", settings.endpoint, what};
}

HttpAnswer ask(Http& http, const Settings& settings, const std::string& repo, const std::string& url,
               const Patience& patience) {
  for (int attempt = 0;; ++attempt) {
    HttpAnswer answer = http.get({.url = url});
    if (answer.ok() || patience.stop()) return answer;
    const Retry retry = retry_of(answer, attempt);
    // Somebody waits for the first answer: a machine that is not online is told so at once.
    if (!retry.worth || answer.unresolved || attempt + 1 >= patience.attempts)
      refuse_answer(answer, settings, repo, "");
    if (retry.seconds >= 1)
      patience.note(fmt::format("{}: {}; again in {:.0f} s", settings.endpoint, retry.why, retry.seconds));
    if (!wait_for(retry.seconds, patience.stop)) return answer;
  }
}

Json json_of(const HttpAnswer& answer, const Settings& settings) {
  Json json = read_json(answer.body);
  if (json.is_discarded()) throw odd_answer(settings, "want JSON");
  return json;
}

std::string text_at(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

RepoFile file_of(const Json& entry, const Settings& settings) {
  RepoFile file{.path = text_at(entry, "path")};
  const bool large = entry.contains("lfs") && entry["lfs"].is_object();
  const Json& of = large ? entry["lfs"] : entry;
  file.large = large;
  file.digest = text_at(of, "oid");
  if (file.digest.starts_with("sha256:")) file.digest = file.digest.substr(7);
  const bool sized = of.contains("size") && of["size"].is_number_integer() && of["size"].get<int64_t>() >= 0 &&
                     of["size"].get<int64_t>() <= kMostFileBytes;
  if (!is_safe(file.path)) throw odd_answer(settings, fmt::format("want names of files, found \"{}\"", file.path));
  if (!sized || !is_hex(file.digest, large ? 64 : 40))
    throw odd_answer(settings, fmt::format("want size and hash of {}", file.path));
  file.bytes = of["size"].get<int64_t>();
  return file;
}

// The address in <https://…>; rel="next"
std::string next_page(const HttpAnswer& answer) {
  const std::string link = answer.header("link");
  const size_t end = link.find(">; rel=\"next\"");
  if (end == std::string::npos) return {};
  const size_t begin = link.rfind('<', end);
  return begin == std::string::npos ? "" : link.substr(begin + 1, end - begin - 1);
}

}  // namespace

bool wait_for(double seconds, const std::function<bool()>& stop) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < until) {
    if (stop()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return !stop();
}

void refuse_answer(const HttpAnswer& answer, const Settings& settings, const std::string& repo,
                   const std::string& what) {
  const std::string name = what.empty() ? repo : fmt::format("{} of {}", what, repo);
  const std::string code = answer.header("x-error-code");
  if (answer.status == 0 || !answer.failure.empty()) {
    const std::string_view next = answer.unresolved ? ". Is this machine online? HF_ENDPOINT names another Hub"
                                  : answer.hopeless ? ""
                                                    : ". The same command later goes on where this one stopped";
    throw Error(Code::kIo, "{}: cannot be had from {}: {}{}", name, settings.endpoint, answer.failure, next);
  }
  if (code == "GatedRepo" || answer.status == 403) {
    throw Error(Code::kInvalidRequest,
                "{} is not open to everybody ({}): accept its terms at {}/{}, then set HF_TOKEN to a token of "
                "{}/settings/tokens",
                name, answer.status, settings.endpoint, repo, settings.endpoint);
  }
  if (answer.status == 401 && code != "RepoNotFound") {
    throw Error(Code::kInvalidRequest,
                "{}: {} wants to know who asks (401): set HF_TOKEN to a valid token of {}/settings/tokens, or unset "
                "it",
                name, settings.endpoint, settings.endpoint);
  }
  if (code == "RevisionNotFound")
    throw Error(Code::kInvalidRequest, "{} has no such revision; see {}/{}/commits", name, settings.endpoint, repo);
  if (answer.status == 404 || answer.status == 401) {
    throw Error(Code::kInvalidRequest,
                "{} is not at {} (or is private: then set HF_TOKEN). OpenAI's are openai/gpt-oss-20b and "
                "openai/gpt-oss-120b, in GGUF ggml-org/gpt-oss-20b-GGUF and ggml-org/gpt-oss-120b-GGUF",
                name, settings.endpoint);
  }
  const std::string wait = answer.header("retry-after");
  throw Error(Code::kIo, "{}: {} answers {}{}. The same command later goes on where this one stopped", name,
              settings.endpoint, retry_of(answer, 0).why, wait.empty() ? "" : ", Retry-After: " + wait);
}

Listing list_repo(Http& http, const Settings& settings, const std::string& repo, const std::string& revision,
                  const Patience& patience) {
  const std::string api = fmt::format("{}/api/models/{}", settings.endpoint, repo);
  Listing listing{.repo = repo, .revision = revision, .commit = {}, .files = {}};
  const auto stopped = [&](const HttpAnswer& answer) { return !answer.ok() && patience.stop(); };
  const HttpAnswer head = ask(http, settings, repo, api + "/revision/" + url_escaped(revision, ""), patience);
  if (stopped(head)) return listing;
  const Json info = json_of(head, settings);
  listing.commit = text_at(info, "sha");
  if (!is_hex(listing.commit, 40)) throw odd_answer(settings, "want a commit as \"sha\"");
  const std::string type = info.contains("config") ? text_at(info["config"], "model_type") : "";
  if (!type.empty() && type != "gpt_oss")
    throw Error(Code::kUnsupported, "{}: want a model of the gpt-oss family, found {}", repo, type);
  std::string page = fmt::format("{}/tree/{}?recursive=true", api, listing.commit);
  for (int pages = 0; !page.empty() && pages < kMostPages; ++pages) {
    const HttpAnswer answer = ask(http, settings, repo, page, patience);
    if (stopped(answer)) return listing;
    const Json entries = json_of(answer, settings);
    if (!entries.is_array()) throw odd_answer(settings, "want a list of files");
    for (const Json& entry : entries) {
      if (text_at(entry, "type") == "file") listing.files.push_back(file_of(entry, settings));
    }
    if (listing.files.size() > kMostFiles) throw odd_answer(settings, "more files than a model has");
    page = next_page(answer);
  }
  std::ranges::sort(listing.files, {}, &RepoFile::path);
  return listing;
}

}  // namespace nibble::hub
