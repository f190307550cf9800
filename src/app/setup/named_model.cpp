#include "app/setup/named_model.h"

#include "app/options/option.h"
#include "app/options/settings.h"
#include "app/setup/commands.h"
#include "app/setup/interrupt.h"
#include "base/error.h"
#include "hub/cache.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <system_error>
#include <utility>

namespace nibble::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOwnName = "nibble-tiny";

std::string last_part(const std::string& name) {
  const fs::path path = fs::path(name).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

// name: none for a path.
std::vector<std::string> names_of(const std::string& asked, const std::optional<hub::ModelName>& name,
                                  const std::string& repo) {
  std::vector<std::string> names;
  const auto add = [&names](const std::string& each) {
    if (!each.empty() && std::ranges::find(names, each) == names.end()) names.push_back(each);
  };
  if (!name) add(last_part(asked));  // the last part says enough
  const bool has_host = name && asked.find('/') != std::string::npos && !asked.starts_with(name->repo);
  if (has_host) add(name->text());
  add(asked);
  add(last_part(asked));
  add(repo);
  return names;
}

// nibble-tiny, next to the program.
std::optional<fs::path> own_folder() {
  for (const fs::path& folder : folders_of_program()) {
    for (const char* place : {"models", "share/nibble/models"})  // its sources'; installed
      if (!hub::models_in(folder / place / kOwnName).empty()) return folder / place / kOwnName;
  }
  return std::nullopt;
}

std::optional<hub::Snapshot> look_up(const std::string& name, const hub::Settings& settings,
                                     const std::string& revision = "") {
  std::optional<hub::Snapshot> found = hub::find_model(name, settings, revision);
  if (found || name != kOwnName) return found;
  if (const auto own = own_folder()) return hub::Snapshot{.path = *own};
  return std::nullopt;
}

// Random weights need only the name of a preset, or a model's config.json.
bool is_preset_name(const ModelOptions& options) {
  return options.load_format == LoadFormat::kDummy && options.model.find('/') == std::string::npos;
}

// A bare word that is not a model's name is not offered for download.
bool is_on_the_hub(const std::optional<hub::ModelName>& name) {
  return name && (hub::is_repo(name->repo) || name->repo.starts_with("gpt-oss-"));
}

// "; did you mean …?": of OpenAI's and of what is here a bare name for a bare one, else one of the same organisation.
// None where it is itself among these.
std::optional<std::string> near_name(const hub::ModelName& name, const hub::Settings& settings) {
  std::vector<std::string> names = {kOwnName};
  for (const char* bare : {"gpt-oss-20b", "gpt-oss-120b"}) {
    names.emplace_back(bare);
    for (const std::string& repo : hub::repos_of({.repo = bare})) names.push_back(repo);
  }
  for (const hub::Snapshot& model : hub::all_snapshots(settings.cache)) names.push_back(model.repo);
  for (const hub::Snapshot& model : hub::models_below(settings.models)) names.push_back(model.name);
  if (std::ranges::find(names, name.repo) != names.end()) return std::nullopt;
  const auto org_of = [](const std::string& each) { return each.substr(0, each.rfind('/') + 1); };
  std::erase_if(names, [&](const std::string& each) { return org_of(each) != org_of(name.repo); });
  return suggestion(name.repo, names);
}

// What an absent model can be had by.
std::string help_for(const hub::ModelName& name, const hub::Settings& settings, const std::string& revision) {
  const std::optional<std::string> near = near_name(name, settings);
  if (near && !near->empty()) return near->substr(2);
  if (!is_on_the_hub(name)) return "nibble list shows what is here, and nibble pull openai/gpt-oss-20b gets a model";
  const std::string repo = hub::repos_of(name).front();
  const std::string pull = "nibble pull " + hub::ModelName{.repo = repo, .which = name.which}.text() + revision;
  std::string plain = hub::upper(name.repo);
  std::erase_if(plain, [](char c) { return c == '-' || c == '_'; });
  return !near || plain.find("GPTOSS") != std::string::npos
             ? pull + " gets it"
             : fmt::format("only gpt-oss models run here; {} looks first whether it is one", pull);
}

// The revision that the name and the flag say.
std::string revision_of(const std::string& flag, const std::string& usual, const std::optional<hub::ModelName>& name) {
  if (!name || name->revision.empty() || name->revision == flag) return flag;
  if (flag == usual) return name->revision;
  throw Error(Code::kInvalidRequest, "--revision {}: the model's address says {}", flag, name->revision);
}

// Whether the model is here now.
bool gets(hub::PullRequest request, const ModelOptions& options, Terminal& terminal) {
  const bool asks = options.when_absent == WhenAbsent::kOffer && terminal.can_ask() && !options.hub.offline;
  if (!asks && options.when_absent != WhenAbsent::kPull) return false;
  if (request.revision.empty()) request.revision = "main";
  return pull_model(request, options.hub, terminal, asks).has_value();
}

}  // namespace

