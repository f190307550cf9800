#include "hub/pull.h"

#include "base/ascii.h"
#include "base/error.h"
#include "base/read_json.h"
#include "checkpoint/gguf_start.h"
#include "hub/cache.h"
#include "hub/kind.h"
#include "hub/partial_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include <fnmatch.h>

namespace nibble::hub {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kConnections = 8;
constexpr int kPartAttempts = 7;  // without a byte between them: half a minute
constexpr int kOddAttempts = 3;   // where the answer is not what was asked for
constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kSaveEvery = std::chrono::seconds(1);  // what a kill may cost
constexpr int64_t kSpareBytes = int64_t{64} << 20;    // what a disk keeps

using Json = nlohmann::json;

constexpr int kAskAttempts = 4, kMostPages = 1000;
constexpr size_t kMostFiles = 100'000;
constexpr int64_t kMostFileBytes = int64_t{1} << 44;

bool is_hex(const std::string& text, size_t digits) {
  return text.size() == digits &&
         std::ranges::all_of(text, [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); });
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

// False once `stop` says so.
bool wait_for(double seconds, const std::function<bool()>& stop) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < until) {
    if (stop()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return !stop();
}

// What an answer that is no success means for `what`, in the user's words.
[[noreturn]] void refuse_answer(const HttpAnswer& answer, const Settings& settings, const std::string& repo,
                                const std::string& what, const std::string& hint = "") {
  const std::string name = what.empty() ? repo : fmt::format("{} of {}", what, repo);
  const std::string code = answer.header("x-error-code");
  if (answer.status == 0 || !answer.failure.empty()) {
    const std::string_view next = answer.unresolved ? ". Is this machine online? HF_ENDPOINT names another Hub"
                                  : answer.hopeless ? ""
                                                    : ". The same command later goes on where this one stopped";
    throw Error(Code::kIo, "{}: cannot be had from {}: {}{}", name, settings.endpoint, answer.failure, next);
  }
  const bool is_from_file = settings.token.empty() && fs::exists(settings.token_file);
  if (answer.status == 401 && (is_from_file || !settings.token.empty()))
    throw Error(Code::kInvalidRequest,
                "{}: {} was refused by {} (401): want a valid token of {}/settings/tokens that may read it, or none "
                "where it is open to everybody",
                name, is_from_file ? "the token in " + settings.token_file.string() : "HF_TOKEN", settings.endpoint,
                settings.endpoint);
  if (code == "GatedRepo" || answer.status == 403)
    throw Error(Code::kInvalidRequest,
                "{} is not open to everybody ({}): accept its terms at {}/{}, then set HF_TOKEN to a token of "
                "{}/settings/tokens",
                name, answer.status, settings.endpoint, repo, settings.endpoint);
  if (answer.status == 401 && code != "RepoNotFound")
    throw Error(Code::kInvalidRequest,
                "{}: {} wants to know who asks (401): set HF_TOKEN to a valid token of {}/settings/tokens", name,
                settings.endpoint, settings.endpoint);
  if (code == "RevisionNotFound")
    throw Error(Code::kInvalidRequest, "{} has no such revision; see {}/{}/commits", name, settings.endpoint, repo);
  if (answer.status == 404 || answer.status == 401)
    throw Error(Code::kInvalidRequest,
                "{} is not at {} (or is private: then set HF_TOKEN){}. OpenAI's are openai/gpt-oss-20b and "
                "openai/gpt-oss-120b, in GGUF ggml-org/gpt-oss-20b-GGUF and ggml-org/gpt-oss-120b-GGUF",
                name, settings.endpoint, hint);
  const std::string wait = answer.header("retry-after");
  throw Error(Code::kIo, "{}: {} answers {}{}. The same command later goes on where this one stopped", name,
              settings.endpoint, retry_of(answer, 0).why, wait.empty() ? "" : ", Retry-After: " + wait);
}

// `most`: of the answer's bytes, where its start says enough; 0: all.
HttpAnswer ask(Http& http, const Settings& settings, const PullRequest& request, const std::string& url,
               const PullWatch& watch, size_t most = 0) {
  for (int attempt = 0;; ++attempt) {
    std::string start;
    const TakeBody take = [&start, most](const HttpAnswer& /*head*/, std::span<const std::byte> bytes) {
      start.append(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), most - start.size()));
      return start.size() < most;
    };
    HttpAnswer answer = most == 0 ? http.get({.url = url})
                                  : http.get({.url = url, .from = 0, .to = static_cast<int64_t>(most) - 1}, take);
    if (most > 0) answer.body = std::move(start);
    const bool is_empty = most > 0 && answer.status == 416;  // an empty file has no range
    if (answer.ok() || is_empty || watch.stop()) return answer;
    const Retry retry = retry_of(answer, attempt);
    // Somebody waits for the first answer: a machine that is not online is told so at once.
    if (!retry.worth || answer.unresolved || attempt + 1 >= kAskAttempts)
      refuse_answer(answer, settings, request.repo, "", request.hint);
    if (retry.seconds >= 1)
      watch.note(fmt::format("{}: {}; again in {:.0f} s", settings.endpoint, retry.why, retry.seconds));
    if (!wait_for(retry.seconds, watch.stop)) return answer;
  }
}