std::optional<hub::ModelName> parsed(const std::string& asked, const hub::Settings& settings) {
  auto name = hub::parse_name(asked, settings.endpoint);
  if (name || asked.find("://") == std::string::npos) return name;
  throw Error(Code::kInvalidRequest, "want a model of the Hub as https://huggingface.co/ORG/REPO, found {}", asked);
}

std::vector<fs::path> folders_of_program() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  std::vector<fs::path> folders;
  for (fs::path folder = program.parent_path(); !error && folder.has_relative_path(); folder = folder.parent_path())
    folders.push_back(folder);
  return folders;
}

NamedModel own_model() {
  if (const auto own = own_folder()) return {own->string(), {kOwnName}};
  throw Error(Code::kIo, "want a model as the first word: nibble-tiny is not beside the program");
}

NamedModel find_named(const ModelOptions& options, Terminal& terminal) {
  const std::string& asked = options.model;
  if (asked.empty()) {
    throw Error(Code::kInvalidRequest,
                "want a model as --model or as the first word: a directory, a .gguf file or a name such as "
                "openai/gpt-oss-20b; found none");
  }
  std::error_code ignored;
  const auto name = fs::exists(asked, ignored) ? std::nullopt : parsed(asked, options.hub);
  if (!options.revision.empty() && !is_on_the_hub(name))
    throw Error(Code::kInvalidRequest, "--revision: want a model of the Hub by its name, found {} as the model", asked);
  if (is_preset_name(options)) return {asked, names_of(asked, name, "")};
  const std::string revision = revision_of(options.revision, "", name);
  std::optional<hub::Snapshot> found = look_up(asked, options.hub, revision);
  const bool wants_weights = options.load_format != LoadFormat::kDummy;
  if (!found && !wants_weights && asked.starts_with("openai/gpt-oss-"))  // a preset by its full name
    return {last_part(asked), names_of(asked, name, "")};
  const bool in_part = found && !found->lacks.empty() && wants_weights && !found->repo.empty();
  const bool absent = !found && is_on_the_hub(name);
  if (in_part || absent) {
    const std::string repo = in_part ? found->repo : hub::repos_of(*name).front();
    if (gets({.repo = repo, .revision = revision, .which = in_part ? found->gguf.which : name->which}, options,
             terminal))
      found = hub::find_model(asked, options.hub, revision);
  }
  if (found && !found->choice.empty()) terminal.note(fmt::format("{}: {}", asked, found->choice));
  // Whoever opens what is not of the Hub reports what it lacks.
  if (found && (found->lacks.empty() || !wants_weights || found->repo.empty()))
    return {found->path.string(), names_of(asked, name, found->repo)};
  const std::string flag = revision.empty() ? "" : " --revision " + revision;
  if (found) {
    throw Error(Code::kIo, "{} is here only in part: {} lacks {}. nibble pull {}{} gets the rest", asked,
                found->path.string(), found->lacks, found->name, flag);
  }
  if (!name) return {asked, names_of(asked, name, "")};
  const std::string help = help_for(*name, options.hub, flag);
  if (!flag.empty()) {
    throw Error(Code::kIo, "there is no model {} of revision {} in {}. {}", asked, revision, options.hub.cache.string(),
                help);
  }
  throw Error(Code::kIo, "there is no model {} on this machine; looked in {}. {}", asked,
              fmt::join(hub::places_for(asked, options.hub), ", "), help);
}

void find_draft(ModelOptions& options, Terminal& terminal) {
  if (options.speculation.method == engine::DraftMethod::kDraft && !options.speculative_model.empty())
    options.speculative_model = find_named(draft_options(options), terminal).path;
}

ModelOptions with_files(ModelOptions options, Terminal& terminal) {
  for (const std::string& note : options.settings.notes) terminal.note(note);
  const NamedModel named = find_named(options, terminal);
  options.name = last_part(named.names.front());
  options.model = named.path;
  note_resolved(options.settings, "--model", named.path);
  find_draft(options, terminal);
  return options;
}

fs::path path_of(const fs::path& name, const hub::Settings& settings) {
  const auto found = look_up(name.string(), settings);
  return found ? found->path : name;
}