Json json_of(const HttpAnswer& answer, const Settings& settings) {
  Json json = read_json(answer.body);
  if (json.is_discarded()) throw odd_answer(settings, "want JSON");
  return json;
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

// The commit and all of its files.
PullPlan list_repo(const PullRequest& request, const Settings& settings, const PullWatch& watch) {
  const std::string& repo = request.repo;
  if (!is_safe(request.revision))
    throw Error(Code::kInvalidRequest, "--revision: want a branch, a tag or a commit, found {}", request.revision);
  Http http(settings, watch.stop);
  const std::string api = fmt::format("{}/api/models/{}", settings.endpoint, repo);
  PullPlan plan{.repo = repo, .revision = request.revision, .commit = {}, .files = {}, .path = {}};
  const auto stopped = [&](const HttpAnswer& answer) { return !answer.ok() && watch.stop(); };
  const HttpAnswer head = ask(http, settings, request, api + "/revision/" + url_escaped(request.revision, ""), watch);
  if (stopped(head)) return plan;
  const Json info = json_of(head, settings);
  plan.commit = text_at(info, "sha");
  if (!is_hex(plan.commit, 40)) throw odd_answer(settings, "want a commit as \"sha\"");
  // What the Hub has read of config.json, before its files are listed.
  const std::string config = info.contains("config") ? info["config"].dump() : "{}";
  if (const auto other = other_kind(repo, {.files = {"config.json"}, .config = config})) throw Error(other->error);
  std::string page = fmt::format("{}/tree/{}?recursive=true", api, plan.commit);
  for (int pages = 0; !page.empty() && pages < kMostPages; ++pages) {
    const HttpAnswer answer = ask(http, settings, request, page, watch);
    if (stopped(answer)) return plan;
    const Json entries = json_of(answer, settings);
    if (!entries.is_array()) throw odd_answer(settings, "want a list of files");
    for (const Json& entry : entries)
      if (text_at(entry, "type") == "file") plan.files.push_back(file_of(entry, settings));
    if (plan.files.size() > kMostFiles) throw odd_answer(settings, "more files than a model has");
    page = next_page(answer);
  }
  std::ranges::sort(plan.files, {}, &RepoFile::path);
  return plan;
}

// Copies of the weights in other layouts: OpenAI's own, and Apple's.
bool is_duplicate(const std::string& path) { return path.starts_with("original/") || path.starts_with("metal/"); }

bool is_wanted(const std::string& path, const std::vector<std::string>& include) {
  if (include.empty()) return !is_duplicate(path);
  return std::ranges::any_of(include,
                             [&](const std::string& glob) { return fnmatch(glob.c_str(), path.c_str(), 0) == 0; });
}

void keep_only(std::vector<RepoFile>& files, const GgufModel& model) {
  std::erase_if(files,
                [&](const RepoFile& file) { return std::ranges::find(model.files, file.path) == model.files.end(); });
}

// Leaves one model's files, where nobody gave globs.
void choose_model(std::vector<RepoFile>& files, const PullRequest& request, const Settings& settings,
                  const PullWatch& watch) {
  const std::vector<GgufModel> all = gguf_models(files);
  const std::string& repo = request.repo;
  if (!request.which.empty()) {
    const std::vector<GgufModel> meant = meant_by(request.which, all);
    if (meant.size() == 1) return keep_only(files, meant.front());
    if (all.empty())
      throw Error(Code::kInvalidRequest, "{} has no GGUF files to choose {} of: nibble pull {} gets the model", repo,
                  request.which, repo);
    throw Error(Code::kInvalidRequest, "{}: want one of its GGUF files, {}; found {} for {}", repo, listed(all),
                meant.empty() ? "none" : listed(meant), request.which);
  }
  const bool has_safetensors =
      std::ranges::any_of(files, [](const RepoFile& file) { return file.path.ends_with(".safetensors"); });
  if (has_safetensors && !all.empty()) {
    std::erase_if(files, [](const RepoFile& file) { return file.path.ends_with(".gguf"); });
    watch.note(fmt::format("{}: taking its safetensors; nibble pull {}:{} takes a GGUF file, of {}", repo, repo,
                           all.front().which, listed(all)));
  } else if (all.size() > 1) {
    const int64_t memory = settings.memory();
    const GgufModel& best = best_of(all, memory);
    const char* const why = !fits(best.bytes, memory)         ? "the smallest, as none fits"
                            : best.quant.starts_with("MXFP4") ? "as gpt-oss was trained, which fits"
                                                              : "the largest (16 and 32 bits come last) that fits";
    keep_only(files, best);
    watch.note(fmt::format("{}: taking {}, {} {:.1f} GB; nibble pull {}:{} and the like take another of {}", repo,
                           best.which, why, static_cast<double>(memory) / 1e9, repo, all.front().which, listed(all)));
  }
}

// Before a large file is fetched: what config.json, the index or the GGUF file's start say.
void refuse_other_kinds(const PullPlan& plan, const std::vector<std::string>& all, const PullRequest& request,
                        const Settings& settings, const PullWatch& watch) {
  Http http(settings, watch.stop);
  const auto start_of_file = [&](const std::string& path, size_t most) {
    const std::string url =
        fmt::format("{}/{}/resolve/{}/{}", settings.endpoint, plan.repo, plan.commit, url_escaped(path, "/"));
    return ask(http, settings, request, url, watch, most).body;
  };
  Marks marks{.files = all};
  const std::vector<GgufModel> ggufs = gguf_models(plan.files);
  if (!ggufs.empty()) {
    const std::string start = start_of_file(ggufs.front().path, checkpoint::kGgufStartBytes);
    marks.architecture = checkpoint::gguf_architecture(start).value_or("");
  } else {
    constexpr size_t kMostJsonBytes = size_t{64} << 20;
    const std::string index = "model.safetensors.index.json";
    const auto has = [&all](const std::string& path) { return std::ranges::find(all, path) != all.end(); };
    if (has("config.json")) marks.config = start_of_file("config.json", kMostJsonBytes);
    if (has(index)) marks.tensors = tensors_of_index(start_of_file(index, kMostJsonBytes));
  }
  if (watch.stop()) return;
  if (const auto other = other_kind(plan.repo, marks)) throw Error(other->error);
}

void want_room(const PullPlan& plan, const fs::path& cache) {
  const fs::space_info space = fs::space(cache);
  const int64_t want = plan.missing_bytes + (plan.missing_bytes > 0 ? kSpareBytes : 0);
  if (static_cast<int64_t>(space.available) >= want) return;
  throw Error(
      Code::kIo,
      "{}: want {:.1f} GB free for what is missing of {}, found {:.1f} GB. HF_HOME=FOLDER puts models elsewhere; "
      "nibble list shows what is here, nibble rm removes it",
      cache.string(), static_cast<double>(want) / 1e9, plan.repo, static_cast<double>(space.available) / 1e9);
}

// "bytes 0-99/1000" of a 206, held against what was asked for.
bool is_range(const std::string& header, int64_t from, int64_t total) {
  return header.starts_with(fmt::format("bytes {}-", from)) &&
         (header.ends_with("/*") || header.ends_with(fmt::format("/{}", total)));
}

// What several threads fetch together.
class Fetching {
 public:
  Fetching(const PullPlan& plan, const Settings& settings, std::vector<std::unique_ptr<PartialFile>> files)
      : plan_(plan), settings_(settings), files_(std::move(files)) {
    for (const auto& file : files_) {
      if (file->whole()) queue_.emplace_back(file.get(), nullptr);
      for (FilePart& part : file->parts())
        if (part.done < part.bytes) queue_.emplace_back(file.get(), &part);
    }
  }

  // False where it was stopped.
  [[nodiscard]] bool run(const PullWatch& watch) {
    std::vector<std::jthread> threads;
    running_ = kConnections;
    for (int i = 0; i < kConnections; ++i) threads.emplace_back([this] { work(); });
    Clock::time_point saved = Clock::now();
    while (running_ > 0) {
      std::this_thread::sleep_for(kTick);
      if (watch.stop()) stop_ = true;
      tell(watch);
      if (Clock::now() - saved < kSaveEvery) continue;
      save();
      saved = Clock::now();
    }
    threads.clear();
    tell(watch);
    save();
    if (error_) std::rethrow_exception(error_);
    return !stop_;
  }

 private:
  using Job = std::pair<PartialFile*, FilePart*>;

  void tell(const PullWatch& watch) {
    int64_t there = plan_.bytes;
    for (const auto& file : files_) there += file->done() - file->file().bytes;
    const bool checking = there == plan_.bytes;
    watch.progress({checking, checking ? checked_.load() : there, checking ? to_check() : plan_.bytes});
    std::vector<std::string> notes;
    {
      const std::lock_guard lock(mutex_);
      notes.swap(notes_);
    }
    for (const std::string& note : notes) watch.note(note);
  }
  [[nodiscard]] int64_t to_check() const {
    int64_t bytes = 0;
    for (const auto& file : files_) bytes += file->file().bytes;
    return bytes;
  }
  void save() {
    for (const auto& file : files_) {
      const std::lock_guard lock(mutex_);  // not beside finish(), which removes it
      if (!file->finishing) file->save();
    }
  }
  void note(std::string text) {
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(told_, text) != told_.end()) return;
    told_.push_back(text);
    notes_.push_back(std::move(text));
  }

  void work() {
    try {
      Http http(settings_, [this] { return stop_.load(); });
      while (const std::optional<Job> job = take()) {
        const auto& [file, part] = *job;
        if (part != nullptr) fetch(http, *file, *part);
        if (!stop_ && file->whole()) finish(*file);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      stop_ = true;
    }
    --running_;
  }
  std::optional<Job> take() {
    const std::lock_guard lock(mutex_);
    if (stop_ || next_ == queue_.size()) return std::nullopt;
    return queue_[next_++];
  }

  void finish(PartialFile& file) {
    {
      const std::lock_guard lock(mutex_);
      if (file.finishing.exchange(true)) return;
      file.save();
    }
    const bool done = file.finish([this](int64_t bytes) {
      checked_ += bytes;
      return !stop_.load();
    });
    if (!done) return;
    for (const RepoFile& same : plan_.files)
      if (same.digest == file.file().digest) file.link(plan_.path, same.path);
  }

  void fetch(Http& http, PartialFile& file, FilePart& part) {
    const std::string& name = file.file().path;
    Connection connection{.http = http};
    const auto is_done = [&] { return connection.streams ? file.whole() : part.done == part.bytes; };
    for (int attempt = 0; !is_done() && !stop_; ++attempt) {
      if (file.streamed && !connection.streams) return;  // another thread's
      const int64_t before = file.done();
      connection.odd.clear();
      const HttpAnswer answer = get(connection, file, part);
      if (stop_ || is_done() || (file.streamed && !connection.streams)) return;
      if (file.done() > before) attempt = 0;
      Retry retry = retry_of(answer, attempt);
      if (answer.ok() && connection.odd.empty())
        connection.odd =
            fmt::format("the answer ended early, with {} of {} bytes here", file.done(), file.file().bytes);
      if (!connection.odd.empty()) retry = {true, retry.seconds, connection.odd};
      if (!retry.worth || attempt + 1 >= (connection.odd.empty() ? kPartAttempts : kOddAttempts)) {
        if (!connection.odd.empty()) throw Error(Code::kCorrupt, "{} of {}: {}", name, plan_.repo, connection.odd);
        refuse_answer(answer, settings_, plan_.repo, name);
      }
      if (retry.seconds >= 1) note(fmt::format("{}: {}; again in {:.0f} s", name, retry.why, retry.seconds));
      if (!wait_for(retry.seconds, [this] { return stop_.load(); })) return;
    }
  }

  // What a connection has learned.
  struct Connection {
    Http& http;
    bool streams = false;  // all of the file: the server knows no ranges
    std::string odd = {};  // what is wrong with an answer that looks right
  };

  // A commit's files never change, so what came before an interruption fits what comes after it; the hash has the last
  // word.
  HttpAnswer get(Connection& connection, PartialFile& file, FilePart& part) const {
    const int64_t total = file.file().bytes, from = part.from + part.done;
    HttpRequest request{.url = fmt::format("{}/{}/resolve/{}/{}", settings_.endpoint, plan_.repo, plan_.commit,
                                           url_escaped(file.file().path, "/"))};
    if (!connection.streams) request.from = from, request.to = part.from + part.bytes - 1;
    int64_t came = 0;
    return connection.http.get(request, [&](const HttpAnswer& head, std::span<const std::byte> bytes) {
      if (stop_) return false;
      const auto size = static_cast<int64_t>(bytes.size());
      if (head.status == 206) {
        const std::string range = head.header("content-range");
        if (connection.streams || !is_range(range, from, total)) {
          connection.odd = fmt::format("want bytes {} to {} of {}, found \"{}\"", from, request.to, total, range);
          return false;
        }
        if (from + came + size > part.from + part.bytes) {
          connection.odd = "more bytes came than were asked for";
          return false;
        }
        file.write(from + came, bytes);
        came += size;
        part.have(from + came - part.from);
        return true;
      }
      if (!connection.streams && file.streamed.exchange(true)) return false;
      connection.streams = true;
      const std::string length = head.header("content-length");
      if ((!length.empty() && length != fmt::format("{}", total)) || came + size > total) {
        connection.odd =
            fmt::format("want {} bytes as the Hub lists it, found {}", total, length.empty() ? "more" : length);
        return false;
      }
      file.write(came, bytes);
      came += size;
      for (FilePart& p : file.parts()) p.have(std::clamp<int64_t>(came - p.from, 0, p.bytes));
      return true;
    });
  }

  const PullPlan& plan_;
  const Settings& settings_;
  std::vector<std::unique_ptr<PartialFile>> files_;
  std::vector<Job> queue_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> running_ = 0;
  std::atomic<int64_t> checked_ = 0;
  std::mutex mutex_;  // of what follows
  size_t next_ = 0;
  std::vector<std::string> notes_, told_;
  std::exception_ptr error_;
};

// Each blob once, however many names it has.
std::vector<std::unique_ptr<PartialFile>> blobs_of(const std::vector<RepoFile>& files, const fs::path& folder) {
  std::map<std::string, RepoFile> by_digest;  // every program locks in this order
  for (const RepoFile& file : files) by_digest.emplace(file.digest, file);
  std::vector<std::unique_ptr<PartialFile>> blobs;
  for (auto& [digest, file] : by_digest) blobs.push_back(std::make_unique<PartialFile>(folder, std::move(file)));
  return blobs;
}

bool lock(PartialFile& blob, const PullWatch& watch) {
  for (bool told = false; !blob.try_lock(); told = true) {
    if (!told) watch.note(fmt::format("{}: another program fetches it; waiting for that", blob.file().path));
    if (!wait_for(0.2, watch.stop)) return false;
  }
  return true;
}

}  // namespace

PullPlan plan_pull(const PullRequest& request, const Settings& settings, const PullWatch& watch) {
  if (settings.offline)
    throw Error(Code::kIo, "{}: HF_HUB_OFFLINE is set, so nothing is downloaded; unset it, or copy the model into {}",
                request.repo, settings.cache.string());
  PullPlan plan = list_repo(request, settings, watch);
  const fs::path folder = repo_folder(settings.cache, request.repo);
  plan.path = folder / "snapshots" / plan.commit;
  std::vector<RepoFile>& files = plan.files;
  if (watch.stop()) files.clear();
  std::vector<std::string> all;
  for (const RepoFile& file : files) all.push_back(file.path);
  std::erase_if(files, [&](const RepoFile& file) { return !is_wanted(file.path, request.include); });
  if (files.empty() && !watch.stop())
    throw Error(Code::kInvalidRequest, "{}: no file matches {}; it has {}", request.repo,
                fmt::join(request.include, ", "), fmt::join(all, ", "));
  if (request.include.empty() && !watch.stop()) choose_model(files, request, settings, watch);
  for (const auto& blob : blobs_of(plan.files, folder)) {
    plan.bytes += blob->file().bytes;
    plan.missing_bytes += blob->file().bytes - blob->bytes_on_disk();
  }
  if (plan.missing_bytes > 0 && !watch.stop()) refuse_other_kinds(plan, all, request, settings, watch);
  return plan;
}

bool pull(const PullPlan& plan, const Settings& settings, const PullWatch& watch) {
  const fs::path folder = repo_folder(settings.cache, plan.repo);
  fs::create_directories(folder / "blobs");
  want_room(plan, settings.cache);
  std::vector<std::unique_ptr<PartialFile>> blobs = blobs_of(plan.files, folder), missing;
  for (auto& blob : blobs) {
    if (!blob->is_there() && !lock(*blob, watch)) return false;
    if (!blob->is_there()) {
      blob->open();
      missing.push_back(std::move(blob));
      continue;
    }
    for (const RepoFile& file : plan.files)
      if (file.digest == blob->file().digest) blob->link(plan.path, file.path);
    blob.reset();  // and its lock
  }
  std::ranges::stable_sort(missing, {}, [](const auto& blob) { return blob->file().bytes; });
  if (!missing.empty() && !Fetching(plan, settings, std::move(missing)).run(watch)) return false;
  if (plan.revision != plan.commit) write_whole(folder / "refs" / plan.revision, plan.commit);
  return true;
}

}  // namespace nibble::hub