namespace {

using Clock = std::chrono::steady_clock;

std::string size_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

// The speed over the last seconds.
class Rate {
 public:
  double of(int64_t bytes) {
    const auto now = Clock::now();
    seen_.emplace_back(now, bytes);
    while (seen_.size() > 2 && now - seen_.front().first > std::chrono::seconds(10)) seen_.pop_front();
    const double seconds = std::chrono::duration<double>(now - seen_.front().first).count();
    return seconds < 0.2 ? 0 : static_cast<double>(bytes - seen_.front().second) / seconds;
  }

 private:
  std::deque<std::pair<Clock::time_point, int64_t>> seen_;
};

hub::PullWatch watch_of(Terminal& terminal, const Interrupt& interrupt, Rate& rate) {
  const auto show = [&terminal, &rate](const hub::PullProgress& p) {
    const double share = static_cast<double>(p.done_bytes) / static_cast<double>(std::max<int64_t>(p.total_bytes, 1));
    if (p.checking) return terminal.progress("checking", share, "");
    const double speed = rate.of(p.done_bytes);
    std::string detail = fmt::format("{} of {}", size_text(p.done_bytes), size_text(p.total_bytes));
    if (speed > 0)
      detail += fmt::format(", {}/s, {} left", format_bytes(speed),
                            duration_text(static_cast<double>(p.total_bytes - p.done_bytes) / speed));
    terminal.progress("pulling", share, detail);
  };
  return {.progress = show,
          .note = [&terminal](const std::string& note) { terminal.note(note); },
          .stop = [&interrupt] { return interrupt.requested(); }};
}

}  // namespace

std::optional<hub::PullPlan> pull_model(hub::PullRequest request, const hub::Settings& settings, Terminal& terminal,
                                        bool ask) {
  request.hint = near_name({.repo = request.repo}, settings).value_or("");
  Rate rate;
  const auto plan = [&] {
    const Interrupt interrupt(kEndings);
    terminal.progress("asking " + settings.endpoint, 0, "");
    hub::PullPlan found = hub::plan_pull(request, settings, watch_of(terminal, interrupt, rate));
    interrupt.throw_if_requested();
    terminal.end_progress();
    return found;
  }();
  const std::string missing = plan.missing_bytes == plan.bytes
                                  ? size_text(plan.bytes)
                                  : fmt::format("{} of {}", size_text(plan.missing_bytes), size_text(plan.bytes));
  const std::string what = fmt::format("{} from {} to {}", missing, settings.endpoint, settings.cache.string());
  if (ask && !terminal.ask(fmt::format("{} is not on this machine. Pull it, {}?", request.repo, what)))
    return std::nullopt;
  if (plan.missing_bytes > 0) terminal.note(fmt::format("pulling {}: {}", request.repo, what));
  const auto start = Clock::now();
  const Interrupt interrupt(kEndings);
  const bool done = hub::pull(plan, settings, watch_of(terminal, interrupt, rate));
  terminal.end_progress();
  if (!done) {
    terminal.note(fmt::format("stopped; nibble pull {} goes on from here", request.repo));
    throw Interrupted();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  terminal.note(plan.missing_bytes > 0
                    ? fmt::format("{}: {} in {}, checked: {}", request.repo, size_text(plan.missing_bytes),
                                  duration_text(seconds), plan.path.string())
                    : fmt::format("{} is here: {}", request.repo, plan.path.string()));
  return plan;
}

int execute(const PullOptions& options) {
  Terminal terminal(options.output);
  const auto name = parsed(options.model, options.hub);
  if (!name) {
    throw Error(Code::kInvalidRequest, "want a model of the Hub, ORG/NAME such as openai/gpt-oss-20b; found {}",
                options.model);
  }
  if (!name->which.empty() && !options.include.empty())
    throw Error(Code::kInvalidRequest, "--include: {} says which file already; want one of the two", options.model);
  const auto plan = pull_model({.repo = hub::repos_of(*name).front(),
                                .revision = revision_of(options.revision, PullOptions().revision, name),
                                .include = options.include,
                                .which = name->which},
                               options.hub, terminal);
  check(plan.has_value(), "nobody was asked");
  if (!options.output.json) return kExitOk;
  nlohmann::ordered_json json = {{"model", plan->repo},
                                 {"revision", plan->revision},
                                 {"commit", plan->commit},
                                 {"path", plan->path.string()},
                                 {"bytes", plan->bytes},
                                 {"pulled_bytes", plan->missing_bytes},
                                 {"files", nlohmann::json::array()}};
  for (const hub::RepoFile& file : plan->files) json["files"].push_back(file.path);
  terminal.print_json(json);
  return kExitOk;
}

}  // namespace nibble::app
